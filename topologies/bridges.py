"""Makes bridges of the kernel the switches of a built network; they forward and add nothing."""

from __future__ import annotations

from .children import Nodes
from .netns import kernel_feature, pyroute2

NAME = "bridge"


def build_bridges(network: Nodes) -> None:
    """Make every switch of a network a bridge between its ports.

    Raises:
        NetworkError: pyroute2 is missing, or the kernel has no bridges.
    """
    IPRoute = pyroute2().IPRoute
    for switch in network.topology.tree:
        with network.inside(switch.name), IPRoute() as netlink:
            with kernel_feature("bridge", "CONFIG_BRIDGE"):
                netlink.link("add", kind="bridge", ifname=NAME)
            (number,) = netlink.link_lookup(ifname=NAME)
            for port in network.ports(switch.name):
                (end,) = netlink.link_lookup(ifname=port.ifname)
                netlink.link("set", index=end, master=number)
            netlink.link("set", index=number, state="up")
