"""Lets packets of simulated workers and their switches travel through real rings in shared memory.

    worker -> link -> its ring -> switch -> a ring of the worker or its group -> link -> worker

The rings, and the sockets over which they are handed out, are those of ports/rings; only small, so
that records wrap and find no room. They are read some time after they were written: a stopped
process reads nothing. A worker that is killed leaves half a record. Its next process has new rings,
or none.
"""

from __future__ import annotations

import os
import tempfile
from collections import Counter
from functools import partial
from pathlib import Path
from random import Random
from typing import NamedTuple

import numpy as np

from iswitch.core.format.packets import Address, Burst, Outgoing
from iswitch.core.format.wire import TOS_DATA
from iswitch.ports.rings import meeting
from iswitch.ports.rings.hub import Rings
from iswitch.ports.rings.link import Link
from iswitch.ports.rings.members import Guest, Member
from iswitch.ports.rings.memory import BrokenRing
from iswitch.ports.rings.ring import TAKEN, Packets
from iswitch.sim.network import VirtualNetwork
from iswitch.sim.node import Node, Process
from iswitch.sim.runs import Run

from .violation import Violation

SIZE = 1 << 11  # bytes of a ring
LATEST = 0.0005  # seconds until what was written is read, at most
AGAIN = 0.001  # seconds until a process that stands still is looked at again
PAUSE = 0.02  # until a worker looks for rings of a restarted switch, at most
RINGLESS = 0.2  # of the workers' processes have no rings


def singles(packets: Packets | Outgoing) -> list[bytes]:
    """Return packets as bytes."""
    rows, tail = packets.rows, packets.tail
    return [row.tobytes() for row in rows[:-1]] + [rows[-1, :tail].tobytes()]


class Hub(Rings):
    """The rings of a switch process, whose workers are simulated: none may be thrown out.

    Args:
        path: of its UNIX socket.
        at: its address in the simulated network.
    """

    size = SIZE

    def __init__(self, path: Path, at: Address) -> None:
        self._idle = os.eventfd(0)  # stands for a port at which nothing comes
        super().__init__(path, at, self._idle)
        self.path = path
        self.newcomer = at  # the worker that asks for rings
        self.gone: set[Address] = set()  # workers that have hung up

    def close(self) -> None:
        """Close all sockets."""
        self.gone |= self._members.keys()
        super().close()
        os.close(self._idle)

    def _address_of(self, udp: int) -> Address | None:
        os.close(udp)
        return self.newcomer

    def _part(self, guest: Guest) -> None:
        address = guest.address if isinstance(guest, Member) else self.newcomer
        if address != self.newcomer and address not in self.gone:
            raise Violation("broken ring", f"a switch refuses what {address} has written")
        super()._part(guest)


class Plug(NamedTuple):
    """A worker's end of its rings: the process that has it, and that at the other end."""

    process: Process
    at: Address
    switch: Process
    link: Link


