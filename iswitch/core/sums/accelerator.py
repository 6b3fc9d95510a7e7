"""The accelerator: buffers, contributor bitmaps, and the addition of runs.

A run is a number of consecutive segments of one round that are in the same state; it is checked,
accumulated and completed by a handful of array operations however many segments it has. State
is kept as one 16-byte record per segment, so that "are these 44 segments in the same state" is
one comparison of bytes. Packets that are no run are cut into runs first (`packets.Cutter`,
`Table.uniform`).

Sums are kept as finished data packets (`Shape.packet`), so that a broadcast sends slices of the
buffer itself.

Numerics: float32, float16 and bfloat16 sums are rounded to nearest even after every addition, in
arrival order; int32 wraps. `reproducible` adds in rank order instead, at completion. Maximum and
minimum propagate NaN.
"""

from __future__ import annotations

import struct
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import Enum
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from iswitch.core.format.counters import Counters
from iswitch.core.format.packets import (
    Address,
    Cutter,
    Indices,
    Outgoing,
    Recurring,
    Rows,
    Stretch,
    spans,
    super_packets,
)
from iswitch.core.format.wire import ROUND_MASK, TOS_DATA, Op, Shape, Vector, round_distance

from .buffers import PLAIN, Buffers

Bitmaps = npt.NDArray[np.uint64]
STEPS = np.array((1, 0))  # for `spans` of consecutive segments that have something in common
SMALL = 4  # super-datagrams that a vector has which comes in one piece, nearly always
LONG = 16  # super-datagrams; to copy more costs more than to send it by itself
_UFUNC = {Op.SUM: np.add, Op.MAX: np.maximum, Op.MIN: np.minimum}


class Run(NamedTuple):
    """Segments start..stop-1 of one round (or version), held in buffer `slot`."""

    slot: int
    round: int
    start: int
    stop: int

    @property
    def segments(self) -> int:
        """How many segments it has."""
        return self.stop - self.start


def merge(runs: Iterable[Run]) -> list[Run]:
    """Join runs that continue one another."""
    merged: list[Run] = []
    for run in runs:
        if merged:
            slot, round_, start, stop = merged[-1]
            if (slot, round_, stop) == run[:3]:
                merged[-1] = Run(slot, round_, start, run.stop)
                continue
        merged.append(run)
    return merged


def runs(slot: int, round_: int, indices: Indices) -> list[Run]:
    """Ascending segments as runs."""
    return [
        Run(slot, round_, int(indices[a]), int(indices[b - 1]) + 1) for a, b in spans(indices, 1)
    ]


class Outcome(NamedTuple):
    """What became of contributions: runs now complete, and runs that came late."""

    completed: list[Run]
    late: list[Run]


class Held(Enum):
    """What the switch holds of a segment in a given round."""

    COMPLETE = "complete"
    SENT = "sent to the parent"
    OPEN = "open"
    NOTHING = "not begun"
    GONE = "no longer kept"


