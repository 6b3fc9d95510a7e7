"""Builds a topology with Mininet, for users of its hosts and tools."""

from __future__ import annotations

import os
import shutil
from typing import Any

from mininet.net import Mininet

from topologies.children import Nodes
from topologies.errors import NetworkError
from topologies.namespaces import Claim
from topologies.netns import pyroute2

from .cables import Cable, check_in_force
from .nodes import OwnHost, OwnSwitch
from .topo import TopologyTopo

TOOLS = {
    "mnexec": "mininet",
    "ifconfig": "net-tools",
    "ip": "iproute2",
    "tc": "iproute2",
    "ethtool": "ethtool",
}


class Network(Nodes):
    """A topology as a network of Mininet's, from `start` to `close`; use it as a context.

    Use it like `topologies.netns.Network`: hosts run what `popen` starts, and switches are bare, so
    that switch processes can be started there. `mininet` is Mininet's own object.
    """

    mininet: Any = None

    def _check(self) -> None:
        self._topo = TopologyTopo(self.topology, self.offload)
        if os.geteuid() != 0:
            raise PermissionError("Mininet wants root")
        for tool, package in TOOLS.items():
            if shutil.which(tool) is None:  # else Mininet would end this process
                raise NetworkError(
                    f"Mininet needs {tool}: apt-get install --no-install-recommends {package}"
                )
        pyroute2()

    def _build(self, claim: Claim) -> None:
        self.mininet = Mininet(
            self._topo, switch=OwnSwitch, host=OwnHost, controller=None, link=Cable, build=False
        )
        self.mininet.build()
        for link in self.mininet.links:
            check_in_force(link.intf1)
            check_in_force(link.intf2)
        for node in self.topology.nodes:
            self._namespaces[node] = claim.adopt(node, self.mininet[node].pid)

    def _stop(self) -> None:
        mininet, self.mininet = self.mininet, None
        if mininet is not None:
            mininet.stop()  # it needs its shells, which are in the namespaces
