"""Sends packets at a socket, as super-datagrams or one by one, to one receiver or to many."""

from __future__ import annotations

import errno
import socket
import struct
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from iswitch.core.format.counters import Counters
from iswitch.core.format.memo import Memo, Notes
from iswitch.core.format.packets import (
    Address,
    Outgoing,
    Recurring,
    Rows,
    SuperDatagrams,
    super_datagrams,
    super_packets,
)
from iswitch.ports.kernel.lobby import IP_PKTINFO
from iswitch.ports.kernel.mmsg import SOCKADDR_SIZE, Block, Post, Sender

from .reading import SOL_UDP

UDP_SEGMENT = 103  # linux/udp.h
GROUPS = 4096  # lists of receivers that are remembered; strangers may have ever new addresses

# The kernel or the device cannot segment, or the packets are larger than the MTU on the way.
NOT_WHOLE = (errno.EIO, errno.EINVAL, errno.EMSGSIZE)


class Receivers(NamedTuple):
    """Receivers to which one address of ours sends: the places of their sockaddr_in in memory."""

    source: bytes  # our address; b"": as the kernel chooses
    names: npt.NDArray[np.uint64]  # of all
    whole: npt.NDArray[np.uint64]  # of those that get super-datagrams
    single: npt.NDArray[np.uint64]  # of the others, whose way does not carry super-datagrams


class Way(NamedTuple):
    """Tells a kernel how to send to receivers that one address of ours serves."""

    names: Block  # their sockaddr_in, one after the other
    control: Block
    at_most: int  # packets in a super-datagram


