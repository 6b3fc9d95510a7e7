"""Aggregates of one vector, put where they belong as they come in."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from iswitch.core.format.packets import Indices, Rows, Stretch, index_ranges
from iswitch.core.format.wire import SEG_SIZE, Shape, Vector

FEW_STRETCHES = 32  # segments in a stretch from which on it is stored by itself


class Aggregates:
    """What has come of one round, or version, and what lacks.

    Args:
        shape: layout of the vector.
        out: takes the elements, shape (numel,).
    """

    def __init__(self, shape: Shape, out: Vector) -> None:
        self.shape = shape
        self.out = out
        full = shape.full_segments
        self._whole = out[: full * shape.elements].reshape(full, shape.elements)
        self._last = out[shape.numel - shape.last :]
        self._had = bytearray(shape.segments)
        self.has: npt.NDArray[np.uint8] = np.frombuffer(self._had, np.uint8)  # the same
        self._dtype = shape.dtype.numpy
        self.remaining = shape.segments

    def begin(self) -> None:
        """Nothing has come yet."""
        self.has[:] = 0
        self.remaining = self.shape.segments

    def take(self, stretch: Stretch) -> list[slice | Indices]:
        """Take segments that fit the shape; returns those that are new."""
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
        """The first so many are in their place already; of the others none is."""
        self.has[:stop] = 1
        self.remaining -= stop

    def copy(self, former: Aggregates) -> None:
        """Take over what has come of the same round elsewhere."""
        had = former.has == 1
        full = self.shape.full_segments
        self._whole[had[:full]] = former._whole[had[:full]]
        if had[full:].any():
            self._last[...] = former._last
        self.has[had] = 1
        self.remaining -= int(had.sum())

    def find(self, what: int, start: int, stop: int) -> int:
        """The first segment from `start` on that has come (1) or not (0); -1: none."""
        return self._had.find(what, start, stop)

    @property
    def last(self) -> int:
        """The last segment that has come; -1: none has."""
        return self._had.rfind(1)

    def lacking(self, start: int, stop: int) -> Iterator[tuple[int, int]]:
        """The stretches of start..stop-1 that have not come."""
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
