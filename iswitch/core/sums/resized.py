"""The accelerator of a job whose slots change from round to round (docs/protocol.md, "Pools").

Each of the last two rounds has a set of slots of its own. How many these are is decided when a
round begins, with its first contribution; the set of the round before the last is freed then, as
nobody needs it any more.

A set is short if its workers may take the round to have more slots, as after a restart of the
switch. In it the earliest segments go first, and any can be added up again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from iswitch.core.format.counters import Counters
from iswitch.core.format.packets import Cutter, Indices, Stretch
from iswitch.core.format.wire import ROUND_MASK, Shape, later, round_distance

from .buffers import PLAIN, Buffers
from .by_round import ByRound
from .plane import Rule
from .runs import Held, Outcome, Run
from .slotted import LAP, Positions, SlottedAccelerator, of_positions
from .states import Bitmaps


class OneSet(Positions):
    """The slots of one round.

    Attributes:
        short: they are fewer than its workers may take the round to have.
        answers: the segments whose aggregates are to be sent in answer to this burst.
    """

    SLOTS = 1
    short = False
    answers = Outcome([], [])

    def _keeps(self, lap: int, at: slice | Indices, laps: np.ndarray, held: Bitmaps) -> np.ndarray:
        if not self.short:
            return super()._keeps(lap, at, laps, held)
        unsent = np.zeros(self.shape.segments, bool)
        for run in (*self.answers.completed, *self.answers.late):
            unsent[np.arange(run.start, run.stop) % self.shape.segments] = True
        is_open = held[:, 0] >> np.uint64(32) == self.OPEN
        kept: np.ndarray = (laps != lap) & (unsent[at] | (is_open & (laps < lap)))
        return kept


class OneSlottedRound(SlottedAccelerator):
    """The sums of one round, in slots.

    Args:
        cutter: cuts the packets of the job.
        ways: the other arguments of a `SlottedAccelerator`.

    Attributes:
        round: the round.
    """

    POSITIONS = OneSet
    positions: OneSet
    round: int

    def __init__(
        self, cutter: Cutter, shape: Shape, slots: int, complete: Rule, counters: Counters,
        buffers: Buffers,
    ) -> None:  # fmt: skip
        self._given = cutter
        super().__init__(shape, slots, complete, counters, buffers=buffers)

    def _cutter(self) -> Cutter:
        return self._given

    def begin(self, round_: int, short: bool) -> None:
        """Take this round, instead of the one before."""
        self.round = round_
        self.positions.reset(round_)
        self.positions.short = short

    def accumulate(self, seat: int, stretch: Stretch, outcome: Outcome) -> None:
        """Accumulate one member's contributions; those for which there is no slot are late."""
        self.positions.answers = outcome
        super().accumulate(seat, stretch, outcome)

    def held(self, round_: int, start: int, stop: int) -> Iterator[tuple[Run, Held, int]]:
        """Yield the runs of segments start..stop-1, each with its state and contributor bitmap.

        None of them is gone: a worker that lacks one has all contribute to it once more. Of a short
        set, yield also the open segments before them: they have slots that these may need, and may
        be such that nobody lacks.
        """
        if not self.positions.short:
            for run, what, bitmap in super().held(round_, start, stop):
                yield run, Held.NOTHING if what is Held.GONE else what, bitmap
            return
        for run, how_far, bitmap in sorted(self.begun()):
            before = run._replace(stop=min(run.stop, start))
            if before.segments > 0 and how_far == OneSet.OPEN:
                yield before, Held.OPEN, bitmap
            run = run._replace(start=max(run.start, start), stop=min(run.stop, stop))
            if run.segments > 0:
                if start < run.start:
                    yield run._replace(start=start, stop=run.start), Held.NOTHING, 0
                yield run, Held.OPEN if how_far == OneSet.OPEN else Held.COMPLETE, bitmap
                start = run.stop
        if start < stop:
            yield Run(0, round_, start, stop), Held.NOTHING, 0


