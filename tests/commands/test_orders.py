"""`iswitch ctl drain` and `evict` at a real switch: what operators and workers are told."""

from __future__ import annotations

import json
from argparse import Namespace
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from unittest.mock import Mock

import numpy as np
import pytest

from iswitch.cli import main
from iswitch.lab.control import ordering
from iswitch.outside import UsageError
from iswitch.watch.orders import Orders
from iswitch.watch.reader import found
from tests.conftest import StartSwitch
from worker_lib import Refused, Worker

NUMEL = 50_000  # 200 kB


def test_an_operator_drains_a_switch_and_ends_its_jobs(
    start_switch: StartSwitch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = tmp_path / "s1.sock"
    words = ["--watch", str(place), "--policy", "lanes:fifo", "--memory", "1", "--quota", "7=0.1"]
    _, where = start_switch("127.0.0.1:0", *words, "--priority", "1=3")
    ones = np.ones(NUMEL, np.float32)

    def tell(*order: str) -> str:
        capsys.readouterr()
        assert main(["ctl", *order]) == 0
        return capsys.readouterr().out

    with pytest.raises(Refused, match="of the 103 KiB that this job may have"):
        Worker(where, 7, NUMEL, 1)
    with Worker(where, 1, NUMEL, 1) as worker:
        assert worker.allreduce(ones).all()
        assert tell("drain", str(place), "--move-to", "127.0.0.2:26963") == (
            "s1: takes no new jobs; workers are sent to 127.0.0.2:26963\n"
        )
        at = "{}:{}".format(*where)
        told = tell("queue", "--switch", at)
        assert "the switch is drained: it takes no new jobs" in told
        assert "job 1: H = 1, round 0, 1 worker, priority 3" in told
        with pytest.raises(Refused, match=r"takes no new jobs; use the switch at 127\.0\.0\.2"):
            Worker(where, 2, NUMEL, 1)
        assert main(["top", str(place), "--once"]) == 0
        assert "DRAINED no new jobs are taken, as its operator ordered" in capsys.readouterr().out
        assert worker.allreduce(ones).all()  # it goes on
        assert json.loads(tell("evict", "--job", "1", str(place), "--json"))["switches"] == {
            "s1": {"waiting": [], "ending": [1]}
        }
        with pytest.raises(Refused, match=r"^job 1 has ended: the operator has ended") as error:
            worker.allreduce(ones)
        assert error.value.elsewhere is None
    assert main(["ctl", "drain", str(place), "--move-to", at]) == 2
    assert f"--move-to {at} is switch s1 itself" in capsys.readouterr().err
    assert main(["ctl", "evict", "--job", "1", str(place)]) == 1
    gone = "job 1 has no workers any more; the switch forgets it by itself\n"
    assert capsys.readouterr().out == f"s1: {gone}"
    assert main(["ctl", "evict", "--job", "1", str(place), "--json"]) == 1
    assert capsys.readouterr().err == f"iswitch ctl: switch s1: {gone}"
    assert main(["ctl", "evict", "--job", "9", str(place)]) == 1
    assert capsys.readouterr().out == "s1: has no job 9 with workers\n"
    assert tell("drain", str(place), "--end") == "s1: takes new jobs\n"
    with Worker(where, 1, NUMEL, 1) as worker:
        assert worker.allreduce(ones).all()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("drain {} --end --evict", "--end takes jobs again; leave --evict and --move-to out"),
        ("drain {} --move-to h1:5", "--move-to h1: members are told an address, not a name"),
        ("drain {} --move-to 127.0.0.1:0", "--move-to needs the port at which the switch"),
        ("drain {} --name s2", "there is no switch 's2'; there are s1"),
        ("evict --job 1 {}/none", "none does not exist"),
    ],
)
def test_wrong_orders(
    words: str, said: str, start_switch: StartSwitch, tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    place = tmp_path / "s1.sock"
    if "s2" in words:
        start_switch("127.0.0.1:0", "--watch", str(place))
    else:
        place.touch()
    assert main(["ctl", *words.format(place).split()]) == 2
    assert said in capsys.readouterr().err


def test_an_order_is_answered_once_it_is_carried_out() -> None:
    """So what a program sends after the answer finds the switch drained, or the job ended."""
    calls: SimpleQueue[Callable[[], None]] = SimpleQueue()
    record = Mock(orders=deque(), jobs={})
    record.policy.queue.return_value = [4]
    text = json.dumps({"drain": True, "jobs": [], "to": None, "grace": 0})
    with ThreadPoolExecutor() as pool:
        answer = pool.submit(Orders(Mock(call=calls.put), record).give, text.encode())
        calls.get(timeout=5)()
        assert len(record.orders) == 1
        then = calls.get(timeout=5)  # the engine calls this in its next turn
        assert not answer.done()
        then()
        assert json.loads(answer.result() or "") == {"waiting": [4], "ending": []}


def test_a_job_that_waits_is_not_ended() -> None:
    record = Mock(orders=deque(), jobs={})
    record.policy.queue.return_value = [4, 2]
    engine = Mock(call=lambda take: take())
    order = {"drain": None, "jobs": [2], "to": None, "grace": 0}
    told = json.loads(Orders(engine, record).give(json.dumps(order).encode()) or "")
    assert told == {"waiting": [2], "ending": []}
    assert ordering.words(Namespace(action="evict", job=2, name=None, move_to=None), told) == (
        "job 2 only waits for memory; nothing of it is here to end"
    )
    drain = Namespace(action="drain", end=False, evict=False, name=None, move_to=None)
    for waiting, said in (([2], "job 2 no longer waits"), ([4, 2], "jobs 4, 2 no longer wait")):
        told = {"waiting": waiting, "ending": []}
        assert ordering.words(drain, told) == f"takes no new jobs; {said}"


def test_an_order_to_one_switch_of_a_tree_says_who_is_not_told() -> None:
    told = {"waiting": [], "ending": [1]}
    evict = Namespace(action="evict", job=1, name="tor1", move_to=("10.0.0.9", 7))
    assert ordering.words(evict, told, above="core1") == (
        "ends job 1, of which only members below tor1 are told (leave --name out to tell all); "
        "workers are sent to 10.0.0.9:7"
    )
    assert ordering.words(evict, told) == "ends job 1; workers are sent to 10.0.0.9:7"
    nobody: dict[str, list[int]] = {"waiting": [], "ending": []}
    assert ordering.words(evict, nobody, above="core1") == "has no job 1 with workers"


def test_an_order_to_a_file_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = tmp_path / "s1.sock"
    place.touch()
    assert main(["ctl", "drain", str(place)]) == 2
    assert f"{place} is not a socket" in capsys.readouterr().err


def test_a_capture_is_played_with_another_option(tmp_path: Path) -> None:
    capture, missing = tmp_path / "s1.cap", tmp_path / "s1.pcapng"
    capture.touch()
    for place, what in ((capture, "is not a socket"), (missing, "does not exist")):
        with pytest.raises(UsageError) as caught:
            found(str(place))
        assert str(caught.value) == (
            f"{place} {what}; name the socket of a switch with --watch, or play a capture with "
            "`iswitch web --trace FILE`"
        )
    with pytest.raises(UsageError, match=r"with --watch$"):
        found(str(tmp_path / "s1.sock"))


def test_an_order_to_nobody_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ctl", "drain", str(tmp_path)]) == 2
    assert f"no switch can be watched in {tmp_path}; name its socket" in capsys.readouterr().err


@pytest.mark.parametrize("option", ["--quota", "--priority"])
def test_grants_for_a_user_without_a_key_are_refused(
    option: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A misspelt name would limit nobody, without a word."""
    keys = tmp_path / "keys.toml"
    keys.write_text('[ada]\n7 = "a key"\n')
    keys.chmod(0o600)
    words = ["switch", "--listen", "127.0.0.1:0", "--keys", str(keys), option, "bob=4"]
    assert main(words) == 2
    assert f"{option} bob=...: --keys names no such user; write [bob]" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--quota 7=2 --quota 7=3", "--quota 7=... is given twice; say it once"),
        ("--quota 2 --quota 7=3 --quota 3", "--quota is given twice; say it once"),
        ("--priority 7=2 --priority 7=2", "--priority 7=... is given twice"),
    ],
)
def test_grants_are_given_once(words: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["switch", "--listen", "127.0.0.1:0", *words.split()]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("words", ["--quota =4", "--quota ada=", "--priority 3", "--priority 1=8"])
def test_wrong_grants(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["switch", *words.split()])
    assert end.value.code == 2
    assert "iswitch switch: error: argument --" in capsys.readouterr().err


@pytest.mark.parametrize(
    "wrong",
    [
        '{"to": ["1.2.3.4.5", 5]}', '{"to": ["1.2.3.4", -5]}', '{"to": ["1.2.3.4", 70000]}',
        '{"to": ["1.2.3.4"]}', '{"to": ["1.2.3.4", Infinity]}', '{"jobs": "12"}',
        '{"jobs": [Infinity]}', '{"drain": "false"}', '{"grace": NaN}', '{"grace": -1}',
        '{"grace": ' + 400 * "9" + "}",
    ],
)  # fmt: skip
def test_damaged_orders_are_refused(wrong: str) -> None:
    """Before the switch sees them: it would send what they say to members."""
    whole = {"drain": None, "jobs": [1], "to": None, "grace": 1.0}
    _refused(json.dumps(whole | json.loads(wrong)).encode())


@pytest.mark.parametrize(
    "text", [b"{}", b'{"drain"', b"{\xff", b'{"drain": ' + 4000 * b"["], ids=range(4)
)
def test_what_is_no_order_is_refused(text: bytes) -> None:
    _refused(text)


def _refused(text: bytes) -> None:
    engine = Mock()
    answer = Orders(engine, Mock()).give(text)
    assert answer is not None
    assert json.loads(answer)["error"].startswith("no order of this version: ")
    engine.call.assert_not_called()
