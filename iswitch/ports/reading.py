"""Cuts datagrams that came together into bursts, by sender and kind."""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from iswitch.core.format.counters import Counters
from iswitch.core.format.memo import Memo
from iswitch.core.format.packets import Address, Burst, Rows, burst_ranges, unpacked
from iswitch.core.format.wire import TOS_MASK
from iswitch.ports.kernel.lobby import IP_PKTINFO
from iswitch.ports.kernel.mmsg import BATCH_SUPER, SOCKADDR_SIZE, Spacing

SOL_UDP = 17
UDP_GRO = 104  # linux/udp.h
SO_RXQ_OVFL = 40
SEEN = 256  # kinds of batches that are remembered
KINDS = 4096  # kinds of datagrams that are remembered; strangers may have ever new addresses


class DatagramKind(NamedTuple):
    """The sender and the control messages of a datagram, read."""

    peer: Address
    tos: int
    segment: int  # size of the packets of a super-datagram; 0: a single packet
    overflow: int  # datagrams the kernel has dropped at this socket, all in all


class BurstReader:
    """Cuts datagrams into bursts.

    Args:
        counters: counters to which datagrams that the kernel dropped are added.
        sources: filled with the local address to which each peer sends.
        moved: called when a peer sends to another local address than before.
    """

    def __init__(
        self, counters: Counters, sources: Memo[Address, bytes], moved: Callable[[], None]
    ) -> None:
        self.counters = counters
        self._sources = sources
        self._moved = moved
        self._kinds: Memo[bytes, DatagramKind] = Memo(KINDS)
        self._seen: Memo[tuple[bytes, tuple[int, ...], int], list[Burst]] = Memo(SEEN)
        self._overflow = 0

    def bursts(self, bodies: Rows, lengths: list[int], meta: Rows, spacing: Spacing) -> list[Burst]:
        """Cut the datagrams of one system call into bursts, and adapt the spacing to them.

        Args:
            bodies: (n, room) bytes, one datagram a row.
            lengths: length of each datagram in bytes.
            meta: (n, size) bytes, each datagram's sender and control messages.
            spacing: bytes of room for each datagram; adapted for the next call.
        """
        n, room = len(lengths), spacing.value
        if n > BATCH_SUPER or max(lengths) > room:
            bursts = self.cut(bodies, lengths, meta)
        else:  # equal batches lie in the same memory again
            key = (meta.tobytes(), tuple(lengths), room)
            known = self._seen.get(key)
            if known is None:
                known = self.cut(bodies, lengths, meta)
                if all(np.may_share_memory(burst.rows, bodies) for burst in known):
                    self._seen.keep(key, known)
            bursts = known
        spacing.expect(lengths, lambda i: self.kind(meta[i].tobytes()).segment)
        return bursts

    def cut(self, bodies: Rows, lengths: list[int], meta: Rows) -> list[Burst]:
        """Cut datagrams, given as in `bursts`, where the sender or the kind changes."""
        n = len(lengths)
        first = meta[0].tobytes()
        ranges = [(0, n)]
        if n == 1:
            kind, length = self.kind(first), lengths[0]
            found = unpacked(bodies, length, kind.segment or length, length)
            return [Burst(kind.peer, kind.tos, rows, tail) for rows, tail in found]
        if lengths.count(lengths[0]) < n or meta.tobytes() != first * n:
            together = self._together(bodies, lengths, meta)
            if together is not None:
                return [together]
            differs = (meta[1:] != meta[:-1]).any(axis=1)
            starts = [0, *(np.flatnonzero(differs) + 1).tolist()]
            is_super = [self.kind(meta[i].tobytes()).segment > 0 for i in starts]
            supers = np.repeat(is_super, np.diff([*starts, n]))
            ranges = burst_ranges(np.array(lengths), differs, supers)
        bursts: list[Burst] = []
        for start, stop in ranges:
            kind = self.kind(meta[start].tobytes() if start else first)
            length, last = lengths[start], lengths[stop - 1]
            for rows, tail in unpacked(bodies[start:stop], length, kind.segment or length, last):
                bursts.append(Burst(kind.peer, kind.tos, rows, tail))
        return bursts

    def _together(self, bodies: Rows, lengths: list[int], meta: Rows) -> Burst | None:
        """Copy datagrams of one sender, of full packets but for the very last, into one burst.

        Datagrams come in this form after a loss. Copying them costs less than handling them one by
        one. None: the datagrams have another form.

        Args:
            bodies: (n, room) bytes, one datagram a row.
            lengths: length of each datagram in bytes.
            meta: (n, size) bytes, each datagram's sender and control messages.
        """
        first = self.kind(meta[0].tobytes())
        size = first.segment or lengths[0]
        payloads: list[Rows] = []
        rest = 0
        for i, length in enumerate(lengths):
            kind = self.kind(meta[i].tobytes())
            if rest or not length or kind.peer != first.peer or kind.tos != first.tos:
                return None
            if (kind.segment or length) != size and (kind.segment or length > size):
                return None
            rest = length % size
            room = length - rest + size * (rest > 0)
            if bodies.shape[1] < room:
                return None
            payloads.append(bodies[i, :room])
        rows = np.concatenate(payloads).reshape(-1, size)
        return Burst(first.peer, first.tos, rows, rest or size)

    def signatures(self, peer: Address, tos: int) -> list[tuple[bytes, int]]:
        """Return the kinds of datagrams that have come from a peer with a ToS byte.

        Each is a row of `meta`, and the size of the packets of such a super-datagram (0: a single
        packet).
        """
        return [
            (signature, kind.segment)
            for signature, kind in self._kinds.items()
            if kind.peer == peer and kind.tos & TOS_MASK == tos
        ]

    @property
    def kinds(self) -> int:
        """Return how many kinds of datagrams are remembered."""
        return len(self._kinds)

    def note_overflow(self, drops: int) -> None:
        """Count what the kernel has dropped: `drops` datagrams since the socket was opened."""
        self.counters["rx_overflow"] += max(0, drops - self._overflow)
        self._overflow = max(self._overflow, drops)

    def kind(self, signature: bytes) -> DatagramKind:
        """Read the sender and the control messages of a datagram, given as a row of `meta`."""
        kind = self._kinds.get(signature) or self._read_kind(signature)
        if kind.overflow > self._overflow:
            self.note_overflow(kind.overflow)
        return kind

    def _read_kind(self, signature: bytes) -> DatagramKind:
        port, host = struct.unpack_from(">2xH4s", signature)
        tos = segment = overflow = 0
        source = b""
        at = SOCKADDR_SIZE
        while at + 16 <= len(signature):
            size, level, type_ = struct.unpack_from("<Qii", signature, at)
            if size < 16:
                break
            if (level, type_) == (socket.IPPROTO_IP, socket.IP_TOS):
                tos = signature[at + 16]
            elif (level, type_) == (socket.IPPROTO_IP, IP_PKTINFO):
                source = signature[at + 20 : at + 24]
            elif (level, type_) == (SOL_UDP, UDP_GRO):
                (segment,) = struct.unpack_from("<i", signature, at + 16)
            elif (level, type_) == (socket.SOL_SOCKET, SO_RXQ_OVFL):
                (overflow,) = struct.unpack_from("<I", signature, at + 16)
            at += (size + 7) & ~7
        peer = Address(socket.inet_ntoa(host), port)
        kind = DatagramKind(peer, tos, segment, overflow)
        self._remember(signature, kind)
        if source and self._sources.get(peer) != source:
            if len(self._sources) >= self._sources.most:
                self._forget()  # else nobody would be looked up again
            self._sources.keep(peer, source)
            self._moved()
        return kind

    def _remember(self, signature: bytes, kind: DatagramKind) -> None:
        if len(self._kinds) >= self._kinds.most:
            self._forget()  # the batches, too, which are of these kinds
        self._kinds.keep(signature, kind)

    def _forget(self) -> None:
        self._kinds.clear()
        self._seen.clear()
