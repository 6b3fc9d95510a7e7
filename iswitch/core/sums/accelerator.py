"""The accelerator: buffers, contributor bitmaps, and the addition of runs.

A run is a number of consecutive segments of one round in one state. A handful of array operations
checks, accumulates and completes it, whatever its length. The state is one 16-byte record per
segment, so that one comparison of bytes tells whether 44 segments share a state. Packets that are
not one run are cut into runs first (`packets.Cutter`, `Table.uniform`).

Sums are kept as finished data packets (`Shape.packet`), so that a broadcast sends slices of the
buffer itself.

Numerics: sums and products of floats are rounded to nearest even after every step, in arrival
order; those of integers wrap. `reproducible` goes in rank order instead, at completion. Maximum and
minimum propagate NaN.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from iswitch.core.format.counters import Counters
from iswitch.core.format.memo import Memo
from iswitch.core.format.packets import (
    Address,
    Cutter,
    Headers,
    Outgoing,
    Recurring,
    Rows,
    super_packets,
)
from iswitch.core.format.wire import TOS_DATA, Shape, Vector

from .buffers import PLAIN, Buffers
from .combining import combine_of, word_of
from .plane import Accelerator, Rule
from .runs import Run, merge
from .states import Mark

SMALL = 4  # super-datagrams: a smaller vector nearly always completes in one piece
LONG = 16  # super-datagrams: copying a longer run costs more than sending it by itself


class NumPyAccelerator(Accelerator):
    """Adds up one job's vectors in NumPy arrays: the base of both modes.

    Args:
        shape: the layout of the job's vectors.
        slots: number of vectors of sums that are held.
        complete: the rule that decides which segments are complete.
        counters: counts the contributions.
        buffers: allocates the memory.

    Raises:
        MemoryError: too little memory. All lasting memory is allocated here and in `join`.
    """

    def __init__(
        self,
        shape: Shape,
        slots: int,
        complete: Rule,
        counters: Counters,
        buffers: Buffers = PLAIN,
    ) -> None:
        self.shape = shape
        self.complete = complete
        self.counters = counters
        self.slots = slots
        self._has_parent = False
        self._buffers = buffers
        self.rows = self._vectors(slots)
        self.packets = self.rows.reshape(-1).view(shape.packet).reshape(slots, shape.segments)
        self.aggregates = self.rows
        self._segs = self.packets["seg"]
        self._word = word_of(shape.dtype)
        self._words: Vector = self.rows.view(self._word)  # headers and elements
        self._combine = combine_of(shape.op, shape.dtype)
        self.cutter = Cutter(shape)
        self.cutter.prepare()
        self._long = LONG * super_packets(shape.packet_size)
        self._small = SMALL * super_packets(shape.packet_size)
        self._recurring: Memo[tuple[tuple[Address, ...], int], Recurring] = Memo(slots)

    def _vectors(self, slots: int) -> Rows:
        """Allocate vectors of packets, (slots, segments, packet_size) bytes."""
        segments, size = self.shape.segments, self.shape.packet_size
        return self._buffers.take(slots * segments * size).reshape(slots, segments, size)

    def nbytes(self) -> int:
        """Return the size of all arrays and states in bytes, without the headers of rounds."""
        kept = 0 if self.aggregates is self.rows else self.aggregates.nbytes
        return int(self.rows.nbytes) + int(kept)

    def outgoing(self, run: Run, partial: bool = False) -> tuple[Rows, int]:
        """Return a run's aggregates as packets, (n, packet_size) bytes, and the last packet's size.

        With `partial`, return the sums of the members here instead: the contribution to the parent.
        """
        source = self.rows if partial else self.aggregates
        return source[run.slot, run.start : run.stop], self.shape.tail(run.stop)

    def deliver(self, completed: Sequence[Run], peers: tuple[Address, ...]) -> list[Outgoing]:
        """Send runs that have just completed: to the contributors, or as a sum to the parent.

        For a whole small vector, one `Recurring` object per slot is reused each time.
        """
        if self._has_parent:
            self.counters["to_parent"] += sum(run.segments for run in completed)
            return self.send(completed, peers, partial=True)
        if len(completed) > 1:
            return self.send(completed, peers)
        run = completed[0]
        if run.segments < self.shape.segments or run.segments > self._small:
            return [Outgoing(peers, TOS_DATA, *self.outgoing(run))]
        found = self._recurring.get((peers, run.slot))
        if found is None:
            found = Recurring(peers, TOS_DATA, *self.outgoing(run))
            self._recurring.keep((peers, run.slot), found)
        return [found]

    def send(
        self, runs: Sequence[Run], peers: tuple[Address, ...], partial: bool = False
    ) -> list[Outgoing]:
        """Send kept aggregates again; with `partial`, the sums of the members here.

        Args:
            runs: the runs to send.
            peers: the receivers.
            partial: whether to send the sums of the members here.
        """
        return [Outgoing(peers, TOS_DATA, *packets) for packets in self._packed(runs, partial)]

    def _packed(self, runs: Sequence[Run], partial: bool) -> Iterator[tuple[Rows, int]]:
        """Yield runs as packets; short runs are copied into one array."""
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
            # Each segment once: nothing may follow the last packet, which can be shorter.
            wanted = np.zeros(self.shape.segments, bool)
            for run in short:
                wanted[run.start : run.stop] = True
            indices = np.flatnonzero(wanted)
            rows = self.rows if partial else self.aggregates
            yield rows[slot, indices], self.shape.tail(int(indices[-1]) + 1)

    def _add(self, into: Vector, rows: Rows, first: bool) -> None:
        """Accumulate whole packets, (n, packet_size) bytes; copy them if they are the `first`.

        Their headers are added, too, and have no meaning until they are written: NumPy adds one
        piece of memory four times as fast as rows with gaps between them.
        """
        data = rows.view(self._word)
        if data.shape[1] != into.shape[1]:
            into = into[:, : data.shape[1]]
        if first:
            into[...] = data
        else:
            self._combine(into, data, out=into)

    def _count_in(self, into: Vector, rows: Rows, first: bool, *marks: Mark) -> None:
        """Accumulate whole packets, and mark them as counted: all of them or none.

        Memory can run out in the first step only, which then changes nothing. Otherwise a
        contribution could be in a sum without a mark, and be added a second time.

        Args:
            into: the sums, (n, elements).
            rows: the packets, (n, size) bytes.
            first: whether to copy instead of add.
            marks: the states to write.
        """
        self._add(into, rows, first)
        for mark in marks:
            mark.write()
        self.counters["accumulated"] += len(rows)

    def _write_headers(self, slot: int, round_: int, start: int, stop: int) -> None:
        self._segs[slot, start:stop] = self._headers(slot, round_, start, stop)

    def _headers(self, slot: int, round_: int, start: int, stop: int) -> Headers:  # noqa: ARG002
        """Return the `Seg` of what lies at positions start..stop-1 of a buffer, big-endian."""
        return self.cutter.headers(round_, start, stop)
