"""A switch's port, with rings for the workers of its machine."""

from __future__ import annotations

import os
import select
import socket
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from iswitch.core.format.memo import Memo
from iswitch.core.format.packets import Address, Burst, Outgoing
from iswitch.core.format.wire import TOS_DATA, TOS_MASK
from iswitch.ports.port import Port

from . import meeting
from .members import Group, Guest, Member
from .memory import BrokenRing
from .ring import fence, pieces

MOST = 256  # workers that have rings; others are served by UDP
PLANS = 256  # sets of receivers for which a plan is kept
LOOK = 0.001  # seconds after which to look at the sockets, though the rings bring packets
AT_ONCE = 64  # records of each worker that are read before others have their turn


class Plan(NamedTuple):
    """How packets reach a set of receivers.

    Attributes:
        group: gets them once for all its members; None: nobody does.
        singly: workers that get them alone.
        others: receivers without rings.
    """

    group: Group | None
    singly: tuple[Member, ...]
    others: tuple[Address, ...]


class RingPort:
    """A switch's port of datagrams, and rings for workers that ask for them.

    Args:
        port: serves all others, and gets what finds no room in a ring.
        path: of the UNIX socket at which workers ask.
        address: at which the switch listens; only workers connected to it are served.

    Raises:
        OSError: the UNIX socket cannot be had.
    """

    def __init__(self, port: Port[Burst, Outgoing], path: Path, address: Address) -> None:
        self.port = port
        self._at = address
        self._path = path
        self._door = meeting.listen(path)
        self._epoll = select.epoll()
        self._epoll.register(port.fileno(), select.EPOLLIN)
        self._epoll.register(self._door, select.EPOLLIN)
        self._guests: dict[int, Guest] = {}  # by the descriptors of their connections
        self._members: dict[Address, Member] = {}
        self._in_turn: tuple[Member, ...] = ()
        self._plans: Memo[tuple[tuple[Address, ...], bool], Plan] = Memo(PLANS)
        self._look_at = 0.0
        self._has_more = False  # packets are left in the rings, of which nobody rings

    def fileno(self) -> int:
        """Return a descriptor that is readable when packets have come after an empty `pull`."""
        return self._epoll.fileno()

    def deadline(self) -> float | None:
        """Return the time at which to `pull` though nothing can be read, in seconds, or None."""
        return 0.0 if self._has_more else self.port.deadline()

    def close(self) -> None:
        """Close all sockets, and remove the path."""
        with suppress(OSError):
            self._path.unlink()
        for guest in tuple(self._guests.values()):
            self._part(guest)
        self._door.close()
        self._epoll.close()
        self.port.close()

    # Workers come and go

    def _admit(self) -> None:
        """Accept connections."""
        with suppress(OSError):  # none is left, or no descriptor is free: they are asked again
            while len(self._guests) < MOST:
                connection, _ = self._door.accept()
                connection.setblocking(False)
                self._guests[connection.fileno()] = Guest(connection)
                self._epoll.register(connection, select.EPOLLIN)
        if len(self._guests) >= MOST:
            self._epoll.modify(self._door, 0)

    def _hear(self, guest: Guest) -> None:
        """Take what a worker says: at first hello, and nothing afterwards."""
        try:
            heard = meeting.hear(guest.connection)
            if heard is None:
                return
            text, fds = heard
            if text != meeting.HELLO or len(fds) != meeting.MOST_FDS or isinstance(guest, Member):
                meeting.close_all(fds)
                raise BrokenRing("a message that no worker sends")
            self._welcome(guest, fds)
        except (BrokenRing, OSError):
            self._part(self._guests.get(guest.connection.fileno(), guest))

    def _welcome(self, guest: Guest, fds: list[int]) -> None:
        """Give a worker its rings.

        Raises:
            BrokenRing, OSError: it cannot have any.
        """
        udp, memory, bell = fds
        try:
            address = self._address_of(udp)
            if address is None:
                raise BrokenRing("a socket that is not connected to this switch")
        except BaseException:
            meeting.close_all([memory, bell])
            raise
        member = Member(guest, address, memory, bell)
        if before := self._members.pop(address, None):
            self._part(before)
        self._guests[guest.connection.fileno()] = self._members[address] = member
        self._epoll.register(member.kick, select.EPOLLIN | select.EPOLLET)
        self._changed()

    def _address_of(self, udp: int) -> Address | None:
        """Return the address of a worker's socket, if it is connected to us; close it.

        Raises:
            OSError: it is no socket, or not connected.
        """
        try:
            sock = socket.socket(fileno=udp)
        except OSError:
            os.close(udp)
            raise
        with sock:
            if sock.family != socket.AF_INET or sock.type != socket.SOCK_DGRAM:
                return None
            host, port = sock.getpeername()
            if port != self._at.port or self._at.host not in (host, meeting.ANYWHERE):
                return None
            return Address(*sock.getsockname())

    def _part(self, guest: Guest) -> None:
        """Close a connection, and the rings behind it."""
        fd = guest.connection.fileno()
        if fd < 0 or self._guests.pop(fd, None) is None:
            return
        self._epoll.unregister(fd)
        if isinstance(guest, Member):
            self._epoll.unregister(guest.kick)
            if self._members.get(guest.address) is guest:
                del self._members[guest.address]
            self._changed()
        guest.close()
        self._epoll.modify(self._door, select.EPOLLIN)

    def _changed(self) -> None:
        self._in_turn = tuple(self._members.values())
        self._plans.clear()

    # Packets in

    def pull(self) -> Iterator[Burst]:
        """Yield the packets that have come, without waiting; each is valid until the next.

        Afterwards workers ring, so that `fileno` tells of the next, even if the caller sees none of
        these packets (impaired ports lose some). If workers write as fast as we read, it ends all
        the same, and `deadline` asks for the next call.
        """
        self._has_more = False
        for member in self._in_turn:
            member.sleeper.get_up()
        came = False
        for burst in self._read():
            came = True
            yield burst
        now = time.monotonic()
        if not came or now >= self._look_at:
            self._look_at = now + LOOK
            yield from self._look(now)
        for member in self._in_turn:
            member.sleeper.lie_down()
        fence()
        yield from self._read()

    def _read(self) -> Iterator[Burst]:
        """Yield a record of each worker in turn, until nothing is left, or much was read."""
        busy = self._in_turn
        for _ in range(AT_ONCE):
            if not busy:
                break
            left = []
            for member in busy:
                try:
                    for packets in member.read():
                        left.append(member)
                        yield Burst(member.address, *packets)
                except BrokenRing:
                    self._part(member)
            busy = tuple(left)
        self._has_more |= bool(busy)

    def _look(self, now: float) -> Iterator[Burst]:
        """Look at the sockets: serve them, and yield the packets of those who have no rings."""
        due = self.port.deadline()
        waits = due is not None and due <= now
        for fd, _ in self._epoll.poll(0):
            if fd == self._door.fileno():
                self._admit()
            elif guest := self._guests.get(fd):
                self._hear(guest)
            elif fd == self.port.fileno():
                waits = True
        if waits:
            yield from self.port.pull()

    # Packets out

    def push(self, sends: Iterable[Outgoing]) -> None:
        """Send packets, through rings to those who have some."""
        for out in sends:
            rest = self._send(out)
            if rest:
                self.port.push(rest)

    def _send(self, out: Outgoing) -> list[Outgoing]:
        """Write packets into rings; return those that go by the other port."""
        if not self._members:
            return [out]
        plan = self._plan(out.peers, out.tos & TOS_MASK == TOS_DATA)
        if plan.group is None and not plan.singly:
            return [out]
        rest = [out._replace(peers=plan.others)] if plan.others else []
        if plan.group is not None:
            rest += self._to_group(plan.group, out)
        for member in plan.singly:
            rest += self._to_one(member, out)
        return rest

    def _plan(self, peers: tuple[Address, ...], is_data: bool) -> Plan:
        plan = self._plans.get((peers, is_data))
        if plan is None or any(m.lags and m.catches_up() for m in plan.singly):
            plan = self._plans.keep((peers, is_data), self._planned(peers, is_data))
        return plan

    def _planned(self, peers: tuple[Address, ...], is_data: bool) -> Plan:
        """Decide how packets reach receivers; those that lag, and control, get them singly."""
        members = [self._members[peer] for peer in peers if peer in self._members]
        others = tuple(peer for peer in peers if peer not in self._members)
        for member in members:
            member.lags = member.lags and not member.catches_up()
        together = tuple(member for member in members if not member.lags)
        if is_data and len(together) > 1:
            with suppress(OSError):  # no memory, or a worker that is gone; `pull` notices that
                group = Group(together)
                return Plan(group, tuple(m for m in members if m.lags), others)
        return Plan(None, tuple(members), others)

    def _to_group(self, group: Group, out: Outgoing) -> list[Outgoing]:
        """Write packets for a group; return those that go by the other port."""
        for packets, rows in pieces(out):
            if not group.put(packets):
                for member in group.laggards():
                    member.lags = True
                self._plans.clear()
                peers = tuple(member.address for member in group.members)
                return self._send(out._replace(peers=peers, rows=rows))
            fence()
            for member in group.members:
                member.wake()
        return []

    def _to_one(self, member: Member, out: Outgoing) -> list[Outgoing]:
        """Write packets for one worker; return those that go by the other port."""
        for packets, rows in pieces(out):
            if not member.put(packets):
                return [out._replace(peers=(member.address,), rows=rows)]
            fence()
            member.wake()
        return []
