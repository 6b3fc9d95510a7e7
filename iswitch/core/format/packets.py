"""What moves between a port and the core: packets in bursts, seen as rows of an array.

A burst is what one system call or one super-datagram brings. It is never taken apart packet by
packet: `Cutter` finds the stretches of consecutive segments in it.

Words for several packets, here and in all rooms:

    burst           packets of one sender and one ToS that came or go together
    stretch         packets of ascending segments of one round, cut out of a burst
    run             consecutive segments of one round in one state, without their packets
    super-datagram  packets in one datagram of up to 64 kB; with Ethernet headers, a super-frame
    range           indices a..b-1, of anything
    part            packets in one array, of which a faulty link takes some
    group           frames, or packets of a trace, of one flow and length
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from .wire import SEG_SIZE, TOS_CONTROL, Shape, split_seg

Rows = npt.NDArray[np.uint8]
Indices = npt.NDArray[np.int64]
Headers = npt.NDArray[np.uint64]  # a `Seg` each, big-endian

MAX_SUPER = 65507  # bytes of payload of a super-datagram: IPv4 counts no more
MAX_SEGMENTS = 64  # packets of one (UDP_MAX_SEGMENTS; 128 in newer kernels)


def by_size(rows: Rows, tail: int) -> list[Rows]:
    """Split rows, of which the last has `tail` bytes, into arrays of packets of one length."""
    if tail == rows.shape[1]:
        return [rows]
    last = rows[-1:, :tail]
    return [rows[:-1], last] if len(rows) > 1 else [last]


def super_packets(size: int, most: int = MAX_SEGMENTS) -> int:
    """Count the packets of `size` bytes that a super-datagram takes, at most `most`."""
    return max(1, min(MAX_SUPER // size, most)) if size else 1


class SuperDatagrams(NamedTuple):
    """Payloads of super-datagrams, a row each, with the number of bytes and of packets in each."""

    payloads: Rows
    lengths: list[int]
    counts: list[int]


def super_datagrams(rows: Rows, tail: int, most: int = MAX_SEGMENTS) -> list[SuperDatagrams]:
    """Put packets, of which the last has `tail` bytes, into as few super-datagrams as possible.

    A super-datagram holds at most `most` packets and at most 64 kB.
    """
    n, size = rows.shape
    at_once = super_packets(size, most)
    found = []
    if whole := n // at_once:
        payloads = rows[: whole * at_once].reshape(whole, at_once * size)
        found.append(SuperDatagrams(payloads, [at_once * size] * whole, [at_once] * whole))
    if rest := n % at_once:
        found.append(SuperDatagrams(rows[n - rest :].reshape(1, -1), [rest * size], [rest]))
    found[-1].lengths[-1] += tail - size
    return found


def unpacked(payloads: Rows, size: int, step: int, last: int) -> Iterator[tuple[Rows, int]]:
    """Cut super-datagrams into packets: yield arrays of rows, each with its last packet's size.

    If whole super-datagrams lie one after the other in memory, their packets are one array.

    Args:
        payloads: the super-datagrams, a row each, (n, at least `size`) bytes.
        size: bytes of each super-datagram but the last.
        step: bytes of a packet; if not below `size`, each payload is a single packet.
        last: bytes of the last super-datagram, at most `size`.
    """
    n, room = payloads.shape
    if step >= size:
        yield payloads[:, :size], size
        return
    count, rest = -(-size // step), -(-last // step)
    if room == size == step * count and payloads.flags.c_contiguous:
        packets = payloads.reshape(n * count, step)[: (n - 1) * count + rest]
        yield packets, last - (rest - 1) * step
        return
    if room < count * step:
        payloads = np.pad(payloads, ((0, 0), (0, count * step - room)))
    for i, payload in enumerate(payloads[:, : count * step], 1):
        if i < n or last == size:
            yield payload.reshape(count, step), size - (count - 1) * step
        else:
            yield payload[: rest * step].reshape(rest, step), last - (rest - 1) * step


def burst_ranges(
    lengths: npt.NDArray[np.int64], differs: npt.NDArray[np.bool_], supers: npt.NDArray[np.bool_]
) -> list[tuple[int, int]]:
    """Return the ranges a..b-1 of datagrams that one call of `unpacked` can take.

    Args:
        lengths: length of each datagram in bytes, (n,).
        differs: whether the next datagram has another sender or kind, (n - 1,).
        supers: whether each is a super-datagram, (n,); the last one in a range may be shorter.
    """
    change = np.diff(lengths)
    shorter = (change < 0) & supers[1:] & supers[:-1] & ~differs
    breaks = differs | ((change != 0) & ~shorter)
    breaks[1:] |= shorter[:-1] & ~breaks[:-1]
    return list(pairwise([0, *(np.flatnonzero(breaks) + 1).tolist(), len(lengths)]))


class Address(NamedTuple):
    """A sender or receiver of packets.

    Attributes:
        host: its IPv4 address.
        port: its UDP port.
        ingress: the switch port that it is behind.
        line: our UDP port to which it sends, as `lines` counts them; 0: the one we listen at.
    """

    host: str
    port: int
    ingress: int = 0
    line: int = 0

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
        """Make a burst of one packet."""
        return cls(peer, tos, np.frombuffer(payload, np.uint8).reshape(1, -1), len(payload))

    @property
    def ingress(self) -> int:
        """Return the port of the switch at which they came."""
        return self.peer.ingress

    @property
    def nbytes(self) -> int:
        """Return the number of payload bytes in all packets."""
        n, size = self.rows.shape
        return int((n - 1) * size + self.tail)

    def not_below(self, least: int) -> tuple[Rows, int]:
        """Return rows and tail of the packets that have at least `least` bytes (`least` > 0)."""
        if self.tail >= least:
            return self.rows, self.tail
        size = self.rows.shape[1]
        return self.rows[: len(self.rows) - 1 if size >= least else 0], size

    def singles(self) -> Iterator[Burst]:
        """Yield each packet as a burst of its own."""
        size = self.rows.shape[1]
        for i in range(len(self.rows)):
            rows = self.rows[i : i + 1]
            yield self._replace(rows=rows, tail=self.tail if i == len(self.rows) - 1 else size)

    def by_size(self) -> list[Rows]:
        """Return the packets as one or two arrays; all packets of an array have one size."""
        return by_size(self.rows, self.tail)


class Outgoing(NamedTuple):
    """A burst of packets (see `Burst`) to send to each of several receivers, `peers`."""

    peers: tuple[Address, ...]
    tos: int
    rows: Rows
    tail: int

    def copy(self) -> Outgoing:
        """Copy the packets into memory of their own."""
        return self._replace(rows=self.rows.copy())

    @classmethod
    def control(cls, peer: Address, payload: bytes) -> Outgoing:
        """Make one control packet for one receiver."""
        rows = np.frombuffer(payload, np.uint8).reshape(1, -1)
        return cls((peer,), TOS_CONTROL, rows, len(payload))


class Recurring(Outgoing):
    """Packets that are sent from one place in memory again and again, with new contents.

    It is the same object each time, with the same `rows`: a sender may keep `Notes` about the rows.
    """

    def _replace(self, /, **fields: Any) -> Outgoing:  # type: ignore[override]
        """Return an ordinary `Outgoing` with these fields changed, to be sent once."""
        return Outgoing(*self)._replace(**fields)


def index_ranges(keys: npt.NDArray[Any], step: int | npt.NDArray[Any]) -> list[tuple[int, int]]:
    """Return the ranges a..b-1 of keys, (n,) or (n, k), whose steps all equal `step`."""
    if not len(keys):
        return []
    breaks = keys[1:] != keys[:-1] + step
    if keys.ndim > 1:
        breaks = breaks.any(axis=1)
    return list(pairwise([0, *(np.flatnonzero(breaks) + 1).tolist(), len(keys)]))


class Stretch(NamedTuple):
    """Segments of one round, in ascending order, in whole data packets, as the rows of a `Burst`.

    `indices` holds their indices unless they are consecutive: if packets of a burst were lost, the
    others are still handled together.
    """

    round: int
    start: int  # its first segment
    rows: Rows
    tail: int
    indices: Indices | None = None

    @property
    def stop(self) -> int:
        """Return the index after the last segment."""
        return self.start + len(self.rows) if self.indices is None else int(self.indices[-1]) + 1

    def consecutive(self) -> list[Stretch]:
        """Cut the stretch into stretches of consecutive segments."""
        if self.indices is None:
            return [self]
        n, size = self.rows.shape
        return [
            Stretch(
                self.round,
                int(self.indices[a]),
                self.rows[a:b],
                self.tail if b == n else size,
            )
            for a, b in index_ranges(self.indices, 1)
        ]

    def part(self, a: int, b: int) -> Stretch:
        """Return packets a..b-1."""
        rows = self.rows[a:b]
        tail = self.tail if b == len(self.rows) else self.rows.shape[1]
        if self.indices is None:
            return Stretch(self.round, self.start + a, rows, tail)
        indices = self.indices[a:b]
        start = int(indices[0]) if len(indices) else self.start
        gaps = len(indices) > 0 and int(indices[-1]) - start >= len(indices)
        return Stretch(self.round, start, rows, tail, indices if gaps else None)

    def by_size(self) -> list[Stretch]:
        """Cut the stretch into stretches of consecutive segments whose rows have one size."""
        found = []
        for stretch in self.consecutive():
            start = stretch.start
            for rows in by_size(stretch.rows, stretch.tail):
                found.append(Stretch(self.round, start, rows, rows.shape[1]))
                start += len(rows)
        return found

    def fits(self, shape: Shape) -> bool:
        """Return whether these packets have the lengths and indices of a job's vectors."""
        n, size = self.rows.shape
        stop = self.stop
        if size == shape.packet_size == self.tail and stop <= shape.full_segments:
            return True
        return (
            stop <= shape.segments
            and self.tail == shape.tail(stop)
            and (size == shape.packet_size or (size == self.tail and n == 1))
        )


