"""Networks of hosts, switches and links: one passive description, several builders.

from topologies import Topology
from topologies.netns import Network
with Network(Topology.parse("rack:2x3,rate=1Gbit")) as network:
    network.popen("h1", ["ping", "-c1", str(network.topology.address("h2"))]).wait()
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from iswitch.faults.units import Queue

from .description import Topology
from .errors import NetworkError, PrivilegeError, TopologyError
from .parts import Host, Link, Port, Switch

if TYPE_CHECKING:
    from .virtual.notebook import simulate

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
    "simulate",
]


def __getattr__(name: str) -> Any:
    """Import `simulate` on first use: it needs more than descriptions do."""
    if name != "simulate":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from .virtual.notebook import simulate

    return simulate
