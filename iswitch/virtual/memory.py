"""Memory that a process in virtual time and its coordinator share: packets lie there, in files.

A room is written from its beginning in each turn, and what lies there is copied before the turn
ends. A shelf lends places: packets stay there until whoever reads them has let them go, so that
long runs need no copy.
"""

from __future__ import annotations

import mmap
import os
import weakref
from bisect import insort
from functools import cached_property
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from iswitch.core.format.packets import Burst, Outgoing, Rows

ROOM = 32 << 20  # bytes of a file, of which only what is used takes memory
LEAST = 16 << 10  # bytes of packets: fewer are copied sooner than lent
MOST = 256  # places lent at once, so that a free one is found soon


class Memory:
    """A file in memory.

    Args:
        fd: the file, which is closed: the mapping stays; None: a new one.
        is_read: it is only read here.
    """

    def __init__(self, fd: int | None = None, is_read: bool = False) -> None:
        if fd is None:
            self.fd = os.memfd_create("iswitch packets", os.MFD_CLOEXEC)
            os.ftruncate(self.fd, ROOM)
        else:
            self.fd = fd
        access = mmap.ACCESS_READ if is_read else mmap.ACCESS_WRITE
        self._map = mmap.mmap(self.fd, ROOM, access=access)
        if fd is not None:
            os.close(fd)

    def rows(self, at: int, shape: Sequence[int]) -> Rows:
        """Return the packets that lie at an offset."""
        import numpy as np

        rows: Rows = np.ndarray(shape, np.uint8, self._map, at)
        return rows


class Room(Memory):
    """Memory for the packets of one direction and turn."""

    used = 0

    def fits(self, out: Outgoing | Burst) -> bool:
        """Return whether there is room for these packets."""
        return self.used + out.rows.size <= ROOM

    def write(self, rows: Rows) -> int:
        """Copy packets; return where they are."""
        at = self.used
        self.rows(at, rows.shape)[:] = rows
        self.used += rows.size
        return at


class Shelf(Memory):
    """Memory of which places are lent."""

    def __init__(self) -> None:
        super().__init__()
        self._lent: list[tuple[int, int]] = []  # start and stop of each place, in order

    def write(self, rows: Rows) -> int | None:
        """Copy packets to a free place; return where it is. None: there is none for them."""
        size, at, lent = rows.size, 0, self._lent
        if size < LEAST or len(lent) == MOST:
            return None
        for start, stop in lent:
            if start - at >= size:
                break
            at = stop
        if at + size > ROOM:
            return None
        insort(lent, (at, at + size))
        self.rows(at, rows.shape)[:] = rows
        return at

    @cached_property
    def _start(self) -> int:
        start: int = self.rows(0, (1, 1)).ctypes.data
        return start

    def free(self, at: int) -> None:
        """Take a place back."""
        self._lent = [place for place in self._lent if place[0] != at]

    def where(self, rows: Rows) -> int | None:
        """Return the offset of packets; None: they are elsewhere."""
        at = rows.ctypes.data - self._start
        return at if 0 <= at < ROOM and rows.flags.c_contiguous else None


class Lent:
    """Packets in memory, which are noticed when nobody has them any more.

    Args:
        memory: where they lie.
        free: called with the offset then.
    """

    def __init__(self, memory: Memory, free: Callable[[int], object]) -> None:
        self._memory, self._free = memory, free
        self._held: dict[int, weakref.ref[Rows]] = {}

    def rows(self, at: int, shape: Sequence[int]) -> Rows:
        """Return the packets at an offset; views of them, and views of those, hold them."""
        rows = self._memory.rows(at, shape)
        self._held[at] = weakref.ref(rows, lambda _: self._let_go(at))
        return rows

    def _let_go(self, at: int) -> None:
        del self._held[at]
        self._free(at)
