"""Versions, against a model that takes one segment of one packet at a time."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from iswitch.core.format.counters import Counters
from iswitch.core.format.wire import DType, Mode, Op, Shape, round_distance
from iswitch.core.sums.asynchronous import AsynchronousAccelerator
from iswitch.core.sums.runs import Held, Outcome, Run
from tests.support.parts import seg, stretch_of

pytestmark = [pytest.mark.unit, pytest.mark.usefixtures("quiet")]

TOP = 2**32
KEPT = 8
AHEAD = 4  # versions that a segment may be ahead of the last one


@dataclass
class Segment:
    """One segment: its open sum and the packets of the versions kept."""

    version: int = 0
    count: int = 0
    total: int = 0
    kept: dict[int, bytes] = field(default_factory=dict)  # newest last
    last: dict[int, int] = field(default_factory=dict)  # rank: number counted last


@dataclass
class Model:
    """What docs/protocol.md says under "Versions", for int32 sums."""

    shape: Shape
    threshold: int
    segments: list[Segment]
    version: int = 0
    counters: Counters = field(default_factory=Counters)

    def contribute(self, rank: int, number: int, index: int, value: int) -> bool:
        one = self.segments[index]
        if rank in one.last and round_distance(number, one.last[rank]) <= 0:
            self.counters["duplicate"] += 1
            return False
        if max(round_distance(one.version, other.version) for other in self.segments) >= AHEAD:
            self.counters["ahead"] += 1
            return False
        one.last[rank] = number
        one.total += value
        one.count += 1
        self.counters["accumulated"] += 1
        return one.count >= self.threshold and self.make(index)

    def make(self, index: int) -> bool:
        one = self.segments[index]
        one.version = (one.version + 1) % TOP
        one.kept[one.version] = self.packet(one.version, index, one.total)
        if len(one.kept) > KEPT:
            del one.kept[next(iter(one.kept))]
        one.count = one.total = 0
        if round_distance(one.version, self.version) > 0:
            self.version = one.version
        self.counters["aggregates"] += 1
        return True

    def packet(self, version: int, index: int, total: int) -> bytes:
        n = self.shape.last if index == self.shape.segments - 1 else self.shape.elements
        return seg(version, index) + (total % TOP).to_bytes(4, "little") * n

    def reevaluate(self) -> set[int]:
        ripe = {i for i, s in enumerate(self.segments) if s.count and s.count >= self.threshold}
        for index in ripe:
            self.make(index)
        return ripe

    def force(self, version: int, start: int, stop: int) -> tuple[set[int], int]:
        ripe = {
            i
            for i in range(start, stop)
            if self.segments[i].count and round_distance(version, self.segments[i].version) == 1
        }
        fewest = min((self.segments[i].count for i in ripe), default=0)
        for index in ripe:
            self.make(index)
        self.counters["partial_aggregates"] += len(ripe)
        return ripe, fewest

    def held(self, version: int, index: int) -> Held:
        one = self.segments[index]
        ahead = round_distance(version, one.version)
        if ahead > 0:
            return Held.OPEN if ahead == 1 and one.count else Held.NOTHING
        return Held.COMPLETE if version in one.kept else Held.GONE

    def reset(self, version: int) -> None:
        self.version = version
        for one in self.segments:
            one.version = version
            one.count = one.total = 0
            one.kept.clear()

    def name(self, version: int) -> None:
        for one in self.segments:
            if round_distance(version, one.version) > 0:
                one.version = version
                one.kept.clear()
        if round_distance(version, self.version) > 0:
            self.version = version


@dataclass
class Pair:
    """The accelerator and the model, given the same; they must agree in all they say."""

    shape: Shape
    base: int
    threshold: int = 2

    def __post_init__(self) -> None:
        segments = [Segment() for _ in range(self.shape.segments)]
        self.model = Model(self.shape, self.threshold, segments)
        self.real = AsynchronousAccelerator(self.shape, self.is_complete, Counters())
        for rank in range(4):
            self.real.join(rank)
        self.reset(0)

    def is_complete(self, _version: int, count: int) -> bool:
        return count >= self.threshold

    def at(self, step: int) -> int:
        return (self.base + step) % TOP

    def contribute(self, rank: int, step: int, start: int, stop: int, value: int) -> None:
        number = (TOP - 3 + step) % TOP
        outcome = Outcome([], [])
        for a, b in [
            (start, min(stop, self.shape.full_segments)),
            (max(start, self.shape.full_segments), stop),
        ]:
            if a < b:
                payloads = [self.model.packet(number, i, value) for i in range(a, b)]
                self.real.accumulate(rank, stretch_of(payloads), outcome)
        want = [i for i in range(start, stop) if self.model.contribute(rank, number, i, value)]
        assert outcome.late == []
        self.check_made(outcome.completed, want)

    def check_made(self, runs: list[Run], want: list[int]) -> None:
        """These segments made their newest version, and its packets are right."""
        assert sorted(i for run in runs for i in range(run.start, run.stop)) == sorted(want)
        for run in runs:
            segments = self.model.segments[run.start : run.stop]
            assert {one.version for one in segments} == {run.round}
            self.check_packets(run)

    def check_packets(self, run: Run) -> None:
        rows, tail = self.real.outgoing(run)
        sizes = [self.shape.packet_size] * (run.segments - 1) + [tail]
        found = [row[:size].tobytes() for row, size in zip(rows, sizes, strict=True)]
        segments = self.model.segments[run.start : run.stop]
        assert found == [one.kept[run.round] for one in segments]

    def force(self, step: int, start: int, stop: int) -> None:
        runs, fewest = self.real.force(self.at(step), start, stop)
        want, count = self.model.force(self.at(step), start, stop)
        assert fewest == count
        self.check_made(runs, list(want))

    def set_threshold(self, threshold: int) -> None:
        self.threshold = self.model.threshold = threshold
        self.check_made(self.real.reevaluate(), list(self.model.reevaluate()))

    def reset(self, step: int) -> None:
        self.real.reset(self.at(step))
        self.model.reset(self.at(step))

    def name(self, step: int) -> None:
        self.real.name(self.at(step))
        self.model.name(self.at(step))

    def join(self, rank: int) -> None:
        self.real.join(rank)
        for one in self.model.segments:
            one.last.pop(rank, None)

    def check(self) -> None:
        assert self.real.counters == self.model.counters
        assert self.real.version == self.model.version
        oldest = min(round_distance(s.version, self.model.version) for s in self.model.segments)
        assert -oldest <= AHEAD  # so what makes a vector whole is kept
        for step in range(-2, 40, 3):
            for version in {self.at(step), (self.model.version - step) % TOP}:
                found: dict[int, Held] = {}
                for run, what, bitmap in self.real.held(version, 0, self.shape.segments):
                    assert (run.round, bitmap) == (version, 0)
                    found |= dict.fromkeys(range(run.start, run.stop), what)
                    if what is Held.COMPLETE:
                        self.check_packets(run)
                want = {i: self.model.held(version, i) for i in range(self.shape.segments)}
                assert found == want


def ranges(segments: int) -> st.SearchStrategy[tuple[int, int]]:
    ends = st.integers(0, segments)
    return st.tuples(ends, ends).map(lambda pair: (min(pair), max(pair)))


@st.composite
def histories(draw: st.DrawFn) -> tuple[Pair, list[tuple[str, tuple[int, ...]]]]:
    numel, elements = draw(st.integers(0, 12)), draw(st.integers(1, 5))
    shape = Shape.of(numel, DType.INT32, Op.SUM, Mode.ASYNCHRONOUS, elements)
    base, threshold = draw(st.sampled_from([0, 7, 2**31 - 3, TOP - 4])), draw(st.integers(1, 2))
    pair = Pair(shape, base, threshold)
    ranks, some = st.integers(0, 3), ranges(shape.segments)
    whole = st.just((0, shape.segments))
    steps = st.integers(0, 30)
    contribution = st.tuples(
        ranks, steps, st.one_of(some, whole), st.sampled_from([1, -5, 2**30, 2**31 - 1])
    ).map(lambda p: ("contribute", (p[0], p[1], *p[2], p[3] % TOP)))
    rare = st.one_of(
        st.tuples(steps, some).map(lambda p: ("force", (p[0], *p[1]))),
        st.integers(1, 3).map(lambda h: ("set_threshold", (h,))),
        st.tuples(st.sampled_from(["reset", "name"]), st.tuples(st.integers(0, 12))),
        ranks.map(lambda rank: ("join", (rank,))),
    )
    # Only the first: so that it runs ahead of the others.
    first = st.tuples(ranks, steps).map(lambda p: ("contribute", (*p, 0, 1, 1)))
    return pair, draw(st.lists(st.one_of(contribution, contribution, first, rare), max_size=40))


@settings(max_examples=200, deadline=None)
@given(histories())
def test_as_segment_by_segment(history: tuple[Pair, list[tuple[str, tuple[int, ...]]]]) -> None:
    pair, acts = history
    for name, arguments in acts:
        getattr(pair, name)(*arguments)
        pair.check()


def alone(elements: int = 1) -> AsynchronousAccelerator:
    """One segment, of which every contribution makes a version."""
    shape = Shape.of(elements, DType.INT32, Op.SUM, Mode.ASYNCHRONOUS, elements)
    accelerator = AsynchronousAccelerator(shape, lambda _v, count: count >= 1, Counters())
    accelerator.join(0)
    return accelerator


def contribute(accelerator: AsynchronousAccelerator, number: int, value: int) -> list[Run]:
    outcome = Outcome([], [])
    payload = seg(number, 0) + value.to_bytes(4, "little")
    accelerator.accumulate(0, stretch_of([payload]), outcome)
    return outcome.completed


@pytest.mark.parametrize("base", [0, TOP - 5])
def test_eight_versions_are_kept(base: int) -> None:
    accelerator = alone()
    accelerator.reset(base)
    for made in range(1, 31):
        assert [run.round for run in contribute(accelerator, made, 100 + made)] == [
            (base + made) % TOP
        ]
        assert accelerator.version == (base + made) % TOP
        for back in range(12):
            version = (base + made - back) % TOP
            ((run, what, _),) = accelerator.held(version, 0, 1)
            assert what is (Held.COMPLETE if back < min(made, KEPT) else Held.GONE)
            if what is Held.COMPLETE:
                rows, tail = accelerator.outgoing(run)
                value = 100 + made - back
                assert rows[0, :tail].tobytes() == seg(version, 0) + value.to_bytes(4, "little")


def test_the_open_sum_has_a_buffer_of_its_own() -> None:
    """What is added to it does not get into the oldest of the versions that are kept."""
    shape = Shape.of(1, DType.INT32, Op.SUM, Mode.ASYNCHRONOUS, 1)
    accelerator = AsynchronousAccelerator(shape, lambda _v, count: count >= 2, Counters())
    accelerator.join(0)
    for number in range(1, 2 * KEPT + 2):
        contribute(accelerator, number, 100)
    for version in range(1, KEPT + 1):
        ((run, what, _),) = accelerator.held(version, 0, 1)
        assert what is Held.COMPLETE
        rows, _ = accelerator.outgoing(run)
        assert rows[0].tobytes() == seg(version, 0) + (200).to_bytes(4, "little")


def test_numbers_are_the_senders_own() -> None:
    """Any number may be the first; then only those ahead count, by serial arithmetic."""
    accelerator = alone()
    numbers = [TOP - 1, TOP - 1, TOP - 9, 0, 7, 5, 2**31]
    made = [bool(contribute(accelerator, number, 1)) for number in numbers]
    assert made == [True, False, False, True, True, False, True]
    assert accelerator.counters["duplicate"] == 3
    accelerator.join(0)  # the rank has a new owner
    assert contribute(accelerator, 1, 1)


def test_numbers_survive_a_reset() -> None:
    accelerator = alone()
    assert contribute(accelerator, 5, 1)
    accelerator.reset(44)
    assert contribute(accelerator, 5, 1) == []
    assert contribute(accelerator, 6, 1) == [Run(0, 45, 0, 1)]
    assert [what for _, what, _ in accelerator.held(44, 0, 1)] == [Held.GONE]


def test_open_sum_survives_a_name() -> None:
    shape = Shape.of(1, DType.INT32, mode=Mode.ASYNCHRONOUS)
    accelerator = AsynchronousAccelerator(shape, lambda _v, count: count >= 2, Counters())
    accelerator.join(0)
    assert contribute(accelerator, 1, 30) == []
    accelerator.name(9)
    assert accelerator.version == 9
    (run,) = contribute(accelerator, 2, 4)
    assert run.round == 10
    rows, _ = accelerator.outgoing(run)
    assert rows[0, 8:12].view("<i4")[0] == 34
    accelerator.name(3)  # older than what is made: nothing
    assert accelerator.version == 10
    assert [what for _, what, _ in accelerator.held(10, 0, 1)] == [Held.COMPLETE]


def test_segments_have_versions_of_their_own() -> None:
    shape = Shape.of(4, DType.INT32, mode=Mode.ASYNCHRONOUS, elements=2)
    accelerator = AsynchronousAccelerator(shape, lambda _v, _c: True, Counters())
    accelerator.join(0)
    outcome = Outcome([], [])
    for number, index in [(1, 0), (2, 0), (3, 1)]:
        payload = seg(number, index) + np.full(2, number, "<i4").tobytes()
        accelerator.accumulate(0, stretch_of([payload]), outcome)
    assert [(run.round, run.start) for run in outcome.completed] == [(1, 0), (2, 0), (1, 1)]
    assert accelerator.version == 2
    held = [(run.start, what) for run, what, _ in accelerator.held(2, 0, 2)]
    assert held == [(0, Held.COMPLETE), (1, Held.NOTHING)]
    assert accelerator.force(2, 0, 2) == ([], 0)  # no contribution to the open one


def test_no_segment_runs_away() -> None:
    """One whose contributions are lost holds the others back, so that its versions have company."""
    shape = Shape.of(2, DType.INT32, mode=Mode.ASYNCHRONOUS, elements=1)
    accelerator = AsynchronousAccelerator(shape, lambda _v, _c: True, Counters())
    accelerator.join(0)

    def made(number: int, *indices: int) -> list[tuple[int, int, int]]:
        outcome = Outcome([], [])
        payloads = [seg(number, i) + bytes(4) for i in indices]
        accelerator.accumulate(0, stretch_of(payloads), outcome)
        return [(run.round, run.start, run.stop) for run in outcome.completed]

    for number in range(1, AHEAD + 1):
        assert made(number, 0) == [(number, 0, 1)]
    assert made(5, 0) == []
    assert accelerator.counters["ahead"] == 1
    assert made(5, 0, 1) == [(1, 1, 2)]  # looked at in their order
    assert made(5, 0) == [(5, 0, 1)]  # it had not been counted, and may be now
    assert accelerator.counters["duplicate"] == 0
    accelerator.reset(9)
    assert made(6, 0, 1) == [(10, 0, 2)]


def test_every_element_counts() -> None:
    shape = Shape.of(3, DType.FLOAT16, Op.MIN, Mode.ASYNCHRONOUS)
    accelerator = AsynchronousAccelerator(shape, lambda _v, count: count == 2, Counters())
    outcome = Outcome([], [])
    for rank, values in enumerate([[1.0, np.nan, -0.5], [0.5, 2.0, 7.0]]):
        accelerator.join(rank)
        payload = seg(1, 0) + np.array(values, "<f2").tobytes()
        accelerator.accumulate(rank, stretch_of([payload]), outcome)
    (run,) = outcome.completed
    rows, tail = accelerator.outgoing(run)
    found = rows[0, 8:tail].view("<f2")
    assert np.array_equal(found, np.array([0.5, np.nan, -0.5], "<f2"), equal_nan=True)
