"""Collects the aggregates of one vector: stores each segment in place as it arrives."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from iswitch.core.format.packets import Indices, Rows, Stretch, index_ranges
from iswitch.core.format.wire import SEG_SIZE, Shape, Vector

FEW_STRETCHES = 32  # mean segments per stretch above which each stretch is stored by itself


class Aggregates:
    """The aggregates of one round or version: those that have arrived, and those missing.

    Args:
        shape: layout of the vector.
        out: receives the elements, [numel] of the shape's dtype.

    Attributes:
        has: uint8 [segments], 1 where the aggregate has arrived.
        remaining: number of missing segments.
    """

    def __init__(self, shape: Shape, out: Vector) -> None:
        self.shape = shape
        self.out = out
        full = shape.full_segments
        self._whole = out[: full * shape.elements].reshape(full, shape.elements)
        self._last = out[shape.numel - shape.last :]
        self._had = bytearray(shape.segments)
        self.has: npt.NDArray[np.uint8] = np.frombuffer(self._had, np.uint8)  # a view of _had
        self._dtype = shape.dtype.numpy
        self.remaining = shape.segments

    def begin(self) -> None:
        """Mark all segments as missing."""
        self.has[:] = 0
        self.remaining = self.shape.segments

    def take(self, stretch: Stretch) -> list[slice | Indices]:
        """Store those segments that are new, and return them; all must fit the shape."""
        fresh: list[slice | Indices] = []
        if stretch.indices is None:
            start = stretch.start
            for a, b in self.lacking(start, stretch.stop):
                self._store(a, b, stretch.rows[a - start : b - start])
                self._had[a:b] = b"\1" * (b - a)
                self.remaining -= b - a
                fresh.append(slice(a, b))
            return fresh
        new = self.has[stretch.indices] == 0
        came, rows = stretch.indices, stretch.rows
        if not new.all():
            came, rows = came[new], rows[new]
        if len(came):
            together = index_ranges(came, 1)
            if len(together) * FEW_STRETCHES < len(came):
                for a, b in together:
                    start = int(came[a])
                    self._store(start, start + b - a, rows[a:b])
            else:
                whole = int(np.searchsorted(came, self.shape.full_segments))
                self._whole[came[:whole]] = rows[:whole, SEG_SIZE:].view(self._dtype)
                if whole < len(came):
                    self._store(self.shape.full_segments, self.shape.segments, rows[-1:])
            self.has[came] = 1
            self.remaining -= len(came)
            fresh.append(came)
        return fresh

    def note(self, stop: int) -> None:
        """Mark the first `stop` segments as arrived; until then all are missing."""
        self.has[:stop] = 1
        self.remaining -= stop

    def copy(self, former: Aggregates) -> None:
        """Copy the segments that another object has of this round; until then all are missing."""
        had = former.has == 1
        full = self.shape.full_segments
        self._whole[had[:full]] = former._whole[had[:full]]
        if had[full:].any():
            self._last[...] = former._last
        self.has[had] = 1
        self.remaining -= int(had.sum())

    def find(self, what: int, start: int, stop: int) -> int:
        """Find the first segment of start..stop-1 that has arrived (`what` = 1) or is missing (0).

        -1: there is none.
        """
        return self._had.find(what, start, stop)

    @property
    def last(self) -> int:
        """Return the last segment that has arrived; -1: none has."""
        return self._had.rfind(1)

    def lacking(self, start: int, stop: int) -> Iterator[tuple[int, int]]:
        """Yield the missing parts of start..stop-1, as ranges (start, stop)."""
        if start >= stop:
            return
        if self._had.find(1, start, stop) < 0:
            yield start, stop
            return
        had = self.has[start:stop]
        yield from ((start + a, start + b) for a, b in index_ranges(had, 0) if not had[a])

    def _store(self, start: int, stop: int, rows: Rows) -> None:
        whole = min(stop, self.shape.full_segments)
        if start < whole:
            self._whole[start:whole] = rows[: whole - start, SEG_SIZE:].view(self._dtype)
        if stop > whole:
            self._last[...] = rows[-1, SEG_SIZE : self.shape.last_size].view(self._dtype)
