"""What a switch below another one asks it: answers that come late, and times that are none."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pytest

from iswitch.core.format.wire import TOS_CONTROL, TOS_DATA, Action, Control, Join, Mode, Shape
from iswitch.core.jobs import upward
from iswitch.core.jobs.limits import Limits
from iswitch.core.jobs.upward import Upward
from iswitch.fast import loading

from .below import PAST, Above, Marks, UdpBelow
from .sides import NOBODY, TURN, Sent

pytestmark = [
    pytest.mark.skipif(not loading.installed(), reason="Numba is not installed"),
    pytest.mark.usefixtures("checked"),
]

JOB, WORKER, ABOVE = 7, 0, 1
SHAPE = replace(Shape.of(700), mode=Mode.ASYNCHRONOUS)
HOLD = 1000.0  # seconds


class Held(UdpBelow):
    """A switch that holds what is open longer than a test takes."""

    limits = Limits(hold=HOLD)


@contextmanager
def joined(fast: bool) -> Iterator[tuple[Held, Upward, Above]]:
    """Have a worker at a switch below another one; give the way up, and that other one."""
    side, above = Held(2, fast, False, True), Above(ABOVE, Held.limits, {})
    with side.stack:
        join = Control(Action.JOIN, JOB, 1000, Join.for_shape(SHAPE, expected=1)).build()
        rows = np.frombuffer(join, np.uint8).reshape(1, -1)
        batch = [Sent(WORKER, TOS_CONTROL, rows, len(join))]
        while batch:
            batch = above.hear([side.said(packet) for packet in side.play(batch)[ABOVE]])
        hierarchy = side.switch.control.hierarchy
        assert hierarchy is not None
        yield side, hierarchy.upward[JOB], above


def contribution(number: int, stop: int = SHAPE.segments) -> Sent:
    """The first segments of a worker's contribution."""
    rows = np.zeros((stop, SHAPE.packet_size), np.uint8)
    rows.reshape(-1).view(SHAPE.packet)["seg"] = number << 32 | np.arange(stop, dtype=np.uint64)
    return Sent(WORKER, TOS_DATA, rows, SHAPE.tail(stop))


def answer(side: Held, way: Upward, above: Above) -> Sent:
    """Have the switch ask, the Python way; return the answer."""
    way.mark_at = PAST
    (sent,) = above.hear([side.said(packet) for packet in side.play([], ticks=True)[ABOVE]])
    return sent


@pytest.mark.parametrize("fast", [False, True], ids=["Python", "compiled"])
@pytest.mark.parametrize("late", [0, 1])
def test_a_late_answer_says_nothing_of_the_next_sum(
    fast: bool, late: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mark was repeated, and the next sum is lost: it must be sent again."""
    monkeypatch.setattr(upward.Upward, "asks_at", Marks.asks_at)
    monkeypatch.setattr(Marks, "once", False)
    with joined(fast) as (side, way, above):
        above.hear([side.said(packet) for packet in side.play([contribution(5)])[ABOVE]])
        answers = [answer(side, way, above) for _ in range(2)]
        side.play([answers[1 - late]])
        assert not way.sums.uncounted()
        side.play([contribution(6), answers[late]])
        lost = way.sums.uncounted()
        assert [(run.start, run.stop) for run in lost] == [(0, SHAPE.segments)]
        assert bool(side.compiled) is fast


def test_a_question_is_about_all_though_the_next_sum_has_begun() -> None:
    with joined(False) as (side, way, _):
        for sent in (contribution(5), contribution(6, stop=1)):
            side.play([sent])
        assert len(way.sums.uncounted()) == 2
        way.note_marks(time.monotonic(), 5000, False)
        assert way.uplink.newest_question == (5000, (0, way.sums.number, 0, SHAPE.segments))


def test_a_sum_is_held_from_when_it_is_opened() -> None:
    """A kernel sets no time while nothing is open, and later that of the open one."""
    with joined(True) as (side, way, _):
        side.play([contribution(5)])
        assert not way.sums.is_open()
        way.hold_at, before = PAST, time.monotonic()
        assert side.lane is not None
        assert side.lane.ready()
        side.lane.run(before + TURN, before, 0.0, NOBODY)
        assert way.hold_at is None
        before = time.monotonic()
        side.play([contribution(6)])
        assert way.sums.is_open()
        assert not way.sums.opened
        assert way.hold_at is not None
        assert before <= way.hold_at - HOLD <= time.monotonic()
