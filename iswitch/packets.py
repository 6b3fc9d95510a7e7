"""What moves between a port and the core: packets in bursts, seen as rows of an array.

A burst is what one system call or one super-datagram brings. It is never taken apart packet by
packet: `cut` finds the stretches of consecutive segments in it.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from .wire import SEG_SIZE, TOS_CONTROL, split_seg

Rows = npt.NDArray[np.uint8]


class Address(NamedTuple):
    """Whom a packet is from or for: IPv4 address, UDP port, and the switch port it is behind."""

    host: str
    port: int
    ingress: int = 0

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


class Burst(NamedTuple):
    """Packets of one sender and one ToS that came or go together: a super-datagram, say.

    `rows` is (n, size) bytes, a row per UDP payload, C-contiguous along the last axis; all
    packets are `size` bytes long but for the last, which has `tail` bytes (1 <= tail <= size).
    What lies in the last row beyond `tail` means nothing.
    """

    peer: Address
    tos: int
    rows: Rows
    tail: int

    @classmethod
    def single(cls, peer: Address, tos: int, payload: bytes) -> Burst:
        """One packet."""
        return cls(peer, tos, np.frombuffer(payload, np.uint8).reshape(1, -1), len(payload))

    @property
    def nbytes(self) -> int:
        """Payload bytes of all packets."""
        n, size = self.rows.shape
        return int((n - 1) * size + self.tail)

    def pieces(self) -> list[Rows]:
        """The packets as one or two arrays in each of which all rows are whole."""
        if self.tail == self.rows.shape[1]:
            return [self.rows]
        if len(self.rows) == 1:
            return [self.rows[:, : self.tail]]
        return [self.rows[:-1], self.rows[-1:, : self.tail]]


class Outgoing(NamedTuple):
    """Packets to send: as a `Burst`, but to each of several receivers."""

    peers: tuple[Address, ...]
    tos: int
    rows: Rows
    tail: int

    @classmethod
    def control(cls, peer: Address, payload: bytes) -> Outgoing:
        """One control packet."""
        rows = np.frombuffer(payload, np.uint8).reshape(1, -1)
        return cls((peer,), TOS_CONTROL, rows, len(payload))


class Cut(NamedTuple):
    """Consecutive packets of one round: the first segment's index and the rows."""

    round: int
    start: int
    rows: Rows


def cut(rows: Rows, indices: bytes) -> Iterator[Cut]:
    """Cut whole data packets, shape (n, size), into stretches of consecutive segments.

    `indices` holds 0, 1, 2, ... as big-endian uint32, as many as the job has segments.
    """
    rounds = rows[:, :4].tobytes()
    first = int.from_bytes(rows[0, 4:8].tobytes(), "big")
    if (
        rounds == rounds[:4] * len(rows)
        and rows[:, 4:8].tobytes() == indices[4 * first : 4 * (first + len(rows))]
    ):
        yield Cut(int.from_bytes(rounds[:4], "big"), first, rows)
        return
    segs = np.frombuffer(rows[:, :SEG_SIZE].tobytes(), ">u8").astype(np.uint64)
    bounds = [0, *(np.flatnonzero(np.diff(segs) != 1) + 1).tolist(), len(rows)]
    for start, stop in pairwise(bounds):
        round_, index = split_seg(int(segs[start]))
        yield Cut(round_, index, rows[start:stop])
