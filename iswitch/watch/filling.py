"""Counts what has come of a round, by parts of the vector: at most PARTS, however long it is."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from iswitch.core.format.wire import MAX_MEMBERS
from iswitch.core.sums.runs import Held, Run

ALL = (1 << MAX_MEMBERS) - 1
PARTS = 96  # of a vector, at most; enough for a picture

Ints = npt.NDArray[np.int64]


class Filling:
    """A round by parts of the vector: segment i belongs to part `i * parts // segments`.

    Args:
        segments: the number of segments of the vector.

    Attributes:
        sizes: segments of each part, (parts,).
        complete: those of them that are complete, (parts,).
        came: those of them that have come, by seat, (parts, seats).
    """

    def __init__(self, segments: int) -> None:
        self.segments = segments
        self.parts = min(PARTS, segments)
        self.sizes = np.bincount(self._part_of(0, segments), minlength=self.parts)
        self.complete: Ints = np.zeros(self.parts, np.int64)
        self.came: Ints = np.zeros((self.parts, MAX_MEMBERS), np.int64)

    def _part_of(self, start: int, stop: int) -> Ints:
        return np.arange(start, stop) * self.parts // self.segments

    def add(self, start: int, stop: int, held: list[tuple[Run, Held, int]]) -> None:
        """Add the runs of segments start..stop-1, each with its state and contributors."""
        bitmaps = np.zeros(stop - start, "<u8")
        complete = np.zeros(stop - start, np.int64)
        for run, what, bitmap in held:
            which = slice(run.start - start, run.stop - start)
            gone = what is Held.GONE  # complete before, and its slot is a later segment's
            bitmaps[which] = ALL if gone else bitmap
            complete[which] = gone or what is Held.COMPLETE
        part_of = self._part_of(start, stop)
        firsts = np.flatnonzero(np.diff(part_of, prepend=-1))
        parts = part_of[firsts]
        bits = np.unpackbits(bitmaps.view(np.uint8).reshape(-1, 8), axis=1, bitorder="little")
        self.complete[parts] += np.add.reduceat(complete, firsts)
        self.came[parts] += np.add.reduceat(bits, firsts, axis=0, dtype=np.int64)

    def fields(self) -> dict[str, Any]:
        """Describe the parts, without members."""
        return {"segments": self.sizes.tolist(), "complete": self.complete.tolist()}

    def of(self, seat: int) -> list[int]:
        """Return the segments of each part that have come from a seat."""
        found: list[int] = self.came[:, seat].tolist()
        return found
