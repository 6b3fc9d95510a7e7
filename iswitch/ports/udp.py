"""A UDP socket as a port: super-datagrams in both directions, batches where there are none.

Linux moves up to 64 kB of equal packets in one call: UDP_SEGMENT on sending, UDP_GRO on receiving
(udp(7)). Where packets come one by one, recvmmsg takes a batch of them and the batch is cut into
bursts by comparing neighbours. The ToS byte is read through IP_RECVTOS and set with each send; what
the kernel had to drop is read through SO_RXQ_OVFL. A socket bound to all addresses answers from the
address that the peer used (IP_PKTINFO), since the peer accepts packets from no other.
"""

from __future__ import annotations

import errno
import select
import socket
from collections.abc import Iterable, Iterator
from contextlib import suppress

from iswitch.core.format.counters import Counters
from iswitch.core.format.memo import Memo
from iswitch.core.format.packets import (
    MAX_SEGMENTS,
    Address,
    Burst,
    Outgoing,
    Recurring,
    Rows,
)
from iswitch.core.jobs.sources import Sources
from iswitch.ports.kernel.interfaces import most_segments_at
from iswitch.ports.kernel.lobby import (
    CONTROL,
    IP_PKTINFO,
    IP_RECVTOS,
    NO_LOBBY,
    USUAL,
    Lobby,
    drops_at,
)
from iswitch.ports.kernel.mmsg import (
    SOCKADDR_SIZE,
    Post,
    Receiver,
    Spacing,
    size_buffers,
)

from .reading import SO_RXQ_OVFL, SOL_UDP, UDP_GRO, BurstReader
from .sending import UDP_SEGMENT, DatagramSender

IP_MTU = 14
# What ICMP can say of the peer of a connected socket (icmp(7), ip(7)); anybody can forge it.
UNREACHABLE = (
    errno.ECONNREFUSED,
    errno.EHOSTUNREACH,
    errno.ENETUNREACH,
    errno.EHOSTDOWN,
    errno.ENONET,
    errno.ENOPROTOOPT,
    errno.EOPNOTSUPP,
    errno.EMSGSIZE,
    errno.EPROTO,
    errno.EACCES,
)

BUFFER = 16 << 20  # bytes asked for; net.core.rmem_max may allow less
SOURCES = 4096  # peers of which the address of ours is kept to which they send