class DatagramSender:
    """Sends packets at a socket.

    Args:
        sock: the socket.
        counters: counts the packets that the kernel refuses.
        sources: local address to which each peer sends, by peer.
        most: packets of the largest super-datagram that the way carries; 1: send none.
    """

    def __init__(
        self, sock: socket.socket, counters: Counters, sources: Memo[Address, bytes], most: int
    ) -> None:
        self.counters = counters
        self.most = most
        self.refused = False  # an ICMP "port unreachable" has come back
        self._socket = sock
        self._sources = sources
        self._sender = Sender()
        self._groups: dict[tuple[Address, ...], list[Receivers]] = {}
        self._names: list[Block] = []
        self._singly: Memo[Address, None] = Memo(GROUPS)  # cannot be reached with super-datagrams
        self._controls: dict[tuple[int, int, bytes], Block] = {}
        self.version = 0  # grows when earlier descriptions of sends lose their meaning
        self._posts: Notes[tuple[int, Post | None]] = Notes()  # about recurring packets

    def send(self, given: Outgoing) -> None:
        """Send packets to each of their receivers; count those that the kernel refuses."""
        out = self._post(given) if type(given) is Recurring else given
        if out is not None:
            n, size = out.rows.shape
            whole = super_packets(size, self.most) > 1
            for group in self._groups.get(out.peers) or self._group(out.peers):
                single = self._control(out.tos, 0, group.source)
                if n == 1:
                    self._send_to_all(group.names, out.rows[0, : out.tail], single)
                elif whole:
                    self._send_supers(group, out)
                    self._send_singly(group.single, out, single)
                else:
                    self._send_singly(group.names, out, single)

    def _post(self, out: Recurring) -> Outgoing | None:
        """Send recurring packets as they were described; return those still to be sent."""
        post = self.described(out)
        if post is None:
            return out
        sent = post.send(self._socket.fileno()) * post.packets
        return None if sent >= len(out.rows) else out._replace(rows=out.rows[sent:])

    def described(self, out: Recurring) -> Post | None:
        """Return the description of recurring packets; None: they have several receivers."""
        known = self._posts.get(out.rows)
        if known is None or known[0] != self.version:
            post = self._describe(out)  # can change `version`
            known = self._posts.keep(out.rows, (self.version, post))
        return known[1]

    def _describe(self, out: Recurring) -> Post | None:
        (group, *others) = self._groups.get(out.peers) or self._group(out.peers)
        if others or len(group.names) != 1:
            return None
        n, size = out.rows.shape
        packets = super_packets(size, self.most) if len(group.whole) else 1
        control = self._control(out.tos, size if min(n, packets) > 1 else 0, group.source)
        memory = out.rows.reshape(-1)[: (n - 1) * size + out.tail]
        return Post(memory, size, packets, int(group.names[0]), control)

    def _send_supers(self, group: Receivers, out: Outgoing) -> None:
        """Send super-datagrams to the receivers that they reach."""
        control = self._control(out.tos, out.rows.shape[1], group.source)
        single = self._control(out.tos, 0, group.source)
        if out.rows.shape[0] <= super_packets(out.rows.shape[1], self.most):
            payload = out.rows.reshape(-1)[: out.rows.size - out.rows.shape[1] + out.tail]
            for name in self._send_to_all(group.whole, payload, control, len(out.rows)):
                self._send_to_singly(name)
                self._send_rows(out.rows, out.tail, name, single)
            return
        left = group.whole.tolist()
        at = 0
        for some in super_datagrams(out.rows, out.tail, self.most):
            refused = self._send_whole(left, some, control)
            for name, sent in refused.items():
                self._send_to_singly(name)
                self._send_rows(out.rows[at + sent :], out.tail, name, single)
            left = [name for name in left if name not in refused]
            at += sum(some.counts)

    def _send_whole(self, names: list[int], some: SuperDatagrams, control: Block) -> dict[int, int]:
        """Send super-datagrams to each receiver.

        Returns:
            the receivers to which one was refused, each with the number of packets sent before.
        """
        payloads, lengths, counts = some
        if len(counts) == 1:
            receivers = np.array(names, np.uint64)
            refused = self._send_to_all(receivers, payloads[0, : lengths[0]], control, counts[0])
            return dict.fromkeys(refused, 0)
        done = {
            name: self._send_rows(payloads, lengths[-1], name, control, counts) for name in names
        }
        return {name: sum(counts[:n]) for name, n in done.items() if n < len(counts)}

    def _send_singly(self, names: npt.NDArray[np.uint64], out: Outgoing, control: Block) -> None:
        for name in names.tolist():
            self._send_rows(out.rows, out.tail, name, control)

    def _send_to_all(
        self,
        names: npt.NDArray[np.uint64],
        payload: npt.NDArray[np.uint8],
        control: Block,
        packets: int = 1,
    ) -> list[int]:
        """Send one datagram to each; return those that cannot be sent a super-datagram."""
        refused: list[int] = []
        while len(names):
            some = names[: self._sender.most]
            sent = self._attempt(self._sender.send_to_all, payload, some, control)
            if sent <= 0:  # not to the first; the others may still be reached
                if packets > 1 and -sent in NOT_WHOLE:
                    refused.append(int(names[0]))
                else:
                    self.counters["tx_failed"] += packets
                sent = 1
            names = names[sent:]
        return refused

    def _send_rows(
        self, rows: Rows, tail: int, name: int, control: Block, counts: Sequence[int] = ()
    ) -> int:
        """Send each row as a datagram to one receiver; return how many were sent or counted lost.

        Args:
            rows: (n, size) bytes.
            tail: bytes of the last row.
            name: place of the receiver's sockaddr_in in memory.
            control: control messages.
            counts: packets in each row, if rows are super-datagrams. Sending then stops at one that
                the way does not carry.
        """
        done = 0
        while done < len(rows):
            sent = self._attempt(self._sender.send_rows, rows[done:], tail, name, control)
            if sent <= 0:
                if counts and counts[done] > 1 and -sent in NOT_WHOLE:
                    return done
                self.counters["tx_failed"] += sum(counts[done:]) or len(rows) - done
                return len(rows)
            done += sent
        return done

    def _attempt(self, send: Callable[..., int], *args: object) -> int:
        """Send; return how many datagrams the kernel took; if it took none, minus the errno."""
        code = errno.EINTR
        for _ in range(3):
            try:
                return send(self._socket.fileno(), *args)
            except ConnectionRefusedError:  # of an earlier datagram; this one was not tried
                self.refused = True
                code = errno.ECONNREFUSED
            except InterruptedError:
                pass
            except OSError as error:
                return -(error.errno or errno.EIO)
        return -code

    # Receivers

    def _group(self, peers: tuple[Address, ...]) -> list[Receivers]:
        """Group receivers by our local address from which packets go to them."""
        if len(self._groups) >= GROUPS:
            self.forget()
        by_source: dict[bytes, list[Address]] = {}
        for peer in peers:
            by_source.setdefault(self._sources.get(peer, b""), []).append(peer)
        groups = self._groups[peers] = []
        for source, members in by_source.items():
            packed = Block(b"".join(map(_sockaddr, members)))
            self._names.append(packed)  # keeps the memory
            names = packed.address + np.arange(len(members), dtype=np.uint64) * SOCKADDR_SIZE
            single = np.array([peer in self._singly for peer in members], bool)
            groups.append(Receivers(source, names, names[~single], names[single]))
        return groups

    def way(self, peers: tuple[Address, ...], tos: int, size: int) -> Way | None:
        """Describe the way to receivers that all get packets alike; None: they do not.

        Args:
            peers: the receivers.
            tos: the ToS byte.
            size: bytes of a packet.
        """
        (group, *others) = self._groups.get(peers) or self._group(peers)
        if others or (len(group.whole) and len(group.single)):
            return None
        at_most = super_packets(size, self.most) if len(group.whole) else 1
        names = Block(b"".join(map(_sockaddr, peers)))
        return Way(names, self._control(tos, size * (at_most > 1), group.source), at_most)

    def forget(self) -> None:
        """Forget the routes to receivers, and the local addresses from which packets go to them."""
        self.version += 1
        self._groups.clear()
        self._names.clear()

    def _send_to_singly(self, name: int) -> None:
        """Send single packets from now on to the receiver whose sockaddr_in is at this place."""
        for packed in self._names:
            at = name - packed.address
            if 0 <= at < packed.size:
                port, host = struct.unpack_from(">2xH4s", packed.content, at)
                self._singly.keep(Address(socket.inet_ntoa(host), port), None)
        self.version += 1
        self._groups.clear()  # the memory stays, since a send under way reads it

    def _control(self, tos: int, segment: int, source: bytes) -> Block:
        """Pack control messages: the ToS byte, the bytes of a segment (0: none), our address."""
        control = self._controls.get((tos, segment, source))
        if control is None:
            packed = struct.pack("<Qiii4x", 20, socket.IPPROTO_IP, socket.IP_TOS, tos)
            if segment:
                packed += struct.pack("<QiiH6x", 18, SOL_UDP, UDP_SEGMENT, segment)
            if source:
                packed += struct.pack("<Qiii4s4x4x", 28, socket.IPPROTO_IP, IP_PKTINFO, 0, source)
            control = self._controls[tos, segment, source] = Block(packed)
        return control


def _sockaddr(peer: Address) -> bytes:
    family = struct.pack("<H", socket.AF_INET)
    return family + struct.pack(">H4s8x", peer.port, socket.inet_aton(peer.host))
