"""What moves between a port and the core: packets in bursts, seen as rows of an array.

A burst is what one system call or one super-datagram brings. It is never taken apart packet by
packet: `Cutter` finds the stretches of consecutive segments in it.
"""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from .wire import SEG_SIZE, TOS_CONTROL, Shape, split_seg

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

    def copy(self) -> Outgoing:
        """The same packets, in memory of their own."""
        return self._replace(rows=self.rows.copy())

    @classmethod
    def control(cls, peer: Address, payload: bytes) -> Outgoing:
        """One control packet."""
        rows = np.frombuffer(payload, np.uint8).reshape(1, -1)
        return cls((peer,), TOS_CONTROL, rows, len(payload))


Stretch = tuple[int, int, Rows]  # round, index of the first segment, packets


class Cutter:
    """Cuts data packets into stretches of consecutive segments of one round.

    The headers that the vector of a round has are kept for the last few rounds, so that for
    packets in order the whole check is one comparison of bytes. They are made when so much of a
    round has come that it pays: a packet of a round of its own must not cost the whole vector.
    """

    ROUNDS = 8
    WORTH = 64  # headers that one packet is worth
    MEMORY = ROUNDS * SEG_SIZE  # bytes for every segment

    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        self._headers: dict[int, bytes] = {}
        self._came: dict[int, int] = {}  # packets of rounds whose headers are not there

    def headers(self, round_: int, start: int, stop: int) -> npt.NDArray[np.uint64]:
        """The `Seg` of segments start..stop-1, big-endian."""
        headers = self._headers.get(round_) or self._remember(round_)
        return np.frombuffer(headers, ">u8", stop - start, SEG_SIZE * start)

    def cut(self, rows: Rows) -> list[Stretch]:
        """Cut whole data packets, shape (n, size)."""
        raw = rows[:, :SEG_SIZE].tobytes()
        round_, start = split_seg(int.from_bytes(raw[:SEG_SIZE], "big"))
        headers = self._headers.get(round_) or self._consider(round_, len(rows))
        if headers and raw == headers[SEG_SIZE * start : SEG_SIZE * start + len(raw)]:
            return [(round_, start, rows)]
        segs = np.frombuffer(raw, ">u8").astype(np.uint64)
        begins = (np.diff(segs) != 1) | (segs[1:] & 0xFFFFFFFF == 0)  # index 0: another round
        bounds = [0, *(np.flatnonzero(begins) + 1).tolist(), len(rows)]
        return [(*split_seg(int(segs[a])), rows[a:b]) for a, b in pairwise(bounds)]

    def _consider(self, round_: int, packets: int) -> bytes | None:
        came = self._came.pop(round_, 0) + packets
        if came * self.WORTH >= self.shape.segments:
            return self._remember(round_)
        if len(self._came) >= self.ROUNDS:
            del self._came[next(iter(self._came))]
        self._came[round_] = came
        return None

    def _remember(self, round_: int) -> bytes:
        if len(self._headers) >= self.ROUNDS:
            del self._headers[next(iter(self._headers))]
        headers = self._headers[round_] = self.shape.headers(round_).tobytes()
        return headers
