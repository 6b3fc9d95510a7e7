"""What matters of a network where jobs are placed: the ways up, their links, the switches' memory.

Every job's sums go up to the root of the network, and its aggregates come down from there
(docs/hierarchy.md). So a job has memory at every switch on the ways from its hosts to the root, and
sends its vector once in each direction over every link there.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import cache

from iswitch.core.format.wire import IP_UDP_HEADERS
from iswitch.core.jobs.limits import Limits
from iswitch.core.sums.numpy_plane import memory_needed
from iswitch.sim.model.aggregation import GROWN, Window
from topologies import Link, Topology

from .jobs import Job

MEMORY = Limits.memory  # bytes, as a switch has by default


class Tree:
    """The tree of a network's switches, with its hosts.

    Args:
        topology: the network.
        memory: bytes that each switch has for sums.
        slots: as `iswitch switch --slots`.
    """

    def __init__(self, topology: Topology, memory: int = MEMORY, slots: int = 0) -> None:
        self.topology = topology
        self.memory = memory
        self.slots = slots
        self.root = topology.root.name
        self.switches = [switch.name for switch in topology.tree]  # parents first
        self.hosts = {host.name: at for at, host in enumerate(topology.hosts)}  # in their order
        self.up = {name: parent for name in self.switches if (parent := topology.parents[name])}
        self.up |= {host: topology.switch_of(host) for host in self.hosts}
        self.links: dict[str, Link] = {  # by the node below
            node: port.link
            for node, above in self.up.items()
            for port in topology.ports(node)
            if port.peer == above
        }
        self.at: dict[str, list[str]] = {name: [] for name in self.switches}  # hosts
        for host in self.hosts:
            self.at[self.up[host]].append(host)
        self.below: dict[str, list[str]] = {name: [] for name in self.switches}  # switches
        for name in self.switches[1:]:
            self.below[self.up[name]].append(name)
        self.need = cache(self._need)
        self.window = cache(self._window)
        self.windows = cache(self._windows)

    def fitted(self, jobs: Iterable[Job]) -> tuple[Job, ...]:
        """Shorten the packets of jobs to the least MTU of the links, as workers do."""
        least = min(link.mtu for link in self.links.values()) - IP_UDP_HEADERS
        return tuple(replace(job, payload=min(job.payload, least)) for job in jobs)

    def way(self, node: str) -> list[str]:
        """List the nodes from this one up, without the root: those whose uplinks are crossed."""
        found = []
        while node != self.root:
            found.append(node)
            node = self.up[node]
        return found

    def switches_of(self, hosts: Iterable[str]) -> list[str]:
        """List the switches that add for a job with these hosts, the root first."""
        used = {node for host in hosts for node in self.way(host)}
        return [name for name in self.switches if name in used or name == self.root]

    def _need(self, job: Job, switch: str) -> int:
        """Return the bytes that a job reserves at a switch."""
        slots = self.slots if self.slots < job.shape.segments else 0
        return memory_needed(job.shape, False, True, switch != self.root, slots)

    def rate(self, node: str) -> float:
        """Return the rate of the link above a node in bit/s; infinite: it has none."""
        return self.links[node].rate or float("inf")

    def _window(self, job: Job) -> Window:
        """Return the window of each worker of a job that has had some rounds."""
        return Window.of(job.shape, job.workers, GROWN, slots=self.slots)

    def _windows(self, host: str, job: Job) -> float:
        """Return the seconds that a job's windows need for its vector at an idle network's host.

        A burst leaves when the one that far before it has come back: so each of a window's bursts
        has a round trip for itself, and those of the next window follow. `latency`, the way of the
        vector's first segment, comes on top.
        """
        window, rate = self.window(job), min(map(self.rate, self.way(host)))
        bursts, early = divmod(window.ceiling, window.burst)
        trip = self.latency(host, job) + (window.burst - early) * job.frame / rate
        trips = (-(-job.shape.segments // window.burst) - 1) // bursts
        behind = job.bits - trips * bursts * window.burst * job.frame
        return trips * trip + behind / rate

    def latency(self, host: str, job: Job) -> float:
        """Return the seconds in which a job's first segment comes back to an idle network's host.

        One of the times in which the slowest link of the way sends it is left out: `bits` has it.
        """
        way = self.way(host)
        there = sum(self.links[node].delay + job.frame / self.rate(node) for node in way)
        return 2 * there - job.frame / min(map(self.rate, way))
