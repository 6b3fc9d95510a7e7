"""A UDP socket as a port: super-datagrams in both directions, batches where there are none.

Linux moves up to 64 kB of equal packets in one call: UDP_SEGMENT on sending, UDP_GRO on receiving
(udp(7)). Where packets come one by one, recvmmsg takes a batch of them and the batch is cut into
bursts by comparing neighbours. The ToS byte is read through IP_RECVTOS and set with each send; what
the kernel had to drop is read through SO_RXQ_OVFL. A socket bound to all addresses answers from the
one it was spoken to at (IP_PKTINFO), since that is the only one its peer listens to.
"""

from __future__ import annotations

import errno
import socket
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from iswitch.core.format.counters import Counters
from iswitch.core.format.memo import Memo, Notes
from iswitch.core.format.packets import (
    MAX_SEGMENTS,
    Address,
    Burst,
    Outgoing,
    Recurring,
    Rows,
    Supers,
    super_packets,
    supers,
    trains,
    unpacked,
)
from iswitch.core.jobs.sources import Sources
from iswitch.ports.kernel.interfaces import most_segments_at
from iswitch.ports.kernel.lobby import (
    IP_PKTINFO,
    IP_RECVTOS,
    MEMINFO_DROPS,
    NO_LOBBY,
    SO_MEMINFO,
    Lobby,
)
from iswitch.ports.kernel.mmsg import (
    BATCH_SUPER,
    SOCKADDR_SIZE,
    Block,
    Post,
    Receiver,
    Sender,
    Spacing,
    size_buffers,
)

SOL_UDP = 17
UDP_SEGMENT = 103  # linux/udp.h
UDP_GRO = 104
SO_RXQ_OVFL = 40
IP_MTU = 14

BUFFER = 16 << 20  # bytes asked for; net.core.rmem_max may allow less
SEEN = 256  # kinds of batches that are remembered
REMEMBERED = 4096  # kinds of packets, and lists of receivers; strangers may have ever new addresses
CONTROL = 112  # bytes of control messages: ToS, size of packets, drops, our address
USUAL = 1472  # bytes of a datagram, until there are larger ones


# The kernel or the device cannot segment, or the packets are larger than the MTU on the way.
NOT_WHOLE = (errno.EIO, errno.EINVAL, errno.EMSGSIZE)


class _Kind(NamedTuple):
    """What the sender's address and the control messages of a datagram say."""

    peer: Address
    tos: int
    segment: int  # size of the packets of a super-datagram; 0: a single packet
    overflow: int  # datagrams the kernel has dropped at this socket, all in all


class _Group(NamedTuple):
    """Receivers that are sent to from the same address: where their sockaddr_in are."""

    source: bytes  # our address; b"": as the kernel chooses
    names: npt.NDArray[np.uint64]  # all of them
    whole: npt.NDArray[np.uint64]  # who is sent super-datagrams
    single: npt.NDArray[np.uint64]  # who is not: the way there does not carry them


