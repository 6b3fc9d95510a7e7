"""The accelerator of a synchronous job: rounds (section 4 of the protocol)."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from iswitch.core.format.counters import Counters
from iswitch.core.format.packets import Cutter, Indices, Rows, Stretch, index_ranges
from iswitch.core.format.wire import ROUND_MASK, Shape, Vector, lowest

from .accelerator import NumPyAccelerator
from .buffers import PLAIN, Buffers
from .plane import RoundAccelerator, Rule
from .runs import Held, Outcome, Run, runs
from .states import Bitmaps, Mark, Marks, RoundStates

STEPS = np.array((1, 0))  # for `index_ranges`: consecutive segments with equal bitmaps


class SynchronousAccelerator(NumPyAccelerator, RoundAccelerator):
    """Keeps two sets of sums, chosen by round mod 2 (section 4 of the protocol).

    With a parent, the sum of the members here is a contribution to the parent, which sends the
    aggregate. Both are kept, since either may be asked for again.
    """

    OPEN, SENT, COMPLETE = RoundStates.OPEN, RoundStates.SENT, RoundStates.COMPLETE
    SLOTS = RoundStates.SETS
    RECORD = RoundStates.RECORD

    def __init__(
        self,
        shape: Shape,
        complete: Rule,
        counters: Counters,
        reproducible: bool = False,
        has_parent: bool = False,
        buffers: Buffers = PLAIN,
    ) -> None:
        super().__init__(shape, self.SLOTS, complete, counters, buffers)
        self.finished = self.SENT if has_parent else self.COMPLETE
        if has_parent:
            self.aggregates = self._vectors(self.SLOTS)
        self._has_parent = has_parent
        self.states = RoundStates(shape.segments, self.SLOTS)
        self.state = self.states.sets
        self.reproducible = reproducible
        self._contributions: dict[int, Vector] = {}  # by seat, shaped as `_words`
        self.order: dict[int, int] = {}  # by seat: its place in sums in rank order

    @classmethod
    def memory(cls, shape: Shape, has_parent: bool = False) -> int:
        """Return the bytes that a job of this shape needs."""
        packets = shape.packet_size * (1 + has_parent)
        per_segment = cls.SLOTS * (packets + cls.RECORD.size) + Cutter.MEMORY
        return shape.segments * per_segment

    @classmethod
    def memory_per_member(cls, shape: Shape, reproducible: bool) -> int:
        """Return the bytes that each member needs on top."""
        return cls.SLOTS * shape.segments * shape.packet_size if reproducible else 0

    def nbytes(self) -> int:
        """Return the size of all arrays and states in bytes, without the headers of rounds."""
        parts = sum(part.nbytes for part in self._contributions.values())
        return super().nbytes() + sum(len(table.bytes) for table in self.state) + parts

    def join(self, seat: int) -> None:
        """Prepare for a new member on this seat."""
        lacks = self.reproducible and seat not in self._contributions
        parts = self._vectors(self.SLOTS).view(self._word) if lacks else None
        self._buffers.leave_room(self.shape.segments)
        if parts is not None:
            self._contributions[seat] = parts

    def rank(self, seat: int, ranks: int) -> None:
        """Set the ranks of a seat; the lowest is its place in sums in rank order."""
        self.order[seat] = lowest(ranks)

    def bits_held(self) -> int:
        """Return the bitmap of the seats that have a contribution in some segment."""
        return self.states.bits()

    def accumulate(self, seat: int, stretch: Stretch, outcome: Outcome) -> None:
        """Accumulate one member's contributions, at most one per segment and round."""
        round_, start, rows, _, indices = stretch
        if indices is None:
            stop = start + len(rows)
            if self.state[round_ % self.SLOTS].is_uniform(start, stop):
                self._accumulate_run(seat, round_, start, stop, rows, outcome)
                return
            indices = np.arange(start, stop)
        self._accumulate_each(seat, round_, indices, rows, outcome)

    def _accumulate_run(
        self, seat: int, round_: int, start: int, stop: int, rows: Rows, outcome: Outcome
    ) -> None:
        slot = round_ % self.SLOTS
        state = self.state[slot]
        holds, how_far, bitmap = state.get(start)
        if holds != round_ or not (bitmap or how_far):
            how_far = bitmap = 0
        if how_far == self.COMPLETE:
            self.counters["late"] += len(rows)
            outcome.late.append(Run(slot, round_, start, stop))
            return
        if how_far or bitmap >> seat & 1:
            self.counters["duplicate" if bitmap >> seat & 1 else "late"] += len(rows)
            return
        into = self._contributions[seat] if self.reproducible else self._words
        first = self.reproducible or not bitmap
        bitmap |= 1 << seat
        mark = state.mark(start, stop, round_, self.OPEN, bitmap)
        self._count_in(into[slot, start:stop], rows, first, mark)
        if self._is_complete(round_, start, bitmap):
            outcome.completed.append(self.finish(Run(slot, round_, start, stop), bitmap))

    def _is_complete(self, round_: int, start: int, bitmap: int) -> bool:  # noqa: ARG002
        """Return whether the segments from `start` on, of one kind and state, are complete."""
        return self.complete(round_, bitmap)

    def _accumulate_each(
        self, seat: int, round_: int, indices: Indices, rows: Rows, outcome: Outcome
    ) -> None:
        """Accumulate contributions to segments that are not consecutive, or differ in state."""
        slot = round_ % self.SLOTS
        words = self.state[slot].words
        held = words[indices]
        bit = np.uint64(1 << seat)
        bitmaps = held[:, 1]
        other = held[:, 0] != round_  # not open in this round
        if other.any():
            held[held[:, 0] & np.uint64(ROUND_MASK) != round_] = 0
            other = held[:, 0] > ROUND_MASK  # past being open
        refused = other | (bitmaps & bit != 0)
        if refused.any():
            late = refused & (held[:, 0] >> np.uint64(32) == self.COMPLETE)
            duplicates = int((refused & ~late & (bitmaps & bit != 0)).sum())
            self.counters["duplicate"] += duplicates
            self.counters["late"] += int(refused.sum()) - duplicates
            outcome.late.extend(runs(slot, round_, indices[late]))
            taken = ~refused
            indices, rows, bitmaps = indices[taken], rows[taken], bitmaps[taken]
            if not len(indices):
                return
        into = self._contributions[seat] if self.reproducible else self._words
        first = (bitmaps == 0) | self.reproducible
        states = np.empty((len(indices), 2), np.uint64)
        states[:, 0] = round_
        bitmaps = states[:, 1] = bitmaps | bit
        self._add_each(into[slot], indices, rows, first, Marks(words, indices, states))
        start = int(indices[0])
        most = int(np.bitwise_or.reduce(bitmaps))
        if self._is_complete(round_, start, most):  # else not one of them is
            done = np.zeros(len(bitmaps), bool)
            for bitmap in set(bitmaps.tolist()):
                if self._is_complete(round_, start, bitmap):
                    done |= bitmaps == bitmap
            if done.any():
                outcome.completed.extend(self._finish_each(round_, indices[done], bitmaps[done]))

    def _add_each(
        self,
        into: Vector,
        indices: Indices,
        rows: Rows,
        first: npt.NDArray[np.bool_],
        marks: Marks,
    ) -> None:
        """Accumulate whole packets of ascending segments; copy the `first` of a segment.

        Most packets are alike: all are added, or all are copied, in stretches of consecutive
        segments; the few that differ are then overwritten with their right values. All steps that
        need memory come first.

        Args:
            into: the sums of one slot, (segments, elements).
            indices: the segments, (n,).
            rows: the packets, (n, size) bytes.
            first: whether each is the first of its segment, (n,).
            marks: the states to write.
        """
        data = rows.view(self._word)
        width = data.shape[1]
        firsts = int(np.count_nonzero(first))
        copies = 2 * firsts > len(first)
        few = np.flatnonzero(first != copies) if 0 < firsts < len(first) else None
        if few is not None:
            at = indices[few]
            exact = data[few]
            if copies:
                exact = self._combine(into[at, :width], exact)
        places = [(int(indices[a]), a, b) for a, b in index_ranges(indices, 1)]
        repair = None if few is None else (at, exact)
        self._count_in_each(into, places, rows, copies, repair, marks)

    def _count_in_each(
        self,
        into: Vector,
        places: list[tuple[int, int, int]],
        rows: Rows,
        copies: bool,
        repair: tuple[Indices, Vector] | None,
        marks: Marks,
    ) -> None:
        """Carry out the steps that `_add_each` has prepared, and write the marks: all or none.

        Args:
            into: the sums of one slot, (segments, elements).
            places: stretches: first segment, and range of rows.
            rows: the packets, (n, size) bytes.
            copies: whether to copy instead of add.
            repair: segments to overwrite, and their values; None: there are none.
            marks: the states to write.
        """
        for start, a, b in places:
            self._add(into[start : start + b - a], rows[a:b], copies)
        if repair is not None:
            at, exact = repair
            into[at, : exact.shape[1]] = exact
        marks.write()
        self.counters["accumulated"] += len(rows)

    def _finish_each(self, round_: int, indices: Indices, bitmaps: Bitmaps) -> list[Run]:
        slot = round_ % self.SLOTS
        if self.reproducible:
            for a, b in index_ranges(np.stack((indices, bitmaps.astype(np.int64)), axis=1), STEPS):
                start = int(indices[a])
                self._add_up(slot, start, start + b - a, int(bitmaps[a]))
        self._segs[slot, indices] = self._headers(slot, round_, 0, self.shape.segments)[indices]
        self.state[slot].words[indices, 0] = round_ | self.finished << 32
        self.counters["aggregates"] += len(indices)
        return runs(slot, round_, indices)

    def _add_up(self, slot: int, start: int, stop: int, bitmap: int) -> None:
        """Sum in rank order."""
        first, *others = (part for seat, part in self.in_order() if bitmap >> seat & 1)
        total = self._words[slot, start:stop]
        total[...] = first[slot, start:stop]
        for part in others:
            self._combine(total, part[slot, start:stop], out=total)

    def in_order(self) -> list[tuple[int, Vector]]:
        """Return all seats with their contributions, in the order of sums in rank order.

        The seat stands in for the rank of a member that has none.
        """
        held = self._contributions
        seats = sorted(held, key=lambda seat: (self.order.get(seat, seat), seat))
        return [(seat, held[seat]) for seat in seats]

    def finish(self, run: Run, bitmap: int) -> Run:
        """Finish a run: turn its sums into aggregates."""
        slot, round_, start, stop = run
        if self.reproducible:
            self._add_up(slot, start, stop, bitmap)
        self._write_headers(slot, round_, start, stop)
        self.state[slot].set(start, stop, round_, self.finished, bitmap)
        self.counters["aggregates"] += stop - start
        return run

    def take(self, stretch: Stretch) -> list[Run]:
        """Keep consecutive aggregates from the parent; return the runs that are new.

        No aggregate is older than its set: the set's round has raised `high`, and the window
        refuses rounds two before that.
        """
        round_, index, rows, *_ = stretch
        slot = round_ % self.SLOTS
        state = self.state[slot]
        taken = []
        for start, stop in state.uniform(index, index + len(rows)):
            holds, how_far, bitmap = state.get(start)
            if holds == round_ and how_far == self.COMPLETE:
                self.counters["repeated"] += stop - start
            else:
                part = rows[start - index : stop - index]
                into = self.aggregates[slot, start:stop, : part.shape[1]]
                bits = bitmap if holds == round_ else 0
                self._keep(into, part, state.mark(start, stop, round_, self.COMPLETE, bits))
                taken.append(Run(slot, round_, start, stop))
        return taken

    def _keep(self, into: Rows, rows: Rows, mark: Mark) -> None:
        """Keep aggregates and mark them complete, both or neither."""
        into[...] = rows
        mark.write()
        self.counters["from_parent"] += len(rows)

    def held(self, round_: int, start: int, stop: int) -> Iterator[tuple[Run, Held, int]]:
        """Yield the runs of segments start..stop-1, each with its state and contributor bitmap."""
        return self.states.held(round_, start, stop)

    def words_of(self, round_: int, indices: Indices) -> Bitmaps:
        """Return the states of the sets' segments, (n, words), as they are kept for a round."""
        return self.state[round_ % self.SLOTS].words[indices]

    def begun(self) -> Iterator[tuple[Run, int, int]]:
        """Yield the nonempty runs of both sets, each with its progress and bitmap."""
        return self.states.begun()

    def reset(self, round_: int) -> None:  # noqa: ARG002  (rounds need no base)
        """Empty both sets."""
        self.states.clear()
