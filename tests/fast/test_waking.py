"""With a real-time policy, kernels look at sockets for a while before they sleep."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from iswitch.core.format.wire import Shape
from iswitch.fast import lanes, loading
from iswitch.fast.lanes import Lane
from iswitch.fast.waking import SMALL, WAKING, at_sockets
from iswitch.fast.worker_table import At
from worker_lib import kernel

from .histories import play as play_history
from .rounds import FIRST, Schedule, rig
from .sides import FrameSide, UdpSide
from .test_worker_rounds import play as play_rounds

pytestmark = [
    pytest.mark.skipif(not loading.installed(), reason="Numba is not installed"),
    pytest.mark.usefixtures("checked"),
]

LONG = 1_000_000_000  # nanoseconds: no call in these tests lasts so long
SHAPE = Shape.of(44 * 366 * 3 + 5)


def noting(asked: list[tuple[int, int]], looks: int) -> Callable[[int, int], int]:
    """Make a stand-in for `at_sockets` that notes what it is asked, and always says `looks`."""

    def answer(nbytes: int, workers: int) -> int:
        asked.append((nbytes, workers))
        return looks

    return answer


@pytest.mark.parametrize(
    ("policy", "nbytes", "workers", "nanoseconds"),
    [
        (os.SCHED_RR, SMALL, 4, WAKING),
        (os.SCHED_FIFO, 1, 1, WAKING),
        (os.SCHED_RR | os.SCHED_RESET_ON_FORK, 1, 1, WAKING),
        (os.SCHED_RR, SMALL + 1, 1, 0),
        (os.SCHED_RR, 1, 5, 0),
        (os.SCHED_OTHER, 1, 1, 0),
        (os.SCHED_BATCH, 1, 1, 0),
    ],
    ids=["RR", "FIFO", "RR, not for children", "long", "many workers", "OTHER", "BATCH"],
)
def test_only_real_time_policies_look_for_small_vectors_of_few(
    policy: int, nbytes: int, workers: int, nanoseconds: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On two cores."""
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    monkeypatch.setattr(os, "sched_getscheduler", lambda _: policy)
    assert at_sockets(nbytes, workers) == nanoseconds


@pytest.mark.parametrize("looks", [0, LONG])
def test_a_worker_that_looks_does_not_sleep(looks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """If what it waits for comes meanwhile."""
    asked: list[tuple[int, int]] = []
    monkeypatch.setattr(kernel, "at_sockets", noting(asked, looks))
    schedule = Schedule(SHAPE, np.random.default_rng(1))
    total = np.arange(SHAPE.numel, dtype=np.float32)
    with rig(SHAPE, offload=True, compiled=True) as one:
        one.say(schedule.rest(FIRST, total, [(0, SHAPE.segments)]))
        out = np.zeros_like(total)
        one.begin(total, out)
        assert np.array_equal(out, total)
        assert one.kernel is not None
        sleeps = one.kernel._table[[At.WAIT_SECONDS, At.WAIT_NANOSECONDS]].any()
    assert sleeps == (looks == 0)
    assert asked == [(SHAPE.numel * 4, 1)]


@pytest.mark.parametrize("way", ["offload", "singly"])
def test_a_worker_that_looks_plays_the_same_rounds(
    way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernel, "at_sockets", lambda *_: WAKING)
    python, compiled = play_rounds(SHAPE, way, 0)
    assert python == 0
    assert compiled >= 3


@pytest.mark.parametrize("kind", [UdpSide, FrameSide], ids=["datagrams", "frames"])
@pytest.mark.parametrize("looks", [0, LONG])
def test_a_switch_that_looks_does_the_same_and_does_not_sleep(
    kind: type[UdpSide | FrameSide], looks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[int, int]] = []
    sleeps: list[bool] = []

    def run(self: Lane, *args: Any) -> bool:
        self.wires.clock[2:] = 0
        others = ran(self, *args)
        sleeps.append(bool(self.wires.clock[2:].any()))
        return others

    ran = Lane.run
    monkeypatch.setattr(Lane, "run", run)
    monkeypatch.setattr(lanes, "at_sockets", noting(asked, looks))
    assert play_history(kind, 1, 60) > 0
    assert any(sleeps) == (looks == 0)
    assert all(nbytes > 0 and workers > 0 for nbytes, workers in asked)