class UdpPort:
    """One UDP socket.

    Args:
        listen: address to bind, (host, port); port 0: any.
        connect: the only peer (a worker's switch); packets of others are then filtered out.
        offload: use UDP_SEGMENT and UDP_GRO. It is given up by itself where the kernel or the
            device refuses it.
        buffer: bytes of socket buffer to ask for, in each direction.
        members: who is served first, and has a queue that others cannot fill (`Lobby`). Where the
            kernel cannot part them, all are served alike.

    Raises:
        OSError: the address cannot be bound.
    """

    def __init__(
        self,
        listen: tuple[str, int] = ("0.0.0.0", 0),
        connect: tuple[str, int] | None = None,
        offload: bool = True,
        buffer: int = BUFFER,
        counters: Counters | None = None,
        members: Sources | None = None,
    ) -> None:
        self.counters = Counters() if counters is None else counters
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        try:
            self.socket.bind(listen)
            if connect:
                self.socket.connect(connect)
        except BaseException:
            self.socket.close()
            raise
        self.socket.setsockopt(socket.IPPROTO_IP, IP_RECVTOS, 1)
        if not connect and listen[0] in ("", "0.0.0.0"):
            self.socket.setsockopt(socket.IPPROTO_IP, IP_PKTINFO, 1)
        self.socket.setsockopt(socket.SOL_SOCKET, SO_RXQ_OVFL, 1)
        self.buffer = size_buffers(self.socket, buffer)
        self.offload = offload and supports_offload(self.socket)
        self.refused = False  # an ICMP "port unreachable" has come back
        host, port = self.socket.getsockname()
        self.address = Address(host, port)
        self.most = MAX_SEGMENTS  # packets of a super-datagram that the way takes whole
        if connect:
            with suppress(OSError):  # no rtnetlink in this sandbox
                self.most = most_segments_at(host)
        self._receiver = Receiver(name=SOCKADDR_SIZE, control=CONTROL)
        self._spacing = Spacing(USUAL)
        self._sender = Sender()
        self._kinds: Memo[bytes, _Kind] = Memo(REMEMBERED)
        self._groups: dict[tuple[Address, ...], list[_Group]] = {}
        self._packed: list[Block] = []
        self._sources: dict[Address, bytes] = {}  # at which of our addresses a peer spoke to us
        self._singly: set[Address] = set()  # who cannot be reached with super-datagrams
        self._controls: dict[tuple[int, int, bytes], Block] = {}
        self._described = 0  # another: descriptions of sends from before do not hold
        self._seen: Memo[tuple[bytes, tuple[int, ...], int], list[Burst]] = Memo(SEEN)
        self._posts: Notes[tuple[int, Post | None]] = Notes()  # about recurring packets
        self._overflow = 0
        self.lobby: Lobby | None = None
        if members is not None:
            try:
                self.lobby = Lobby(self.socket, members, self.counters)
            except OSError as error:
                if error.errno not in NO_LOBBY:
                    raise

    def fileno(self) -> int:
        """A descriptor to wait on."""
        return self.lobby.fileno() if self.lobby else self.socket.fileno()

    def deadline(self) -> float | None:
        """When it is time to look into the lobby again; else nothing waits here for a time."""
        return self.lobby.closed_until if self.lobby else None

    def close(self) -> None:
        """Count what the kernel has dropped since the last packet that came, and close."""
        if self.lobby:
            self.lobby.close()
        self.count_dropped()
        self.socket.close()

    def count_dropped(self) -> None:
        """Count what the kernel has dropped so far; the last packets that came may not tell it."""
        if self.socket.fileno() >= 0:
            meminfo = self.socket.getsockopt(socket.SOL_SOCKET, SO_MEMINFO, 36)
            self._note_overflow(struct.unpack_from("<I", meminfo, 4 * MEMINFO_DROPS)[0])

    @property
    def mtu(self) -> int:
        """The MTU of the way to the peer this port is connected to, in bytes of IP."""
        return self.socket.getsockopt(socket.IPPROTO_IP, IP_MTU)

    # Receiving

    def pull(self) -> Iterable[Burst]:
        """Packets that have come, without waiting. They are valid until the next call."""
        if self.lobby is None:
            return self._pull()
        return self._pull_both(self.lobby)

    def _pull_both(self, lobby: Lobby) -> Iterator[Burst]:
        lobby.tell()
        bursts = self._pull()
        yield from bursts
        for guests in lobby.pull(members_wait=bool(bursts)):
            yield from self._bursts(*guests)

    def _pull(self) -> list[Burst]:
        spacing = self._spacing.value
        try:
            bodies, lengths = self._receiver.receive(self.socket.fileno(), spacing)
        except ConnectionRefusedError:
            self.refused = True
            return []
        n = len(lengths)
        if not n:
            return []
        try:
            return self._received(bodies, lengths, spacing)
        except MemoryError:
            self.counters["rx_no_memory"] += n
            return []

    def _received(self, bodies: Rows, lengths: list[int], spacing: int) -> list[Burst]:
        n = len(lengths)
        meta = self._receiver.meta[:n]
        if n > BATCH_SUPER or max(lengths) > spacing:
            bursts = self._bursts(bodies, lengths, meta)
        else:  # the same as once before lies in the same memory, too
            key = (meta.tobytes(), tuple(lengths), spacing)
            known = self._seen.get(key)
            if known is None:
                known = self._bursts(bodies, lengths, meta)
                if all(np.may_share_memory(burst.rows, bodies) for burst in known):
                    self._seen.keep(key, known)
            bursts = known
        self._spacing.expect(lengths, lambda i: self._kind(meta[i].tobytes()).segment)
        return bursts

    def _bursts(self, bodies: Rows, lengths: list[int], meta: Rows) -> list[Burst]:
        """Datagrams, their lengths, and who sent them and how, by sender and kind."""
        n = len(lengths)
        first = meta[0].tobytes()
        ranges = [(0, n)]
        if n == 1:
            kind, length = self._kind(first), lengths[0]
            found = unpacked(bodies, length, kind.segment or length, length)
            return [Burst(kind.peer, kind.tos, rows, tail) for rows, tail in found]
        if lengths.count(lengths[0]) < n or meta.tobytes() != first * n:
            together = self._together(bodies, lengths, meta)
            if together is not None:
                return [together]
            differs = (meta[1:] != meta[:-1]).any(axis=1)
            starts = [0, *(np.flatnonzero(differs) + 1).tolist()]
            is_super = [self._kind(meta[i].tobytes()).segment > 0 for i in starts]
            supers = np.repeat(is_super, np.diff([*starts, n]))
            ranges = trains(np.array(lengths), differs, supers)
        bursts: list[Burst] = []
        for start, stop in ranges:
            kind = self._kind(meta[start].tobytes() if start else first)
            length, last = lengths[start], lengths[stop - 1]
            for rows, tail in unpacked(bodies[start:stop], length, kind.segment or length, last):
                bursts.append(Burst(kind.peer, kind.tos, rows, tail))
        return bursts

    def _together(self, bodies: Rows, lengths: list[int], meta: Rows) -> Burst | None:
        """Datagrams of one sender, whose packets are full but the very last, as one burst.

        So they come where something was lost. To copy them next to each other costs less than to
        handle them one by one. None: these are something else.
        """
        first = self._kind(meta[0].tobytes())
        size = first.segment or lengths[0]
        payloads: list[Rows] = []
        rest = 0
        for i, length in enumerate(lengths):
            kind = self._kind(meta[i].tobytes())
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

    def _note_overflow(self, drops: int) -> None:
        self.counters["rx_overflow"] += max(0, drops - self._overflow)
        self._overflow = max(self._overflow, drops)

    def _kind(self, signature: bytes) -> _Kind:
        kind = self._kinds.get(signature) or self._read_kind(signature)
        if kind.overflow > self._overflow:
            self._note_overflow(kind.overflow)
        return kind

    def _read_kind(self, signature: bytes) -> _Kind:
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
        kind = _Kind(peer, tos, segment, overflow)
        if len(self._kinds) >= REMEMBERED:
            self._forget_kinds()
        self._kinds[signature] = kind
        if source and self._sources.get(peer) != source:
            if len(self._sources) >= REMEMBERED:
                self._sources.clear()
                self._forget_kinds()  # else nobody would be looked up again
            self._sources[peer] = source
            self._forget_groups()
        return kind

    def _forget_kinds(self) -> None:
        self._kinds.clear()
        self._seen.clear()

    # Sending

    def push(self, sends: Iterable[Outgoing]) -> None:
        """Send packets; what the kernel does not take is counted (`tx_failed`)."""
        for given in sends:
            try:
                self._push(given)
            except MemoryError:  # of some it may have been sent; the others' are sent all the same
                self.counters["tx_failed"] += len(given.rows) * len(given.peers)

    def _push(self, given: Outgoing) -> None:
        out = self._post(given) if type(given) is Recurring else given
        if out is not None:
            n, size = out.rows.shape
            whole = self.offload and super_packets(size, self.most) > 1
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
        """Send what is described already; what is left of it to be sent otherwise."""
        known = self._posts.get(out.rows)
        if known is None or known[0] != self._described:
            post = self._describe(out)  # which may be the first to look where they are
            known = self._posts.keep(out.rows, (self._described, post))
        post = known[1]
        if post is None:
            return out
        sent = post.send(self.socket.fileno()) * super_packets(out.rows.shape[1], self.most)
        return None if sent >= len(out.rows) else out._replace(rows=out.rows[sent:])

    def _describe(self, out: Recurring) -> Post | None:
        """Super-datagrams for a single receiver that can be sent such; None: something else."""
        (group, *others) = self._groups.get(out.peers) or self._group(out.peers)
        if others or len(group.whole) != 1 or not self.offload or len(out.rows) == 1:
            return None
        if super_packets(out.rows.shape[1], self.most) == 1:
            return None
        payloads = [
            payload[:length]
            for some in supers(out.rows, out.tail, self.most)
            for payload, length in zip(some.payloads, some.lengths, strict=True)
        ]
        control = self._control(out.tos, out.rows.shape[1], group.source)
        return Post(payloads, int(group.whole[0]), control)

    def _send_supers(self, group: _Group, out: Outgoing) -> None:
        """Send super-datagrams to whom the way carries them."""
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
        for some in supers(out.rows, out.tail, self.most):
            refused = self._send_whole(left, some, control)
            for name, sent in refused.items():
                self._send_to_singly(name)
                self._send_rows(out.rows[at + sent :], out.tail, name, single)
            left = [name for name in left if name not in refused]
            at += sum(some.counts)

    def _send_whole(self, names: list[int], some: Supers, control: Block) -> dict[int, int]:
        """Send super-datagrams to each; by who refuses: how many packets were sent before."""
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
        """Send one datagram to each; returns who cannot be sent a super-datagram."""
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
        """Send each row as a datagram to one receiver; says how many are done with.

        With counts they are super-datagrams of so many packets; it stops at one that the way does
        not carry.
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
        """Send; returns how many datagrams the kernel took, or if none, minus the errno."""
        code = errno.EINTR
        for _ in range(3):
            try:
                return send(self.socket.fileno(), *args)
            except ConnectionRefusedError:  # of an earlier datagram; this one was not tried
                self.refused = True
                code = errno.ECONNREFUSED
            except InterruptedError:
                pass
            except OSError as error:
                return -(error.errno or errno.EIO)
        return -code

    # Receivers

    def _group(self, peers: tuple[Address, ...]) -> list[_Group]:
        """The receivers by the address they are sent to from."""
        if len(self._groups) >= REMEMBERED:
            self._forget_groups()
        by_source: dict[bytes, list[Address]] = {}
        for peer in peers:
            by_source.setdefault(self._sources.get(peer, b""), []).append(peer)
        groups = self._groups[peers] = []
        for source, members in by_source.items():
            packed = Block(b"".join(map(_sockaddr, members)))
            self._packed.append(packed)  # keeps the memory
            names = packed.address + np.arange(len(members), dtype=np.uint64) * SOCKADDR_SIZE
            single = np.array([peer in self._singly for peer in members], bool)
            groups.append(_Group(source, names, names[~single], names[single]))
        return groups

    def _forget_groups(self) -> None:
        self._described += 1
        self._groups.clear()
        self._packed.clear()

    def _send_to_singly(self, name: int) -> None:
        """From now on no super-datagrams to the receiver whose sockaddr_in is there."""
        for packed in self._packed:
            at = name - packed.address
            if 0 <= at < packed.size:
                port, host = struct.unpack_from(">2xH4s", packed.content, at)
                if len(self._singly) >= REMEMBERED:
                    self._singly.clear()
                self._singly.add(Address(socket.inet_ntoa(host), port))
        self._described += 1
        self._groups.clear()  # the memory stays, it is being sent from

    def _control(self, tos: int, segment: int, source: bytes) -> Block:
        """Control messages: the ToS byte, the size of segments (0: none), our address."""
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


def supports_offload(sock: socket.socket) -> bool:
    """Turn UDP_GRO on; False where the kernel knows no segmentation offload for UDP."""
    try:
        sock.setsockopt(SOL_UDP, UDP_GRO, 1)
        sock.setsockopt(SOL_UDP, UDP_SEGMENT, 0)
    except OSError:
        return False
    return True