class Accelerator(ABC):
    """Buffers of one job and what is common to both modes.

    Args:
        shape: the layout of the job's vectors.
        slots: how many vectors of sums are held.
        complete: the rule that says, for a round and the contributors' bitmap (asynchronous: the
            number of contributions), whether a segment is complete.
        counters: where contributions are counted.
        buffers: where memory comes from.

    Raises:
        MemoryError: there is not enough. All that lasts is taken here and in `join`.
    """

    def __init__(
        self,
        shape: Shape,
        slots: int,
        complete: Callable[[int, int], bool],
        counters: Counters,
        buffers: Buffers = PLAIN,
    ) -> None:
        self.shape = shape
        self.complete = complete
        self.counters = counters
        self.slots = slots
        self._buffers = buffers
        self.rows = self._vectors()
        self.packets = self.rows.reshape(-1).view(shape.packet).reshape(slots, shape.segments)
        self.aggregates = self.rows
        self._segs = self.packets["seg"]
        self._dtype = shape.dtype.numpy
        self._words: Vector = self.rows.view(self._dtype)  # headers and elements
        self._combine = _UFUNC[shape.op]
        self.cutter = Cutter(shape)
        self.cutter.prepare()
        self._long = LONG * super_packets(shape.packet_size)
        self._small = SMALL * super_packets(shape.packet_size)
        self._recurring: dict[tuple[tuple[Address, ...], int], Recurring] = {}

    def bits_held(self) -> int:
        """Bitmap of the seats whose contribution is held in some segment, where that is known."""
        return 0

    def _vectors(self) -> Rows:
        """Room for the packets of a vector in each slot."""
        slots, segments, size = self.slots, self.shape.segments, self.shape.packet_size
        return self._buffers.take(slots * segments * size).reshape(slots, segments, size)

    @abstractmethod
    def join(self, seat: int) -> None:
        """A new member has this seat.

        Raises:
            MemoryError: there is none for it; nothing has changed.
        """

    @abstractmethod
    def accumulate(self, seat: int, stretch: Stretch, outcome: Outcome) -> None:
        """Count one member's contribution; add to the outcome."""

    @abstractmethod
    def reevaluate(self) -> list[Run]:
        """Complete what the rule, which has changed, now calls complete."""

    @abstractmethod
    def force(self, round_: int, start: int, stop: int) -> tuple[list[Run], int]:
        """Complete open segments as they are; the runs, and the fewest contributions in one."""

    @abstractmethod
    def held(self, round_: int, start: int, stop: int) -> Iterator[tuple[Run, Held, int]]:
        """What is held of these segments, run by run, with the contributors' bitmap."""

    @abstractmethod
    def reset(self, round_: int) -> None:
        """Empty everything; an asynchronous job goes on from version `round_`."""

    def outgoing(self, run: Run, partial: bool = False) -> tuple[Rows, int]:
        """The aggregates of a run as packets: rows (n, packet_size) and the size of the last.

        `partial`: not the aggregates but the sums of the members here, the contribution to the
        parent.
        """
        source = self.rows if partial else self.aggregates
        return source[run.slot, run.start : run.stop], self.shape.tail(run.stop)

    def broadcast(self, peers: tuple[Address, ...], run: Run) -> Outgoing:
        """The aggregates of a run, for these; of a whole small vector always the same object."""
        if run.segments < self.shape.segments or run.segments > self._small:
            return Outgoing(peers, TOS_DATA, *self.outgoing(run))
        found = self._recurring.get((peers, run.slot))
        if found is None:
            if len(self._recurring) >= self.slots:  # they were for others
                self._recurring.clear()
            found = Recurring(peers, TOS_DATA, *self.outgoing(run))
            self._recurring[peers, run.slot] = found
        return found

    def packed(self, runs: Sequence[Run], partial: bool = False) -> Iterator[tuple[Rows, int]]:
        """The same of many runs; all but long ones are put together, which takes a copy."""
        if len(runs) == 1:
            yield self.outgoing(runs[0], partial)
            return
        together: dict[int, list[Run]] = {}
        for run in merge(runs):
            if run.segments < self._long:
                together.setdefault(run.slot, []).append(run)
            else:
                yield self.outgoing(run, partial)
        for slot, short in together.items():
            if len(short) == 1:
                yield self.outgoing(short[0], partial)
                continue
            # Each once: in a packet behind the shorter last one the rest would mean something.
            wanted = np.zeros(self.shape.segments, bool)
            for run in short:
                wanted[run.start : run.stop] = True
            indices = np.flatnonzero(wanted)
            rows = self.rows if partial else self.aggregates
            yield rows[slot, indices], self.shape.tail(int(indices[-1]) + 1)

    def _add(self, into: Vector, rows: Rows, first: bool) -> None:
        """Accumulate whole packets.

        The headers are added, too, and so mean nothing until they are written: NumPy adds one piece
        of memory four times as fast as rows with gaps between them.
        """
        data = rows.view(self._dtype)
        if data.shape[1] != into.shape[1]:
            into = into[:, : data.shape[1]]
        if first:
            into[...] = data
        else:
            self._combine(into, data, out=into)

    def _count_in(self, into: Vector, rows: Rows, first: bool, *marks: Mark) -> None:
        """Accumulate whole packets, and mark them as counted.

        Either all of it happens or nothing: memory can run out in the first step only, which then
        does nothing. Else a contribution would be in a sum without a mark, and could be added once
        more.
        """
        self._add(into, rows, first)
        for mark in marks:
            mark.write()
        self.counters["accumulated"] += len(rows)

    def _write_headers(self, slot: int, round_: int, start: int, stop: int) -> None:
        self._segs[slot, start:stop] = self.cutter.headers(round_, start, stop)


