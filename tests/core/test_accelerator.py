"""Accumulation of runs, against a model that takes one segment of one packet at a time."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from iswitch.core.format.counters import Counters
from iswitch.core.format.packets import Stretch
from iswitch.core.format.wire import DType, Op, Shape, Vector, round_distance
from iswitch.core.sums.runs import Held, Outcome, Run, merge
from iswitch.core.sums.states import Table
from iswitch.core.sums.synchronous import SynchronousAccelerator
from tests.support.combining import COMBINATIONS, combine, drawn
from tests.support.parts import rows_of, seg, stretch_of

pytestmark = [pytest.mark.unit, pytest.mark.usefixtures("quiet")]

TOP = 2**32


@dataclass
class Set:
    """One of the two sets of one segment: the contributions to a round, in order of arrival."""

    round: int
    parts: dict[int, Vector] = field(default_factory=dict)
    complete: bool = False
    total: Vector | None = None  # once complete

    @property
    def bitmap(self) -> int:
        return sum(1 << rank for rank in self.parts)


@dataclass
class Model:
    """What SynchronousAccelerator does, by docs/protocol.md, segment by segment."""

    shape: Shape
    reproducible: bool
    threshold: int
    sets: dict[tuple[int, int], Set] = field(default_factory=dict)  # by round mod 2, index
    counters: Counters = field(default_factory=Counters)

    def contribute(self, rank: int, round_: int, index: int, data: Vector) -> str:
        """What becomes of one contribution: complete, late or nothing more."""
        held = self.sets.get((round_ % 2, index))
        if held is None or held.round != round_:
            held = self.sets[round_ % 2, index] = Set(round_)
        if held.complete:
            self.counters["late"] += 1
            return "late"
        if rank in held.parts:
            self.counters["duplicate"] += 1
            return ""
        held.parts[rank] = data.copy()
        self.counters["accumulated"] += 1
        return "complete" if self.settle(held) else ""

    def settle(self, held: Set) -> bool:
        if held.complete or not held.parts or len(held.parts) < self.threshold:
            return False
        self.finish(held)
        return True

    def finish(self, held: Set) -> None:
        order = sorted(held.parts) if self.reproducible else list(held.parts)
        held.total = held.parts[order[0]]
        for rank in order[1:]:
            held.total = combine(self.shape.dtype, self.shape.op, held.total, held.parts[rank])
        held.complete = True
        self.counters["aggregates"] += 1

    def reevaluate(self) -> set[tuple[int, int]]:
        return {(s.round, i) for (_, i), s in self.sets.items() if self.settle(s)}

    def force(self, round_: int, start: int, stop: int) -> tuple[set[tuple[int, int]], int]:
        forced = [i for i in range(start, stop) if self.held(round_, i)[0] is Held.OPEN]
        for index in forced:
            self.finish(self.sets[round_ % 2, index])
        self.counters["partial_aggregates"] += len(forced)
        counts = [len(self.sets[round_ % 2, i].parts) for i in forced]
        return {(round_, i) for i in forced}, min(counts, default=0)

    def held(self, round_: int, index: int) -> tuple[Held, int]:
        held = self.sets.get((round_ % 2, index))
        if held is None or round_distance(held.round, round_) < 0:
            return Held.NOTHING, 0
        if held.round != round_:
            return Held.GONE, 0
        return Held.COMPLETE if held.complete else Held.OPEN, held.bitmap

    def packet(self, round_: int, index: int) -> bytes:
        held = self.sets[round_ % 2, index]
        assert held.complete
        assert held.round == round_
        assert held.total is not None
        return seg(round_, index) + held.total.tobytes()


@dataclass
class Pair:
    """The accelerator and the model, given the same; they must agree in all they say."""

    shape: Shape
    reproducible: bool
    base: int
    threshold: int = 3

    def __post_init__(self) -> None:
        self.model = Model(self.shape, self.reproducible, self.threshold)
        self.real = SynchronousAccelerator(
            self.shape, self.is_complete, Counters(), self.reproducible
        )
        for rank in range(64):
            self.real.join(rank)

    def is_complete(self, _round: int, bitmap: int) -> bool:
        return bitmap.bit_count() >= self.threshold

    def vector(self, rank: int, salt: int) -> Vector:
        return drawn(self.shape.dtype, self.shape.numel, np.random.default_rng([rank, salt]))

    def data(self, vector: Vector, index: int) -> Vector:
        return vector[index * self.shape.elements : (index + 1) * self.shape.elements]

    def contribute(
        self, rank: int, step: int, start: int, stop: int, salt: int, lost: int = 0
    ) -> None:
        """Whole and short packets of a range; the short last one is a call of its own.

        Of every eight, those are missing whose bit is set in `lost`.
        """
        round_ = (self.base + step) % TOP
        vector = self.vector(rank, salt)
        full = self.shape.full_segments
        outcome = Outcome([], [])
        want: dict[str, list[tuple[int, int]]] = {"complete": [], "late": [], "": []}
        for a, b in [(start, min(stop, full)), (max(start, full), stop)]:
            came = [i for i in range(a, b) if not lost >> i % 8 & 1]
            if came:
                payloads = [seg(round_, i) + self.data(vector, i).tobytes() for i in came]
                with np.errstate(all="ignore"):
                    self.real.accumulate(rank, stretch_of(payloads), outcome)
        for i in range(start, stop):
            if lost >> i % 8 & 1:
                continue
            what = self.model.contribute(rank, round_, i, self.data(vector, i))
            want[what].append((round_, i))
        assert indices(outcome.completed) == want["complete"]
        assert indices(outcome.late) == want["late"]
        self.check_packets([*outcome.completed, *outcome.late])

    def force(self, step: int, start: int, stop: int) -> None:
        round_ = (self.base + step) % TOP
        with np.errstate(all="ignore"):
            runs, fewest = self.real.force(round_, start, stop)
        want, count = self.model.force(round_, start, stop)
        assert (set(indices(runs)), fewest) == (want, count)
        self.check_packets(runs)

    def set_threshold(self, threshold: int) -> None:
        self.threshold = self.model.threshold = threshold
        with np.errstate(all="ignore"):
            runs = self.real.reevaluate()
        assert set(indices(runs)) == self.model.reevaluate()
        self.check_packets(runs)

    def reset(self) -> None:
        self.real.reset(0)
        self.model.sets.clear()

    def check_packets(self, runs: list[Run]) -> None:
        for run in merge(runs):
            rows, tail = self.real.outgoing(run)
            sizes = [self.shape.packet_size] * (run.segments - 1) + [tail]
            found = [row[:size].tobytes() for row, size in zip(rows, sizes, strict=True)]
            segments = range(run.start, run.stop)
            assert found == [self.model.packet(run.round, i) for i in segments]

    def check(self) -> None:
        """State and counters are those of the model."""
        assert self.real.counters == self.model.counters
        bits = 0
        for held in self.model.sets.values():
            bits |= held.bitmap
        assert self.real.bits_held() == bits
        for step in range(-2, 5):
            round_ = (self.base + step) % TOP
            found = {}
            for run, what, bitmap in self.real.held(round_, 0, self.shape.segments):
                assert run.round == round_
                for i in range(run.start, run.stop):
                    assert i not in found
                    found[i] = (what, bitmap)
                if what is Held.COMPLETE:
                    self.check_packets([run])
            assert found == {i: self.model.held(round_, i) for i in range(self.shape.segments)}


def indices(runs: list[Run]) -> list[tuple[int, int]]:
    return [(run.round, i) for run in runs for i in range(run.start, run.stop)]


def ranges(segments: int) -> st.SearchStrategy[tuple[int, int]]:
    ends = st.integers(0, segments)
    return st.tuples(ends, ends).map(lambda pair: (min(pair), max(pair)))


@st.composite
def histories(draw: st.DrawFn) -> tuple[Pair, list[tuple[str, tuple[int, ...]]]]:
    """A job, and contributions, forced sums, thresholds and resets in any order."""
    dtype, op = draw(st.sampled_from(COMBINATIONS))
    shape = Shape.of(draw(st.integers(0, 30)), dtype, op, elements=draw(st.integers(1, 7)))
    pair = Pair(shape, draw(st.booleans()), draw(st.sampled_from([0, 7, 2**31 - 1, TOP - 2])))
    ranks, steps = st.sampled_from([0, 1, 2, 3, 31, 32, 63]), st.integers(0, 3)
    some = ranges(shape.segments)
    losses = st.just(0) | st.integers(0, 255)
    contribution = st.tuples(ranks, steps, some, st.integers(0, 99), losses).map(
        lambda p: ("contribute", (p[0], p[1], *p[2], *p[3:]))
    )
    rare = st.one_of(
        st.tuples(steps, some).map(lambda p: ("force", (p[0], *p[1]))),
        st.integers(1, 4).map(lambda h: ("set_threshold", (h,))),
        st.just(("reset", ())),
    )
    acts = st.one_of(contribution, contribution, contribution, rare)
    return pair, draw(st.lists(acts, max_size=25))


@settings(max_examples=300, deadline=None)
@given(histories())
def test_as_segment_by_segment(history: tuple[Pair, list[tuple[str, tuple[int, ...]]]]) -> None:
    pair, acts = history
    for name, arguments in acts:
        getattr(pair, name)(*arguments)
        pair.check()


def test_in_rank_order_a_mixed_run_begins_anew() -> None:
    """Some of its segments have contributions of others; none is added to that of round 0."""
    shape = Shape.of(40, elements=4)
    pair = Pair(shape, True, base=0, threshold=2)
    for rank in (0, 1):
        pair.contribute(rank, 0, 0, shape.segments, 1)
    pair.contribute(1, 2, 0, 3, 2)
    pair.contribute(0, 2, 0, shape.segments, 3)
    pair.contribute(1, 2, 3, shape.segments, 2)
    pair.check()


@pytest.mark.parametrize(("dtype", "op"), COMBINATIONS)
def test_order_of_summing(dtype: DType, op: Op) -> None:
    """By arrival, or by rank: bit for bit, for values whose sum depends on it."""
    shape = Shape.of(40, dtype, op, elements=9)
    arrival = [3, 0, 2, 1]
    for reproducible in (False, True):
        pair = Pair(shape, reproducible, base=0, threshold=4)
        vectors = {rank: pair.vector(rank, 1) for rank in arrival}
        for rank in arrival:
            pair.contribute(rank, 0, 0, shape.segments, 1)
        order = sorted(arrival) if reproducible else arrival
        total = vectors[order[0]]
        for rank in order[1:]:
            total = combine(dtype, op, total, vectors[rank])
        rows, _ = pair.real.outgoing(Run(0, 0, 0, shape.full_segments))
        full = total[: shape.full_segments * shape.elements]
        assert rows[:, 8:].tobytes() == full.tobytes()


def test_arrival_and_rank_order_differ() -> None:
    """The test above could tell: these three do not add up alike."""
    results = {}
    for reproducible in (False, True):
        shape = Shape.of(1)
        accelerator = SynchronousAccelerator(
            shape, lambda _, bitmap: bitmap == 0b111, Counters(), reproducible
        )
        for rank, value in [(2, 1.5), (1, -1e8), (0, 1e8)]:
            accelerator.join(rank)
            payload = seg(0, 0) + np.float32(value).tobytes()
            accelerator.accumulate(rank, stretch_of([payload]), Outcome([], []))
        rows, tail = accelerator.outgoing(Run(0, 0, 0, 1))
        results[reproducible] = float(rows[0, 8:tail].view("<f4")[0])
    assert results == {False: 0.0, True: 1.5}


def test_first_contribution_is_copied() -> None:
    """Not added to zero: -0.0 stays, and the sender's buffer may be used again."""
    shape = Shape.of(1)
    accelerator = SynchronousAccelerator(shape, lambda _r, _b: True, Counters())
    rows = rows_of([seg(0, 0) + np.float32(-0.0).tobytes()]).copy()
    outcome = Outcome([], [])
    accelerator.accumulate(0, Stretch(0, 0, rows, 12), outcome)
    rows[:] = 0xFF
    out, _ = accelerator.outgoing(outcome.completed[0])
    assert out[:, :12].tobytes() == seg(0, 0) + b"\0\0\0\x80"


