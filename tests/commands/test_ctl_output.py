"""What iswitch ctl shows to people, and what it says where nobody answers."""

from __future__ import annotations

import json
import re
import shlex
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from iswitch.cli import main
from iswitch.cli.ctl import COMMANDS
from iswitch.core.format.wire import (
    FLAG_NEW,
    NO_RANK,
    UNRANKED,
    Ack,
    AckJob,
    Action,
    Control,
    JobState,
    Join,
    MemberType,
    Present,
    Segments,
    Status,
    Threshold,
)
from iswitch.lab.control import words
from iswitch.lab.control.words import member
from tests.commands.test_ctl import PATIENCE, ctl, workers
from tests.conftest import StartSwitch, Where
from tests.support import ROOT
from worker_lib import SwitchUnreachable, Worker
from worker_lib.command_errors import CommandRefused
from worker_lib.controller import Controller

__all__ = ["ctl", "workers"]  # fixtures


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("status", "job J: H = 1, round 0, 1 worker\n  memory: 9 KiB\n  rank 0 (AT)"),
        ("join", "job J can be joined: H = 1, round 0, 1 worker"),
        ("seth 1", "job J: H = 1 (set)"),
        (
            "seth 5",
            "job J: H = 5 (set); with 1 worker, nothing completes in a synchronous job until 5 "
            "are there",
        ),
        ("seth 0", "job J: H = 1 (automatic: every worker)"),
        ("help 0 1", "job J, round 0, segment 1: missing from rank 0 (AT)"),
        ("help current 1", "job J, round 0, segment 1: missing from rank 0 (AT)"),
        ("help 1 1", "job J, round 1, segment 1: missing from rank 0 (AT)"),
        ("help 9 0 2", "job J, round 9, segments 0-1: not begun; the job is at round 0"),
        ("fbcast 9 0", "job J, round 9, segment 0: not begun; the job is at round 0"),
        ("fbcast 0 0 3", "job J, round 0, segments 0-2: nothing to force"),
        ("halt", "job J is halted at round 0; `iswitch ctl reset` resumes it"),
        (
            "reset",
            "job J was reset and goes on from round 2; what was under way is void (JobReset)",
        ),
    ],
)
def test_lines(
    words: str,
    line: str,
    switch: Where,
    job: int,
    workers: Callable[[int], list[Worker]],
    capsys: pytest.CaptureFixture[str],
) -> None:
    (worker,) = workers(1)
    options = ["--switch", "{}:{}".format(*switch), "--job", str(job)]
    assert main(["ctl", *words.split(), *options]) == 0
    line = line.replace("job J", f"job {job}").replace("AT", "{}:{}")
    where = worker._port.socket.getsockname()
    assert capsys.readouterr().out == line.format(*where) + "\n"


@pytest.mark.parametrize(
    ("silent", "rank", "text"),
    [
        (0, 3, "rank 3 (node4, 10.0.0.4:40003)"),
        (6_000, 3, "rank 3 (node4, 10.0.0.4:40003)"),
        (6_501, UNRANKED, "a worker without a rank (node4, 10.0.0.4:40003): silent for 7 s, lost "
                          "after 12.5 s"),
        (12_500, 3, "rank 3 (node4, 10.0.0.4:40003): lost, silent for 12 s"),
        (9_000, NO_RANK, "a switch (node4, 10.0.0.4:40003): silent for 9 s, lost after 12.5 s"),
    ],
)  # fmt: skip
def test_silent_members_are_marked(silent: int, rank: int, text: str) -> None:
    """As soon as two heartbeats are missing, which living workers send every three seconds."""
    there = Present("10.0.0.4", 40003, rank, silent)
    assert member(there, 12.5, {"10.0.0.4": "node4"}) == text


@pytest.mark.parametrize(
    ("expected", "there", "threshold", "state", "text"),
    [
        (0, 2, 2, JobState.RUNNING, "2 workers"),
        (4, 3, 3, JobState.GATHERING, "3 of 4 workers; nothing completes until all 4 have joined"),
        (4, 3, 3, JobState.RUNNING, "3 of 4 workers"),  # a worker has left, the others go on
        (4, 3, 4, JobState.RUNNING, "3 of 4 workers; nothing completes until 4 workers are there"),
        (4, 4, 4, JobState.AWAITING_RESET, "4 workers; nothing completes until the switch above "
                                           "names the round in which all resume"),
        (4, 3, 4, JobState.HALTED, "3 of 4 workers; halted: `iswitch ctl reset` resumes it"),
    ],
)  # fmt: skip
def test_what_a_job_waits_for(
    expected: int, there: int, threshold: int, state: JobState, text: str
) -> None:
    job = AckJob(Action.SHOW, 0, 7, threshold, 12, there, expected, 30_000, state)
    assert words.state(job) == f"H = {threshold}, round 12, {text}"


