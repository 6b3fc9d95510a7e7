"""Parts: packets that come or go together, from which faults remove or change some.

A part holds packets in one array: plain frames of one port, the packets of super-frames, or the
datagrams of a burst. `take` yields some of them, in any order and more than once, in as few pieces
as possible.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from itertools import pairwise
from typing import Generic, Self, TypeVar

import numpy as np
import numpy.typing as npt

from iswitch.core.format.packets import Burst, Outgoing, Rows, super_packets
from iswitch.ethernet.frame import (
    ETH,
    ETHERTYPE_ARP,
    GSO_UDP_L4,
    HEAD,
    HEADERS,
    IP,
    VNET,
    Frames,
    Transmission,
)
from iswitch.ethernet.segmentation import MOST_HEADERS, Super, read_super, super_head, wire_frames
from iswitch.ethernet.sorting import DATAGRAM

from .line import Ints
from .super_datagrams import together

ARP_TYPE = np.frombuffer(ETHERTYPE_ARP, np.uint8)

Piece_co = TypeVar("Piece_co", covariant=True)
Datagrams = TypeVar("Datagrams", Burst, Outgoing)


class Part(ABC, Generic[Piece_co]):
    """Packets in one array: `count` of them."""

    count: int

    @property
    @abstractmethod
    def sizes(self) -> Ints:
        """Return the bytes of each packet as a frame, (count,)."""

    @property
    def immune(self) -> npt.NDArray[np.bool_]:
        """Return which packets never have a bit flipped, (count,) booleans; by default none."""
        return np.zeros(self.count, bool)

    @abstractmethod
    def take(self, which: Ints, bit: Ints | None) -> Iterator[Piece_co]:
        """Yield packets in a given order, with bits flipped.

        Args:
            which: indices of the packets, (n,).
            bit: the bit to flip in each, or -1, (n,); None: no bit.
        """

    @abstractmethod
    def copy(self) -> Self:
        """Copy the packets into memory of their own."""


class Singles(Part[Frames]):
    """Plain frames of one port.

    An ARP packet is immune: it has no checksum, so a wrong one would mislead its receiver.
    """

    def __init__(self, frames: Frames) -> None:
        longest = max(frames.lengths)  # the bytes beyond may not be mapped
        self.frames = frames._replace(bodies=frames.bodies[:, : max(longest - HEAD, 0)])
        self.count = len(frames.lengths)

    @property
    def sizes(self) -> Ints:
        """Return the bytes of each packet as a frame, (count,)."""
        return np.array(self.frames.lengths) - ETH

    @property
    def immune(self) -> npt.NDArray[np.bool_]:
        """Return which packets never have a bit flipped, (count,) booleans."""
        kinds = self.frames.heads[:, IP - 2 : IP]
        is_arp: npt.NDArray[np.bool_] = (kinds == ARP_TYPE).all(axis=1)
        return is_arp

    def take(self, which: Ints, bit: Ints | None) -> Iterator[Frames]:
        """Yield packets with bits flipped, as frames of one array."""
        if not len(which):
            return
        if is_all(which, self.count) and not any_hit(bit):
            yield self.frames
            return
        ingress, heads, bodies, lengths = self.frames
        chosen = Frames(ingress, heads[which], bodies[which], [lengths[i] for i in which])
        if bit is not None:
            for i in np.flatnonzero(bit >= 0).tolist():
                corrupt(chosen, i, int(bit[i]))
        yield chosen

    def copy(self) -> Singles:
        """Copy the packets into memory of their own."""
        return Singles(self.frames.copy())


class SuperFrames(Part[Frames]):
    """Super-datagrams of one flow and one length: the packets are the rows of one array.

    Packets that remain are put together again into as few super-datagrams as possible.
    """

    def __init__(self, frames: Frames, found: Super) -> None:
        length = frames.lengths[0] - HEAD
        self.frames = frames._replace(bodies=frames.bodies[:, :length])
        self.found = found
        self.count = len(frames.lengths) * found.frames
        self._short = found.frames * found.size - length  # bytes that each last packet lacks
        self._packets: Rows | None = None
        self._cut: Singles | None = None

    @property
    def sizes(self) -> Ints:
        """Return the bytes of each packet as a frame, (count,)."""
        sizes = np.full(self.count, self.found.header + self.found.size)
        sizes[self.found.frames - 1 :: self.found.frames] -= self._short
        return sizes

    def take(self, which: Ints, bit: Ints | None) -> Iterator[Frames]:
        """Yield packets in a given order, with bits flipped."""
        if not len(which):
            return
        clean = not any_hit(bit)
        if clean and is_all(which, self.count):
            yield self.frames
            return
        if clean and not self._short:
            yield self._together(which)
            return
        hit = np.zeros(len(which), bool) if bit is None else bit >= 0
        ends = self._is_last(which) if self._short else np.zeros(len(which), bool)
        for start, stop in ranges(hit, ends):
            some = which[start:stop]
            if hit[start] and bit is not None:
                yield from self._singles().take(some, bit[start:stop])
            else:
                yield self._together(some)

    def copy(self) -> SuperFrames:
        """Copy the packets into memory of their own."""
        return SuperFrames(self.frames.copy(), self.found)

    def _is_last(self, which: Ints) -> npt.NDArray[np.bool_]:
        """Return which of these packets end a super-datagram, (n,) booleans."""
        last: npt.NDArray[np.bool_] = which % self.found.frames == self.found.frames - 1
        return last

    def _rows(self) -> Rows:
        if self._packets is None:
            bodies = self.frames.bodies
            if self._short:
                bodies = np.pad(bodies, ((0, 0), (0, self._short)))
            self._packets = bodies.reshape(-1, self.found.size)
        return self._packets

    def _together(self, which: Ints) -> Frames:
        """Put packets into super-datagrams, of which only the last may be short."""
        most = min(self.found.frames, super_packets(self.found.size))  # full ones
        short = self._short if self._short and self._is_last(which[-1:])[0] else 0
        payloads, lengths, _ = together(self._rows(), which, most, short)
        head = self.frames.heads[0].tobytes()
        heads = b"".join(super_head(head, length) for length in lengths)
        rows = np.frombuffer(heads, np.uint8).reshape(-1, HEAD).copy()
        return Frames(self.frames.ingress, rows, payloads, [HEAD + n for n in lengths])

    def _singles(self) -> Singles:
        """Cut the packets into frames."""
        if self._cut is None:
            self._cut = cut(self.frames, self.sizes)
        return self._cut


class Whole(Part[Frames]):
    """The frames of any other super-frame, such as one of TCP, which any fault cuts into frames."""

    def __init__(self, frames: Frames, found: Super | None) -> None:
        self.frames = frames._replace(bodies=frames.bodies[:, : max(frames.lengths[0] - HEAD, 0)])
        self.found = found  # None: a malformed header; counts as one frame, which others drop
        self.count = found.frames if found else 1
        self._cut: Singles | None = None

    @property
    def sizes(self) -> Ints:
        """Return the bytes of each packet as a frame, (count,)."""
        length = self.frames.lengths[0] - ETH
        if self.found is None:
            return np.array([length])
        sizes = np.full(self.count, self.found.header + self.found.size)
        sizes[-1] = length - (self.count - 1) * self.found.size
        return sizes

    @property
    def immune(self) -> npt.NDArray[np.bool_]:
        """Return which packets never have a bit flipped, (count,) booleans."""
        return np.full(self.count, self.found is None)

    def take(self, which: Ints, bit: Ints | None) -> Iterator[Frames]:
        """Yield packets in a given order, with bits flipped."""
        if self.found is None or (is_all(which, self.count) and not any_hit(bit)):
            yield from [self.frames] * (1 if self.found else len(which))
            return
        if self._cut is None:
            self._cut = cut(self.frames, self.sizes)
        yield from self._cut.take(which, bit)

    def copy(self) -> Whole:
        """Copy the packets into memory of their own."""
        return Whole(self.frames.copy(), self.found)


def cut(frames: Frames, sizes: Ints) -> Singles:
    """Cut super-frames into the frames on the wire, whose sizes are given in bytes, (n,)."""
    table = np.zeros((len(sizes), ETH + int(sizes.max())), np.uint8)
    at = 0
    for i in range(len(frames.lengths)):
        for some in wire_frames(np.frombuffer(frames.row(i), np.uint8)):
            table[at : at + len(some), ETH : ETH + some.shape[1]] = some
            at += len(some)
    return Singles(of_rows(frames.ingress, table, (sizes + ETH).tolist()))


class Payloads(Part[Datagrams]):
    """The datagrams of a burst, received or sent to one receiver.

    A datagram with a flipped bit is left out: its checksum would be wrong, and the kernel of its
    receiver would drop it.
    """

    def __init__(self, datagrams: Datagrams) -> None:
        self.datagrams: Datagrams = datagrams
        self.count = len(datagrams.rows)

    @property
    def sizes(self) -> Ints:
        """Return the bytes of each packet as a frame, (count,)."""
        sizes = np.full(self.count, self.datagrams.rows.shape[1] + HEADERS)
        sizes[-1] = self.datagrams.tail + HEADERS
        return sizes

    def take(self, which: Ints, bit: Ints | None) -> Iterator[Datagrams]:
        """Yield packets in a given order, without those that have a bit to flip."""
        if bit is not None:
            which = which[bit < 0]
        rows, tail = self.datagrams.rows, self.datagrams.tail
        n, size = rows.shape
        if is_all(which, n):
            yield self.datagrams
            return
        ends = (which == n - 1) if tail < size else np.zeros(len(which), bool)
        for start, stop in ranges(ends[:0], ends) if len(which) else ():
            some = which[start:stop]
            last = tail if some[-1] == n - 1 else size
            yield self.datagrams._replace(rows=rows[some], tail=last)

    def copy(self) -> Payloads[Datagrams]:
        """Copy the packets into memory of their own."""
        return Payloads(self.datagrams._replace(rows=self.datagrams.rows.copy()))


def frame_parts(frames: Frames) -> list[Singles | SuperFrames | Whole]:
    """Split the frames of one port into parts: plain frames, and super-frames with equal heads."""
    whole = frames.heads[:, 1] != 0
    if not whole.any():
        return [Singles(frames)]
    if len(whole) == 1:
        return [*_super_parts(frames)]
    words = np.ascontiguousarray(frames.heads).view(np.uint32) & DATAGRAM
    lengths = np.asarray(frames.lengths)
    differs = (words[1:] != words[:-1]).any(axis=1) | (lengths[1:] != lengths[:-1])
    differs = whole[1:] & whole[:-1] & differs
    found: list[Singles | SuperFrames | Whole] = []
    for start, stop in ranges(whole, np.append(differs, False)):
        part = frames.part(start, stop)
        found += _super_parts(part) if whole[start] else [Singles(part)]
    return found


def _super_parts(frames: Frames) -> list[SuperFrames | Whole]:
    """Split super-frames with equal heads into parts."""
    length = frames.lengths[0]
    top = frames.row(0) if length < MOST_HEADERS else _top(frames)
    found = read_super(top, length)
    kind = VNET.unpack_from(top)[1]
    if found and kind == GSO_UDP_L4 and found.header == HEAD - ETH and top[IP] == 0x45:
        return [SuperFrames(frames, found)]
    if len(frames.lengths) == 1:
        return [Whole(frames, found)]
    return [one for i in range(len(frames.lengths)) for one in _super_parts(frames.part(i, i + 1))]


def _top(frames: Frames) -> bytes:
    """Return the first frame's headers as bytes."""
    top: bytes = frames.heads[0].tobytes() + frames.bodies[0, : MOST_HEADERS - HEAD].tobytes()
    return top