class Mark(NamedTuple):
    """A state of some segments, made up and not written yet: that takes no memory any more."""

    table: bytearray
    at: int
    records: bytes

    def write(self) -> None:
        """Have it hold from now on."""
        self.table[self.at : self.at + len(self.records)] = self.records


class Table:
    """A 16-byte state record for every segment, seen as an array and as bytes."""

    def __init__(self, record: struct.Struct, segments: int) -> None:
        self.record = record
        self.bytes = bytearray(record.size * segments)
        self.words: npt.NDArray[np.uint64] = np.frombuffer(self.bytes, np.uint64).reshape(
            segments, -1
        )
        self.clear()  # so that the memory is there, not only promised

    def is_uniform(self, start: int, stop: int) -> bool:
        """Whether segments start..stop-1 are all in the same state."""
        size = self.record.size
        held = self.bytes[size * start : size * stop]
        return held == held[:size] * (stop - start)

    def uniform(self, start: int, stop: int) -> list[tuple[int, int]]:
        """Cut segments start..stop-1 where the state changes."""
        if start >= stop:
            return []
        if self.is_uniform(start, stop):
            return [(start, stop)]
        return [(start + a, start + b) for a, b in spans(self.words[start:stop], 0)]

    def get(self, index: int) -> tuple[int, ...]:
        """The state of one segment."""
        return self.record.unpack_from(self.bytes, self.record.size * index)

    def mark(self, start: int, stop: int, *state: int) -> Mark:
        """What is to be written to give segments start..stop-1 one state."""
        return Mark(self.bytes, self.record.size * start, self.record.pack(*state) * (stop - start))

    def set(self, start: int, stop: int, *state: int) -> None:
        """Give segments start..stop-1 one state."""
        size = self.record.size
        self.bytes[size * start : size * stop] = self.record.pack(*state) * (stop - start)

    def clear(self) -> None:
        """All records zero."""
        self.words[:] = 0


