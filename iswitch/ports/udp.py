"""A UDP socket as a port: super-datagrams in both directions, batches where there are none.

Linux moves up to 64 kB of equal packets in one call: UDP_SEGMENT on sending, UDP_GRO on receiving
(udp(7)). Where packets come one by one, recvmmsg takes a batch of them and the batch is cut into
bursts by comparing neighbours. The ToS byte is read through IP_RECVTOS and set with each send; what
the kernel had to drop is read through SO_RXQ_OVFL.
"""

from __future__ import annotations

import errno
import socket
import struct
from collections.abc import Callable, Iterable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ..counters import Counters
from ..packets import Address, Burst, Outgoing, Rows
from .mmsg import SOCKADDR_SIZE, Block, Receiver, Sender

SOL_UDP = 17
UDP_SEGMENT = 103  # linux/udp.h
UDP_GRO = 104
IP_RECVTOS = 13  # linux/in.h
SO_RXQ_OVFL = 40
SO_RCVBUFFORCE = 33
SO_SNDBUFFORCE = 32

BUFFER = 16 << 20  # bytes asked for; net.core.rmem_max may allow less
MAX_SUPER = 65507  # bytes of a super-datagram
MAX_SEGMENTS = 64  # packets of one (UDP_MAX_SEGMENTS; 128 in newer kernels)
SLOT = 2 * 65536 + 192  # a datagram, and the rest of the last row, which can be nearly as long
BATCH = 128  # datagrams in a call while they come one by one
BATCH_SUPER = 8  # while they come as super-datagrams: half a megabyte, which a cache holds


class _Kind(NamedTuple):
    """What the sender's address and the control messages of a datagram say."""

    peer: Address
    tos: int
    segment: int  # size of the packets of a super-datagram; 0: a single packet
    overflow: int  # datagrams the kernel has dropped at this socket, all in all