def sent_parts(transmission: Transmission) -> list[Singles | SuperFrames | Whole]:
    """Split the frames to send at one port into parts."""
    port, heads, bodies, lengths, _ = transmission
    if heads is None:
        longest = max(lengths)
        return frame_parts(of_rows(port, bodies[:, :longest], lengths))
    return frame_parts(Frames(port, heads, bodies, [HEAD + length for length in lengths]))


def transmission(frames: Frames) -> Transmission:
    """Make a transmission of the frames of one part."""
    port, heads, bodies, lengths = frames
    counts = [1] * len(lengths)
    if heads[0, 1] and (found := read_super(_top(frames), lengths[0])):
        payloads = (length - ETH - found.header for length in lengths)
        counts = [-(-payload // found.size) for payload in payloads]
    if min(lengths) >= HEAD:
        return Transmission(port, heads, bodies, [length - HEAD for length in lengths], counts)
    return Transmission(port, None, np.concatenate((heads, bodies), axis=1), lengths, counts)


def of_rows(ingress: int, rows: Rows, lengths: list[int]) -> Frames:
    """Make frames of rows that begin with their virtio_net_hdr."""
    if rows.shape[1] < HEAD:
        rows = np.pad(rows, ((0, 0), (0, HEAD - rows.shape[1])))
    return Frames(ingress, rows[:, :HEAD], rows[:, HEAD:], lengths)


def corrupt(frames: Frames, i: int, bit: int) -> None:
    """Finish the checksums of frame `i` in place, then flip one bit of it.

    Args:
        frames: frames of one part.
        i: the index of the frame.
        bit: the bit, counted from the frame's first.
    """
    row = np.frombuffer(frames.row(i), np.uint8)
    for whole in wire_frames(row):
        frame = whole[0].copy()
        frame[bit // 8] ^= 0x80 >> bit % 8
        row = np.concatenate((np.zeros(ETH, np.uint8), frame))
        frames.heads[i, : row.size] = row[:HEAD]
        frames.bodies[i, : max(row.size - HEAD, 0)] = row[HEAD:]


def any_hit(bit: Ints | None) -> bool:
    """Return whether any packet has a bit to flip."""
    return bit is not None and bool((bit >= 0).any())


def is_all(which: Ints, count: int) -> bool:
    """Return whether `which` names each of `count` packets once and in order."""
    return len(which) == count and bool((which == np.arange(count)).all())


def ranges(kinds: npt.NDArray[np.bool_], ends: npt.NDArray[np.bool_]) -> Iterator[tuple[int, int]]:
    """Split packets into the longest ranges start..stop-1 of one kind; a range stops after an end.

    Args:
        kinds: the kind of each packet, (n,); empty: all are of one kind.
        ends: whether a range must end with this packet, (n,).
    """
    cuts = [0, len(ends), *(np.flatnonzero(ends) + 1).tolist()]
    cuts += (np.flatnonzero(kinds[1:] != kinds[:-1]) + 1).tolist()
    return pairwise(sorted(set(cuts)))