class Cutter:
    """Cuts data packets into stretches of ascending segments of one round.

    It keeps the headers of all segments for the last few rounds, so that checking packets in
    order is one comparison of bytes. It makes a round's headers only after several packets of
    the round, so that a stray packet does not cost the headers of a whole vector.
    """

    ROUNDS = 8
    WORTH = 64  # headers that one packet is worth
    MEMORY = (ROUNDS + 1) * SEG_SIZE  # bytes for every segment

    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        self._headers: dict[int, bytearray] = {}
        self._free: list[bytearray] = []  # with the indices in them, and no round yet
        self._came: dict[int, int] = {}  # packets of rounds whose headers are not there

    def prepare(self) -> None:
        """Take all memory for headers at the start.

        Raises:
            MemoryError: there is not enough.
        """
        headers = self.shape.headers(0)
        self._free = [bytearray(headers.data) for _ in range(self.ROUNDS)]

    def headers(self, round_: int, start: int, stop: int) -> Headers:
        """Return the `Seg` of segments start..stop-1, (n,) big-endian uint64."""
        headers = self._headers.get(round_) or self._remember(round_)
        return np.frombuffer(headers, ">u8", stop - start, SEG_SIZE * start)

    def cut(self, rows: Rows, tail: int) -> list[Stretch]:
        """Cut data packets, given as rows and tail of a `Burst`; each holds at least its header."""
        raw = rows[:, :SEG_SIZE].tobytes()
        round_, start = split_seg(int.from_bytes(raw[:SEG_SIZE], "big"))
        headers = self._headers.get(round_) or self._consider(round_, len(rows))
        if headers and raw == headers[SEG_SIZE * start : SEG_SIZE * start + len(raw)]:
            return [Stretch(round_, start, rows, tail)]
        segs = np.frombuffer(raw, ">u8").astype(np.uint64)
        if int(segs[-1]) >> 32 == round_ and (segs[1:] > segs[:-1]).all():  # in order, if with gaps
            indices = (segs & np.uint64(0xFFFFFFFF)).view(np.int64)
            gaps = int(indices[-1]) - start >= len(rows)
            return [Stretch(round_, start, rows, tail, indices if gaps else None)]
        rounds, indices = segs >> np.uint64(32), (segs & np.uint64(0xFFFFFFFF)).astype(np.int64)
        begins = (rounds[1:] != rounds[:-1]) | (indices[1:] <= indices[:-1])
        bounds = [0, *(np.flatnonzero(begins) + 1).tolist(), len(rows)]
        size, n = rows.shape[1], len(rows)
        found = []
        for a, b in pairwise(bounds):
            start = int(indices[a])
            gaps = indices[b - 1] - start >= b - a
            found.append(
                Stretch(
                    int(rounds[a]),
                    start,
                    rows[a:b],
                    tail if b == n else size,
                    indices[a:b] if gaps else None,
                )
            )
        return found

    def _consider(self, round_: int, packets: int) -> bytearray | None:
        came = self._came.pop(round_, 0) + packets
        if came * self.WORTH >= self.shape.segments:
            return self._remember(round_)
        if len(self._came) >= self.ROUNDS:
            del self._came[next(iter(self._came))]
        self._came[round_] = came
        return None

    def _remember(self, round_: int) -> bytearray:
        # A buffer belongs to no round while it is written: memory may run out meanwhile.
        if self._free:
            headers = self._free.pop()
        elif len(self._headers) >= self.ROUNDS:
            headers = self._headers.pop(next(iter(self._headers)))
        else:
            headers = bytearray(self.shape.headers(0).data)
        np.frombuffer(headers, ">u4")[::2] = round_
        self._headers[round_] = headers
        return headers
