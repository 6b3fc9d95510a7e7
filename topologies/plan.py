"""A network as a plan: its tree, its ports and its addresses. Passive: builders make it real.

**The tree.** Switches are learning bridges without a spanning-tree protocol, so what they are
plugged into must be free of loops; and aggregation climbs a tree. One tree serves for both: every
switch but the root names its parent. A link between two switches carries traffic if one is the
other's parent, and stands by otherwise: it is described and drawn, and not plugged in. A switch
without parent, child or host stands by likewise. `Topology.rooted_at` chooses another tree of
the same links.

**Addresses** follow from the order of the nodes: hosts count up from the first address of the
subnet, switches count down from its last, so that neither moves when the other grows. MACs are
locally administered and hold the address.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from ipaddress import IPv4Address, IPv4Network

from .errors import TopologyError
from .parts import Host, Link, Port, Switch

SUBNET = IPv4Network("10.26.0.0/16")
PORT_PREFIX = 0x06  # the next locally administered one after 02, and the port's number


@dataclass(frozen=True)
class Plan:
    """Hosts, switches and links, and what follows from them; unchecked."""

    hosts: tuple[Host, ...]
    switches: tuple[Switch, ...]
    links: tuple[Link, ...]
    subnet: IPv4Network = SUBNET
    name: str = field(default="", compare=False)  # where it came from
    seed: int = 0  # of the links' faults, so that a run can be repeated

    @cached_property
    def nodes(self) -> tuple[str, ...]:
        """Return the names of nodes to build: the tree's switches, root first, then the hosts."""
        return (*(switch.name for switch in self.tree), *(host.name for host in self.hosts))

    @cached_property
    def tree(self) -> tuple[Switch, ...]:
        """Return the switches that do not stand by; a parent comes before its children."""
        root = next(s for s in self.switches if s.parent is None and s.name in self._ports)
        below: dict[str | None, list[Switch]] = {}
        for switch in self.switches:
            below.setdefault(switch.parent, []).append(switch)
        found = [root]
        for switch in found:
            found += below.get(switch.name, ())
        return tuple(found)

    @property
    def root(self) -> Switch:
        """Return the root of the tree of switches."""
        return self.tree[0]

    @cached_property
    def parents(self) -> dict[str, str | None]:
        """Return the parent of each switch, by name; None: the root, or a switch that stands by."""
        return {switch.name: switch.parent for switch in self.switches}

    def children(self, switch: str) -> tuple[Switch, ...]:
        """List the switches below a switch."""
        return tuple(child for child in self.switches if child.parent == switch)

    def hosts_at(self, switch: str) -> tuple[Host, ...]:
        """List the hosts at a switch."""
        return tuple(host for host in self.hosts if self.switch_of(host.name) == switch)

    def switch_of(self, host: str) -> str:
        """Find the switch of a host."""
        (port,) = self.ports(host)
        return port.peer

    def network_of(self, hosts: Sequence[str]) -> str:
        """Write ISWITCH_NETWORK: each rank's host, and the links in use with rates in bit/s."""
        links = [(link.a, link.b, link.rate) for link in self.links if self.active(link)]
        return json.dumps({"hosts": list(hosts), "links": links})

    def path(self, source: str, target: str) -> list[str]:
        """List the nodes on the way between two hosts, both included."""
        if source == target:
            return [source]
        ups = []
        for host in (source, target):
            up: list[str] = []
            above: str | None = self.switch_of(host)
            while above is not None:
                up.append(above)
                above = self.parents[above]
            ups.append(up)
        first, other = ups
        turn = next(switch for switch in first if switch in other)
        down = other[: other.index(turn)]
        return [source, *first[: first.index(turn) + 1], *reversed(down), target]

    def active(self, link: Link) -> bool:
        """Tell whether a link carries traffic; otherwise it stands by."""
        if link.a in self.parents and link.b in self.parents:
            return self.parents[link.a] == link.b or self.parents[link.b] == link.a
        return True

    def ports(self, node: str) -> tuple[Port, ...]:
        """List the ends of active links at a node, in the links' order; none if it stands by.

        Interfaces are named as Mininet does: h1-eth0; s1-eth1, s1-eth2 and so on.
        """
        self.address(node)  # there is such a node
        return self._ports.get(node, ())

    def address(self, node: str) -> IPv4Address:
        """Compute the address of a host, or of a switch's control plane.

        Raises:
            TopologyError: there is no such node.
        """
        if node not in self._addresses:
            raise TopologyError(f"no node {node!r}; choose of {', '.join(self._addresses)}")
        return self._addresses[node]

    def mac(self, node: str) -> str:
        """Compute the MAC of a host's interface, or the one that a switch answers with."""
        from iswitch.ethernet.made_up import MAC_PREFIX  # brings NumPy

        return mac(MAC_PREFIX, self.address(node))

    def port_mac(self, switch: str, number: int) -> str:
        """Compute the MAC of the interface SWITCH-ethNUMBER, which is not the switch's own."""
        return mac((PORT_PREFIX << 8 | number).to_bytes(2, "big"), self.address(switch))

    @cached_property
    def _ports(self) -> dict[str, tuple[Port, ...]]:
        ends: dict[str, list[tuple[Link, str]]] = {}
        for link in self.links:
            if self.active(link):
                ends.setdefault(link.a, []).append((link, link.b))
                ends.setdefault(link.b, []).append((link, link.a))
        return {
            node: tuple(
                Port(f"{node}-eth{number}", number, self._interface_mac(node, number), link, peer)
                for number, (link, peer) in enumerate(found, node in self.parents)
            )
            for node, found in ends.items()
        }

    def _interface_mac(self, node: str, number: int) -> str:
        return self.port_mac(node, number) if node in self.parents else self.mac(node)

    @cached_property
    def _addresses(self) -> dict[str, IPv4Address]:
        first, last = self.subnet[1], self.subnet[-2]
        return {host.name: first + i for i, host in enumerate(self.hosts)} | {
            switch.name: last - i for i, switch in enumerate(self.switches)
        }


def mac(prefix: bytes, address: IPv4Address) -> str:
    """Write two bytes and an address as a MAC."""
    return (prefix + address.packed).hex(":")


def spanning_tree(
    switches: Sequence[Switch], links: Sequence[Link], root: str
) -> tuple[Switch, ...]:
    """Choose parents on shortest paths to `root`; switches without hosts below stand by.

    Of several shortest paths it takes the one by the earliest link.

    Raises:
        TopologyError: `root` is no switch.
    """
    around: dict[str, list[str]] = {}
    for link in links:
        around.setdefault(link.a, []).append(link.b)
        around.setdefault(link.b, []).append(link.a)
    names = {switch.name: None for switch in switches}
    if root not in names:
        raise TopologyError(f"no switch {root!r} to be the root; choose of {', '.join(names)}")
    parents: dict[str, str | None] = {root: None}
    order = [root]
    for near in order:
        for far in around.get(near, ()):
            if far in names and far not in parents:
                parents[far] = near
                order.append(far)
    used: set[str | None] = {name for name in order if not names.keys() >= set(around[name])}
    for name in reversed(order):
        if name in used:
            used.add(parents[name])
    return tuple(Switch(name, parents.get(name) if name in used else None) for name in names)