class UdpPort:
    """Receives and sends at one UDP socket.

    Args:
        listen: address to bind, (host, port); port 0: any.
        connect: the only peer (a worker's switch); packets of others are then filtered out.
        offload: use UDP_SEGMENT and UDP_GRO. It is given up by itself where the kernel or the
            device refuses it.
        buffer: bytes of socket buffer to ask for, in each direction.
        members: addresses that are served first, from a queue that others cannot fill (`Lobby`).
            If the kernel cannot tell them apart, all are served alike.

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
        host, port = self.socket.getsockname()
        self.address = Address(host, port)
        self.most = MAX_SEGMENTS  # packets of a super-datagram that the way takes whole
        if connect:
            with suppress(OSError):  # no rtnetlink in this sandbox
                self.most = most_segments_at(host)
        sources: Memo[Address, bytes] = Memo(SOURCES)
        self._receiver = Receiver(name=SOCKADDR_SIZE, control=CONTROL)
        self._spacing = Spacing(USUAL)
        self.sender = DatagramSender(
            self.socket, self.counters, sources, self.most if self.offload else 1
        )
        self.reader = BurstReader(self.counters, sources, self.sender.forget)
        self._poller = select.poll()
        self._poller.register(self.socket, select.POLLIN)
        self.lobby: Lobby | None = None
        if members is not None:
            try:
                self.lobby = Lobby(self.socket, members, self.counters)
            except OSError as error:
                if error.errno not in NO_LOBBY:
                    raise

    def fileno(self) -> int:
        """Return a descriptor to wait on."""
        return self.lobby.fileno() if self.lobby else self.socket.fileno()

    def holds(self) -> bool:
        """Return whether packets have come of which `fileno` does not tell."""
        return False

    def wait(self, seconds: float, more: int = 0) -> bool:  # noqa: ARG002
        """Wait until packets come, for `seconds` at most; return whether some have."""
        return bool(self._poller.poll(seconds * 1000))

    @property
    def way(self) -> str:
        """Return how packets travel: "udp", or "shm" through rings in shared memory."""
        return "udp"

    def detach(self) -> None:
        """Give up the socket without closing it, which another process uses."""
        self.socket.detach()

    def deadline(self) -> float | None:
        """Return the time at which the lobby opens again, in seconds; None: it is open."""
        return self.lobby.closed_until if self.lobby else None

    def close(self) -> None:
        """Count the datagrams that the kernel has dropped, and close the sockets."""
        if self.lobby:
            self.lobby.close()
        self.count_dropped()
        self.socket.close()

    def count_dropped(self) -> None:
        """Count the datagrams dropped by the kernel so far; packets tell only of earlier drops."""
        if self.socket.fileno() >= 0:
            self.reader.note_overflow(drops_at(self.socket))

    @property
    def refused(self) -> bool:
        """Return whether an ICMP "port unreachable" has come back since this was set to False."""
        return self.sender.refused

    @refused.setter
    def refused(self, refused: bool) -> None:
        self.sender.refused = refused

    @property
    def mtu(self) -> int:
        """Read the MTU of the way to the peer this port is connected to, in bytes of IP."""
        return self.socket.getsockopt(socket.IPPROTO_IP, IP_MTU)

    # Receiving

    def pull(self) -> Iterable[Burst]:
        """Yield the packets that have come, without waiting; valid until the next call."""
        if self.lobby is None:
            return self._pull()
        return self._pull_both(self.lobby)

    def _pull_both(self, lobby: Lobby) -> Iterator[Burst]:
        lobby.tell()
        bursts = self._pull()
        yield from bursts
        for guests in lobby.pull(members_wait=bool(bursts)):
            yield from self.reader.cut(*guests)

    def _pull(self) -> list[Burst]:
        try:
            bodies, lengths = self._receiver.receive(self.socket.fileno(), self._spacing.value)
        except OSError as error:
            self.failed(error)
            return []
        n = len(lengths)
        if not n:
            return []
        try:
            return self.reader.bursts(bodies, lengths, self._receiver.meta[:n], self._spacing)
        except MemoryError:
            self.counters["rx_no_memory"] += n
            return []

    def failed(self, error: OSError) -> None:
        """Note that receiving failed, if only for an ICMP message; else raise the error."""
        if error.errno not in UNREACHABLE:
            raise error
        self.sender.refused |= error.errno == errno.ECONNREFUSED

    def handed(self, bodies: Rows, lengths: list[int], meta: Rows) -> list[Burst]:
        """Return the packets in datagrams that somebody else has received at this socket.

        Args:
            bodies: (n, room) bytes, one datagram a row.
            lengths: length of each datagram in bytes.
            meta: (n, SOCKADDR_SIZE + CONTROL) bytes, each datagram's sender and control messages.
        """
        try:
            return self.reader.cut(bodies, lengths, meta)
        except MemoryError:
            self.counters["rx_no_memory"] += len(lengths)
            return []

    # Sending

    def described(self, out: Recurring) -> Post | None:
        """Return recurring packets as datagrams; None: they have several receivers."""
        return self.sender.described(out)

    def push(self, sends: Iterable[Outgoing]) -> None:
        """Send packets; count those that the kernel refuses (`tx_failed`)."""
        for given in sends:
            try:
                self.sender.send(given)
            except MemoryError:  # some receivers may have got them; later packets are still sent
                self.counters["tx_failed"] += len(given.rows) * len(given.peers)


def supports_offload(sock: socket.socket) -> bool:
    """Turn UDP_GRO on; False where the kernel knows no segmentation offload for UDP."""
    try:
        sock.setsockopt(SOL_UDP, UDP_GRO, 1)
        sock.setsockopt(SOL_UDP, UDP_SEGMENT, 0)
    except OSError:
        return False
    return True