class SynchronousAccelerator(Accelerator):
    """Two sets of sums, chosen by round mod 2 (section 4 of the protocol).

    A segment's state is its round, how far it is (open, sent to the parent, complete), and the
    bitmap of its contributors; an open set with an empty bitmap is empty, whatever round it names.

    With a parent the sum of the members here is a contribution to it, and the aggregate comes from
    there; both are kept, since either may have to be sent again.
    """

    OPEN, SENT, COMPLETE = 0, 1, 2

    SLOTS = 2
    RECORD = struct.Struct("<IIQ")  # round, how far, bitmap

    def __init__(
        self,
        shape: Shape,
        complete: Callable[[int, int], bool],
        counters: Counters,
        reproducible: bool = False,
        has_parent: bool = False,
        buffers: Buffers = PLAIN,
    ) -> None:
        super().__init__(shape, self.SLOTS, complete, counters, buffers)
        self._finished = self.SENT if has_parent else self.COMPLETE
        if has_parent:
            self.aggregates = self._vectors()
        self.state = [Table(self.RECORD, shape.segments) for _ in range(self.SLOTS)]
        self.reproducible = reproducible
        self._parts: dict[int, Vector] = {}  # by seat, shaped as `_words`
        self.order: dict[int, int] = {}  # what seats are sorted by when sums are in rank order

    @classmethod
    def memory(cls, shape: Shape, has_parent: bool = False) -> int:
        """Bytes that a job of this shape needs."""
        packets = shape.packet_size * (1 + has_parent)
        per_segment = cls.SLOTS * (packets + cls.RECORD.size) + Cutter.MEMORY
        return shape.segments * per_segment

    @classmethod
    def memory_per_member(cls, shape: Shape, reproducible: bool) -> int:
        """Bytes that each member needs on top."""
        return cls.SLOTS * shape.segments * shape.packet_size if reproducible else 0

    def join(self, seat: int) -> None:
        """A new member has this seat."""
        lacks = self.reproducible and seat not in self._parts
        parts = self._vectors().view(self._dtype) if lacks else None
        self._buffers.leave_room(self.shape.segments)
        if parts is not None:
            self._parts[seat] = parts

    def bits_held(self) -> int:
        """Bitmap of the seats whose contribution is held in some segment."""
        return int(np.bitwise_or.reduce([np.bitwise_or.reduce(t.words[:, 1]) for t in self.state]))

    def accumulate(self, seat: int, stretch: Stretch, outcome: Outcome) -> None:
        """Count one member's contribution, at most once per segment."""
        round_, start, rows, _, indices = stretch
        if indices is None:
            stop = start + len(rows)
            if self.state[round_ & 1].is_uniform(start, stop):
                self._accumulate_run(seat, round_, start, stop, rows, outcome)
                return
            indices = np.arange(start, stop)
        self._accumulate_each(seat, round_, indices, rows, outcome)

    def _accumulate_run(
        self, seat: int, round_: int, start: int, stop: int, rows: Rows, outcome: Outcome
    ) -> None:
        slot = round_ & 1
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
        into = self._parts[seat] if self.reproducible else self._words
        first = self.reproducible or not bitmap
        bitmap |= 1 << seat
        mark = state.mark(start, stop, round_, self.OPEN, bitmap)
        self._count_in(into[slot, start:stop], rows, first, mark)
        if self.complete(round_, bitmap):
            outcome.completed.append(self._finish(Run(slot, round_, start, stop), bitmap))

    def _accumulate_each(
        self, seat: int, round_: int, indices: Indices, rows: Rows, outcome: Outcome
    ) -> None:
        """The same for segments that are not consecutive, or not all in one state."""
        slot = round_ & 1
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
        into = self._parts[seat] if self.reproducible else self._words
        first = (bitmaps == 0) | self.reproducible
        states = np.empty((len(indices), 2), np.uint64)
        states[:, 0] = round_
        bitmaps = states[:, 1] = bitmaps | bit
        self._add_each(into[slot], indices, rows, first, words, states)
        if self.complete(round_, int(np.bitwise_or.reduce(bitmaps))):  # else not one of them is
            done = np.zeros(len(bitmaps), bool)
            for bitmap in set(bitmaps.tolist()):
                if self.complete(round_, bitmap):
                    done |= bitmaps == bitmap
            if done.any():
                outcome.completed.extend(self._finish_each(round_, indices[done], bitmaps[done]))

    def _add_each(
        self,
        into: Vector,
        indices: Indices,
        rows: Rows,
        first: npt.NDArray[np.bool_],
        words: Bitmaps,
        states: Bitmaps,
    ) -> None:
        """Accumulate whole packets of ascending segments; the `first` of a segment are copied.

        Stretches of consecutive segments are added (or copied) as if all in them were as most are;
        the few others are set right, all at once. All that takes memory is done before.
        """
        data = rows.view(self._dtype)
        width = data.shape[1]
        firsts = int(np.count_nonzero(first))
        copies = 2 * firsts > len(first)
        few = np.flatnonzero(first != copies) if 0 < firsts < len(first) else None
        if few is not None:
            at = indices[few]
            exact = data[few]
            if copies:
                exact = self._combine(into[at, :width], exact)
        stretches = [(int(indices[a]), a, b) for a, b in spans(indices, 1)]
        repair = None if few is None else (at, exact)
        self._count_in_each(into, stretches, rows, copies, repair, words, indices, states)

    def _count_in_each(
        self,
        into: Vector,
        stretches: list[tuple[int, int, int]],
        rows: Rows,
        copies: bool,
        repair: tuple[Indices, Vector] | None,
        words: Bitmaps,
        indices: Indices,
        states: Bitmaps,
    ) -> None:
        """Do what `_add_each` has prepared, and mark it as counted: all of it or nothing."""
        for start, a, b in stretches:
            self._add(into[start : start + b - a], rows[a:b], copies)
        if repair is not None:
            at, exact = repair
            into[at, : exact.shape[1]] = exact
        words[indices] = states
        self.counters["accumulated"] += len(rows)

    def _finish_each(self, round_: int, indices: Indices, bitmaps: Bitmaps) -> list[Run]:
        slot = round_ & 1
        if self.reproducible:
            for a, b in spans(np.stack((indices, bitmaps.astype(np.int64)), axis=1), STEPS):
                start = int(indices[a])
                self._add_up(slot, start, start + b - a, int(bitmaps[a]))
        self._segs[slot, indices] = self.cutter.headers(round_, 0, self.shape.segments)[indices]
        self.state[slot].words[indices, 0] = round_ | self._finished << 32
        self.counters["aggregates"] += len(indices)
        return runs(slot, round_, indices)

    def _add_up(self, slot: int, start: int, stop: int, bitmap: int) -> None:
        """Sum in rank order; who has no rank comes by its seat."""
        held = [seat for seat in range(bitmap.bit_length()) if bitmap >> seat & 1]
        first, *others = sorted(held, key=lambda seat: (self.order.get(seat, seat), seat))
        total = self._words[slot, start:stop]
        total[...] = self._parts[first][slot, start:stop]
        for seat in others:
            self._combine(total, self._parts[seat][slot, start:stop], out=total)

    def _finish(self, run: Run, bitmap: int) -> Run:
        slot, round_, start, stop = run
        if self.reproducible:
            self._add_up(slot, start, stop, bitmap)
        self._write_headers(slot, round_, start, stop)
        self.state[slot].set(start, stop, round_, self._finished, bitmap)
        self.counters["aggregates"] += stop - start
        return run

    def take(self, stretch: Stretch) -> list[Run]:
        """Keep consecutive aggregates that came from the parent; the runs that are new.

        None is of an older round than its set: that has raised `high` to its own, and the window
        takes none two rounds before.
        """
        round_, index, rows, *_ = stretch
        slot = round_ & 1
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
        """Keep aggregates and say so, both or neither."""
        into[...] = rows
        mark.write()
        self.counters["from_parent"] += len(rows)

    def waiting(self) -> list[Run]:
        """What was sent to the parent and whose aggregate has not come."""
        return [
            Run(slot, state.get(start)[0], start, stop)
            for slot, state in enumerate(self.state)
            for start, stop in state.uniform(0, self.shape.segments)
            if state.get(start)[1] == self.SENT
        ]

    def has_all(self, round_: int) -> bool:
        """Whether every aggregate of a round is here."""
        held = self.held(round_, 0, self.shape.segments)
        return all(what is Held.COMPLETE for _, what, _ in held)

    def reevaluate(self) -> list[Run]:
        """Complete what the rule, which has changed, now calls complete."""
        completed = []
        for slot, state in enumerate(self.state):
            for start, stop in state.uniform(0, self.shape.segments):
                round_, how_far, bitmap = state.get(start)
                if bitmap and not how_far and self.complete(round_, bitmap):
                    completed.append(self._finish(Run(slot, round_, start, stop), bitmap))
        return completed

    def force(self, round_: int, start: int, stop: int) -> tuple[list[Run], int]:
        """Complete open segments as they are; the runs, and the fewest contributions in one."""
        held = list(self.held(round_, start, stop))
        forced = [
            (self._finish(run, bitmap), bitmap.bit_count())
            for run, what, bitmap in held
            if what is Held.OPEN
        ]
        self.counters["partial_aggregates"] += sum(run.segments for run, _ in forced)
        return [run for run, _ in forced], min((count for _, count in forced), default=0)

    def held(self, round_: int, start: int, stop: int) -> Iterator[tuple[Run, Held, int]]:
        """What is held of these segments, run by run, with the contributors' bitmap."""
        slot = round_ & 1
        for a, b in self.state[slot].uniform(start, stop):
            holds, how_far, bitmap = self.state[slot].get(a)
            run = Run(slot, round_, a, b)
            if not (bitmap or how_far) or round_distance(holds, round_) < 0:
                yield run, Held.NOTHING, 0
            elif holds != round_:
                yield run, Held.GONE, 0
            else:
                yield run, (Held.OPEN, Held.SENT, Held.COMPLETE)[how_far], bitmap

    def reset(self, round_: int) -> None:  # noqa: ARG002  (rounds need no base)
        """Empty both sets."""
        for state in self.state:
            state.clear()
