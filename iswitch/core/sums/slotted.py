"""The accelerator of a job with fewer slots than segments (docs/protocol.md, "Slots").

Each of the two sets has S slots, and segment i lies at position i mod S. S consecutive segments,
from a multiple of S on, are a lap: no two of them share a position. The sets add up positions as
any others add up segments; what is here says which lap a position holds, and numbers runs by
segments again.

A later lap takes a position over. Workers send no contribution that would take away what somebody
lacks, so there is nothing here to wait for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import ClassVar

import numpy as np

from iswitch.core.format.counters import Counters
from iswitch.core.format.packets import (
    Address,
    Cutter,
    Headers,
    Indices,
    Outgoing,
    Stretch,
    index_ranges,
)
from iswitch.core.format.wire import ROUND_MASK, Shape

from .buffers import PLAIN, Buffers
from .plane import RoundAccelerator, Rule
from .runs import Held, Outcome, Run, merge
from .states import Bitmaps
from .synchronous import SynchronousAccelerator

LAP = np.dtype(np.uint32)


class Positions(SynchronousAccelerator):
    """Two sets of slots, whose segments are positions.

    Attributes:
        laps: the lap that each position holds, (sets, slots); it counts where the state is of the
            round asked about.
    """

    def __init__(
        self,
        shape: Shape,
        complete: Rule,
        counters: Counters,
        reproducible: bool,
        has_parent: bool,
        buffers: Buffers,
    ) -> None:
        super().__init__(shape, complete, counters, reproducible, has_parent, buffers)
        laps = buffers.take(self.SLOTS * shape.segments * LAP.itemsize)
        self.laps = laps.view(LAP).reshape(self.SLOTS, shape.segments)

    def _headers(self, slot: int, round_: int, start: int, stop: int) -> Headers:
        segments = self.laps[slot, start:stop].astype(np.uint64) * np.uint64(self.shape.segments)
        segments += np.arange(start, stop, dtype=np.uint64)
        return (segments | np.uint64(round_ << 32)).astype(">u8")

    def give(self, round_: int, lap: int, at: slice | Indices) -> np.ndarray | None:
        """Give positions to a lap of a round, but those that another one keeps: a later one.

        Returns:
            Whether each position holds this lap now, bool [n]; None: all do.
        """
        slot = round_ % self.SLOTS
        laps = self.laps[slot][at]
        if (laps == lap).all():
            return None
        words = self.state[slot].words
        held = words[at]
        of_round = (held[:, 0] & np.uint64(ROUND_MASK) == round_) & held.any(axis=1)
        kept = of_round & self._keeps(lap, at, laps, held)
        given = (laps != lap) & ~kept
        held[given] = 0
        words[at] = held
        self.laps[slot][at] = np.where(given, LAP.type(lap), laps)
        return ~kept if kept.any() else None

    def _keeps(
        self,
        lap: int,
        at: slice | Indices,  # noqa: ARG002
        laps: np.ndarray,
        held: Bitmaps,  # noqa: ARG002
    ) -> np.ndarray:
        """Return whether positions are kept by the laps that they hold, bool [n].

        Args:
            lap: the lap that wants the positions.
            at: the positions.
            laps: the laps that they hold, [n].
            held: their states, [n, words].
        """
        return laps > lap

    def by_lap(self, run: Run) -> Iterator[tuple[int, Run]]:
        """Yield the parts of a run of positions that hold one lap, each with the lap."""
        laps = self.laps[run.slot, run.start : run.stop]
        for a, b in index_ranges(laps, 0):
            yield int(laps[a]), run._replace(start=run.start + a, stop=run.start + b)


class SlottedAccelerator(RoundAccelerator):
    """Adds up vectors through a number of slots.

    Args:
        shape: the layout of the job's vectors.
        slots: number of segments of a round that are held at a time.
        complete: the rule that decides which segments are complete.
        counters: counts the contributions.
        reproducible: whether to sum in rank order.
        has_parent: whether sums go on to another switch.
        buffers: allocates the memory.

    Raises:
        MemoryError: too little memory. All lasting memory is allocated here and in `join`.
    """

    POSITIONS: ClassVar[type[Positions]] = Positions

    def __init__(
        self,
        shape: Shape,
        slots: int,
        complete: Rule,
        counters: Counters,
        reproducible: bool = False,
        has_parent: bool = False,
        buffers: Buffers = PLAIN,
    ) -> None:
        self.shape = shape
        self.slots = slots
        self.complete = complete
        self.counters = counters
        self.cutter = self._cutter()
        of_slots = of_positions(shape, slots)
        ways = complete, counters, reproducible, has_parent, buffers
        self.positions = self.POSITIONS(of_slots, *ways)

    def _cutter(self) -> Cutter:
        cutter = Cutter(self.shape)
        cutter.prepare()
        return cutter

    @classmethod
    def memory(cls, shape: Shape, slots: int, has_parent: bool = False) -> int:
        """Return the bytes that a job of this shape needs."""
        laps = Positions.SLOTS * slots * LAP.itemsize
        sets = Positions.memory(of_positions(shape, slots), has_parent)
        return sets + laps + shape.segments * Cutter.MEMORY

    @classmethod
    def memory_per_member(cls, shape: Shape, slots: int, reproducible: bool) -> int:
        """Return the bytes that each member needs on top."""
        return Positions.memory_per_member(of_positions(shape, slots), reproducible)

    def nbytes(self) -> int:
        """Return the size of all arrays and states in bytes, without the headers of rounds."""
        return self.positions.nbytes() + int(self.positions.laps.nbytes)

    def join(self, seat: int) -> None:
        """Prepare for a new member on this seat."""
        self.positions.join(seat)

    def rank(self, seat: int, ranks: int) -> None:
        """Set the ranks of a seat; the lowest is its place in sums in rank order."""
        self.positions.rank(seat, ranks)

    def bits_held(self) -> int:
        """Return the bitmap of the seats that have a contribution in some segment."""
        return self.positions.bits_held()

    # From segments to positions, and back

    def _slot(self, round_: int) -> int:
        """Return the set of a round."""
        return round_ % self.positions.SLOTS

    def _lowered(self, run: Run) -> Run:
        """Return the positions of a run, which lies in one lap."""
        at = run.start % self.slots
        return run._replace(start=at, stop=at + run.segments)

    def _lifted(self, run: Run, lap: int) -> Run:
        """Return the segments of a run of positions that hold this lap."""
        base = lap * self.slots
        return run._replace(start=base + run.start, stop=base + run.stop)

    def _laps(self, start: int, stop: int) -> Iterator[tuple[int, int, int]]:
        """Yield the laps of segments start..stop-1, each with the first and the end of its part."""
        while start < stop:
            lap = start // self.slots
            end = min(stop, (lap + 1) * self.slots)
            yield lap, start, end
            start = end

    def _placed(self, stretch: Stretch, drop: str) -> Iterator[tuple[int, Stretch]]:
        """Yield the parts of a stretch by lap, by position, and with the slots given to them.

        Args:
            stretch: segments, which the job has.
            drop: counts those whose slots hold later segments.
        """
        indices = stretch.indices
        if indices is None:
            indices = np.arange(stretch.start, stretch.stop)
        for a, b in index_ranges(indices // self.slots, 0):
            part = stretch.part(a, b)
            lap, start = divmod(part.start, self.slots)
            at = None if part.indices is None else part.indices - lap * self.slots
            part = part._replace(start=start, indices=at)
            where = slice(start, part.stop) if at is None else at
            given = self.positions.give(part.round, lap, where)
            if given is None:
                yield lap, part
                continue
            self.counters[drop] += int(np.count_nonzero(~given))
            for a, b in index_ranges(given, 0):
                if given[a]:
                    yield lap, part.part(a, b)

    # Contributions

    def accumulate(self, seat: int, stretch: Stretch, outcome: Outcome) -> None:
        """Accumulate one member's contributions; those whose slots hold later segments are late."""
        for lap, part in self._placed(stretch, "late"):
            placed = Outcome([], [])
            self.positions.accumulate(seat, part, placed)
            for runs, of_segments in zip(placed, outcome, strict=True):
                of_segments.extend(self._lifted(run, lap) for run in runs)

    def take(self, stretch: Stretch) -> list[Run]:
        """Keep consecutive aggregates from the parent; return the runs that are new."""
        return [
            self._lifted(run, lap)
            for lap, part in self._placed(stretch, "repeated")
            for some in part.consecutive()
            for run in self.positions.take(some)
        ]

    def finish(self, run: Run, bitmap: int) -> Run:
        """Finish a run: turn its sums into aggregates."""
        self.positions.finish(self._lowered(run), bitmap)
        return run

    def reset(self, round_: int) -> None:
        """Empty both sets."""
        self.positions.reset(round_)

    # States

    def held(self, round_: int, start: int, stop: int) -> Iterator[tuple[Run, Held, int]]:
        """Yield the runs of segments start..stop-1, each with its state and contributor bitmap.

        All segments that are S or more before the last one held are gone, also where their slots
        are free: nobody lacks them. So a question about millions of segments costs as much as one
        about S.
        """
        last = self._last(round_)
        gone = max(start, min(stop, last - self.slots + 1))
        begun = max(gone, min(stop, last + 1))
        if start < gone:
            yield Run(self._slot(round_), round_, start, gone), Held.GONE, 0
        for lap, a, b in self._laps(gone, begun):
            base = lap * self.slots
            for run, what, bitmap in self.positions.held(round_, a - base, b - base):
                if what is Held.NOTHING:
                    yield self._lifted(run, lap), what, 0
                    continue
                for holds, part in self.positions.by_lap(run):
                    if holds == lap:
                        yield self._lifted(part, lap), what, bitmap
                    else:  # of the lap before
                        yield self._lifted(part, lap), Held.NOTHING, 0
        if begun < stop:
            yield Run(self._slot(round_), round_, begun, stop), Held.NOTHING, 0

    def _last(self, round_: int) -> int:
        """Return the last segment of a round that is held; -1: none is.

        If the set holds a later round, all segments of this one are S or more before the result.
        """
        words = self.positions.state[self._slot(round_)].words
        distance = (words[:, 0].astype(np.uint32) - np.uint32(round_)).view(np.int32)
        begun = words.any(axis=1)
        if (begun & (distance > 0)).any():
            return self.shape.segments + self.slots
        at = np.flatnonzero(begun & (distance == 0))
        laps = self.positions.laps[self._slot(round_)][at].astype(np.int64)
        return int((laps * self.slots + at).max(initial=-1))

    def begun(self) -> Iterator[tuple[Run, int, int]]:
        """Yield the nonempty runs of both sets, each with its progress and bitmap."""
        for run, how_far, bitmap in self.positions.begun():
            for lap, part in self.positions.by_lap(run):
                yield self._lifted(part, lap), how_far, bitmap

    def has_all(self, round_: int) -> bool:
        """Return whether every aggregate of a round is here, or was until a later one came."""
        held = self.held(round_, 0, self.shape.segments)
        return all(what in (Held.COMPLETE, Held.GONE) for _, what, _ in held)

    def words_of(self, round_: int, indices: Indices) -> Bitmaps:
        """Return the states of segments in a round, (n, words); zeros where a slot is another's."""
        at, slot = indices % self.slots, self._slot(round_)
        words = self.positions.state[slot].words[at]
        words[self.positions.laps[slot][at] != indices // self.slots] = 0
        return words

    # Sending

    def deliver(self, completed: Sequence[Run], peers: tuple[Address, ...]) -> list[Outgoing]:
        """Send runs that have just completed: to the contributors, or as a sum to the parent."""
        return self._sent(completed, lambda runs: self.positions.deliver(runs, peers))

    def send(
        self, runs: Sequence[Run], peers: tuple[Address, ...], partial: bool = False
    ) -> list[Outgoing]:
        """Send kept aggregates again; with `partial`, the sums of the members here."""
        return self._sent(runs, lambda some: self.positions.send(some, peers, partial))

    def _sent(
        self, runs: Sequence[Run], send: Callable[[list[Run]], list[Outgoing]]
    ) -> list[Outgoing]:
        """Send runs by their positions, and the last segment, if it is shorter, by itself.

        A run that came late in a burst may have lost its slots to the rest of that burst.
        """
        full = self.shape.full_segments
        whole, sends = [], []
        for run in runs:
            lap = run.start // self.slots
            for holds, part in self.positions.by_lap(self._lowered(run)):
                if holds != lap:
                    continue
                if self._lifted(part, lap).stop > full:
                    last = part._replace(start=part.stop - 1)
                    sends += [out._replace(tail=self.shape.last_size) for out in send([last])]
                    part = part._replace(stop=part.stop - 1)
                if part.segments:
                    whole.append(part)
        return sends + (send(merge(whole)) if whole else [])


def of_positions(shape: Shape, slots: int) -> Shape:
    """Return the layout of a set of slots, all of full segments."""
    return replace(shape, last=shape.elements, segments=slots)
