"""Build a topology as a simulated network: the switches of its tree, and places for workers.

Each direction of a link has the faults, the rate and the queue that the topology gives it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from iswitch.core.format.keys import Keys
from iswitch.core.format.packets import Address
from iswitch.core.format.wire import PORT, ROUND_MASK
from iswitch.core.jobs.limits import Limits
from iswitch.core.sums.paper import Counting
from iswitch.core.switch import Switch
from iswitch.faults.impairment import Impairment
from iswitch.sim.grain import SINGLE, Grain
from iswitch.sim.handling import Handling
from iswitch.sim.host import HostStack
from iswitch.sim.link import LATENCY
from iswitch.sim.network import VirtualNetwork
from iswitch.sim.node import Node, Process
from iswitch.sim.plugged import Plugged
from iswitch.sim.trace import Trace

from .description import Topology
from .parts import Link

WORKER_PORT = 40000


class Simulation:
    """A topology under a virtual clock, which `network` runs.

    Args:
        topology: topology to build; its `seed` seeds all chances.
        limits: limits of every switch.
        trace: trace in which all events are recorded; None: no trace.
        latency: least seconds that a packet needs on any link.
        keys: keys of the keyed jobs, by number.
        ports: whether switches have ports, take frames there, and guard them.
        grain: how much may be one event of the network.
        hosts: the time that hosts take for each packet, when they send and when they receive it.
        switches: the time that switches take for each packet.
        counting: how switches count contributions.
        below: limits of the switches below another; None: those of every switch.
        named: limits of single switches, by name.
    """

    def __init__(  # noqa: PLR0913  (a value for each choice of the user)
        self,
        topology: Topology,
        limits: Limits | None = None,
        trace: Trace | None = None,
        latency: float = LATENCY,
        keys: Keys | Mapping[int, bytes] | None = None,
        ports: bool = False,
        grain: Grain = SINGLE,
        hosts: Handling = Handling(),  # noqa: B008  (immutable)
        switches: Handling = Handling(),  # noqa: B008
        counting: Counting = Counting.EXACT,
        below: Limits | None = None,
        named: Mapping[str, Limits] | None = None,
    ) -> None:
        self.topology = topology
        self.limits = limits
        self.below = limits if below is None else below
        self.named = named or {}
        self.keys = keys
        self.ports = ports
        self.counting = counting
        self.network = VirtualNetwork(topology.seed, latency, trace, grain)
        self.incarnations = dict.fromkeys((switch.name for switch in topology.tree), 0)
        for switch in topology.tree:
            node = self.network.add(switch.name, self.address(switch.name))
            node.takes(switches, Handling())
        for host in topology.hosts:
            node = self.network.add(host.name, self.address(host.name))
            node.takes(hosts, hosts)
            if ports:
                node.stack = HostStack(node.address, self.switch_of(host.name))
        for link in filter(topology.active, topology.links):
            self.network.connect(self.address(link.a), self.address(link.b), impairment(link))
        for switch in topology.tree:
            self.start_switch(switch.name)

    def address(self, node: str) -> Address:
        """Return the address at which a switch listens, or from which a host's worker sends."""
        is_switch = node in self.incarnations
        return Address(str(self.topology.address(node)), PORT if is_switch else WORKER_PORT)

    def switch_of(self, host: str) -> Address:
        """Return the address of a host's switch."""
        return self.address(self.topology.switch_of(host))

    def node(self, name: str) -> Node:
        """Return a node of the network."""
        return self.network.nodes[self.address(name)]

    def switch(self, name: str) -> Switch | None:
        """Return the switch process of this name; None: it has crashed."""
        machine = self.node(name).machine
        if isinstance(machine, Plugged):
            return machine.switch
        assert machine is None or isinstance(machine, Switch)
        return machine

    def start_switch(self, name: str) -> Switch:
        """Start a switch, or restart it without its former state."""
        # Seconds since 1970, as it were; jobs count from there.
        self.incarnations[name] = (self.incarnations[name] + 1000) & ROUND_MASK
        parent = self.topology.parents[name]
        peers = [port.peer for port in self.topology.ports(name)]
        uplink = None if parent is None else peers.index(parent)
        above = None if parent is None else self.address(parent)
        if above is not None and uplink is not None and self.ports:
            above = above._replace(ingress=uplink)
        at = self.address(name)
        limits = self.named.get(name, self.limits if parent is None else self.below)
        switch = Switch(limits, False, above, self.incarnations[name], self.keys, self.counting)
        switch.record.listening = at.port
        neighbours = [self.address(peer) for peer in peers]
        machine = Plugged(switch, at, neighbours, uplink) if self.ports else switch
        self.network.start(at, machine)
        return switch

    def start_worker(self, host: str, machine: Process) -> None:
        """Start the worker of a host."""
        self.network.start(self.address(host), machine)


def impairment(link: Link) -> Impairment:
    """Make the impairment of a link, which here includes its rate and queue."""
    return replace(link.impairment, rate=link.rate, queue=link.queue.packets(link.mtu))
