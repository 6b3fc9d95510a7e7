"""Build a topology with Mininet, for those who want its hosts and its tools."""

from __future__ import annotations

import os
import shutil
from contextlib import ExitStack
from typing import Any

from mininet.net import Mininet

from topologies.children import Nodes
from topologies.errors import NetworkError
from topologies.namespaces import Claim
from topologies.netns import clean, privileges, pyroute2

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

    It is used as `topologies.netns.Network` is: hosts run what `popen` starts, and switches are
    bare, for switch processes to be started there. `mininet` is Mininet's own object.
    """

    mininet: Any = None

    def start(self) -> None:
        """Build the network, after removing what dead processes left.

        Raises:
            PrivilegeError: not root, or root without the capabilities.
            NetworkError: a tool lacks, or a link has what cannot be kept, or is not.
        """
        if self._claim is not None:
            raise NetworkError("the network is built already; close it, or make another one")
        topo = TopologyTopo(self.topology, self.offload)
        with ExitStack() as undo, privileges():
            if os.geteuid() != 0:
                raise PermissionError("Mininet wants root")
            check_tools()
            pyroute2()
            undo.callback(self.close)
            clean()
            self._claim = Claim.new(self._prefix)
            self.mininet = Mininet(
                topo,
                switch=OwnSwitch,
                host=OwnHost,
                controller=None,
                link=Cable,
                build=False,
            )
            self.mininet.build()
            for link in self.mininet.links:
                check_in_force(link.intf1)
                check_in_force(link.intf2)
            for node in self.topology.nodes:
                self._namespaces[node] = self._claim.adopt(node, self.mininet[node].pid)
            undo.pop_all()

    def close(self) -> None:
        """End the children, then remove all that was built. Closing twice is harmless."""
        self._end_children()
        mininet, self.mininet = self.mininet, None
        try:
            if mininet is not None:
                mininet.stop()  # it needs its shells, which are in the namespaces
        finally:
            self._release()


def check_tools() -> None:
    """Refuse a machine without the programs that Mininet calls; it would end this process.

    Raises:
        NetworkError: one lacks.
    """
    for tool, package in TOOLS.items():
        if shutil.which(tool) is None:
            raise NetworkError(
                f"Mininet needs {tool}: apt-get install --no-install-recommends {package}"
            )
