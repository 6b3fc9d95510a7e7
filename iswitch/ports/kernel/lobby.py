"""The lobby of a switch's UDP socket: a second socket at the same address, for all but members.

    members --> socket --------------------------> switch
    others  --> lobby --(a share of the time)----> switch
                     \\-> strangers' data: counted, many at once

The kernel chooses between the two by a program of ours (socket(7), SO_ATTACH_REUSEPORT_CBPF). So
strangers' packets never stand in a member's way: they take no room in the queue of contributions,
and the switch spends only a share of its time on the lobby. Packets that find no room there cost
nothing more, and are counted (`rx_overflow`).

The share counts the core's time: while other processes have the core, the lobby costs members
nothing, so its guests need not wait longer. But while members' packets wait, it counts only this
thread's time: if other processes left the switch a tenth of the core, the lobby could otherwise
take all of that.

Members that the program cannot name, being too many or sending IP options, are served here, too.
"""

from __future__ import annotations

import ctypes
import errno
import select
import socket
import struct
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from iswitch.core.format import arbiter
from iswitch.core.format.counters import Counters
from iswitch.core.format.packets import Address, Rows
from iswitch.core.format.wire import SEG_SIZE
from iswitch.core.jobs.sources import Sources

from .mmsg import SOCKADDR_SIZE, Receiver

IP_RECVTOS = 13  # linux/in.h
IP_PKTINFO = 8
SO_ATTACH_REUSEPORT_CBPF = 51
SO_MEMINFO = 55
MEMINFO_DROPS = 8  # index in SO_MEMINFO's array (linux/sock_diag.h)

SHARE = 0.1  # of a core, or, while members wait, of the time that the switch gets of it
FEW = 8  # packets after which the lobby need not be closed
AT_ONCE = 32  # packets that may each need an answer; of strangers' data more
BUFFER = 1 << 20  # bytes that may wait
USUAL = 1472  # bytes of a datagram, until there are larger ones
CONTROL = 112  # bytes of control messages: ToS, size of packets, drops, our address
INFO_MESSAGE = 32  # bytes of the message with our address

# Classic BPF (linux/filter.h, linux/bpf_common.h), with the IP header at NETWORK.
NETWORK = 0xFFF00000  # SKF_NET_OFF, as the kernel reads it
LD_WORD, LD_HALF, LD_BYTE = 0x20, 0x28, 0x30
JUMP_IF_EQUAL, RETURN = 0x15, 0x06
PLAIN = 0x45  # first byte of an IPv4 header without options
MOST_NAMED = 800  # members: five instructions each, and the kernel takes 4,096
OWN, LOBBY = 0, 1  # places of the two sockets in their group


class Guests(NamedTuple):
    """Datagrams of the lobby for the switch: payload rows, their lengths, and control rows."""

    bodies: Rows
    lengths: list[int]
    meta: Rows


def program(members: list[Address]) -> bytes:
    """Make the BPF program that sends members to the socket, and all others to the lobby."""
    step = struct.Struct("=HBBI")
    code = [step.pack(LD_BYTE, 0, 0, NETWORK)]
    code += [step.pack(JUMP_IF_EQUAL, 1, 0, PLAIN), step.pack(RETURN, 0, 0, LOBBY)]
    for member in members:
        (host,) = struct.unpack(">I", socket.inet_aton(member.host))
        code += [
            step.pack(LD_WORD, 0, 0, NETWORK + 12),
            step.pack(JUMP_IF_EQUAL, 0, 3, host),
            step.pack(LD_HALF, 0, 0, NETWORK + 20),
            step.pack(JUMP_IF_EQUAL, 0, 1, member.port),
            step.pack(RETURN, 0, 0, OWN),
        ]
    return b"".join([*code, step.pack(RETURN, 0, 0, LOBBY)])


