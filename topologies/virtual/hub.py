"""The clock of a simulated network and of the processes on its hosts.

The clock moves only while every process waits. Then the earliest event happens: packets arrive, or
a process has waited long enough. Processes that wake at one time compute side by side; the packets
that they send meanwhile leave in order of rank, whichever was faster; and they get ports and
connections in order of rank. So a run depends on virtual time alone.
"""

from __future__ import annotations

import errno
from collections.abc import Iterable, Mapping
from functools import partial
from math import inf

import numpy as np

from iswitch.core.format.packets import Address, Burst, Outgoing
from iswitch.core.format.wire import TOS_DATA
from iswitch.sim.grain import SINGLE
from iswitch.virtual.world import ANY, LOCAL, LOCALHOST, Home, Place
from topologies.simulated import WORKER_PORT, Simulation

from .member import Endpoint, Member
from .streams import Streams
from .ways import Ways

FIRST_NUMBER = 1 << 24  # of ports, which are polled beside files: no descriptor is as large
CLOSE = Outgoing((), 0, np.empty((0, 0), np.uint8), 0)  # among what is sent: a port closes
PATIENCE = 60.0  # seconds of virtual time without an end in sight, after which a run is stuck


class Stuck(Exception):
    """No process of a run can continue; the message names ranks and the virtual time."""


