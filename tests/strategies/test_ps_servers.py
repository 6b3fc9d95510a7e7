"""Parameter servers: filters of packets, and servers that are started and end."""

from __future__ import annotations

import itertools
import json
import os
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from typing import Any

import numpy as np
import pytest

from tests.strategies.test_ps import BLOCK, PATIENCE, joined, rank
from tests.support import python
from tests.support.groups import MADE, group
from tests.support.machine import judged
from worker_lib.strategies import make
from worker_lib.strategies.base import Strategy
from worker_lib.strategies.errors import PeerLost
from worker_lib.strategies.messages import HEAD, MAGIC
from worker_lib.strategies.ps_beside import listening, start_server
from worker_lib.strategies.ps_filters import KKT, Filter, Small
from worker_lib.strategies.ps_server import ServerConnection


def small_values(numel: int) -> dict[str, Any]:
    """What is held back is added later: all of it has come in the end."""
    with joined(numel, filter=Small(3.0)) as ps:
        values = np.random.default_rng(rank()).integers(-2, 4, numel).astype(np.float32)
        total = np.zeros(numel, np.float32)
        for _ in range(6):
            total += ps.allreduce(values.copy())
        total += ps.allreduce(np.zeros(numel, np.float32))
        wanted = [np.random.default_rng(r).integers(-2, 4, numel) for r in range(ps.num_workers)]
        # 6 times each value of -2 .. 3 in portions of at least 3: all, but for what is below 3.
        missing = 6 * np.sum(wanted, axis=0) - total
        left = sum(np.where(np.abs(held := 6 * w - _portions(w)) < 3, held, 0) for w in wanted)
        assert np.array_equal(missing, left)
        return ps.stats()


def _portions(values: Any) -> Any:
    """What passes of six equal values, one after the other."""
    held, passed = np.zeros(values.size), np.zeros(values.size)
    for value in (*[values] * 6, 0 * values):
        held = held + value
        goes = np.abs(held) >= 3
        passed += np.where(goes, held, 0)
        held = np.where(goes, 0, held)
    return passed


def test_small_values_are_held_back_and_added_later() -> None:
    for stats in group(small_values, 3, 250):
        assert 0 < stats["elements_pushed"] < 7 * 250
        # Three headers a round, a place and a value for each that went, and nothing else.
        assert stats["bytes_sent"] == 8 * stats["elements_pushed"] + 7 * 3 * 16


def kkt() -> int:
    weights = np.array([0, 0, 1, 0], np.float32)
    with joined(4, filter=KKT(weights, penalty=2.0, slack=0.5)) as ps:
        gradient = np.array([1, -2, 1, 1.6], np.float32)
        assert ps.allreduce(gradient.copy()).tolist() == [0, -4, 2, np.float32(3.2)]
        weights[0] = 1  # it has moved: its gradient counts, without what was dropped
        assert ps.allreduce(gradient.copy()).tolist() == [2, -4, 2, np.float32(3.2)]
        elements: int = ps.stats()["elements_pushed"]
        return elements


def test_gradients_that_cannot_move_a_weight_are_dropped() -> None:
    assert group(kkt, 2) == [3 + 4] * 2


class Nothing:
    """A user's filter."""

    keeps = True

    def pushes(self, values: Any, start: int) -> Any:
        assert start % BLOCK == 0
        return np.zeros(values.size, bool)


def nothing_passes() -> None:
    filter_: Filter = Nothing()
    with joined(250, filter=filter_) as ps:
        vector = np.ones(250, np.float32)
        ps.push(vector, 0, 250)
        assert (vector == 1).all()  # the caller's is its own
        ps.pull(vector, 0, 250)
        assert (vector == 0).all()


def test_a_filter_of_ones_own() -> None:
    group(nothing_passes, 2)


def of_an_address() -> list[float]:
    """Two groups at once, at servers that were there before."""
    with make("ps", 5, timeout=MADE) as one, make("ps", 7, timeout=MADE) as other:
        sums = [
            strategy.allreduce(np.ones(n, np.float32)).sum()
            for strategy, n in ((one, 5), (other, 7))
        ]
        return [float(total) for total in sums]


def test_servers_with_hosts_of_their_own() -> None:
    processes = [start_server("127.0.0.1") for _ in range(2)]
    try:
        where = ",".join(listening(process) for process in processes)
        for _ in range(2):  # one set of groups after the other
            assert group(of_an_address, 3, ISWITCH_PS_SERVERS=where) == [[15.0, 21.0]] * 3
    finally:
        for process in processes:
            process.communicate("", timeout=PATIENCE)
    assert [process.returncode for process in processes] == [0, 0]


def spoken(message: bytes) -> bytes:
    return HEAD.pack(MAGIC, len(message)) + message


