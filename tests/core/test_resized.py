"""Sets of slots that are shorter than their workers' windows: iswitch/core/sums/resized.py."""

from __future__ import annotations

import numpy as np
import pytest

from iswitch.core.format.counters import Counters
from iswitch.core.format.wire import DType, MemberType, Shape
from iswitch.core.jobs.bounds import Bound
from iswitch.core.jobs.member import Member
from iswitch.core.jobs.membership import Membership
from iswitch.core.sums.resized import ResizedAccelerator
from iswitch.core.sums.runs import Held, Outcome, Run
from tests.support.parts import packets_of, peer, seg, stretch_of

pytestmark = pytest.mark.unit

SHAPE = Shape.of(41, DType.INT32, elements=2)  # 21 segments


class Sums:
    """A job of two workers, which may take a round to have 8 slots; it has as many as `room`."""

    def __init__(self, room: int) -> None:
        self.counters = Counters()
        rule = lambda _, bits: bits == 0b11  # noqa: E731
        self.sums = ResizedAccelerator(SHAPE, lambda _: 8, room, rule, self.counters)

    def add(self, seat: int, *segments: int) -> Outcome:
        outcome = Outcome([], [])
        for i in segments:
            value = np.full(SHAPE.elements, 10 * i + seat, np.int32)
            self.sums.accumulate(seat, stretch_of([seg(0, i) + value.tobytes()]), outcome)
        return outcome

    def held(self, start: int, stop: int) -> dict[int, Held]:
        runs = self.sums.held(0, start, stop)
        return {i: what for run, what, _ in runs for i in range(run.start, run.stop)}


def test_the_earliest_segments_go_first_in_a_short_set() -> None:
    """And each is a sum of one contribution of each worker, however often it is made."""
    job = Sums(room=2)
    job.add(0, 4, 5, 6)  # 6 has no slot while 4 is open
    assert job.counters["late"] == 1
    assert job.held(4, 7) == {4: Held.OPEN, 5: Held.OPEN, 6: Held.NOTHING}
    job.add(1, 0)  # takes the slot of 4
    assert job.held(0, 6) == {
        0: Held.OPEN, 1: Held.NOTHING, 2: Held.NOTHING, 3: Held.NOTHING, 4: Held.NOTHING,
        5: Held.OPEN,
    }  # fmt: skip
    assert job.add(0, 0).completed == [Run(0, 0, 0, 1)]
    job.add(0, 4)  # takes it back, as 0 is complete
    assert job.add(1, 4).completed == [Run(0, 0, 4, 5)]
    assert job.add(1, 4).late == [Run(0, 0, 4, 5)]  # answered
    job.add(0, 0)  # from somebody that lacks it: complete ones make way, too
    assert job.held(0, 1) == {0: Held.OPEN}
    assert job.add(0, 0).completed == []
    assert job.add(1, 0).completed == [Run(0, 0, 0, 1)]
    (out,) = job.sums.send([Run(0, 0, 0, 1)], (peer(0),))
    assert packets_of(out) == [seg(0, 0) + np.full(2, 1, np.int32).tobytes()]


def test_what_a_burst_completes_is_sent_before_its_slot_goes_on() -> None:
    """The burst has segments of the same slots, before it and after it."""
    job = Sums(room=2)
    job.add(0, 4, 5)
    value = [seg(0, i) + np.full(2, 10 * i + 1, np.int32).tobytes() for i in (2, 3, 4, 5, 6, 7)]
    outcome = Outcome([], [])
    for rows in (value[2:], value[:2]):
        job.sums.accumulate(1, stretch_of(rows), outcome)
    assert outcome.completed == [Run(0, 0, 4, 6)]
    assert set(job.held(4, 6).values()) == {Held.COMPLETE}
    job.add(1, 6)
    assert job.held(4, 7) == {4: Held.NOTHING, 5: Held.COMPLETE, 6: Held.OPEN}


def test_help_names_open_segments_that_have_the_slots() -> None:
    """Nobody lacks segment 0, of which a late copy has come: all must be asked for it."""
    job = Sums(room=2)
    job.add(0, 0)
    job.add(1, 4)
    assert job.held(4, 5) == {0: Held.OPEN, 4: Held.NOTHING}
    job.add(1, 0)
    assert job.held(4, 5) == {4: Held.NOTHING}


def test_no_segment_of_a_round_that_is_held_is_gone() -> None:
    for room in (2, 8):
        job = Sums(room)
        for i in range(12):
            for seat in (0, 1):
                job.add(seat, i)
        assert set(job.held(0, 12 - room).values()) == {Held.NOTHING}


def test_a_set_is_short_if_a_worker_tells_that_it_may_have_more() -> None:
    job = Sums(room=8)
    job.add(0, 8)
    job.add(0, 0)  # late: whoever contributes to 8 has 0, and so have all
    assert job.held(0, 1) == {0: Held.NOTHING}
    job.sums.note_need(8)
    job.add(0, 0)
    assert job.held(0, 1) == {0: Held.NOTHING}
    job.sums.note_need(16)
    job.add(0, 0)
    assert job.held(0, 1) == {0: Held.OPEN}
    job.add(1, 0)
    job.add(0, 8)
    assert job.add(1, 8).completed == [Run(0, 0, 8, 9)]


def test_a_round_has_the_slots_of_the_largest_window() -> None:
    members = Membership()
    for seat, slots in enumerate((64, 16)):
        member = Member(peer(seat), MemberType.WORKER, seat, 1000, None, 0.0)
        member.bound = Bound.of_newcomer(slots, 1000)
        members.add(member)
    assert members.slots_of(0) == 64
    members.contributors()[0].bound = Bound(3, 64, 8, 8, 1001)
    assert (members.slots_of(3), members.slots_of(4)) == (64, 16)