@pytest.mark.parametrize(("threshold", "text"), [(0, "H = all"), (5, "H = 5")])
def test_a_job_without_workers_has_a_next_round(threshold: int, text: str) -> None:
    job = AckJob(Action.SHOW, 0, 7, threshold, 12, 0, 0, 30_000, JobState.DORMANT)
    assert words.state(job) == f"{text}, next round 12, no workers"


def test_documented_actions(
    switch: Where, job: int, workers: Callable[[int], list[Worker]]
) -> None:
    """The examples of docs/switch.md, in its order; every action is there."""
    workers(4)
    table = (ROOT / "docs" / "switch.md").read_text()
    examples = re.findall(r"^\| `(\w+).*\| `iswitch (ctl .*)` \|$", table, re.MULTILINE)
    orders = {"drain", "evict"}  # at another socket: tests/commands/test_orders.py
    assert {action for action, _ in examples} == {*COMMANDS, *orders}
    examples = [one for one in examples if one[0] not in orders]
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    for action, example in examples:
        words = example.replace("--job 7", f"--job {job}").replace("40000", port).split()
        assert words[1] == action
        assert main([*words, "--switch", "{}:{}".format(*switch)]) == 0, example


def test_stay_prints_how_to_leave(
    switch: Where, job: int, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--switch", "{}:{}".format(*switch), "--job", str(job)]
    assert main(["ctl", "join", "--stay", *options]) == 0
    advice = capsys.readouterr().out.splitlines()[1]
    assert "no heartbeats" in advice
    command = advice.partition("iswitch ")[2].split()
    assert main(command) == 0
    assert capsys.readouterr().out == f"left job {job}\n"


def test_refusal_and_no_switch_go_to_stderr(
    switch: Where, job: int, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["ctl", "help", "0", "0", "--job", str(job)]
    assert main([*command, "--switch", "{}:{}".format(*switch)]) == 1
    printed = capsys.readouterr()
    assert not printed.out
    assert printed.err.startswith(f"iswitch ctl: HELP refused in job {job}: ")


def test_as_a_process(switch: Where, job: int) -> None:
    command = [sys.executable, "-m", "iswitch", "ctl", "status", "--job", str(job)]
    where = ["--switch", "{}:{}".format(*switch)]
    done = subprocess.run([*command, *where], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    at = "{}:{}".format(*switch)
    assert done.stderr == (
        f"iswitch ctl: there is no job {job} at the switch at {at}; `iswitch ctl jobs --switch "
        f"{at}` lists those that are\n"
    )


def test_a_keyed_job_that_is_not_there_is_looked_for_with_its_key(
    start_switch: StartSwitch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without a job and its key the switch refuses to list jobs."""
    keys, key = tmp_path / "keys.toml", tmp_path / "key"
    for path, text in ((keys, '7 = "of seven"\ndefault = "of all"\n'), (key, "of seven")):
        path.touch(0o600)
        path.write_text(text)
    at = "{}:{}".format(*start_switch("127.0.0.1:0", "--keys", str(keys))[1])
    with_key = ["--key-file", str(key)]
    assert main(["ctl", "status", "--job", "7", "--switch", at, *with_key]) == 1
    advice = capsys.readouterr().err
    assert advice.endswith(" with this key lists those that have it\n")
    assert main([*shlex.split(advice.split("`")[1])[1:], *with_key]) == 0
    assert capsys.readouterr().out.startswith("0 jobs with this key")


@pytest.mark.parametrize(
    "words",
    [
        "status",
        "--job 1",
        "status --job 65536",
        "status --job x",
        "seth -1 --job 1",
        "seth 4294967296 --job 1",
        "fbcast 0 --job 1",
        "fbcast last 0 --job 1",
        "fbcast 0 0 0 --job 1",
        "leave --job 1",
        "leave --bind 127.0.0.1:0 --job 1",
        "status --switch 127.0.0.1:0 --job 1",
        "status --timeout 0 --job 1",
        "status --bind 203.0.113.1:5 --job 1",
        "dance --job 1",
    ],
)
def test_usage(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        exit_status: object = main(["ctl", *words.split()])
    except SystemExit as stopped:
        exit_status = stopped.code
    assert exit_status == 2
    assert "iswitch ctl" in capsys.readouterr().err


def test_a_round_that_is_none_names_both_forms(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["ctl", "help", "foo", "0", "--job", "1"])
    err = capsys.readouterr().err
    assert "'foo' is not a whole number from 0 to 4294967295, nor `current`" in err


@pytest.mark.parametrize("deaf", [True, False])
def test_no_switch(deaf: bool, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as silent:
        silent.bind(("127.0.0.1", 0))
        where = "{}:{}".format(*silent.getsockname())
        if not deaf:
            silent.close()
        command = ["ctl", "status", "--job", "1", "--switch", where, "--timeout", "0.2"]
        assert main(command) == 1
        printed = capsys.readouterr()
        assert f"no answer from a switch at {where} within 0.2 s" in printed.err
        assert f"iswitch switch --listen {where}" in printed.err
        assert ("nothing was heard" if deaf else "the connection was refused") in printed.err
        assert main([*command, "--json"]) == 1
        answer = json.loads(capsys.readouterr().out)
        assert answer["status"] == "NO_ANSWER"


def test_no_jobs_below_a_switch_that_may_be_silent(
    start_switch: StartSwitch, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as silent:
        silent.bind(("127.0.0.1", 0))
        above = "{}:{}".format(*silent.getsockname())
        _, where = start_switch("127.0.0.1:0", "--parent", above)
        assert main(["ctl", "jobs", "--switch", "{}:{}".format(*where)]) == 0
    assert "a job is here once the switch above has taken it in" in capsys.readouterr().out


class OddSwitch(threading.Thread):
    """Loses the first copies of every request; then answers twice, amid things to ignore."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.status: int = Status.OK
        self.losses = 2
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.socket.bind(("127.0.0.1", 0))
        self.socket.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, 0x0C)
        self.seen: list[Control] = []
        self.start()

    def run(self) -> None:
        while True:
            payload, peer = self.socket.recvfrom(2048)
            if not payload:
                return
            packet = Control.parse(payload)
            self.seen.append(packet)
            if self.seen.count(packet) <= self.losses:
                continue
            ack = Ack(packet.action, rank=5, threshold=4, round=3, contributors=2)
            answer = Control(Action.ACK, packet.job, packet.request, ack, self.status)
            good = answer.build()
            wrong = [
                b"",
                b"junk",
                b"\xff" * 40,
                good[:-1],
                Control(Action.HALT, packet.job, packet.request).build(),
                answer._replace(request=packet.request - 1).build(),
                answer._replace(job=packet.job + 1).build(),
                answer._replace(value=Ack(Action.ACK)).build(),
            ]
            if packet.action is Action.JOIN:  # to a process before, which began in this second
                wrong.append(answer._replace(value=replace(ack, known=1, rank=6)).build())
            for datagram in [*wrong, good, good]:
                self.socket.sendto(datagram, peer)
            self.socket.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, 0x1C)
            self.socket.sendto(good, peer)  # data, whatever it looks like
            self.socket.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, 0x0C)

    def stop(self) -> None:
        self.socket.sendto(b"", self.socket.getsockname())
        self.join(PATIENCE)
        self.socket.close()


@pytest.fixture
def odd() -> Iterator[OddSwitch]:
    switch = OddSwitch()
    yield switch
    switch.stop()


def test_repeats_until_answered(odd: OddSwitch) -> None:
    with Controller(odd.socket.getsockname(), 7, timeout=PATIENCE) as controller:
        with controller.membership() as joined:
            assert joined == Ack(Action.JOIN, 0, 5, 4, 3, 2)
            assert controller.request(Action.SETH, Threshold(9)).threshold == 4
        controller.request(Action.HELP, Segments(1, 2, 3))
    numbers = [packet.request for packet in odd.seen]
    first = numbers[0]
    # Who has left and asks again is a new process: its number is above that of the Leave.
    assert numbers == [first + k for k in (0, 1, 2, 4) for _ in range(3)]
    actions = [packet.action for packet in odd.seen[::3]]
    assert actions == [Action.JOIN, Action.SETH, Action.LEAVE, Action.HELP]
    assert odd.seen[0].value == Join(MemberType.CONTROLLER, flags=FLAG_NEW)


@pytest.mark.parametrize("status", [*list(Status)[1:], 99])
def test_every_refusal_has_a_mend(odd: OddSwitch, status: int) -> None:
    odd.status, odd.losses = status, 0
    with Controller(odd.socket.getsockname(), 7, timeout=PATIENCE) as controller:
        with pytest.raises(CommandRefused, match=r"refused in job 7: .*[;(]") as raised:
            controller.join()
        assert raised.value.status == (status if status != 99 else Status.BAD_REQUEST)
        assert raised.value.ack.round == 3
        with pytest.raises(CommandRefused, match=r"refused in job 7: .*[;(]"):
            controller.request(Action.RESET)


def test_leaves_after_an_error(odd: OddSwitch) -> None:
    controller = Controller(odd.socket.getsockname(), 7, timeout=PATIENCE)
    with controller, pytest.raises(KeyError), controller.membership():
        raise KeyError
    assert odd.seen[-1].action is Action.LEAVE


def test_times_out_between_repeats(odd: OddSwitch) -> None:
    controller = Controller(odd.socket.getsockname(), 7, timeout=0.04)
    with controller, pytest.raises(SwitchUnreachable):
        controller.join()  # a single copy is sent in this time
    assert len(odd.seen) <= 1


def test_job_numbers_are_16_bits() -> None:
    with pytest.raises(ValueError, match="65536"):
        Controller(("127.0.0.1", 1), 65536)
