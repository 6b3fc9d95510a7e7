"""The accelerator of a job with fewer slots than segments: iswitch/core/sums/slotted.py."""

from __future__ import annotations

import numpy as np
import pytest

from iswitch.core.format.counters import Counters
from iswitch.core.format.packets import Cutter
from iswitch.core.format.wire import DType, Shape
from iswitch.core.sums.numpy_plane import memory_needed
from iswitch.core.sums.runs import Held, Outcome, Run
from iswitch.core.sums.slotted import SlottedAccelerator
from tests.support.parts import packets_of, peer, seg, segments_of, stretch_of

pytestmark = pytest.mark.unit

SHAPE = Shape.of(203, DType.INT32, elements=2)  # 102 segments, the last one shorter


def accelerator(workers: int = 2, slots: int = 4) -> tuple[SlottedAccelerator, Counters]:
    counters = Counters()
    everybody = (1 << workers) - 1
    sums = SlottedAccelerator(SHAPE, slots, lambda _, bits: bits == everybody, counters)
    for seat in range(workers):
        sums.join(seat)
    return sums, counters


def contribute(sums: SlottedAccelerator, seat: int, round_: int, *indices: int) -> Outcome:
    """One packet at a time, each element the segment's index and the seat."""
    outcome = Outcome([], [])
    for index in indices:
        value = np.full(SHAPE.elements, 10 * index + seat, np.int32)
        sums.accumulate(seat, stretch_of([seg(round_, index) + value.tobytes()]), outcome)
    return outcome


def test_a_later_segment_takes_a_slot_and_an_earlier_one_does_not() -> None:
    sums, counters = accelerator()
    contribute(sums, 0, 0, 1)
    assert contribute(sums, 1, 0, 1).completed == [Run(0, 0, 1, 2)]
    assert contribute(sums, 0, 0, 1).late == [Run(0, 0, 1, 2)]  # kept
    contribute(sums, 0, 0, 5)
    (held,) = sums.held(0, 5, 6)
    assert held == (Run(0, 0, 5, 6), Held.OPEN, 1)
    assert [what for _, what, _ in sums.held(0, 1, 2)] == [Held.GONE]
    assert [what for _, what, _ in sums.held(0, 9, 10)] == [Held.NOTHING]
    assert [what for _, what, _ in sums.held(2, 1, 2)] == [Held.NOTHING]
    before = counters["late"]
    assert contribute(sums, 1, 0, 1) == Outcome([], [])  # dropped, and not answered
    assert counters["late"] == before + 1
    assert contribute(sums, 1, 0, 5).completed == [Run(0, 0, 5, 6)]
    (out,) = sums.send([Run(0, 0, 5, 6)], (peer(0),))
    assert packets_of(out) == [seg(0, 5) + np.full(2, 101, np.int32).tobytes()]
    assert counters["duplicate"] == 0


def test_a_burst_of_several_laps_is_cut() -> None:
    """And what of it has no slot is dropped, the rest counted."""
    sums, counters = accelerator(workers=1, slots=8)
    contribute(sums, 0, 0, 13)  # takes the slot of 5
    before = dict(counters)
    payloads = segments_of(SHAPE, 0, np.arange(SHAPE.numel, dtype=np.int32))
    outcome = Outcome([], [])
    sums.accumulate(0, stretch_of(payloads[2:7]), outcome)
    assert outcome.completed == [Run(0, 0, 2, 5), Run(0, 0, 6, 7)]
    assert counters["late"] - before["late"] == 1
    sums.accumulate(0, stretch_of(payloads[14:18]), outcome)
    assert outcome.completed[2:] == [Run(0, 0, 14, 16), Run(0, 0, 16, 18)]
    last = stretch_of(payloads[-1:])
    sums.accumulate(0, last, outcome)
    outs = sums.deliver(outcome.completed[2:], (peer(0),))
    assert sorted(p for out in outs for p in packets_of(out)) == payloads[14:18] + payloads[-1:]


def test_what_came_late_in_a_burst_is_not_answered_with_another_segment() -> None:
    """The burst goes on with the contribution that takes the slot: that is no aggregate yet."""
    sums, _ = accelerator()
    contribute(sums, 0, 0, 1)
    contribute(sums, 1, 0, 1)
    outcome = contribute(sums, 0, 0, 1, 5)
    assert outcome.late == [Run(0, 0, 1, 2)]
    assert sums.send(outcome.late, (peer(0),)) == []


def test_questions_about_long_vectors_cost_little() -> None:
    """Help can name millions of segments, and a burst can hold the first and the last of them."""
    shape = Shape.of(1 << 20, DType.INT32, elements=1)
    sums = SlottedAccelerator(shape, 2, lambda *_: False, Counters())
    sums.join(0)
    payloads = [seg(0, index) + bytes(4) for index in (0, shape.segments - 1)]
    sums.accumulate(0, stretch_of(payloads), Outcome([], []))
    held = [(run[2:], what) for run, what, _ in sums.held(0, 0, shape.segments)]
    last = shape.segments - 1
    assert held == [
        ((0, last - 1), Held.GONE),
        ((last - 1, last), Held.NOTHING),
        ((last, last + 1), Held.OPEN),
    ]
    assert [what for _, what, _ in sums.held(2, 0, last)] == [Held.NOTHING]
    sums.accumulate(0, stretch_of([seg(2, 1) + bytes(4)]), Outcome([], []))
    assert [what for _, what, _ in sums.held(0, 0, last)] == [Held.GONE]


def test_memory_is_what_is_allocated() -> None:
    """To the byte, but for the headers of rounds; a member adds to it only in rank order."""
    large = Shape.of(1_681_062)
    for slots, reproducible, members in ((512, False, 3), (64, True, 2)):
        sums = SlottedAccelerator(large, slots, lambda *_: False, Counters(), reproducible)
        for seat in range(members):
            sums.join(seat)
        needed = [memory_needed(large, reproducible, i == 0, slots=slots) for i in range(members)]
        assert sums.nbytes() + (large.segments + slots) * Cutter.MEMORY == sum(needed)
    assert memory_needed(large, False, True, slots=512) < 2 << 20