@pytest.mark.parametrize(
    "speech",
    [
        spoken(b"[" * 4000),
        HEAD.pack(MAGIC, 100_000) + b"[" * 100_000,
        *(
            spoken(json.dumps({"group": "x", "rank": rank, "shape": shape}).encode())
            for rank, shape in (
                (0, [10, 0, 1, 0]),
                (0, [1 << 60, 100, 1, 0]),
                (0, [1 << 30, 1, 1024, 0]),
                (0, [10, 10, 1 << 40, 0]),
                (0, [10, 10, 1, -2]),
                (0, [10, 10.5, 1, 0]),
                (0, [[10], 10, 1, 0]),
                (0, {"a": 1}),
                ([0], [10, 10, 1, 0]),
                (1, [10, 10, 1, 0]),
            )
        ),
        spoken(b'{"group": [], "status": true}'),
        b"GET / HTTP/1.1\r\n\r\n",
    ],
)
def test_strangers_at_a_server_are_sent_away(
    server: tuple[Any, tuple[str, int]], speech: bytes
) -> None:
    process, at = server
    with socket.create_connection(at, PATIENCE) as stranger, suppress(ConnectionResetError):
        with suppress(BrokenPipeError):
            stranger.sendall(speech)
        assert stranger.recv(1) == b""
    with welcomed(at, "y"):
        assert process.poll() is None


@pytest.fixture(scope="module")
def server() -> Iterator[tuple[Any, tuple[str, int]]]:
    process = start_server("127.0.0.1")
    host, _, port = listening(process).rpartition(":")
    yield process, (host, int(port))
    process.communicate("", timeout=PATIENCE)


def welcomed(at: tuple[str, int], name: str) -> Any:
    """The connection of a group of one."""
    return closing(
        ServerConnection(at, {"group": name, "rank": 0, "shape": [10, 10, 1, 0]}, "it", 10.0)
    )


def test_who_is_silent_holds_up_nobody(server: tuple[Any, tuple[str, int]]) -> None:
    """And is sent away after two seconds; more than so many are at once."""
    _, at = server
    names = itertools.count()

    def waited() -> tuple[float, float]:
        silent = [socket.create_connection(at, PATIENCE) for _ in range(3)]
        for sock in silent[:2]:
            sock.sendall(spoken(b"{}")[:7])  # half of a head
        began = time.monotonic()
        with welcomed(at, f"z{next(names)}"):
            found = time.monotonic() - began
        for sock in silent:
            assert sock.recv(1) == b""
            sock.close()
        gone = time.monotonic() - began
        assert gone > 1.5
        return found, gone

    judged(waited, lambda found: found[0] < 1.5 and found[1] < 10)  # of three it was six


def lost_server(stop: str) -> str:
    with make("ps", 10, timeout=MADE) as ps:
        if rank() == 0:
            ps.allreduce(np.ones(10, np.float32))
            os.kill(int(stop), 9)
        with pytest.raises(PeerLost) as caught:  # the other may lack the sum of its first round
            sum_on(ps)
        return str(caught.value)


def sum_on(ps: Strategy) -> None:
    while True:
        ps.allreduce(np.ones(10, np.float32))


def test_a_server_that_dies_is_named() -> None:
    process = start_server("127.0.0.1")
    where = listening(process)
    for said in group(lost_server, 2, str(process.pid), ISWITCH_PS_SERVERS=where):
        assert said.startswith(f"the server at {where} is lost")
    process.communicate("", timeout=PATIENCE)
    for said in group(no_server, 2, ISWITCH_PS_SERVERS=where):
        assert said.startswith(f"the server at {where} is lost")


def no_server() -> str:
    with pytest.raises(PeerLost) as caught:
        make("ps", 10, timeout=MADE)
    return str(caught.value)


SCRIPT = """
import os
import numpy as np
from worker_lib.strategies import make
for _ in range(2):
    with make("ps", 1000) as ps:
        total = ps.allreduce(np.ones(1000, np.float32))
        told = f"{ps.rank} of {ps.num_workers}: {total[0]:g} {ps.stats()['servers']}"
print(told)
"""


def test_the_last_hosts_of_a_run_serve() -> None:
    """As docs/strategies.md has it."""
    servers = [sys.executable, "-m", "worker_lib.strategies.ps_server", "--hosts", "2", "--"]
    script = [sys.executable, "-c", SCRIPT]
    done = python("-m", "iswitch", "run", "--topology", "star:5", "--", *servers, *script)
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == [f"h{r + 1} | {r} of 3: 3 2" for r in range(3)]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--listen", "here"], "--listen here: write HOST:PORT"),
        (["--hosts", "1"], "--hosts: put a command at the end"),
        (["--hosts", "2", "--", "true"], "--hosts 2 of 2: leave at least one to work"),
        ([], "one of the arguments --listen --hosts is required"),
    ],
)
def test_a_server_that_is_started_wrong(words: list[str], said: str) -> None:
    done = python(
        "-m", "worker_lib.strategies.ps_server", *words,
        RANK="0", WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT="1",
    )  # fmt: skip
    assert done.returncode == 2
    assert said in done.stderr


def refused(options: dict[str, Any]) -> str:
    with pytest.raises(ValueError, match=r"pass|of 2|workers") as caught:
        make("ps", 10, timeout=MADE, **options)
    return str(caught.value)


def test_arguments_that_cannot_be() -> None:
    assert group(refused, 2, {"tau": -1})[0].startswith("tau = -1: pass 0, a whole number")
    assert group(refused, 2, {"tau": 0.5})[0].startswith("tau = 0.5: pass 0, a whole number")
    assert group(refused, 2, {"servers": 3})[0].startswith("servers = 3: of 2 workers 1 to 2")
    assert "pass 1 to 65536" in group(refused, 2, {"block": 0})[0]
    assert group(refused, 2, {}, WORLD_SIZE="x")[0].startswith("WORLD_SIZE is 'x': a job has")