@pytest.mark.parametrize(
    ("numel", "start", "stop", "tail"),
    [(10, 0, 2, 24), (10, 1, 3, 16), (10, 2, 3, 16), (12, 1, 3, 24), (0, 0, 1, 8), (1, 0, 1, 12)],
)
def test_outgoing_tail(numel: int, start: int, stop: int, tail: int) -> None:
    """Only what ends with the vector's last segment may end in a short packet."""
    shape = Shape.of(numel, elements=4)
    accelerator = SynchronousAccelerator(shape, lambda _r, _b: True, Counters())
    rows, found = accelerator.outgoing(Run(1, 5, start, stop))
    assert (rows.shape, found) == ((stop - start, shape.packet_size), tail)
    assert np.shares_memory(rows, accelerator.packets)


def test_a_run_is_completed_as_one() -> None:
    """However many segments: a vector in one state is one run."""
    shape = Shape.of(5000, elements=1)
    accelerator = SynchronousAccelerator(shape, lambda _, b: b == 3, Counters())
    rows = rows_of([seg(0, i) + b"\0\0\x80\x3f" for i in range(5000)])
    outcome = Outcome([], [])
    accelerator.accumulate(0, Stretch(0, 0, rows, 12), outcome)
    assert tuple(outcome) == ([], [])
    accelerator.accumulate(1, Stretch(0, 0, rows, 12), outcome)
    assert tuple(outcome) == ([Run(0, 0, 0, 5000)], [])
    accelerator.accumulate(1, Stretch(0, 10, rows[10:20], 12), outcome)
    assert outcome.late == [Run(0, 0, 10, 20)]


