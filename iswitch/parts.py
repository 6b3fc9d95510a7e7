"""What comes or goes together, as packets on the wire: the parts of which faults take some.

A part is a run of packets in one array: plain frames of one port, the packets of a super-frame, or
datagrams of a burst. `take` gives some of them, in any order and more than once, in as few pieces
as that can be.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Generic, Protocol, Self, TypeVar

import numpy as np
import numpy.typing as npt

from .frame import ETH, ETHERTYPE_ARP, HEAD, HEADERS, IP, Frames, Transmission
from .line import Ints
from .packets import Burst, Outgoing, Rows
from .segmentation import MOST_HEADERS, Super, read_super, select, wire_frames

MAX_PACKET = 65535  # bytes of IP, of a super-frame, too

Piece_co = TypeVar("Piece_co", covariant=True)
Datagrams = TypeVar("Datagrams", Burst, Outgoing)


class Part(Protocol[Piece_co]):
    """A run of packets. `sizes`: bytes of each as a frame; `immune`: no bit of it is flipped."""

    sizes: Ints
    immune: npt.NDArray[np.bool_]

    def take(self, which: Ints, bit: Ints) -> Iterator[Piece_co]:
        """These packets, in this order, each with a bit flipped if one is given (not -1)."""

    def copy(self) -> Self:
        """The same packets, in memory of their own."""


class Singles:
    """Plain frames of one port.

    An ARP packet is immune: it has no checksum, and whoever believed it would for long be wrong.
    """

    def __init__(self, frames: Frames) -> None:
        longest = max(frames.lengths)  # what lies behind may not even be memory
        self.frames = frames._replace(bodies=frames.bodies[:, : max(longest - HEAD, 0)])
        self.sizes = np.array(frames.lengths) - ETH
        kinds = frames.heads[:, IP - 2 : IP]
        self.immune = (kinds == np.frombuffer(ETHERTYPE_ARP, np.uint8)).all(axis=1)

    def take(self, which: Ints, bit: Ints) -> Iterator[Frames]:
        """As a Part does: all in one piece."""
        if is_all(which, len(self.sizes)) and (bit < 0).all():
            yield self.frames
            return
        ingress, heads, bodies, _ = self.frames
        lengths = (self.sizes[which] + ETH).tolist()
        chosen = Frames(ingress, heads[which], bodies[which], lengths)
        for i in np.flatnonzero(bit >= 0).tolist():
            corrupt(chosen, i, int(bit[i]))
        yield chosen

    def copy(self) -> Singles:
        """As a Part does."""
        ingress, heads, bodies, lengths = self.frames
        return Singles(Frames(ingress, heads.copy(), bodies.copy(), lengths))


class Whole:
    """The packets of one super-frame.

    They stay a super-frame if it is one of UDP; of one of TCP, where anything befalls them, they
    become frames.
    """

    def __init__(self, frames: Frames) -> None:
        self.frames = frames._replace(bodies=frames.bodies[:, : max(frames.lengths[0] - HEAD, 0)])
        top = np.concatenate((frames.heads[0], self.frames.bodies[0, : MOST_HEADERS - HEAD]))
        length = frames.lengths[0]
        self.found = read_super(top[:length].tobytes(), length)
        self._cut: Singles | None = None
        if self.found is None:  # makes no sense: one frame, for others to drop
            self.sizes = np.array([length - ETH])
        else:
            self.sizes = np.full(self.found.frames, self.found.header + self.found.size)
            self.sizes[-1] = length - ETH - (self.found.frames - 1) * self.found.size
        self.immune = np.full(len(self.sizes), self.found is None)

    def take(self, which: Ints, bit: Ints) -> Iterator[Frames]:
        """As a Part does."""
        n = len(self.sizes)
        if self.found is None or (is_all(which, n) and (bit < 0).all()):
            for _ in range(len(which) // n):
                yield self.frames
            return
        row = np.concatenate((self.frames.heads[0], self.frames.bodies[0]))
        ends = np.zeros(len(which), bool)
        if self.sizes[-1] < self.sizes[0]:
            ends = which == n - 1
        # With duplicates they may be more than a super-frame can hold.
        most = max(1, min(n, (MAX_PACKET - self.found.header) // self.found.size))
        for start, stop in stretches(bit >= 0, ends, most):
            some, hit = which[start:stop], bit[start:stop]
            chosen = None if hit[0] >= 0 else select(row, self.found, some)
            if chosen is None:
                yield from self._frames(row, self.found).take(some, hit)
            else:
                head, body = chosen[:HEAD].reshape(1, -1), chosen[HEAD:].reshape(1, -1)
                yield Frames(self.frames.ingress, head, body, [chosen.size])

    def copy(self) -> Whole:
        """As a Part does."""
        ingress, heads, bodies, lengths = self.frames
        return Whole(Frames(ingress, heads.copy(), bodies.copy(), lengths))

    def _frames(self, row: Rows, found: Super) -> Singles:
        """The packets as frames."""
        if self._cut is None:
            table = np.zeros((found.frames, ETH + int(self.sizes[0])), np.uint8)
            at = 0
            for frames in wire_frames(row):
                table[at : at + len(frames), ETH : ETH + frames.shape[1]] = frames
                at += len(frames)
            lengths = (self.sizes + ETH).tolist()
            ingress = self.frames.ingress
            self._cut = Singles(of_rows(ingress, table, lengths))
        return self._cut


class Payloads(Generic[Datagrams]):
    """The datagrams of a burst, or those to one receiver.

    One with a bit flipped is not given: its checksum would be wrong, and the receiver's kernel
    would drop it.
    """

    def __init__(self, datagrams: Datagrams) -> None:
        self.datagrams: Datagrams = datagrams
        n, size = datagrams.rows.shape
        self.sizes = np.full(n, size + HEADERS)
        self.sizes[-1] = datagrams.tail + HEADERS
        self.immune = np.zeros(n, bool)

    def take(self, which: Ints, bit: Ints) -> Iterator[Datagrams]:
        """As a Part does."""
        which = which[bit < 0]
        rows, tail = self.datagrams.rows, self.datagrams.tail
        n, size = rows.shape
        if is_all(which, n):
            yield self.datagrams
            return
        ends = (which == n - 1) if tail < size else np.zeros(len(which), bool)
        for start, stop in stretches(ends[:0], ends) if len(which) else ():
            some = which[start:stop]
            last = tail if some[-1] == n - 1 else size
            yield self.datagrams._replace(rows=rows[some], tail=last)

    def copy(self) -> Payloads[Datagrams]:
        """As a Part does."""
        return Payloads(self.datagrams._replace(rows=self.datagrams.rows.copy()))


def frame_parts(frames: Frames) -> list[Singles | Whole]:
    """Frames of one port: each super-frame is a part, and what is between two of them."""
    whole = frames.heads[:, 1] != 0
    if not whole.any():
        return [Singles(frames)]
    found: list[Singles | Whole] = []
    for start, stop in stretches(whole, whole):
        part = frames.part(start, stop)
        found.append(Whole(part) if whole[start] else Singles(part))
    return found


def sent_parts(transmission: Transmission) -> list[Singles | Whole]:
    """What is to be sent at one port."""
    port, heads, bodies, lengths, _ = transmission
    if heads is None:
        longest = max(lengths)
        return frame_parts(of_rows(port, bodies[:, :longest], lengths))
    return frame_parts(Frames(port, heads, bodies, [HEAD + length for length in lengths]))


def transmission(frames: Frames) -> Transmission:
    """Frames of one part, to be sent."""
    port, heads, bodies, lengths = frames
    counts = [1] * len(lengths)
    if heads[0, 1]:
        found = read_super(frames.row(0)[:MOST_HEADERS], lengths[0])
        counts = [found.frames if found else 1]
    if min(lengths) >= HEAD:
        return Transmission(port, heads, bodies, [length - HEAD for length in lengths], counts)
    return Transmission(port, None, np.concatenate((heads, bodies), axis=1), lengths, counts)


def of_rows(ingress: int, rows: Rows, lengths: list[int]) -> Frames:
    """Frames from rows that begin with their virtio_net_hdr."""
    if rows.shape[1] < HEAD:
        rows = np.pad(rows, ((0, 0), (0, HEAD - rows.shape[1])))
    return Frames(ingress, rows[:, :HEAD], rows[:, HEAD:], lengths)


def corrupt(frames: Frames, i: int, bit: int) -> None:
    """Finish the checksums of a frame, then flip a bit of it."""
    row = np.frombuffer(frames.row(i), np.uint8)
    for whole in wire_frames(row):
        frame = whole[0].copy()
        frame[bit // 8] ^= 0x80 >> bit % 8
        row = np.concatenate((np.zeros(ETH, np.uint8), frame))
        frames.heads[i, : row.size] = row[:HEAD]
        frames.bodies[i, : max(row.size - HEAD, 0)] = row[HEAD:]


def is_all(which: Ints, count: int) -> bool:
    """Whether this is each of so many, once and in order."""
    return len(which) == count and bool((which == np.arange(count)).all())


def stretches(
    kinds: npt.NDArray[np.bool_], ends: npt.NDArray[np.bool_], most: int | None = None
) -> Iterator[tuple[int, int]]:
    """The longest ranges start..stop-1 of one kind that go on behind no end, nor beyond `most`."""
    cuts = [0, len(ends), *(np.flatnonzero(ends) + 1).tolist()]
    cuts += (np.flatnonzero(kinds[1:] != kinds[:-1]) + 1).tolist()
    for start, stop in pairwise(sorted(set(cuts))):
        step = most or stop - start
        yield from ((at, min(at + step, stop)) for at in range(start, stop, step))
