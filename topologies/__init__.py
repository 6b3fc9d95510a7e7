"""Networks of hosts, switches and links: one passive description, several builders.

from topologies import Topology
from topologies.netns import Network
with Network(Topology.parse("rack:2x3,rate=1Gbit")) as network:
    network.popen("h1", ["ping", "-c1", str(network.topology.address("h2"))]).wait()
"""

from __future__ import annotations

from iswitch.faults.units import Queue

from .description import Topology
from .errors import NetworkError, PrivilegeError, TopologyError
from .parts import Host, Link, Port, Switch

__all__ = [
    "Host",
    "Link",
    "NetworkError",
    "Port",
    "PrivilegeError",
    "Queue",
    "Switch",
    "Topology",
    "TopologyError",
]
