"""Connections between processes in virtual time, over `iswitch.sim.streams`.

What a process does with a stream, and what it is told of it, are bursts whose ToS says what
(`iswitch.virtual.words`). The processes' doings happen when all of them wait, in order of rank.
"""

from __future__ import annotations

import errno
import json
from typing import TYPE_CHECKING

import numpy as np

from iswitch.core.format.packets import Address, Burst, Outgoing, Rows
from iswitch.sim.segments import FIN, RST, SYN, Ends
from iswitch.sim.streams import Way
from iswitch.virtual import words
from iswitch.virtual.words import CLOSING, COMES, DATA, ENDED, LOST, OPENED, REFUSED, RESET, arrival
from iswitch.virtual.world import ANY, LOCAL, Place

if TYPE_CHECKING:
    from collections.abc import Callable

    from topologies.simulated import Simulation

    from .member import Member

FIRST_PORT = 50000  # of those that are chosen, so that they differ from those of packets
NOTHING = np.empty((1, 0), np.uint8)
NO_BYTES = memoryview(b"")
FLAGS = {OPENED: SYN, REFUSED: RST, RESET: RST, ENDED: FIN}  # of the frames that say so


class Listener:
    """A port of a process at which connections come."""

    def __init__(self, member: Member, number: int, place: Place) -> None:
        self.member, self.number, self.place = member, number, place


class Stream:
    """One end of a connection.

    Args:
        member: the process.
        number: the end's number there.
        place: its address.
        target: the address to which it connects.

    Attributes:
        peer: the other end; None: there is none yet.
        way: carries what this end sends; None: it has not begun to connect.
    """

    def __init__(self, member: Member, number: int, place: Place, target: Place) -> None:
        self.member, self.number, self.place, self.target = member, number, place, target
        self.peer: Stream | None = None
        self.way: Way | None = None
        self.is_closed = self.has_ended = False
        self._under_way = 0  # bytes, to the peer

    def tell(self, what: int, data: Rows = NOTHING) -> None:
        """Tell the process what has happened."""
        if not self.is_closed:
            burst = Burst(Address(*self.place), what, data, data.shape[1])
            self.member.take(self.number, burst)

    def send(self, data: Rows) -> None:
        """Send bytes, which must not change any more."""
        if self.way is not None and self.peer is not None and data.size:
            self._under_way += data.size
            self.way.send(data.data.cast("B"), self._come)

    def end(self) -> None:
        """Tell the other end that no more bytes will come."""
        if not self.has_ended:
            self.has_ended = True
            self.say(ENDED)

    def say(self, what: int) -> None:
        """Tell the other end something, after all bytes before."""
        if self.way is not None and self.peer is not None:
            peer = self.peer
            self.way.send(NO_BYTES, lambda _: peer.tell(what), FLAGS[what])

    def lose(self, why: str) -> None:
        """Tell both ends that nothing comes through any more."""
        told = np.frombuffer(why.encode(), np.uint8).reshape(1, -1)
        for end in (self, self.peer):
            if end is not None:
                end.tell(LOST, told)

    def _come(self, data: memoryview) -> None:
        """Hand over the next bytes to the other end."""
        self._under_way -= len(data)
        peer = self.peer
        assert peer is not None
        if not peer.is_closed:
            peer.tell(DATA, np.frombuffer(data, np.uint8).reshape(1, -1))
        elif not self._under_way:
            peer.say(RESET)


