"""How workers find one another: what rank 0 collects, and what it says of those who lack."""

from __future__ import annotations

import os
import socket
import threading
import time
from contextlib import ExitStack, closing, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.support import python
from tests.support.groups import group
from tests.support.ranks import free_port
from worker_lib import WorkerError
from worker_lib.strategies.errors import PeerSilent, RendezvousError
from worker_lib.strategies.messages import GUESTS, HEAD, MAGIC, greeted
from worker_lib.strategies.rendezvous import Meeting, Rendezvous, meet
from worker_lib.strategies.tcp import accept, connect

PATIENCE = 30.0


def tell_often() -> list[Meeting]:
    """At the same port, one after the other, at once."""
    rank = int(os.environ["RANK"])

    def told(i: int, here: Any) -> list[Any]:
        return [here, i, rank]

    return [meet("a test", partial(told, i), PATIENCE) for i in range(20)]


def test_all_learn_what_each_tells_again_and_again() -> None:
    for rank, meetings in enumerate(group(tell_often, 4)):
        for turn, found in enumerate(meetings):
            told = [["127.0.0.1", turn, number] for number in range(4)]
            assert found == Meeting(rank, 4, told)


def complaint(name: str, absent: list[int], timeout: float = 0.5) -> str:
    """What a rank is told, that comes or does not."""
    rank = int(os.environ["RANK"])
    if rank in absent:
        return ""
    began = time.monotonic()
    with pytest.raises(RendezvousError) as caught:
        meet(name.format(rank), lambda here: here, timeout)
    assert time.monotonic() - began < timeout + 5
    assert isinstance(caught.value, WorkerError)
    return str(caught.value)


@pytest.mark.parametrize(("absent", "named"), [([2], "rank 2 "), ([1, 3], "ranks 1, 3 ")])
def test_all_who_came_are_told_who_did_not(absent: list[int], named: str) -> None:
    told = group(complaint, 4, "a test", absent)
    for rank in set(range(4)) - set(absent):
        assert told[rank].startswith(named + "did not come to 127.0.0.1:")
        assert "MASTER_ADDR and MASTER_PORT" in told[rank]


def test_the_others_name_rank_0() -> None:
    _, *told = group(complaint, 3, "a test", [0])
    assert all(text.startswith("rank 0 did not come to 127.0.0.1:") for text in told)


def test_groups_that_differ_say_so() -> None:
    told = group(complaint, 2, "group {}", [], PATIENCE)
    assert told == ["rank 1 wants group 1, and rank 0 group 0; mend one"] * 2


def place(monkeypatch: pytest.MonkeyPatch, **changed: str) -> None:
    variables = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}
    for name, value in (variables | {"MASTER_PORT": str(free_port())} | changed).items():
        monkeypatch.setenv(name, value)


def test_two_of_a_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    place(monkeypatch)
    address = ("127.0.0.1", int(os.environ["MASTER_PORT"]))
    told: list[Any] = []

    def impostor() -> None:
        word = {"rank": 0, "group": "a test", "told": 0}
        with pytest.raises(RendezvousError) as caught:
            Rendezvous(1, 2, address).ask(word, PATIENCE)
        told.append(str(caught.value))

    thread = threading.Thread(target=impostor)
    thread.start()
    with pytest.raises(RendezvousError, match="two processes have RANK 0; every one needs"):
        meet("a test", lambda here: here, PATIENCE)
    thread.join()
    assert told == ["two processes have RANK 0; every one needs its own"]


def spoken(message: bytes, magic: bytes = MAGIC) -> bytes:
    return HEAD.pack(magic, len(message)) + message


STRANGER = b'{"rank": 7, "group": "zzz", "told": 0}'


@pytest.mark.parametrize(
    "speech",
    [
        b"",
        b"GET / HTTP/1.1\r\n\r\n",
        spoken(b"[]"),
        spoken(b"x"),
        spoken(b"[" * 100_000),
        spoken(STRANGER, b"zzzz"),
        spoken(STRANGER.replace(b"7", b"[1]")),
        spoken(STRANGER.replace(b'"zzz"', b"{}")),
        spoken(b'{"rank": 1, "group": "a test"}'),
        HEAD.pack(MAGIC, (1 << 24) + 1),
    ],
)
def test_strangers_are_sent_away(monkeypatch: pytest.MonkeyPatch, speech: bytes) -> None:
    place(monkeypatch)
    address = ("127.0.0.1", int(os.environ["MASTER_PORT"]))

    def stranger() -> None:
        while True:
            try:
                sock = socket.create_connection(address, PATIENCE)
                break
            except ConnectionRefusedError:
                time.sleep(0.01)
        with sock:
            with suppress(OSError):  # it may have been sent away by now
                sock.sendall(speech)
                sock.shutdown(socket.SHUT_WR)
            sock.settimeout(PATIENCE)
            with suppress(ConnectionResetError):
                assert sock.recv(1) == b""

    thread = threading.Thread(target=stranger)
    thread.start()
    with pytest.raises(RendezvousError, match="rank 1 did not come"):
        meet("a test", lambda here: here, 1.0)
    thread.join()


