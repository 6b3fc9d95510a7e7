"""The rings of a switch: a UNIX socket where workers ask, who has rings, and who gets what."""

from __future__ import annotations

import os
import select
import socket
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from iswitch.core.format.counters import Counters
from iswitch.core.format.memo import Memo
from iswitch.core.format.packets import Address, Burst, Outgoing
from iswitch.core.format.wire import TOS_CONTROL, TOS_DATA, TOS_MASK

from . import meeting
from .members import Group, Guest, Member
from .memory import BrokenRing
from .pacing import AT_ONCE, Links, Paced, latest
from .planning import Plan, is_part
from .ring import Packets, fence, pieces

MOST = 256  # workers that have rings; others are served by UDP
PLANS = 256  # sets of receivers for which a plan is kept
LOOK = 0.001  # seconds after which to look at the sockets, though the rings bring packets
Peers = tuple[Address, ...]
Note = Callable[[Peers, Packets], None]
NEWS = select.EPOLLIN | select.EPOLLET  # told once, so that what cannot be accepted wakes nobody


class Rings:
    """Rings for the workers that ask for them.

    Args:
        path: of the UNIX socket at which workers ask.
        at: address at which the switch listens; only workers connected to it are served.
        others: descriptor of the port that serves all others.
        place: returns the address at the switch of a worker's host and UDP port; None: unknown.
        links: the links with a rate, by the ports of the switch that they are at.
        counters: counts packets of workers that leave while these are under way.
        clock: returns monotonic seconds.

    Raises:
        OSError: the UNIX socket cannot be had.
    """

    size: int | None = None  # bytes of each ring to workers; None: as usual

    def __init__(
        self,
        path: Path,
        at: Address,
        others: int,
        place: Callable[[str, int], Address | None] = Address,
        links: Links | None = None,
        counters: Counters | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.at = at
        self._place = place
        self._others = others
        self._links = links or {}
        self._counters = Counters() if counters is None else counters
        self.clock = clock
        self._holding: set[Member | Group] = set()  # have packets under way to workers
        self._path = path
        self._door = meeting.listen(path)
        # Addresses of other namespaces are known only by their place.
        self._namespace = meeting.namespace_of(self._door) if place is Address else None
        self.bells = select.epoll()  # tells of workers: their bells, and what they say
        self.bells.register(self._door, NEWS)
        self._epoll = select.epoll()
        for told in (others, self.bells):
            self._epoll.register(told, select.EPOLLIN)
        self._guests: dict[int, Guest] = {}  # by the descriptors of their connections
        self._members: dict[Address, Member] = {}
        self.in_turn: tuple[Member, ...] = ()
        self.changes = 0  # of the workers, and of how packets reach them
        self.note: Note | None = None  # told of what is written, and for whom
        self._plans: Memo[tuple[Peers, bool], Plan] = Memo(PLANS)
        self._look_at = 0.0
        # A kernel serves all workers, and writes for these.
        self.served: Collection[Member | Group] | None = None
        self.has_more = False  # packets are left in the rings, of which nobody rings

    def fileno(self) -> int:
        """Return a descriptor that is readable when packets have come after an empty `pull`."""
        return self._epoll.fileno()

    def close(self) -> None:
        """Close all sockets, and remove the path."""
        with suppress(OSError):
            self._path.unlink()
        for guest in tuple(self._guests.values()):
            self._part(guest)
        self._door.close()
        self._epoll.close()
        self.bells.close()

    # Workers come and go

    def admit(self) -> None:
        """Accept connections."""
        with suppress(OSError):  # none is left, or no descriptor is free: the next asks for it
            while len(self._guests) < MOST:
                connection, _ = self._door.accept()
                connection.setblocking(False)
                self._guests[connection.fileno()] = Guest(connection)
                self.bells.register(connection, select.EPOLLIN)

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
        member = Member(guest, address, memory, bell, self._links.get(address.ingress), self.size)
        if before := self._members.pop(address, None):
            self._part(before)
        self._guests[guest.connection.fileno()] = self._members[address] = member
        self.bells.register(member.kick, select.EPOLLIN | select.EPOLLET)
        self._changed()

    def _address_of(self, udp: int) -> Address | None:
        """Return a worker's address at the switch, if it is connected to us; close its socket.

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
            if port != self.at.port or self.at.host not in (host, meeting.ANYWHERE):
                return None
            if self._namespace not in (None, meeting.namespace_of(sock)):
                return None
            return self._place(*sock.getsockname())

    def _part(self, guest: Guest) -> None:
        """Close a connection, and the rings behind it."""
        fd = guest.connection.fileno()
        if fd < 0 or self._guests.pop(fd, None) is None:
            return
        self.bells.unregister(fd)
        if isinstance(guest, Member):
            with suppress(OSError):  # it could not be registered
                self.bells.unregister(guest.kick)
            if self._members.get(guest.address) is guest:
                del self._members[guest.address]
            self._lose(guest)
            self._changed()
        guest.close()
        self.bells.modify(self._door, NEWS)  # there is room for those who wait

    def _lose(self, member: Member) -> None:
        """Count what is under way from a worker that leaves as lost; what is to it was sent."""
        self._holding.discard(member)
        if member.inlet is not None:
            self._counters["lost_in"] += member.inlet.under_way

    def _changed(self) -> None:
        self.in_turn = tuple(self._members.values())
        self._forget_plans()

    def _forget_plans(self) -> None:
        self._plans.clear()
        self.changes += 1

    # Packets in

    def get_up(self) -> None:
        """Want no bells while packets are read."""
        self.has_more = False
        for member in self.in_turn:
            member.sleeper.get_up()

    def lie_down(self) -> None:
        """Have workers ring for the next packets, so that `fileno` tells of them; `read` again."""
        for member in self.in_turn:
            member.sleeper.lie_down()
        fence()

    def is_due(self, came: bool) -> bool:
        """Return whether to look at the sockets: no packet came, or it is long since the last."""
        now = self.clock()
        if came and now < self._look_at:
            return False
        self._look_at = now + LOOK
        return True

    def look(self) -> bool:
        """Serve the UNIX sockets; return whether the port of all others is readable."""
        for fd, _ in self.bells.poll(0):
            if fd == self._door.fileno():
                self.admit()
            elif guest := self._guests.get(fd):
                self._hear(guest)
        return any(fd == self._others for fd, _ in self._epoll.poll(0))

    def comes_beside(self, burst: Burst) -> None:
        """Take the rings from an address from which control comes by the other port.

        Rings have room for that, so a process without rings is there; a worker asks for others.
        """
        if burst.tos & TOS_MASK == TOS_CONTROL and burst.peer in self._members:
            self._part(self._members[burst.peer])

    def read(self) -> Iterator[Burst]:
        """Yield what each worker has written, in turns, until nothing is left, or much was read."""
        busy, now = self.in_turn, self.clock()
        for _ in range(AT_ONCE):
            if not busy:
                break
            left = []
            for member in busy:
                yield from self.read_one(member, now)
                if member.more:
                    left.append(member)
            busy = tuple(left)
        self.has_more |= bool(busy)

    def read_one(self, member: Member, now: float) -> Iterator[Burst]:
        """Yield what a worker has written next; part from one that breaks its ring."""
        try:
            for packets in member.read(now):
                yield Burst(member.address, *packets)
        except BrokenRing:
            member.more = False
            self._part(member)

    def deadline(self) -> float | None:
        """Return when the next packets come out of a link, in seconds; None: none are there."""
        due = [one.down.deadline() for one in self._holding if one not in (self.served or ())]
        if self.served is None:
            due += [one.inlet.deadline() for one in self.in_turn if one.inlet is not None]
        return min((at for at in due if at is not None), default=None)

    # Packets out

    def release(self) -> None:
        """Let workers have the packets that their links have brought by now."""
        now = self.clock()
        came = [holder for holder in self._holding if holder.down.release(now)]
        if came:
            fence()
            for holder in came:
                holder.wake()
            self._holding = {one for one in self._holding if len(one.down.held)}

    def keep(self, holders: Iterable[Member | Group]) -> None:
        """Note that packets may be under way to these, so that `release` looks at them."""
        self._holding.update(holder for holder in holders if len(holder.down.held))

    def send(self, out: Outgoing) -> list[Outgoing]:
        """Write packets into rings; return those that go by the port of all others."""
        if not self._members:
            return [out]
        plan = self._plan(out.peers, out.tos & TOS_MASK == TOS_DATA)
        if plan.group is None and not plan.singly:
            return [out]
        rest = [out._replace(peers=plan.others)] if plan.others else []
        if plan.group is not None:
            rest += self._to_group(plan.group, out)
        for member in plan.singly:
            rest += self._to_one(member, out, self._paced(member, out))
        return rest

    def split(self, out: Outgoing) -> tuple[list[Outgoing], list[Outgoing]]:
        """Return the packets for workers with rings, and those for all others."""
        mine, others = self.parted(out.peers)
        if not (mine and others):
            return ([out], []) if mine else ([], [out])
        return [out._replace(peers=mine)], [out._replace(peers=others)]

    def parted(self, peers: Peers) -> tuple[Peers, Peers]:
        """Return the receivers with rings, and all others."""
        mine = tuple(peer for peer in peers if peer in self._members)
        if len(mine) == len(peers):
            return peers, ()
        return mine, tuple(peer for peer in peers if peer not in self._members)

    def _paced(self, member: Member, out: Outgoing) -> Paced | None:
        """Send packets into a worker's link; None: it has no rate."""
        if member.lanes is None:
            return None
        return member.lanes.outward.send(out.rows, out.tail, self.clock())

    def lacks(self, peers: Peers) -> bool:
        """Return whether none of these receivers has rings."""
        return not any(peer in self._members for peer in peers)

    def holder_of(self, peers: Peers) -> Group | Member | None:
        """Return whose ring all sums for these receivers go into; None: it is not one ring."""
        if not all(peer in self._members for peer in peers):
            return None
        plan = self._plan(peers, True)
        if plan.singly:
            return plan.singly[0] if len(peers) == 1 else None
        return plan.group

    def _plan(self, peers: Peers, is_data: bool) -> Plan:
        plan = self._plans.get((peers, is_data))
        if plan is None or plan.is_over():
            plan = self._plans.keep((peers, is_data), self._planned(peers, is_data))
        return plan

    def _planned(self, peers: Peers, is_data: bool) -> Plan:
        """Decide how packets reach receivers; those that lag, and control, get them singly."""
        mine, others = self.parted(peers)
        if others:
            return self._plan(mine, is_data)._replace(others=others)
        members = [self._members[peer] for peer in peers]
        for member in members:
            member.lags = member.lags and not member.catches_up()
        together = tuple(member for member in members if not member.lags)
        alike = len({member.lanes and member.lanes.rate for member in together}) == 1
        if is_data and len(together) > 1 and alike and not is_part(together):
            self.changes += 1  # the groups before end, even if there will be none
            before = {group for member in together if (group := member.group())}
            for group in before:
                group.leave(together)
            if former := tuple(group for group in before if group.down.under_way):
                return Plan(None, tuple(members), others, former)
            with suppress(OSError):  # no memory, or a worker that is gone; `pull` notices that
                group = Group(together, self.size)
                return Plan(group, tuple(m for m in members if m.lags), others)
        return Plan(None, tuple(members), others)

    def _to_group(self, group: Group, out: Outgoing) -> list[Outgoing]:
        """Write packets for a group; return those that go by the other port."""
        ways = [way for one in group.members if (way := self._paced(one, out))]
        if any(way.packets < len(out.rows) for way in ways):
            pairs = zip(group.members, ways, strict=True)
            return [rest for member, way in pairs for rest in self._to_one(member, out, way)]
        way = latest(ways)
        at = 0
        for packets, rows in pieces(out, group.piece(out.rows)):
            if not group.put(packets, way and way.due_of(at, packets)):
                group.end()
                self._forget_plans()
                left = out._replace(peers=group.peers, rows=rows)
                if way is None:
                    return self.send(left)
                way = way.behind(at)
                return [rest for one in group.members for rest in self._to_one(one, left, way)]
            at += len(packets.rows)
            self._wrote(group, packets, way)
        return []

    def _to_one(self, member: Member, out: Outgoing, way: Paced | None) -> list[Outgoing]:
        """Write packets for one worker; return those that go by the other port."""
        out = out if way is None else way.kept(out)
        at = 0
        for packets, rows in pieces(out, member.piece(out.rows)):
            if not member.put(packets, way and way.due_of(at, packets)):
                return [out._replace(peers=(member.address,), rows=rows)]
            at += len(packets.rows)
            self._wrote(member, packets, way)
        return []

    def _wrote(self, holder: Member | Group, packets: Packets, way: Paced | None) -> None:
        """Wake sleepers, after a record was written; or see to it once that has come."""
        if self.note is not None:
            self.note(holder.peers, packets)
        if way is None:
            fence()
            holder.wake()
        else:
            self._holding.add(holder)