class Cables:
    """The rings of a simulated network: its way beside the links.

    Args:
        network: the network.
        seed: seeds who has rings, and when they are read.
    """

    def __init__(self, network: VirtualNetwork, seed: int) -> None:
        self.network = network
        self._chance = Random(f"rings {seed}")
        self._folder = tempfile.TemporaryDirectory(prefix="isw-")
        self._hubs: dict[Address, tuple[Process, Hub]] = {}  # and the process that has it
        self._plugs: dict[Address, Plug] = {}
        self._meeting: set[Address] = set()  # workers that look for rings soon
        self._reading: set[Address] = set()  # nodes that read soon
        self._way_up: dict[Address, list[bytes]] = {}  # packets in rings, in order
        self._way_down: dict[Address, Counter[bytes]] = {}
        self.entering = self.leaving = 0
        network.beside = self

    def close(self) -> None:
        """Close all sockets."""
        for host in tuple(self._plugs):
            self._plugs.pop(host).link.hang_up()
        for _, hub in self._hubs.values():
            hub.close()
        self._folder.cleanup()

    def meet(self, host: Address, switch: Address, process: Process) -> None:
        """Give a host's process rings, or none; those of the process before it end."""
        self._kill(host)
        machine = self.network.nodes[switch].machine
        if machine is None or self._chance.random() < RINGLESS:
            return
        hub = self._hub(switch, machine)
        connection = meeting.connect(hub.path)
        assert connection is not None
        link = Link(connection, connection.fileno(), SIZE)
        hub.newcomer = host
        hub.look()  # it accepts,
        hub.look()  # and hears
        hub.newcomer = switch
        hub.gone.discard(host)
        link.listen()
        self._plugs[host] = Plug(process, switch, machine, link)
        self._way_up[host], self._way_down[host] = [], Counter()

    def _kill(self, host: Address) -> None:
        """End the rings of a process, which was killed while it wrote a record."""
        plug = self._plugs.pop(host, None)
        if plug is None:
            return
        if plug.link.down is not None:
            half = Packets(TOS_DATA, np.full((1, 24), 0xEE, np.uint8), 24)
            plug.link.up.lay(half, plug.link.down.words[TAKEN])
        plug.link.hang_up()
        for process, hub in self._hubs.values():
            if process is plug.switch:
                hub.gone.add(host)
                later = self._chance.random() * AGAIN
                self.network.at(self.network.now + later, partial(self._notice, hub))

    def _notice(self, hub: Hub) -> None:
        """Let a switch find that a worker has hung up."""
        if any(known is hub for _, known in self._hubs.values()):
            hub.look()

    def _hub(self, switch: Address, process: Process) -> Hub:
        """Return the rings of a switch's process; those of the process before end."""
        known = self._hubs.get(switch)
        if known is not None and known[0] is process:
            return known[1]
        if known is not None:
            known[1].close()
        hub = Hub(Path(self._folder.name, switch.host), switch)
        self._hubs[switch] = process, hub
        return hub

    # The way beside the links

    def comes(self, node: Node, burst: Burst) -> bool:
        """Write packets that have come from a worker into its ring; False: it has none."""
        host = burst.peer
        plug = self._plugs.get(host)
        if plug is None or self.network.nodes[host].machine is not plug.process:
            return False
        if node.machine is not plug.switch:  # started again, or another switch
            self._meet_soon(host, node.address)
            return False
        link = plug.link
        out = Outgoing((node.address,), burst.tos, burst.rows, burst.tail)
        left = link.put(out)
        sent = singles(out)
        for rest in left:
            sent = sent[: -len(rest.rows)]
            self._deliver(node, burst._replace(rows=rest.rows))
        self._way_up[host] += sent
        self.entering += len(sent)
        self._read_soon(node)
        return True

    def sends(self, source: Address, out: Outgoing) -> list[Outgoing]:
        """Write packets of a switch into rings; return those that go over links."""
        hub = self._of(source)
        if hub is None:
            return [out]
        mine, others = hub.split(out)
        for some in mine:
            left = hub.send(some)
            missing = {peer: len(rest.rows) for rest in left for peer in rest.peers}
            sent = singles(some)
            for peer in some.peers:
                there = sent[: len(sent) - missing.get(peer, 0)]
                self._way_down[peer].update(there)
                self.leaving += len(there)
                self.network.nodes[source].given += len(there)
                self._read_soon(self.network.nodes[peer])
            others += left
        return others

    def _meet_soon(self, host: Address, switch: Address) -> None:
        """Let a worker look for the rings of a switch that was started again."""

        def meet() -> None:
            self._meeting.discard(host)
            plug = self._plugs.get(host)
            if plug is not None and self.network.nodes[host].machine is plug.process:
                self.meet(host, switch, plug.process)

        if host not in self._meeting:
            self._meeting.add(host)
            self.network.at(self.network.now + self._chance.random() * PAUSE, meet)

    def _of(self, switch: Address) -> Hub | None:
        """Return the rings of a switch's present process."""
        process, hub = self._hubs.get(switch, (None, None))
        return hub if process is self.network.nodes[switch].machine else None

    def _deliver(self, node: Node, burst: Burst) -> None:
        self.network.deliver(node, Run(burst, self.network.now))

    # Reading

    def _read_soon(self, node: Node, at_most: float = LATEST) -> None:
        if node.address not in self._reading:
            self._reading.add(node.address)
            at = self.network.now + self._chance.random() * at_most
            self.network.at(at, partial(self._read, node))

    def _read(self, node: Node) -> None:
        """Read the rings of a process, unless it stands still."""
        self._reading.discard(node.address)
        if node.paused:
            self._read_soon(node, AGAIN)
        elif (hub := self._of(node.address)) is not None:
            self._read_up(node, hub)
        elif (plug := self._plugs.get(node.address)) and plug.process is node.machine:
            self._read_down(node, plug)

    def _read_up(self, node: Node, hub: Hub) -> None:
        hub.get_up()
        for burst in hub.read():
            came, due = singles(Packets(*burst[1:])), self._way_up[burst.peer]
            if came != due[: len(came)]:
                raise Violation(
                    "wrong ring", f"{node.name} reads what {burst.peer} has not written"
                )
            del due[: len(came)]
            self.entering -= len(came)
            self._deliver(node, burst._replace(rows=burst.rows.copy()))
        hub.lie_down()
        if hub.has_more:
            self._read_soon(node)
            return
        for host, plug in self._plugs.items():
            if plug.switch is node.machine and self._way_up[host]:
                lost = len(self._way_up[host])
                raise Violation("lost in a ring", f"{node.name} lacks {lost} packets of {host}")

    def _read_down(self, node: Node, plug: Plug) -> None:
        if self.network.nodes[plug.at].machine is not plug.switch:  # it has crashed
            return
        due = self._way_down[node.address]
        try:
            plug.link.listen()
            for packets in plug.link.read():
                came = Counter(singles(packets))
                if not came <= due:
                    raise Violation("wrong ring", f"{node.name} reads what no switch has written")
                due.subtract(came)
                self.leaving -= came.total()
                self.network.nodes[plug.at].given -= came.total()  # counted as it was written
                self.network.transmit(plug.at, [Outgoing((node.address,), *packets)])
        except BrokenRing as error:
            raise Violation("broken ring", f"{node.name}: {error}") from None
        if lost := sum((+due).values()):
            raise Violation("lost in a ring", f"{node.name} lacks {lost} packets")
