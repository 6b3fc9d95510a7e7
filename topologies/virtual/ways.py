"""Carries packets between nodes that have no link of their own, in trees of switches.

A controller speaks to any switch. Its packets, and the answers, cross one link after the other; the
nodes on the way take no time for them.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from iswitch.core.format.packets import Address, Burst, Outgoing
from iswitch.sim.link import VirtualLink
from iswitch.sim.node import Node
from iswitch.sim.runs import Run
from topologies.simulated import Simulation


class Ways:
    """The ways through a simulated network; see `iswitch.sim.node.Beside`.

    Args:
        simulation: the network.
    """

    leaving = entering = 0

    def __init__(self, simulation: Simulation) -> None:
        self._network = simulation.network
        topology = simulation.topology
        self._addresses = {name: simulation.address(name) for name in topology.nodes}
        self._names = {address.host: name for name, address in self._addresses.items()}
        self._above = {host.name: topology.switch_of(host.name) for host in topology.hosts} | {
            name: parent for name, parent in topology.parents.items() if parent is not None
        }

    def sends(self, source: Address, out: Outgoing) -> Iterator[Outgoing]:
        """Take packets to peers without a link; return those to the others."""
        links, home = self._network.links, self._network.home
        near = tuple(peer for peer in out.peers if (source, home(peer)) in links)
        if near:
            yield out if len(near) == len(out.peers) else out._replace(peers=near)
        for peer in out.peers:
            if peer not in near and peer.host in self._names:
                burst = Burst(source, out.tos, out.rows.copy(), out.tail)
                self._hop(source, peer, Run(burst, self._network.now))

    def comes(self, node: Node, burst: Burst) -> bool:  # noqa: ARG002
        """Take nothing."""
        return False

    def _hop(self, own: Address, peer: Address, run: Run) -> None:
        """Put a run on the next link from a node of the way."""
        at, below = self._names[own.host], self._names[peer.host]
        while below in self._above and self._above[below] != at:
            below = self._above[below]
        # Down if the peer is below this node, else up.
        there = self._addresses[below if self._above.get(below) == at else self._above[at]]
        there = peer if there.host == peer.host else there
        link = self._network.links[own, there]
        for arrival in link.send(*run):
            self._network.at(arrival.due, partial(self._arrive, link, there, peer, arrival))

    def _arrive(self, link: VirtualLink, at: Address, peer: Address, run: Run) -> None:
        link.counts.delivered += len(run.burst.rows)
        if at == peer:
            self._network.deliver(self._network.nodes[peer], run)
        else:
            self._hop(at, peer, run)