class Streams:
    """All connections of a simulated network.

    Args:
        simulation: the network.
        number: returns a number that no port, and no end of a stream, has had.
    """

    def __init__(self, simulation: Simulation, number: Callable[[], int]) -> None:
        self._simulation, self._number = simulation, number
        self._listeners: dict[Place, Listener] = {}
        self._next_port: dict[str, int] = {}
        topology = simulation.topology
        self._hosts = {str(topology.address(host.name)): host.name for host in topology.hosts}

    def listen(self, member: Member, number: int, at: Place) -> Place:
        """Open a port at which connections come; return its address.

        Raises:
            OSError: the address is not the host's, or taken.
        """
        own = self._address(member, at.host)
        place = Place(own, at.port or self._free_port(own))
        if place in self._listeners:
            raise OSError(errno.EADDRINUSE, "a process listens there")
        member.streams[number] = self._listeners[place] = Listener(member, number, place)
        return place

    def connect(self, member: Member, number: int, at: Place, peer: Place) -> Place:
        """Prepare a connection; return its own address.

        Raises:
            OSError: the address is not the host's, or no host has the peer's.
        """
        own = self._address(member, at.host)
        if peer.host not in self._hosts and not peer.host.startswith(LOCAL):
            told = (
                f"{peer.host} is no host of the simulated network, and what is outside knows no "
                "virtual time; --world loopback reaches it"
            )
            raise OSError(errno.EHOSTUNREACH, told)
        place = Place(own, at.port or self._free_port(own))
        member.streams[number] = Stream(member, number, place, peer)
        return place

    def handle(self, member: Member, number: int, out: Outgoing) -> None:
        """Do what a process does with a stream."""
        stream = member.streams.get(number)
        if not isinstance(stream, Stream):
            return
        match out.tos:
            case words.CONNECTING:
                self._begin(stream)
            case words.DATA:
                stream.send(out.rows)
            case words.ENDING:
                stream.end()
            case words.CLOSING:
                del member.streams[number]
                stream.end()
                stream.is_closed = True
            case words.RESET:
                self._reset(stream)

    def _begin(self, stream: Stream) -> None:
        """Begin to connect: OPENED or REFUSED will follow.

        127.0.0.1 is this host, or the one that listens at this port: programs on one machine name
        their meeting point so.
        """
        target, own = stream.target, stream.place.host
        if target.host.startswith(LOCAL):
            hosts = [place.host for place in self._listeners if place.port == target.port]
            target = target._replace(host=own if own in hosts or not hosts else hosts[0])
        stream.way = self._way(stream, target)
        stream.way.send(NO_BYTES, lambda _: self._knock(stream, target), SYN)

    def _knock(self, stream: Stream, at: Place) -> None:
        """Let a connection come to a host."""
        if stream.is_closed:
            return  # it has given up: nobody will hear of it
        door = self._listeners.get(at)
        if door is None:
            refusing = Stream(stream.member, 0, at, stream.place)
            refusing.is_closed = True  # no process has it
            refusing.peer, refusing.way = stream, self._way(refusing, stream.place, stream)
            refusing.say(REFUSED)
            return
        number = self._number()
        end = Stream(door.member, number, at, stream.place)
        end.way = self._way(end, stream.place, stream)
        end.peer, stream.peer = stream, end
        door.member.streams[number] = end
        told = np.frombuffer(json.dumps([number, *stream.place]).encode(), np.uint8)
        came = Burst(Address(*at), COMES, told.reshape(1, -1), told.size)
        door.member.take(door.number, came)
        end.say(OPENED)

    def _reset(self, stream: Stream) -> None:
        """Close an end that no process has taken: the other one hears of it at once."""
        del stream.member.streams[stream.number]
        stream.say(RESET)
        stream.is_closed = stream.has_ended = True

    def close(self, member: Member, number: int) -> None:
        """Close an end, after what was sent from it; or a listener, at once.

        Connections that came to a listener, and of which its process does not know yet, are reset.
        """
        if isinstance(listener := member.streams[number], Listener):
            del self._listeners[listener.place], member.streams[number]
            for at, burst in member.inbox:
                if at == number:
                    self._put(member, arrival(burst)[0], RESET)
        else:
            self._put(member, number, CLOSING)

    @staticmethod
    def _put(member: Member, number: int, what: int) -> None:
        """Queue a CLOSING or RESET behind what the process has sent."""
        member.sends.append((number, Outgoing((), what, NOTHING, 0)))

    def _address(self, member: Member, host: str) -> str:
        own = str(self._simulation.topology.address(member.host))
        if host not in (ANY, "", own) and not host.startswith(LOCAL):
            raise OSError(errno.EADDRNOTAVAIL, f"{host} is not the address of {member.host}, {own}")
        return own

    def _free_port(self, own: str) -> int:
        port = self._next_port.get(own, FIRST_PORT)
        while Place(own, port) in self._listeners:
            port += 1
        self._next_port[own] = FIRST_PORT if port == 65535 else port + 1
        return port

    def _way(self, stream: Stream, target: Place, back: Stream | None = None) -> Way:
        """Return what carries a stream's bytes to an address; `back` is the other end."""
        simulation, source = self._simulation, stream.place
        names = simulation.topology.path(self._hosts[source.host], self._hosts[target.host])
        (port,) = simulation.topology.ports(names[0])
        path = [simulation.address(name) for name in names]
        ends = Ends(Address(*source), Address(*target))
        other = None if back is None else back.way
        return Way(simulation.network, path, port.link.mtu, ends, stream.lose, other)
