"""Contributions in parts: who has a slot, what goes up, and what the switch above makes of it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from iswitch.core.format.counters import Counters
from iswitch.core.format.wire import (
    FLAG_PARTS,
    FLAG_REPRODUCIBLE,
    FLAG_STANDS_AT,
    FLAG_WHOLE,
    PART,
    SEG_SIZE,
    TOS_CONTROL,
    TOS_DATA,
    Action,
    Control,
    DType,
    MemberType,
    Segments,
    Shape,
    Status,
    SwitchJoin,
)
from iswitch.core.jobs.limits import Limits
from iswitch.core.jobs.policies import POLICIES
from iswitch.core.sums.assembly import Assembly
from iswitch.core.sums.passing import PassingAccelerator
from iswitch.core.sums.pool import Parts, Pool
from iswitch.core.sums.runs import Held, Outcome, Run
from iswitch.core.switch import Switch
from tests.support.parts import (
    JOB,
    PARENT,
    Below,
    Bench,
    assert_accounted,
    controls,
    packets_of,
    seg,
    stretch_of,
)

pytestmark = pytest.mark.unit

SHAPE = Shape.of(5, DType.INT32, elements=2)  # three segments, the last one shorter
ALL = 0b11  # the seats of two workers


def contribution(index: int, value: int, round_: int = 0) -> bytes:
    elements = SHAPE.elements if index < SHAPE.full_segments else SHAPE.last
    return seg(round_, index) + np.full(elements, value, np.int32).tobytes()


# Above

Sums = list[list[int]]


def merged(assembly: Assembly, value: int, bits: int, all_: int = 0, round_: int = 0) -> Sums:
    """Merge a part of segment 0; the sums that are whole."""
    stretch = stretch_of([contribution(0, value, round_)])
    found = assembly.merge(stretch, bits, all_)
    return [row[SEG_SIZE:].view(np.int32).tolist() for one in found for row in one.rows]


def test_parts_are_merged_if_no_seat_is_in_both() -> None:
    counters = Counters()
    assembly = Assembly(SHAPE, counters)
    assert merged(assembly, 1, 0b001) == []
    assert merged(assembly, 30, 0b110) == []
    assert merged(assembly, 5, 0b011, 0b111) == [[31, 31]]  # itself not added
    assert merged(assembly, 1, 0b001) == [[31, 31]]  # who counts contributions drops it
    assert (counters["merged"], counters["duplicate"]) == (2, 0)
    assert merged(assembly, 2, 0b001, round_=2) == []
    assert merged(assembly, 2, 0b100) == []  # of a round before
    assert counters["late"] == 1
    assert merged(assembly, 3, 0b001, round_=2) == []
    assert counters["duplicate"] == 1
    assembly.clear()
    assert merged(assembly, 4, 0b001, 0b001, round_=2) == [[4, 4]]


def joined(flags: int = FLAG_WHOLE | FLAG_PARTS, request: int = 1000) -> tuple[Bench, Status]:
    """A switch below joins, for two workers, with these flags."""
    bench = Bench()
    join = SwitchJoin.for_shape(SHAPE, MemberType.SWITCH, 2, flags)
    status, *_ = bench.control(
        0, Action.JOIN, replace(join, workers=2, listening=1), request=request
    )
    return bench, status


def part(index: int, value: int, bits: int, all_: int, join: int = 1000) -> bytes:
    head = np.zeros(1, PART)
    head["join"], head["bits"], head["whole"] = join, bits, all_
    packet = contribution(index, value)
    return packet[:SEG_SIZE] + head.tobytes() + packet[SEG_SIZE:]


def test_a_contribution_counts_once_it_is_whole() -> None:
    bench, status = joined()
    assert status is Status.OK
    for index in range(SHAPE.segments):
        assert bench.send(0, TOS_DATA, part(index, 1, 0b01, 0)) == []
        assert bench.send(0, TOS_DATA, part(index, 7, 0b10, ALL, join=999)) == []  # another process
        assert bench.send(0, TOS_DATA, part(index, 1, 0b01, 0)) == []
        (out,) = bench.send(0, TOS_DATA, part(index, 20, 0b10, ALL))
        assert packets_of(out) == [contribution(index, 21)]
        (again,) = bench.send(0, TOS_DATA, part(index, 20, 0b10, ALL))  # late: it lacks the sum
        assert packets_of(again) == [contribution(index, 21)]
    assert bench.send(0, TOS_DATA, part(0, 1, 0b01, 0)[: SEG_SIZE + 3]) == []
    counters = bench.counters
    names = ("merged", "accumulated", "before_join", "duplicate", "late", "malformed")
    assert [counters[name] for name in names] == [3, 3, 3, 3, 3, 1]
    assert_accounted(counters)
    job = bench.switch.jobs[JOB]
    assert sum(job.reserved.values()) == bench.switch.record.reserved


def test_who_joins_anew_begins_with_nothing() -> None:
    """Its seats may be those of others."""
    bench, _ = joined()
    assert bench.send(0, TOS_DATA, part(0, 1, 0b01, 0)) == []
    flags = FLAG_WHOLE | FLAG_PARTS | FLAG_STANDS_AT  # it knows the round, which goes on
    join = replace(SwitchJoin.for_shape(SHAPE, MemberType.SWITCH, 2, flags), workers=2, listening=1)
    bench.control(0, Action.JOIN, join, request=1001)
    assert bench.switch.jobs[JOB].high == 0
    assert bench.send(0, TOS_DATA, part(0, 2, 0b10, ALL, join=1001)) == []
    (out,) = bench.send(0, TOS_DATA, part(0, 10, 0b01, ALL, join=1001))
    assert packets_of(out) == [contribution(0, 12)]
    status, *_ = bench.control(0, Action.JOIN, replace(join, flags=FLAG_WHOLE), request=1001)
    assert status is Status.MISMATCH


@pytest.mark.parametrize("flags", [0, FLAG_WHOLE | FLAG_REPRODUCIBLE, FLAG_WHOLE | 1 << 8])
def test_who_may_send_parts(flags: int) -> None:
    _, status = joined(flags | FLAG_PARTS)
    assert status is Status.BAD_REQUEST


def test_no_worker_sends_parts() -> None:
    status, *_ = Bench().join(0, SHAPE, flags=FLAG_WHOLE | FLAG_PARTS)
    assert status is Status.BAD_REQUEST


# Below


def accelerators(
    slots: int, priorities: tuple[int, ...] = (0,)
) -> tuple[Pool, list[PassingAccelerator], Counters]:
    """Jobs of two workers at one switch, of these priorities."""
    counters, pool = Counters(), Pool(slots, lambda ours, theirs: ours > theirs)
    jobs = [
        PassingAccelerator(number, SHAPE, lambda _, bits: bits == ALL, counters, pool, priority)
        for number, priority in enumerate(priorities)
    ]
    return pool, jobs, counters


def gives(sums: PassingAccelerator, seat: int, value: int, *indices: int) -> Outcome:
    outcome = Outcome([], [])
    for index in indices:
        sums.accumulate(seat, stretch_of([contribution(index, value)]), outcome)
    return outcome


def told(parts: list[Parts]) -> list[tuple[int, int, int, int, int]]:
    """Of each part: its job, segment, seats, seats of all, and the first element."""
    found = []
    for job, rows, _ in parts:
        for row in rows:
            head = row[SEG_SIZE : SEG_SIZE + PART.itemsize].copy().view(PART)[0]
            (value,) = row[SEG_SIZE + PART.itemsize :][:4].copy().view(np.int32)
            index = int.from_bytes(row[4:8].tobytes(), "big")
            found.append((job, index, int(head["bits"]), int(head["whole"]), int(value)))
    return found


def test_what_finds_no_slot_goes_on() -> None:
    pool, (sums,), counters = accelerators(2)
    gives(sums, 0, 1, 0, 1, 2)
    assert told(pool.drain()) == [(0, 2, 0b01, 0, 1)]
    assert pool.free == 0
    completed = gives(sums, 1, 20, 0, 1, 2).completed
    assert completed == [Run(0, 0, i, i + 1) for i in range(3)]
    sums.deliver(completed, (PARENT,))
    assert told(pool.drain()) == [
        (0, 2, 0b10, ALL, 20),
        (0, 0, ALL, ALL, 21),
        (0, 1, ALL, ALL, 21),
    ]
    names = ("accumulated", "passed_on", "aggregates", "to_parent")
    assert [counters[name] for name in names] == [4, 2, 2, 2]
    assert [what for _, what, _ in sums.held(0, 0, 3)] == [Held.SENT, Held.SENT]
    assert sums.take(stretch_of([contribution(0, 21)])) == [Run(0, 0, 0, 1)]
    assert pool.free == 1
    (out,) = sums.send([Run(0, 0, 0, 1)], (PARENT,))
    assert packets_of(out) == [contribution(0, 21)]
    gives(sums, 0, 1, 0)
    assert counters["duplicate"] == 1
    sums.want([Run(0, 0, 0, 1)])
    assert sums.take(stretch_of([contribution(0, 21)])) == [Run(0, 0, 0, 1)]
    sums.reset(0)
    assert pool.free == 2


def test_what_has_gone_on_gets_no_slot_any_more() -> None:
    pool, (sums, other), _ = accelerators(3, (0, 0))
    gives(other, 0, 5, 0, 1, 2)
    gives(sums, 0, 1, 0)
    other.reset(0)
    assert pool.free == 3
    gives(sums, 1, 20, 0)
    assert told(pool.drain()) == [(0, 0, 0b01, 0, 1), (0, 0, 0b10, ALL, 20)]
    sums.forget(0, 0, 3)
    assert [(what, bits) for _, what, bits in sums.held(0, 0, 1)] == [(Held.OPEN, 0)]
    gives(sums, 1, 20, 0)
    gives(sums, 0, 1, 0)
    assert told(pool.drain()) == [(0, 0, 0b10, 0, 20), (0, 0, 0b01, ALL, 1)]
    assert pool.free == 3


def test_a_job_of_a_higher_priority_pushes_sums_out() -> None:
    """As far as they have come; its own, and those of its equals, stay."""
    pool, (low, middle, high), counters = accelerators(3, (0, 1, 2))
    gives(low, 0, 1, 0, 1)
    gives(middle, 0, 1, 0)
    gives(high, 0, 100, 0)
    assert len(told(pool.drain())) == 1
    gives(high, 0, 100, 1, 2)
    assert counters["pushed_out"] == 3
    assert {job for job, *_ in told(pool.drain())} == {0, 1}
    gives(low, 1, 20, 0, 1)
    gives(middle, 1, 20, 0)
    assert {(job, bits, all_) for job, _, bits, all_, _ in told(pool.drain())} == {
        (0, 0b10, ALL),
        (1, 0b10, ALL),
    }
    completed = gives(high, 1, 1, 0, 1, 2).completed
    high.send(completed, (PARENT,), partial=True)
    assert sorted(told(pool.drain())) == [(2, i, ALL, ALL, 101) for i in range(3)]
    for sums in (low, middle, high):
        sums.reset(0)
    assert pool.free == 3


def test_a_sum_that_has_gone_up_leaves_its_slot_to_whoever_needs_it() -> None:
    """Before, it stays; after, it is kept as long as nobody needs the slot."""
    pool, (one, other), counters = accelerators(2, (0, 0))
    gives(one, 0, 1, 0, 1)
    completed = gives(one, 1, 20, 0, 1).completed
    gives(other, 0, 5, 0)
    assert told(pool.drain()) == [(1, 0, 0b01, 0, 5)]
    one.deliver(completed, (PARENT,))
    assert told(pool.drain()) == [(0, i, ALL, ALL, 21) for i in range(2)]
    assert (one.slots_taken(), pool.free) == (2, 0)
    gives(other, 0, 5, 1)
    gives(other, 1, 6, 1)
    assert pool.drain() == []
    assert (one.slots_taken(), other.slots_taken(), counters["pushed_out"]) == (1, 1, 0)
    assert {what for _, what, _ in one.held(0, 0, 2)} == {Held.SENT}
    gives(one, 0, 1, 0, 1)
    assert counters["duplicate"] == 2
    gives(one, 0, 1, 2)
    assert (pool.drain(), one.slots_taken(), other.slots_taken()) == ([], 1, 1)
    assert one.take(stretch_of([contribution(0, 21)])) == [Run(0, 0, 0, 1)]


def test_priorities_of_the_policy() -> None:
    for name, pushes in (("besteffort", False), ("preempt", True)):
        policy = POLICIES[name](1 << 20)
        assert [policy.outranks(*two) for two in ((1, 0), (1, 1), (0, 1))] == [pushes, False, False]


def test_a_packet_longer_than_a_slot_goes_on() -> None:
    counters, pool = Counters(), Pool(2, lambda *_: False)
    shape = Shape.of(800, elements=800)
    sums = PassingAccelerator(0, shape, lambda _, bits: bits == ALL, counters, pool)
    sums.accumulate(0, stretch_of([seg(0, 0) + bytes(3200)]), Outcome([], []))
    assert (counters["passed_on"], pool.free) == (1, 2)


def test_the_parent_that_lacks_something_has_all_send_again() -> None:
    """Nobody knows which of the parts have come."""
    limits = Limits(slots=2, policy="besteffort")
    bench = Below(Switch(limits, parent=PARENT, incarnation=1000))
    (asked,) = bench.comes(0, SHAPE)
    assert isinstance(asked.value, SwitchJoin)
    assert asked.value.flags & FLAG_PARTS
    bench.answers(asked)
    for who in (1, 2):
        bench.comes(who, SHAPE)
    (uplink,) = bench.switch.control.hierarchy.uplinks.values()  # type: ignore[union-attr]
    sends = [out for i in range(3) for out in bench.send(0, TOS_DATA, contribution(i, 1))]
    assert [out.peers for out in sends] == [(uplink.parent,)]  # the third found no slot
    packet = packets_of(sends[0])[0]
    assert int.from_bytes(packet[SEG_SIZE : SEG_SIZE + 4], "big") == uplink.incarnation
    help_ = Control(Action.HELP, JOB, 1, Segments(0, 0, 3)).build()
    answers = [one for one in controls(bench.hears(0x0C, [help_])) if one.action is Action.HELP]
    named = {(one.value.index, one.value.count) for one in answers}  # type: ignore[union-attr]
    assert (2, 1) in named
    assert_accounted(bench.counters)


def test_a_seat_of_which_a_part_has_gone_on_is_given_to_nobody_else() -> None:
    """The switch above would take the other's contribution for the same one once more."""
    limits = Limits(slots=2, policy="besteffort")
    bench = Below(Switch(limits, parent=PARENT, incarnation=1000))
    (asked,) = bench.comes(0, SHAPE)
    bench.answers(asked)
    bench.comes(1, SHAPE)
    for who, index in ((1, 0), (1, 1), (0, 2)):  # the third finds no slot
        bench.send(who, TOS_DATA, contribution(index, 1))
    bench.hears(TOS_CONTROL, [Control(Action.HELP, JOB, 1, Segments(0, 0, 3)).build()])
    status, *_ = bench.control(0, Action.LEAVE)
    assert status is Status.OK
    bench.comes(2, SHAPE)
    (out,) = bench.send(2, TOS_DATA, contribution(2, 7))
    assert told([Parts(JOB, out.rows, out.tail)]) == [(JOB, 2, 0b100, 0, 7)]
