"""Merges the parts of one contribution: docs/protocol.md, "Parts".

A switch below that has few slots sends some contributions of its members one by one, and some sums
of a few of them. They become the one contribution of that switch here: parts are merged if no seat
is in both, and are dropped else. Only what is whole counts.
"""

from __future__ import annotations

import struct

from iswitch.core.format.counters import Counters
from iswitch.core.format.packets import Cutter, Rows, Stretch
from iswitch.core.format.wire import Shape, Vector, round_distance

from .buffers import PLAIN, Buffers
from .combining import combine_of, word_of
from .states import Table


class Assembly:
    """Merges the parts that one switch below sends for one job.

    Args:
        shape: the layout of the job's vectors.
        counters: counts the parts.
        buffers: allocates the memory.

    Raises:
        MemoryError: too little memory. All lasting memory is allocated here.
    """

    SETS = 2
    RECORD = struct.Struct("<QQQ")  # round, seats that are in it, seats with which it is whole

    def __init__(self, shape: Shape, counters: Counters, buffers: Buffers = PLAIN) -> None:
        self.shape = shape
        self.counters = counters
        size = self.SETS * shape.segments * shape.packet_size
        self.rows = buffers.take(size).reshape(self.SETS, shape.segments, shape.packet_size)
        self.sets = [Table(self.RECORD, shape.segments) for _ in range(self.SETS)]
        self.cutter = Cutter(shape)
        self.cutter.prepare()
        self._word = word_of(shape.dtype)
        self._sums: Vector = self.rows.view(self._word)
        self._combine = combine_of(shape.op, shape.dtype)

    @classmethod
    def memory(cls, shape: Shape) -> int:
        """Return the bytes that are needed for vectors of this shape."""
        each = cls.SETS * (shape.packet_size + cls.RECORD.size) + Cutter.MEMORY
        return shape.segments * each

    def nbytes(self) -> int:
        """Return the size of all arrays and states in bytes, the headers of rounds included."""
        tables = sum(len(table.bytes) for table in self.sets)
        return int(self.rows.nbytes) + tables + self.shape.segments * Cutter.MEMORY

    def clear(self) -> None:
        """Forget all parts."""
        for table in self.sets:
            table.clear()

    def merge(self, stretch: Stretch, bits: int, all_: int) -> list[Stretch]:
        """Merge parts of one round; return the contributions that are whole now, or were before.

        Args:
            stretch: their segments and packets.
            bits: the seats whose contributions are in them.
            all_: the seats with which they are whole; 0: not known yet.
        """
        table = self.sets[stretch.round % self.SETS]
        whole: list[Stretch] = []
        for some in stretch.consecutive():
            for start, stop in table.uniform(some.start, some.start + len(some.rows)):
                rows = some.rows[start - some.start : stop - some.start]
                whole += self._merge_run(stretch.round, start, stop, rows, bits, all_)
        return whole

    def _merge_run(
        self, round_: int, start: int, stop: int, rows: Rows, bits: int, all_: int
    ) -> list[Stretch]:
        """Merge parts of the same seats into segments of one state."""
        at, n = round_ % self.SETS, stop - start
        table = self.sets[at]
        holds, has, wanted = table.get(start)
        if (has or wanted) and holds != round_:
            if round_distance(holds, round_) > 0:
                self.counters["late"] += n
                return []
            has = wanted = 0
        wanted = all_ or wanted
        disjoint = bool(bits) and not bits & has
        if disjoint:
            data = rows.view(self._word)
            into = self._sums[at, start:stop, : data.shape[1]]
            if has:
                self._combine(into, data, out=into)
            else:
                into[...] = data
            has |= bits
        table.set(start, stop, round_, has, wanted)
        if wanted and has & wanted == wanted:
            rows = self.rows[at, start:stop]
            tail = self.shape.tail(stop)
            rows = rows[:, :tail] if n == 1 else rows
            return [Stretch(round_, start, rows, tail)]
        self.counters["merged" if disjoint else "duplicate"] += n
        return []


class Assemblies(dict[int, Assembly]):
    """The assemblies of a job, by the seats of the switches below."""

    def forget(self, *seats: int) -> None:
        """Forget the parts that have come from these seats."""
        for seat in seats:
            if seat in self:
                self[seat].clear()