class Hub:
    """Moves the clock.

    Args:
        simulation: the network.
    """

    def __init__(self, simulation: Simulation) -> None:
        self.simulation = simulation
        self.network = simulation.network
        topology = simulation.topology
        if len(topology.tree) > 1:
            self.network.beside = Ways(simulation)
        self.members: list[Member] = []  # by rank
        self._leaving: list[Member] = []  # have ended since the clock moved
        self._hosts = {host.name: str(topology.address(host.name)) for host in topology.hosts}
        self._hosts["localhost"] = LOCALHOST
        self.streams = Streams(simulation, self.number)
        self._numbers = FIRST_NUMBER
        self._ports: dict[Address, dict[int, Endpoint]] = {}  # by host and number
        self._next_port: dict[str, int] = {}
        self._silent_since: float | None = None

    @property
    def now(self) -> float:
        """Return the time in seconds."""
        return self.network.now

    def home(self, host: str) -> Home:
        """Return what a process on a host knows of it."""
        (port,) = self.simulation.topology.ports(host)
        return Home(host, self._hosts[host], port.link.mtu, self._hosts)

    def join(self, rank: int, host: str) -> Member:
        """Add a process, which runs, on a host."""
        member = Member(rank, host)
        self.members = sorted([*self.members, member], key=lambda one: one.rank)
        return member

    def leave(self, member: Member) -> None:
        """Remove a process that has ended; what it has sent leaves in its turn."""
        self.members.remove(member)
        self._leaving.append(member)

    # Ports

    def open(self, member: Member, host: str, port: int, peer: Place) -> tuple[int, Place]:
        """Open a port of a process; return its number and address.

        A peer 127.0.0.1 is the host's switch, since programs name it so on one machine.

        Raises:
            OSError: the address is taken or not the host's, or nothing has the peer's.
        """
        network, own = self.network, self.simulation.address(member.host)
        if host not in (ANY, own.host):
            raise OSError(
                errno.EADDRNOTAVAIL, f"{host} is not the address of {member.host}, {own.host}"
            )
        if peer.host.startswith(LOCAL):
            peer = Place(*self.simulation.switch_of(member.host)[:2])
        if Address(*peer) not in network.nodes:
            told = f"nothing in the simulated network is at {peer.host}:{peer.port}"
            raise OSError(errno.ENETUNREACH, told)
        address = own._replace(port=port or self._free_port(own))
        if self._is_taken(address):
            self._settle()  # of those that have ended one may have had it
            self._send(member)  # which may have closed a port there
        if self._is_taken(address):
            raise OSError(errno.EADDRINUSE, "a process has that port")
        if address not in network.nodes:
            node, home = network.add(f"{member.host}:{address.port}", address), network.nodes[own]
            node.lately = None  # nothing is sent in response to a packet
            node.inward, node.outward = home.inward, home.outward  # the host has one processor
            switch = self.simulation.switch_of(member.host)  # all ports of a host share its cable
            network.links[address, switch] = network.links[own, switch]
            network.links[switch, address] = network.links[switch, own]
        number = self.number()
        member.ports[number] = Endpoint(member, number, address, Address(*peer))
        ports = self._ports.setdefault(own, {})
        ports[number] = member.ports[number]
        network.nodes[own].crossing.idle = partial(self._idle_from, own, ports)
        network.start(address, member.ports[number])
        return number, Place(address.host, address.port)

    def _is_taken(self, address: Address) -> bool:
        nodes = self.network.nodes
        return address in nodes and nodes[address].machine is not None

    def number(self) -> int:
        """Return a number that no port, and no end of a stream, has had."""
        self._numbers += 1
        return self._numbers

    def listen(self, member: Member, host: str, port: int) -> tuple[int, Place]:
        """Open a port at which connections come; return its number and address.

        Raises:
            OSError: the address is not the host's, or taken.
        """
        self._settle()  # those that have ended listen no more
        number = self.number()
        return number, self.streams.listen(member, number, Place(host, port))

    def connect(self, member: Member, host: str, port: int, peer: Place) -> tuple[int, Place]:
        """Prepare a connection; return its number and address.

        Raises:
            OSError: the address is not the host's, or no host has the peer's.
        """
        number = self.number()
        return number, self.streams.connect(member, number, Place(host, port), peer)

    def close(self, member: Member, number: int) -> None:
        """Close a port after what was sent from it: packets that come later are lost."""
        if number in member.streams:
            self.streams.close(member, number)
        elif member.sends:
            member.sends.append((number, CLOSE))
        else:
            self._shut(member, number)
        member.forget(number)

    def _shut(self, member: Member, number: int) -> None:
        address = member.ports.pop(number).address
        del self._ports[self.simulation.address(member.host)][number]
        self.network.crash(address)

    def _free_port(self, own: Address) -> int:
        port = self._next_port.get(own.host, WORKER_PORT)
        while own._replace(port=port) in self.network.nodes and port != own.port:
            port += 1
        self._next_port[own.host] = port + 1
        return port

    # Time

    def advance(self) -> list[Member]:
        """Move the clock until processes wake; return these, by rank. All processes wait.

        Raises:
            Stuck: none of them will ever wake.
        """
        self._settle(self.members)
        network = self.network
        while not (due := [member for member in self.members if member.is_due(self.now)]):
            wakes = _earliest(m.wakes for m in self.members if m.idle is not None)
            comes = network.next_time()
            self._look(wakes, comes)
            if wakes is not None and (comes is None or wakes < comes):
                network.at(wakes, _nothing)
                comes = wakes
            assert comes is not None
            self._play(comes, wakes)
        return due

    def _play(self, comes: float, wakes: float | None) -> None:
        """Let events happen, from the next one on, until a process may be due.

        Only a time that it waits for, or something that comes for it, can wake one.

        Args:
            comes: when the next event happens, in seconds.
            wakes: when a process wakes, unless something comes for one; None: none does.
        """
        network = self.network
        for member in self.members:
            member.has_news = False
        while True:
            while network.next_time() == comes:
                network.step()
            following = network.next_time()
            if (
                following is None
                or (wakes is not None and following > wakes)
                or any(member.has_news for member in self.members)
            ):
                return
            self._look(wakes, following)
            comes = following

    def wake(self, member: Member, most: int) -> list[tuple[int, Burst]]:
        """Let a process run; return packets for it: `most` bytes at most, but at least a burst."""
        member.idle = None
        return member.give(most)

    def _settle(self, members: Iterable[Member] = ()) -> None:
        """Let what processes have sent leave, in order of rank, and all that have ended."""
        for member in sorted([*members, *self._leaving], key=lambda one: one.rank):
            self._send(member)
            if member in self._leaving:
                for number in [*member.ports, *member.streams]:
                    self.close(member, number)
                self._send(member)
        self._leaving.clear()

    def _send(self, member: Member) -> None:
        """Put on its link what a process has sent."""
        sends, member.sends = member.sends, []
        for number, out in sends:
            if out is CLOSE:
                self._shut(member, number)
            elif number in member.ports:
                self._transmit(member.ports[number], out)
            else:
                self.streams.handle(member, number, out)

    def _idle_from(self, own: Address, ports: Mapping[int, Endpoint]) -> float:
        """Return from when on a host's line is idle, if a process there may then send more."""
        if not any(port.awaits_room() for port in ports.values()):
            return inf
        return self._busy(own)

    def _busy(self, own: Address) -> float:
        """Return until when a host sends what it was given."""
        node = self.network.nodes[own]
        if node.outward is not None:
            return node.outward.busy
        switch = self.simulation.switch_of(node.name)
        return self.network.links[own, switch].busy

    def _transmit(self, port: Endpoint, out: Outgoing) -> None:
        """Put packets on their link; note how long they keep it busy, if runs of packets may."""
        network = self.network
        beside = network.beside
        sends = [out] if beside is None else list(beside.sends(port.address, out))
        network.transmit(port.address, sends, stays=True)
        if out.tos == TOS_DATA:
            own = self.simulation.address(port.member.host)
            port.busy = self._busy(own) if network.grain > SINGLE else None

    def _look(self, wakes: float | None, comes: float | None) -> None:
        """Raise Stuck if no thread of any program has anything to wait for."""
        if wakes is not None or comes is not None:
            if any(m.idle is not None and m.idle.program is not None for m in self.members):
                self._silent_since = None
                return
            if self._silent_since is None:
                self._silent_since = self.now
            if self.now < self._silent_since + PATIENCE:
                return
        since = self.now if self._silent_since is None else self._silent_since
        waits = [member for member in self.members if member.idle is not None]
        ranks = ", ".join(str(member.rank) for member in waits)
        one = len(waits) == 1
        raise Stuck(
            f"deadlock at {since:.6f} s of virtual time: rank{'' if one else 's'} {ranks} "
            f"wait{'s' if one else ''} for something that no process will do"
        )


def _earliest(times: Iterable[float | None]) -> float | None:
    return min((time for time in times if time is not None), default=None)


def _nothing() -> None:
    """Happen: so the clock gets there."""
