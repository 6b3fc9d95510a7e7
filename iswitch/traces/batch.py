"""Holds many packets of a trace at once: where their bytes lie in the mapped file, times, sizes.

The bytes stay in the file; `gather` copies a part of every packet into one array.
"""

from __future__ import annotations

from bisect import insort
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from iswitch.core.format.packets import Rows
from iswitch.core.format.pcapng import Direction

Ints = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]  # of the whole file

UNKNOWN, IN, OUT = 0, int(Direction.IN), int(Direction.OUT)
MOST_PROBLEMS = 100  # that are told one by one


class PacketBatch(NamedTuple):
    """Consecutive packets of one link type; each array has an entry for every packet.

    Attributes:
        number: number of the first packet, counted from 1 as Wireshark does.
        at: int64 [n], offset of the packet's bytes in the file.
        sizes: int64 [n], bytes of it in the file.
        lengths: int64 [n], bytes of it on the wire.
        times: int64 [n], nanoseconds since 1970.
        interfaces: int64 [n], indices into `Reader.interfaces`.
        directions: uint8 [n], IN, OUT or UNKNOWN, seen from the place of capture.
    """

    number: int
    at: Ints
    sizes: Ints
    lengths: Ints
    times: Ints
    interfaces: Ints
    directions: Bytes


class Interface(NamedTuple):
    """An interface of a capture: its link type (LINKTYPE_ of tcpdump.org), and its name."""

    link: int
    name: str = ""


class Problem(NamedTuple):
    """A defect of a file, and its place: `offset` is that of a record or block."""

    offset: int
    what: str


class Problems:
    """Keeps the first defects, in the order of the file, and counts all."""

    def __init__(self) -> None:
        self.first: list[Problem] = []
        self.count = 0

    def note(self, offset: int, what: str) -> None:
        """Note one more defect."""
        self.count += 1
        insort(self.first, Problem(offset, what))  # nearly always behind the others
        del self.first[MOST_PROBLEMS:]


def gather(data: Bytes, at: Ints, width: int) -> Rows:
    """Copy the bytes at each offset to uint8 [n, width]; bytes beyond the file are undefined."""
    n = len(at)
    if n and (step := evenly(at)) is not None and int(at[-1]) + width <= len(data):
        return np.ndarray((n, width), np.uint8, data, int(at[0]), (step, 1)).copy()
    found: Rows
    if n and width > 0 and int(at.max()) + width <= len(data):
        # Each place of the file as a row that overlaps the next: NumPy copies it as one piece.
        found = np.ndarray((len(data) - width + 1, width), np.uint8, data, 0, (1, 1))[at]
        return found
    places = at[:, None] + np.arange(width)
    found = data[np.minimum(places, len(data) - 1)]
    return found


def evenly(at: Ints) -> int | None:
    """Return the distance from each place to the next; None: distances differ."""
    if len(at) < 2:
        return 1
    step = int(at[1] - at[0])
    same = step >= 0 and (at[1:] - at[:-1] == step).all()
    return step if same else None


def field(rows: Rows, start: int, size: int) -> Ints:
    """Read a big-endian number of 2 or 4 bytes in each row."""
    part = np.ascontiguousarray(rows[:, start : start + size])
    return part.view(f">u{size}")[:, 0].astype(np.int64)