class Lobby:
    """Receives from strangers at a second socket.

    Args:
        own: the first socket, bound already.
        members: addresses whose packets stay at the first socket; changes as members come and go.
        counters: counts strangers' data.
        clock: returns the engine's seconds.
        spent: returns the seconds for which this thread has had a core.

    Raises:
        OSError: the kernel cannot tell two sockets at one address apart.
    """

    def __init__(
        self,
        own: socket.socket,
        members: Sources,
        counters: Counters,
        clock: Callable[[], float] = time.monotonic,
        spent: Callable[[], float] = time.thread_time,
    ) -> None:
        self.members = members
        self.counters = counters
        self.clock = clock
        self.spent = spent
        self.closed_until: float | None = None
        self._closed_until_spent = 0.0
        self._own = own
        self._changes = -1
        self._named = MOST_NAMED
        self._known: npt.NDArray[np.uint64] = np.empty(0, np.uint64)
        self._dropped = 0
        self._most = AT_ONCE
        self._receiver = Receiver(name=SOCKADDR_SIZE, control=CONTROL)
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        try:
            # The first socket was bound without it, so that no other program shares the address.
            for one in (own, self.socket):
                one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            self.socket.bind(own.getsockname())
            self.socket.setsockopt(socket.IPPROTO_IP, IP_RECVTOS, 1)
            self._tos = SOCKADDR_SIZE + 16  # where it stands in a row of `meta`
            if own.getsockname()[0] == "0.0.0.0":
                self.socket.setsockopt(socket.IPPROTO_IP, IP_PKTINFO, 1)
                self._tos += INFO_MESSAGE
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER)
            self.tell()
        except BaseException:
            self.socket.close()
            raise
        self._epoll = select.epoll()
        self._epoll.register(own, select.EPOLLIN)
        self._epoll.register(self.socket, select.EPOLLIN)

    def fileno(self) -> int:
        """Return a descriptor that is ready when the first socket or the open lobby is ready."""
        return self._epoll.fileno()

    def close(self) -> None:
        """Count the dropped datagrams, and close."""
        if self.socket.fileno() >= 0:
            self._count_dropped()
            self._epoll.close()
        self.socket.close()

    def tell(self) -> None:
        """Give the kernel a program for the present members, if they have changed."""
        if self._changes == self.members.changes:
            return
        self._changes = self.members.changes
        members = [one for one in self.members if not one.line]  # lines have sockets of their own
        while not self._attach(program(members[: self._named])):
            self._named = min(self._named, len(members)) // 2
        keys = b"".join(
            b"\0\0" + struct.pack(">H", m.port) + socket.inet_aton(m.host) for m in members
        )
        self._known = np.sort(np.frombuffer(keys, np.uint64))

    def _attach(self, code: bytes) -> bool:
        """Attach a program; return False if it is too long for the kernel (optmem_max)."""
        memory = ctypes.create_string_buffer(code, len(code))
        filter_ = struct.pack("@HP", len(code) // 8, ctypes.addressof(memory))
        try:
            self._own.setsockopt(socket.SOL_SOCKET, SO_ATTACH_REUSEPORT_CBPF, filter_)
        except OSError as error:
            if error.errno != errno.ENOMEM or not self._named:
                raise
            return False
        return True

    def pull(self, members_wait: bool) -> Iterator[Guests]:
        """Yield the lobby's datagrams that the switch must handle, if it is time for the lobby.

        Args:
            members_wait: whether the first socket had packets just now.
        """
        began = self.clock()
        if self.closed_until is not None:
            if began < self.closed_until:
                return
            if members_wait and self.spent() < self._closed_until_spent:
                return
            self.closed_until = None
            self._epoll.modify(self.socket, select.EPOLLIN)
        spent_before = self.spent()
        bodies, lengths = self._receiver.receive(self.socket.fileno(), USUAL, self._most)
        n = len(lengths)
        if not n:
            return
        self.tell()  # a job that has waited may have come in by a packet at the first socket
        try:
            guests = self._turn_away(bodies, lengths)
        except MemoryError:  # members and later guests are served all the same
            self.counters["rx_no_memory"] += n
            return
        alone = len(guests.lengths)
        if alone:
            yield guests
        self._most = AT_ONCE if alone > FEW else 4 * AT_ONCE
        if n > FEW:
            self._count_dropped()
            spent = self.spent()
            closed_for = (spent - spent_before) / SHARE
            self.closed_until = began + closed_for
            self._closed_until_spent = spent_before + closed_for
            self._epoll.modify(self.socket, 0)

    def _turn_away(self, bodies: Rows, lengths: list[int]) -> Guests:
        """Count strangers' data, which needs no answer; return the other datagrams."""
        n = len(lengths)
        meta = self._receiver.meta[:n]
        sources = np.zeros((n, 8), np.uint8)
        sources[:, 2:] = meta[:, 2:8]  # port and host of the sockaddr_in
        known = np.isin(sources.view(np.uint64)[:, 0], self._known)
        tos = meta[:, self._tos]
        away = ~known & ~arbiter.CONTROL[tos]
        sizes = np.asarray(lengths)
        short = sizes < SEG_SIZE
        data = away & arbiter.DATA[tos]
        came, size = int(away.sum()), int(sizes[away].sum())
        ordinary, too_short = int((away & ~data).sum()), int((data & short).sum())
        guests = Guests(bodies, lengths, meta)
        if came:
            rest = np.flatnonzero(~away)
            guests = Guests(bodies[rest], sizes[rest].tolist(), meta[rest])
        # From here on nothing takes memory: either all of these are counted, or none.
        counters = self.counters
        counters["rx_packets"] += came
        counters["rx_bytes"] += size
        counters["ordinary"] += ordinary
        counters["short"] += too_short
        strangers = came - ordinary - too_short
        counters["data"] += strangers
        counters["stranger"] += strangers
        return guests

    def _count_dropped(self) -> None:
        dropped = drops_at(self.socket)
        self.counters["rx_overflow"] += (dropped - self._dropped) & 0xFFFFFFFF
        self._dropped = dropped


def drops_at(sock: socket.socket) -> int:
    """Return how many datagrams the kernel has dropped at a socket since it was opened."""
    meminfo = sock.getsockopt(socket.SOL_SOCKET, SO_MEMINFO, 36)
    dropped: int = struct.unpack_from("<I", meminfo, 4 * MEMINFO_DROPS)[0]
    return dropped


# The kernel has no group of sockets at one address, or takes no program for it.
NO_LOBBY = (errno.ENOPROTOOPT, errno.EOPNOTSUPP, errno.EADDRINUSE, errno.EINVAL, errno.EPERM)
