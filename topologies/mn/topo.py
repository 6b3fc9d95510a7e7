"""Topologies in Mininet's form: `mn --topo star,4`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from mininet.topo import Topo

from topologies.commands import impair_options
from topologies.description import Topology
from topologies.specs import KINDS

from .cables import cable_options
from .nodes import Described


class TopologyTopo(Topo):
    """The nodes and links of a topology that are in use, as Mininet builds them.

    Raises:
        NetworkError: a link has a rate that cannot be kept.
    """

    def build(self, topology: Topology, offload: bool = True) -> None:
        """Add nodes and links; called by Mininet."""
        self.topology = topology
        prefix = topology.subnet.prefixlen
        for host in topology.hosts:
            self.addHost(host.name, ip=f"{topology.address(host.name)}/{prefix}")
        for number, switch in enumerate(topology.tree, 1):
            self.addSwitch(
                switch.name,
                dpid=f"{number:x}",
                described=Described(
                    str(topology.address(switch.name)),
                    switch.parent or "",
                    impair_options(topology, switch.name),
                ),
            )
        for link in filter(topology.active, topology.links):
            (a,) = (port for port in topology.ports(link.a) if port.link is link)
            (b,) = (port for port in topology.ports(link.b) if port.link is link)
            options = {"addr1": a.mac, "addr2": b.mac} | cable_options(link, offload)
            self.addLink(link.a, link.b, a.number, b.number, **options)


def form(kind: str, *numbers: int, **settings: object) -> TopologyTopo:
    """Translate a short form from `mn`'s notation: `star,4,rate=100Mbit` is star:4,rate=100Mbit."""
    return parsed(f"{kind}:{'x'.join(map(str, numbers))}", **settings)


def parsed(text: str, **settings: object) -> TopologyTopo:
    """Read any short form, or the path of a file: `topology,rack:2x3`."""
    words = [text, *(f"{name}={value}" for name, value in settings.items())]
    return TopologyTopo(Topology.parse(",".join(words)))


OF_MININET = ("tree",)  # names that mean something else to its users
TOPOS: dict[str, Callable[..., Any]] = {
    kind: partial(form, kind) for kind in KINDS if kind not in OF_MININET
} | {"topology": parsed}