class UdpPort:
    """One UDP socket.

    Args:
        listen: address to bind, (host, port); port 0: any.
        connect: the only peer (a worker's switch); packets of others are then filtered out.
        offload: use UDP_SEGMENT and UDP_GRO. It is given up by itself where the kernel or the
            device refuses it.
        buffer: bytes of socket buffer to ask for, in each direction.

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
    ) -> None:
        self.counters = Counters() if counters is None else counters
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        try:
            self.socket.bind(listen)
            if connect:
                self.socket.connect(connect)
        except OSError:
            self.socket.close()
            raise
        self.socket.setsockopt(socket.IPPROTO_IP, IP_RECVTOS, 1)
        self.socket.setsockopt(socket.SOL_SOCKET, SO_RXQ_OVFL, 1)
        self.buffer = size_buffers(self.socket, buffer)
        self.offload = offload and supports_offload(self.socket)
        self.refused = False  # an ICMP "port unreachable" has come back
        host, port = self.socket.getsockname()
        self.address = Address(host, port)
        self._receiver = Receiver(BATCH, SLOT)
        self._sender = Sender()
        self._batch = BATCH
        self._kinds: dict[bytes, _Kind] = {}
        self._names: dict[tuple[Address, ...], npt.NDArray[np.uint64]] = {}
        self._packed: list[Block] = []
        self._controls: dict[tuple[int, int], Block] = {}
        self._overflow = 0
        self._used = 0

    def fileno(self) -> int:
        """The socket's descriptor, to wait on."""
        return self.socket.fileno()

    def close(self) -> None:
        """Close the socket."""
        self.socket.close()

    # Receiving

    def pull(self) -> list[Burst]:
        """Packets that have come, without waiting. They are valid until the next call."""
        receiver = self._receiver
        if self._used:
            receiver.recycle(self._used)
        try:
            n = self._used = receiver.receive(self.fileno(), self._batch)
        except ConnectionRefusedError:
            self._used = 0
            self.refused = True
            return []
        if not n:
            return []
        if n == 1:
            bounds = [0, 1]
        else:
            meta, lengths = receiver.meta[:n], receiver.lengths[:n]
            differs = (meta[1:] != meta[:-1]).any(axis=1) | (lengths[1:] != lengths[:-1])
            bounds = [0, *(np.flatnonzero(differs) + 1).tolist(), n]
        bursts: list[Burst] = []
        self._batch = BATCH
        for i, start in enumerate(bounds[:-1]):
            self._bursts(start, bounds[i + 1], bursts)
        return bursts

    def _bursts(self, start: int, stop: int, bursts: list[Burst]) -> None:
        """Slots start..stop-1 hold datagrams of one kind and length."""
        signature = self._receiver.meta[start].tobytes()
        kind = self._kinds.get(signature) or self._read_kind(signature)
        length = int(self._receiver.lengths[start])
        data = self._receiver.data
        if kind.overflow > self._overflow:
            self.counters["rx_overflow"] += kind.overflow - self._overflow
            self._overflow = kind.overflow
        if not kind.segment or kind.segment >= length:
            bursts.append(Burst(kind.peer, kind.tos, data[start:stop, :length], length))
            return
        self._batch = BATCH_SUPER
        n = -(-length // kind.segment)
        tail = length - (n - 1) * kind.segment
        for slot in range(start, stop):
            rows = data[slot, : n * kind.segment].reshape(n, kind.segment)
            bursts.append(Burst(kind.peer, kind.tos, rows, tail))

    def _read_kind(self, signature: bytes) -> _Kind:
        port, host = struct.unpack_from(">2xH4s", signature)
        tos = segment = overflow = 0
        at = SOCKADDR_SIZE
        while at + 16 <= len(signature):
            size, level, type_ = struct.unpack_from("<Qii", signature, at)
            if size < 16:
                break
            if (level, type_) == (socket.IPPROTO_IP, socket.IP_TOS):
                tos = signature[at + 16]
            elif (level, type_) == (SOL_UDP, UDP_GRO):
                (segment,) = struct.unpack_from("<i", signature, at + 16)
            elif (level, type_) == (socket.SOL_SOCKET, SO_RXQ_OVFL):
                (overflow,) = struct.unpack_from("<I", signature, at + 16)
            at += (size + 7) & ~7
        kind = _Kind(Address(socket.inet_ntoa(host), port), tos, segment, overflow)
        if len(self._kinds) >= 4096:  # strangers with ever new addresses
            self._kinds.clear()
        self._kinds[signature] = kind
        return kind

    # Sending

    def push(self, sends: Iterable[Outgoing]) -> None:
        """Send packets; what the kernel does not take is counted (`tx_failed`)."""
        for out in sends:
            names = self._names.get(out.peers)
            if names is None:
                names = self._sockaddrs(out.peers)
            n, size = out.rows.shape
            at_once = min(MAX_SUPER // size, MAX_SEGMENTS) if size else 1
            if n == 1:
                self._send_to_all(names, out.rows[0, : out.tail], self._control(out.tos, 0))
            elif self.offload and at_once > 1:
                self._send_super(names, out, at_once)
            else:
                self._send_singly(names, out.rows, out.tail, out.tos)

    def _send_super(self, names: npt.NDArray[np.uint64], out: Outgoing, at_once: int) -> None:
        n, size = out.rows.shape
        control = self._control(out.tos, size)
        flat = out.rows.reshape(-1)
        total = (n - 1) * size + out.tail
        for start in range(0, total, at_once * size):
            stop = min(start + at_once * size, total)
            if stop - start <= size:  # a single packet is no super-datagram
                control = self._control(out.tos, 0)
            self._send_to_all(names, flat[start:stop], control, -(-(stop - start) // size))
            if not self.offload:  # it was refused just now
                self._send_singly(names, out.rows[start // size :], out.tail, out.tos)
                return

    def _send_to_all(
        self,
        names: npt.NDArray[np.uint64],
        payload: npt.NDArray[np.uint8],
        control: Block,
        packets: int = 1,
    ) -> None:
        while len(names):
            sent = self._attempt(
                lambda names=names: self._sender.send_to_all(  # type: ignore[misc]
                    self.fileno(), payload, names[: self._sender.most], control
                )
            )
            if not self.offload and packets > 1:
                return
            if not sent:
                self.counters["tx_failed"] += packets
                sent = 1  # the others may still be reached
            names = names[sent:]

    def _send_singly(self, names: npt.NDArray[np.uint64], rows: Rows, tail: int, tos: int) -> None:
        control = self._control(tos, 0)
        for name in names.tolist():
            left = rows
            while len(left):
                sent = self._attempt(
                    lambda left=left, name=name: self._sender.send_rows(  # type: ignore[misc]
                        self.fileno(), left, tail, name, control
                    )
                )
                if not sent:
                    self.counters["tx_failed"] += len(left)
                    break
                left = left[sent:]

    def _attempt(self, send: Callable[[], int]) -> int:
        """Send, and note what the kernel says; returns how many datagrams it took."""
        for _ in range(3):
            try:
                return send()
            except ConnectionRefusedError:  # of an earlier datagram; this one was not tried
                self.refused = True
            except InterruptedError:
                pass
            except OSError as error:
                if error.errno == errno.EIO:  # the device cannot segment
                    self.offload = False
                return 0
        return 0

    def _sockaddrs(self, peers: tuple[Address, ...]) -> npt.NDArray[np.uint64]:
        """The addresses in memory of the peers' sockaddr_in."""
        if len(self._names) >= 4096:  # strangers with ever new addresses
            self._names.clear()
            self._packed.clear()
        packed = Block(
            b"".join(
                struct.pack("<H", socket.AF_INET)
                + struct.pack(">H4s8x", peer.port, socket.inet_aton(peer.host))
                for peer in peers
            )
        )
        self._packed.append(packed)  # keeps the memory
        names = packed.address + np.arange(len(peers), dtype=np.uint64) * SOCKADDR_SIZE
        self._names[peers] = names
        return names

    def _control(self, tos: int, segment: int) -> Block:
        """The control messages that set the ToS byte and the size of segments (0: none)."""
        control = self._controls.get((tos, segment))
        if control is None:
            packed = struct.pack("<Qiii4x", 20, socket.IPPROTO_IP, socket.IP_TOS, tos)
            if segment:
                packed += struct.pack("<QiiH6x", 18, SOL_UDP, UDP_SEGMENT, segment)
            control = self._controls[tos, segment] = Block(packed)
        return control


def size_buffers(sock: socket.socket, wanted: int) -> int:
    """Ask for socket buffers of `wanted` bytes; returns what the receive buffer got.

    Root gets them whatever net.core.rmem_max says; others get at most that.
    """
    for force, plain in (
        (SO_RCVBUFFORCE, socket.SO_RCVBUF),
        (SO_SNDBUFFORCE, socket.SO_SNDBUF),
    ):
        try:
            sock.setsockopt(socket.SOL_SOCKET, force, wanted)
        except PermissionError:
            sock.setsockopt(socket.SOL_SOCKET, plain, wanted)
    return sock.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) // 2  # the kernel doubles it


def supports_offload(sock: socket.socket) -> bool:
    """Turn UDP_GRO on; False where the kernel knows no segmentation offload for UDP."""
    try:
        sock.setsockopt(SOL_UDP, UDP_GRO, 1)
        sock.setsockopt(SOL_UDP, UDP_SEGMENT, 0)
    except OSError:
        return False
    return True