def test_segments_in_several_states_are_taken_each_as_it_is() -> None:
    """One packet after the other is a duplicate, late, or taken."""
    counters = Counters()
    accelerator = SynchronousAccelerator(Shape.of(3, elements=1), lambda _, b: b == 3, counters)
    rows = rows_of([seg(0, i) + b"\0\0\x80\x3f" for i in range(3)])

    def send(rank: int, start: int, stop: int) -> Outcome:
        outcome = Outcome([], [])
        accelerator.accumulate(rank, Stretch(0, start, rows[start:stop], 12), outcome)
        return outcome

    assert send(0, 0, 1) == ([], [])
    assert send(0, 0, 2) == ([], [])
    assert counters.drops() == {"duplicate": 1}
    assert send(1, 0, 1) == ([Run(0, 0, 0, 1)], [])
    assert send(1, 0, 3) == ([Run(0, 0, 1, 2)], [Run(0, 0, 0, 1)])
    assert counters.drops() == {"duplicate": 1, "late": 1}
    assert counters["accumulated"] == 5


# Runs and tables


@pytest.mark.parametrize(
    ("runs", "merged"),
    [
        ([], []),
        ([Run(0, 4, 0, 2), Run(0, 4, 2, 5)], [Run(0, 4, 0, 5)]),
        ([Run(0, 4, 0, 2), Run(0, 4, 3, 5)], [Run(0, 4, 0, 2), Run(0, 4, 3, 5)]),
        ([Run(0, 4, 0, 2), Run(0, 6, 2, 5)], [Run(0, 4, 0, 2), Run(0, 6, 2, 5)]),
        ([Run(0, 4, 0, 2), Run(1, 4, 2, 5)], [Run(0, 4, 0, 2), Run(1, 4, 2, 5)]),
        ([Run(0, 4, 2, 5), Run(0, 4, 0, 2)], [Run(0, 4, 2, 5), Run(0, 4, 0, 2)]),
        ([Run(0, 4, i, i + 1) for i in range(9)], [Run(0, 4, 0, 9)]),
    ],
)
def test_merge(runs: list[Run], merged: list[Run]) -> None:
    assert merge(iter(runs)) == merged


@given(
    st.lists(
        st.tuples(st.integers(0, 15), st.integers(0, 15), st.integers(0, 2), st.integers(0, 1)),
        max_size=8,
    ),
    ranges(15),
)
def test_uniform(changes: list[tuple[int, int, int, int]], where: tuple[int, int]) -> None:
    """Pieces cover the range in order, hold one state each, and differ from their neighbours."""
    table = Table(SynchronousAccelerator.RECORD, 15)
    states = [(0, 0, 0)] * 15
    for a, b, round_, complete in changes:
        start, stop = sorted((a, b))
        state = (round_, complete, (round_ * 77) << 50)
        table.set(start, stop, *state)
        states[start:stop] = [state] * (stop - start)
    assert [table.get(i) for i in range(15)] == states
    start, stop = where
    want: list[tuple[int, int]] = []
    for i in range(start, stop):
        if want and states[i - 1] == states[i]:
            want[-1] = (want[-1][0], i + 1)
        else:
            want.append((i, i + 1))
    assert table.uniform(start, stop) == want
    table.clear()
    assert [table.get(i) for i in range(15)] == [(0, 0, 0)] * 15