class ResizedAccelerator(ByRound[OneSlottedRound]):
    """Adds up vectors through a number of slots, which each round may have anew.

    Args:
        shape: the layout of the job's vectors.
        slots_of: returns the most slots that a worker may take a round to have.
        room: the most slots for which a round has memory; it may be changed between packets.
        complete: the rule that decides which segments are complete.
        counters: counts the contributions.
        buffers: allocates the memory.

    Raises:
        MemoryError: too little memory.
    """

    def __init__(
        self,
        shape: Shape,
        slots_of: Callable[[int], int],
        room: int,
        complete: Rule,
        counters: Counters,
        buffers: Buffers = PLAIN,
    ) -> None:
        self.shape = shape
        self.slots_of = slots_of
        self.room = room
        self.complete = complete
        self.counters = counters
        self._buffers = buffers
        self.cutter = Cutter(shape)
        self.cutter.prepare()
        self._sets: dict[int, OneSlottedRound] = {}  # by round mod 2

    @classmethod
    def memory(cls, shape: Shape, slots: int) -> int:
        """Return the bytes that a job needs that has at most so many slots in a round."""
        slots = min(slots, shape.segments)
        return shape.segments * Cutter.MEMORY + 2 * slots * cls.memory_per_slot(shape)

    @classmethod
    def memory_per_slot(cls, shape: Shape) -> int:
        """Return the bytes of a slot of one round."""
        return OneSet.memory(of_positions(shape, 1)) + LAP.itemsize

    def nbytes(self) -> int:
        """Return the size of all arrays and states in bytes, without the headers of rounds."""
        return sum(one.nbytes() for one in self._sets.values())

    def headers(self) -> int:
        """Return the number of segments whose headers are kept."""
        return self.shape.segments + self.slots_held()

    def slots_held(self) -> int:
        """Return the slots of both rounds together."""
        return sum(one.slots for one in self._sets.values())

    def most_held(self) -> int:
        """Return the slots of that round which has more; 0: none has begun."""
        return max((one.slots for one in self._sets.values()), default=0)

    def join(self, seat: int) -> None:  # noqa: ARG002  (all members share one sum)
        """Prepare for a new member on this seat."""
        self._buffers.leave_room(self.shape.segments)

    def note_need(self, slots: int) -> None:
        """Note that a worker may take the rounds under way to have this number of slots."""
        for one in self._sets.values():
            one.positions.short |= one.slots < min(slots, self.shape.segments)

    def steady(self, high: int) -> tuple[OneSlottedRound, OneSlottedRound] | None:
        """Return the sets of even and of odd rounds, if the rounds after `high` begin in these.

        None: the next one needs another, or one of them is short.
        """
        even, odd = self._sets.get(0), self._sets.get(1)
        if even is None or odd is None or (odd if high & 1 else even).round != high:
            return None
        needed = min(self.slots_of((high + 1) & ROUND_MASK), self.shape.segments)
        fits = needed <= self.room and all(one.slots == needed for one in (even, odd))
        is_short = even.positions.short or odd.positions.short
        return (even, odd) if fits and not is_short else None

    def begin_upto(self, high: int) -> None:
        """Note that the rounds up to `high` have begun, in sets that were `steady`."""
        for round_ in ((high - 1) & ROUND_MASK, high):
            one = self._sets[round_ & 1]
            one.round = later(one.round, round_)

    def reset(self, round_: int) -> None:  # noqa: ARG002  (rounds need no base)
        """Forget both rounds."""
        self._sets.clear()

    # Contributions

    def accumulate(self, seat: int, stretch: Stretch, outcome: Outcome) -> None:
        """Accumulate one member's contributions."""
        one = self._sets.get(stretch.round & 1)
        if one is None or round_distance(stretch.round, one.round) > 0:
            one = self._begin(stretch.round)
        if one.round != stretch.round:
            self.counters["late"] += len(stretch.rows)
            return
        one.accumulate(seat, stretch, outcome)

    def _begin(self, round_: int) -> OneSlottedRound:
        needed = min(self.slots_of(round_), self.shape.segments)
        slots = min(needed, self.room)
        one = self._sets.get(round_ & 1)
        if one is None or one.slots != slots:
            self._sets.pop(round_ & 1, None)
            del one  # before other memory is taken
            ways = self.complete, self.counters, self._buffers
            one = OneSlottedRound(self.cutter, self.shape, slots, *ways)
            self._sets[round_ & 1] = one
        one.begin(round_, short=slots < needed)
        return one

    def finish(self, run: Run, bitmap: int) -> Run:
        """Finish a run: turn its sums into aggregates."""
        one = self.of(run.round)
        assert one is not None
        return one.finish(run, bitmap)

    # States

    def _rounds(self) -> list[tuple[int, OneSlottedRound]]:
        return [(one.round, one) for one in self._sets.values()]

    def held(self, round_: int, start: int, stop: int) -> Iterator[tuple[Run, Held, int]]:
        """Yield the runs of segments start..stop-1, each with its state and contributor bitmap."""
        one = self._sets.get(round_ & 1)
        if one is not None and one.round == round_:
            yield from one.held(round_, start, stop)
        elif start < stop:
            gone = one is not None and round_distance(one.round, round_) > 0
            yield Run(0, round_, start, stop), Held.GONE if gone else Held.NOTHING, 0

    def has_all(self, round_: int) -> bool:
        """Return whether every aggregate of a round is here, or was until a later one came."""
        held = self.held(round_, 0, self.shape.segments)
        return all(what in (Held.COMPLETE, Held.GONE) for _, what, _ in held)
