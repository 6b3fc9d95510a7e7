"""The clock of a simulated network and of the processes on its hosts.

The clock moves only while every process waits. Then the earliest event happens: packets arrive, or
a process has waited long enough. Processes that wake at one time compute side by side; the packets
that they send meanwhile leave in order of rank, whichever was faster. So a run depends on virtual
time alone.
"""

from __future__ import annotations

import errno
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from iswitch.core.format.packets import Address, Burst, Outgoing
from iswitch.virtual.process import Idle, Place
from topologies.simulated import WORKER_PORT, Simulation

PATIENCE = 60.0  # seconds of virtual time without an end in sight, after which a run is stuck
ANY = "0.0.0.0"
LOCAL = "127."  # a program that names this machine means the switch of its host


class Stuck(Exception):
    """No process of a run can continue; the message names ranks and the virtual time."""


class Endpoint:
    """A port of a process, as the network sees it: keeps packets until the process runs."""

    def __init__(self, member: Member, number: int, address: Address, peer: Address) -> None:
        self._member = member
        self._number = number
        self.address = address
        self.peer = peer

    def receive(self, burst: Burst, now: float) -> Sequence[Outgoing]:  # noqa: ARG002
        """Keep packets."""
        self._member.inbox.append((self._number, burst))
        return ()

    def deadline(self) -> float | None:
        """Return that nothing is to be done at any time."""
        return None

    def handle_timer(self, now: float) -> Sequence[Outgoing]:  # noqa: ARG002
        """Do nothing."""
        return ()


@dataclass(eq=False)
class Member:
    """A process in virtual time.

    Attributes:
        idle: what it waits for; None: it runs.
        inbox: packets that it has not got yet, by number of the port.
        sends: packets that it has sent since it woke.
        ports: its ports, by number.
    """

    rank: int
    host: str
    idle: Idle | None = None
    inbox: list[tuple[int, Burst]] = field(default_factory=list)
    sends: list[tuple[int, Outgoing]] = field(default_factory=list)
    ports: dict[int, Endpoint] = field(default_factory=dict)

    def is_due(self, now: float) -> bool:
        """Return whether a waiting process wakes now."""
        if self.idle is None:
            return False
        if self.idle.until is not None and self.idle.until <= now:
            return True
        hears = self.idle.hears
        return bool(hears) and any(number in hears for number, _ in self.inbox)


class Hub:
    """Moves the clock.

    Args:
        simulation: the network.
    """

    def __init__(self, simulation: Simulation) -> None:
        self.simulation = simulation
        self.network = simulation.network
        self.members: list[Member] = []  # by rank
        self._numbers = 0
        self._next_port: dict[str, int] = {}
        self._silent_since: float | None = None

    @property
    def now(self) -> float:
        """Return the time in seconds."""
        return self.network.now

    def join(self, rank: int, host: str) -> Member:
        """Add a process, which runs, on a host."""
        member = Member(rank, host)
        self.members = sorted([*self.members, member], key=lambda one: one.rank)
        return member

    def leave(self, member: Member) -> None:
        """Remove a process that has ended, after what it has sent."""
        self._send([member])
        for number in list(member.ports):
            self.close(member, number)
        self.members.remove(member)

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
        if address in network.nodes and network.nodes[address].machine is not None:
            raise OSError(errno.EADDRINUSE, "a process has that port")
        if address not in network.nodes:
            node, home = network.add(f"{member.host}:{address.port}", address), network.nodes[own]
            node.inward, node.outward = home.inward, home.outward  # the host has one processor
            switch = self.simulation.switch_of(member.host)  # all ports of a host share its cable
            network.links[address, switch] = network.links[own, switch]
            network.links[switch, address] = network.links[switch, own]
        self._numbers += 1
        member.ports[self._numbers] = Endpoint(member, self._numbers, address, Address(*peer))
        network.start(address, member.ports[self._numbers])
        return self._numbers, Place(address.host, address.port)

    def close(self, member: Member, number: int) -> None:
        """Close a port after what was sent from it: packets that come later are lost."""
        self._send([member])
        address = member.ports.pop(number).address
        member.inbox = [(at, burst) for at, burst in member.inbox if at != number]
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
        self._send(self.members)
        network = self.network
        while not (due := [member for member in self.members if member.is_due(self.now)]):
            wakes = _earliest(m.idle.until for m in self.members if m.idle is not None)
            comes = network.next_time()
            self._look(wakes, comes)
            if wakes is not None and (comes is None or wakes < comes):
                network.at(wakes, _nothing)
                comes = wakes
            while network.next_time() == comes:
                network.step()
        return due

    def wake(self, member: Member, most: int) -> list[tuple[int, Burst]]:
        """Let a process run; return packets for it: `most` bytes at most, but at least a burst."""
        member.idle = None
        count = total = 0
        for _, burst in member.inbox:
            total += burst.rows.size
            if count and total > most:
                break
            count += 1
        given, member.inbox = member.inbox[:count], member.inbox[count:]
        return given

    def _send(self, members: Iterable[Member]) -> None:
        """Put on their links what processes have sent."""
        for member in members:
            sends, member.sends = member.sends, []
            for number, out in sends:
                self.network.transmit(member.ports[number].address, [out])

    def _look(self, wakes: float | None, comes: float | None) -> None:
        """Raise Stuck if no thread of any program has anything to wait for."""
        waits = [member for member in self.members if member.idle is not None]
        if wakes is not None or comes is not None:
            if any(m.idle is not None and m.idle.program is not None for m in waits):
                self._silent_since = None
                return
            if self._silent_since is None:
                self._silent_since = self.now
            if self.now < self._silent_since + PATIENCE:
                return
        since = self.now if self._silent_since is None else self._silent_since
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