def test_the_silent_hold_up_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """Twenty who connect before rank 1 does, and say nothing."""
    place(monkeypatch)
    address = ("127.0.0.1", int(os.environ["MASTER_PORT"]))
    told: list[Any] = []

    def late(silent: ExitStack) -> None:
        while len(told) < 20:
            with suppress(ConnectionRefusedError):
                told.append(silent.enter_context(socket.create_connection(address, PATIENCE)))
        word = {"rank": 1, "group": "a test", "told": 1}
        told[:] = Rendezvous(1, 2, address).ask(word, PATIENCE)

    with ExitStack() as silent:
        thread = threading.Thread(target=late, args=(silent,))
        thread.start()
        began = time.monotonic()
        assert meet("a test", lambda _: 0, PATIENCE).told == [0, 1]
        assert time.monotonic() - began < PATIENCE / 3  # when heard one by one: 2 s each
        thread.join()
    assert [word["told"] for word in told] == [0, 1]


def test_guests_are_heard_side_by_side() -> None:
    """Whoever says all in whatever pieces is heard; of too many the first are sent away."""
    with socket.create_server(("127.0.0.1", 0), backlog=2 * GUESTS) as door, ExitStack() as stack:

        def comes(says: bytes) -> socket.socket:
            sock = socket.create_connection(door.getsockname(), PATIENCE)
            sock.sendall(says)
            return stack.enter_context(sock)

        deadline = time.monotonic() + PATIENCE
        coming = stack.enter_context(closing(greeted(door, deadline)))
        abc = spoken(b'"abc"')
        slow, silent = comes(abc[:5]), comes(b"")
        comes(spoken(b'"xyz"') + b" and more")
        quick, said = next(coming)
        assert said == "xyz"
        quick.setblocking(True)
        assert quick.recv(99) == b" and more"
        quick.close()
        slow.sendall(abc[5:10])
        slow.sendall(abc[10:])
        heard, said = next(coming)
        heard.close()
        assert said == "abc"
        for _ in range(GUESTS):
            comes(b"")
        comes(spoken(b"123"))
        last, said = next(coming)
        last.close()
        assert said == 123
        coming.close()
        assert silent.recv(1) == b""
        assert list(greeted(door, time.monotonic())) == []


def test_a_port_that_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        place(monkeypatch, MASTER_PORT=str(other.getsockname()[1]))
        with pytest.raises(RendezvousError, match=r"cannot listen.*choose another MASTER_PORT"):
            meet("a test", lambda here: here, 1.0)


@pytest.mark.parametrize(
    ("changed", "fault"),
    [
        ({"RANK": "2"}, "RANK is 2 and WORLD_SIZE 2: ranks are 0..1"),
        ({"RANK": ""}, "RANK is not set: start this with `iswitch run"),
        ({"WORLD_SIZE": "0"}, "WORLD_SIZE is 0: a job has 1 worker or more"),
        ({"RANK": "x"}, "RANK is 'x': a rank, 0 to 1, is wanted"),
        ({"WORLD_SIZE": "two"}, "WORLD_SIZE is 'two': a job has 1 to 4096 workers"),
        ({"MASTER_ADDR": ""}, "MASTER_ADDR is not set"),
        ({"MASTER_PORT": "65536"}, "MASTER_PORT is 65536: ports are 1..65535"),
    ],
)
def test_an_environment_that_says_too_little(
    monkeypatch: pytest.MonkeyPatch, changed: dict[str, str], fault: str
) -> None:
    place(monkeypatch, **changed)
    with pytest.raises(ValueError, match=fault):
        meet("a test", lambda here: here, 1.0)


def test_strangers_at_a_workers_door() -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=4) as door:
        address = door.getsockname()
        with socket.create_connection(address) as stranger:
            stranger.sendall(b"hello")
            stranger.shutdown(socket.SHUT_WR)
            known = connect(address, 3, 7, "rank 0", PATIENCE)
            found = accept(door, {(3, 7)}, PATIENCE)
            assert found.keys() == {(3, 7)}
            assert stranger.recv(1) == b""
            with pytest.raises(PeerSilent, match=r"rank 5 said nothing for 0\.1 s"):
                accept(door, {(5, 0)}, 0.1)
        known.close()
        found[3, 7].close()


def test_under_torchrun(tmp_path: Path) -> None:
    """MASTER_PORT is its agent's there."""
    script = tmp_path / "sums.py"
    script.write_text(
        "import numpy as np\n"
        "from worker_lib.strategies import make\n"
        "for name in ('ring', 'gloo', 'ring'):\n"
        "    with make(name, numel=5) as strategy:\n"
        "        total = strategy.allreduce(np.ones(5, np.float32))\n"
        "        print(f'{strategy.rank} {name} {total.sum()}\\n', end='', flush=True)\n"
    )
    words = ["-m", "torch.distributed.run", "--nproc-per-node", "2"]
    words += ["--master-port", str(free_port()), str(script)]
    done = python(*words, OMP_NUM_THREADS="1")
    assert done.returncode == 0, done.stderr
    lines = [f"{rank} {name} 10.0" for rank in (0, 1) for name in ("gloo", "ring", "ring")]
    assert sorted(done.stdout.splitlines()) == lines
