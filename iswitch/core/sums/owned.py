"""The accelerator of a job whose segments have owners (docs/protocol.md, "Owned segments")."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from iswitch.core.format.counters import Counters
from iswitch.core.format.division import Division
from iswitch.core.format.packets import Rows, Stretch
from iswitch.core.format.wire import CLOSING_SIZE, MAX_MEMBERS, ROUND_MASK, SEG_SIZE, Shape

from .buffers import PLAIN, Buffers
from .plane import Rule
from .runs import Held, Outcome, Run, runs
from .states import Bitmaps
from .synchronous import SynchronousAccelerator

ALL = (1 << MAX_MEMBERS) - 1  # the bitmap to which no contributor is lacking
AT_ONCE = 1 << 16  # segments whose bitmaps are unpacked together, 4 MB
COUNT = slice(SEG_SIZE, SEG_SIZE + CLOSING_SIZE)  # of a closing segment


class OwnedAccelerator(SynchronousAccelerator):
    """Takes each rank's own segments as they are, and closes rounds.

    Attributes:
        division: whose segments are whose.
        bit_of: the bit of the seat that has each rank; 0: none here has it, (ranks,).
        counted: what each seat's closing segment counts, (sets, seats); it holds where the state
            has the seat's bit.
        due: contributions that must come at least before the round of each set can close, (sets,).
    """

    def __init__(
        self,
        shape: Shape,
        complete: Rule,
        counters: Counters,
        reproducible: bool = False,
        has_parent: bool = False,
        buffers: Buffers = PLAIN,
    ) -> None:
        super().__init__(shape, complete, counters, reproducible, has_parent, buffers)
        self.division = Division(shape)
        self.bit_of = np.zeros(shape.owners, np.uint64)
        self.counted = np.zeros((self.slots, MAX_MEMBERS), np.int64)
        self.due = np.zeros(self.slots, np.int64)

    def join(self, seat: int) -> None:
        """Prepare for a new member on this seat, whose ranks are not known yet."""
        super().join(seat)
        self.bit_of[self.bit_of == np.uint64(1 << seat)] = 0

    def rank(self, seat: int, ranks: int) -> None:
        """Set the ranks of a seat: those for which it contributes and receives."""
        super().rank(seat, ranks)
        self.bit_of[self.bit_of == np.uint64(1 << seat)] = 0
        for rank in range(min(ranks.bit_length(), self.division.owners)):
            if ranks >> rank & 1:
                self.bit_of[rank] = 1 << seat

    # Contributions

    def accumulate(self, seat: int, stretch: Stretch, outcome: Outcome) -> None:
        """Accumulate one member's contributions to its own segments; drop those to others'."""
        closing = self.division.closing
        before = self.counters["accumulated"]
        closes = stretch.stop > closing
        if closes:
            last = stretch.rows[-1:, : stretch.tail]
            stretch = stretch.part(0, len(stretch.rows) - 1)
        for own in self._own(seat, stretch):
            super().accumulate(seat, own, outcome)
        if closes:
            self._note_count(seat, stretch.round, last)
            self._accumulate_run(seat, stretch.round, closing, closing + 1, last, outcome)
        slot = stretch.round & 1
        self.due[slot] -= self.counters["accumulated"] - before
        if closes:
            self.due[slot] = 0
        if self.due[slot] <= 0:
            self._close(stretch.round, outcome)

    def _own(self, seat: int, stretch: Stretch) -> list[Stretch]:
        """Return the parts of a stretch that this seat may contribute; count the rest."""
        step, n = self.division.per_source, len(stretch.rows)
        if not step or not n:
            return [stretch] if n else []
        bit, source = np.uint64(1 << seat), stretch.start // step
        if source == (stretch.stop - 1) // step:  # all of one rank
            parts = [(0, n)] if self.bit_of[source] == bit else []
        else:
            indices = stretch.indices
            if indices is None:
                indices = np.arange(stretch.start, stretch.stop)
            own = self.bit_of[indices // step] == bit
            edges = np.flatnonzero(np.diff(own, prepend=False, append=False)).tolist()
            parts = list(zip(edges[::2], edges[1::2], strict=True))
        self.counters["not_owner"] += n - sum(b - a for a, b in parts)
        return [stretch.part(a, b) for a, b in parts]

    def _note_count(self, seat: int, round_: int, last: Rows) -> None:
        """Note how many segments the sender of a closing segment contributes; the first time."""
        holds, _, bitmap = self.state[round_ & 1].get(self.division.closing)
        if holds != round_ or not bitmap >> seat & 1:
            count = int.from_bytes(last[0, COUNT].tobytes(), "little")
            self.counted[round_ & 1, seat] = count

    def _close(self, round_: int, outcome: Outcome) -> None:
        """Complete the closing segment if these contributions were all that it waited for."""
        slot, closing = round_ & 1, self.division.closing
        holds, how_far, bitmap = self.state[slot].get(closing)
        if holds != round_ or how_far or not bitmap:
            return
        if self._is_complete(round_, closing, bitmap):
            run = Run(slot, round_, closing, closing + 1)
            outcome.completed.append(self.finish(run, bitmap))

    # Completion

    def _is_complete(self, round_: int, start: int, bitmap: int) -> bool:
        if start == self.division.closing:
            return self.complete(round_, bitmap) and not self.unclosed(round_, bitmap)
        return self.complete(round_, ALL if self.division.per_source else bitmap)

    def unclosed(self, round_: int, bitmap: int) -> int:
        """Return which of these seats count more, or fewer, segments than are here.

        Args:
            round_: the round.
            bitmap: bitmap of seats whose closing segment is here.
        """
        here = np.zeros(MAX_MEMBERS, np.int64)
        bits = self._bits(round_).astype("<u8", copy=False)
        for start in range(0, len(bits), AT_ONCE):
            octets = bits[start : start + AT_ONCE].view(np.uint8).reshape(-1, 8)
            here += np.unpackbits(octets, axis=1, bitorder="little").sum(axis=0, dtype=np.int64)
        counted = self.counted[round_ & 1]
        differ = np.flatnonzero(here != counted).tolist()
        due = sum(max(1, int(counted[s] - here[s])) for s in differ if bitmap >> s & 1)
        self.due[round_ & 1] = due
        return bitmap & sum(1 << seat for seat in differ)

    def _bits(self, round_: int, finished: bool = False) -> Bitmaps:
        """Return bitmaps of the seats whose contributions to a round are here, or not needed.

        After a restart, an aggregate from the parent may have come before the contributions here.

        Args:
            round_: the round.
            finished: leave out open segments.

        Returns:
            A bitmap for each segment that has begun, the closing one left out, (n,).
        """
        words = self.state[round_ & 1].words[: self.division.closing]
        chosen = words[:, 0] & np.uint64(ROUND_MASK) == round_
        if finished:
            chosen &= words[:, 0] > ROUND_MASK
        indices = np.flatnonzero(chosen)
        bits: Bitmaps = words[indices, 1]
        complete = words[indices, 0] == np.uint64(self.COMPLETE << 32 | round_)
        if self.division.per_source:
            bits[complete] |= self.bit_of[indices[complete] // self.division.per_source]
        else:
            bits[complete] = ALL
        return bits

    def finish(self, run: Run, bitmap: int) -> Run:
        """Finish a run: turn its sums into aggregates; count them in the closing segment."""
        closing = self.division.closing
        super().finish(run, bitmap)
        if run.start == closing:
            count = int(np.count_nonzero(self._bits(run.round, finished=True)))
            row = self.rows[run.slot, closing]
            row[SEG_SIZE:] = 0
            row[COUNT] = np.frombuffer(count.to_bytes(CLOSING_SIZE, "little"), np.uint8)
        return run

    def take(self, stretch: Stretch) -> list[Run]:
        """Keep consecutive aggregates from the parent; return the runs that are new."""
        self.due[stretch.round & 1] = 0  # contributions to these need not come
        return super().take(stretch)

    def reevaluate(self) -> list[Run]:
        """Complete the segments that are complete by the changed rule; return their runs."""
        completed = []
        for run, bitmap in [(r, b) for r, how_far, b in self.begun() if how_far == self.OPEN]:
            if self._is_complete(run.round, run.start, bitmap):
                completed.append(self.finish(run, bitmap))
        return completed

    # What is held

    def begun(self) -> Iterator[tuple[Run, int, int]]:
        """Yield the runs of both sets that are not empty, closing segments by themselves."""
        for run, how_far, bitmap in super().begun():
            for part in self._cut(run):
                yield part, how_far, bitmap

    def held(self, round_: int, start: int, stop: int) -> Iterator[tuple[Run, Held, int]]:
        """Yield the runs of segments start..stop-1, closing segments by themselves."""
        for run, what, bitmap in super().held(round_, start, stop):
            for part in self._cut(run):
                yield part, what, bitmap

    def _cut(self, run: Run) -> list[Run]:
        closing = self.division.closing
        if run.start < closing < run.stop:
            return [run._replace(stop=closing), run._replace(start=closing)]
        return [run]

    def has_all(self, round_: int) -> bool:
        """Return whether every aggregate of a round that goes to a rank below is here."""
        slot, closing = round_ & 1, self.division.closing
        words = self.state[slot].words
        complete = np.uint64(self.COMPLETE << 32 | round_)
        if words[closing, 0] != complete:
            return False
        if not self.division.is_for_one:
            row = self.aggregates[slot, closing, COUNT]
            count = int.from_bytes(row.tobytes(), "little")
            return int(np.count_nonzero(words[:closing, 0] == complete)) >= count
        waiting = np.flatnonzero(words[:closing, 0] == np.uint64(self.SENT << 32 | round_))
        receivers = waiting // self.division.per_block % self.division.owners
        return not self.bit_of[receivers].any()

    def lacks(self, round_: int, seat: int) -> list[Run]:
        """Return the segments of a round that a seat might contribute, and has not."""
        words, step = self.state[round_ & 1].words, self.division.per_source
        is_open = words[:, 0] == round_
        lacking = is_open & (words[:, 1] & np.uint64(1 << seat) == 0)
        lacking |= (words[:, 0] <= ROUND_MASK) & (words[:, 1] == 0)  # not begun
        lacking |= words[:, 0].astype(np.uint32) - np.uint32(round_) >= np.uint32(1 << 31)  # older
        if step:
            lacking[:-1] &= np.repeat(self.bit_of == np.uint64(1 << seat), step)
        return runs(round_ & 1, round_, np.flatnonzero(lacking))
