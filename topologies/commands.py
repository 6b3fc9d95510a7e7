"""The options with which `iswitch switch` becomes a switch of a network."""

from __future__ import annotations

from collections.abc import Sequence
from ipaddress import IPv4Address

from .description import Port, Topology
from .errors import NetworkError

PORT = 26963  # the protocol's


def switch_options(topology: Topology, name: str, *, offload: bool = True) -> list[str]:
    """For the switch of this name in a network of namespaces.

    Raises:
        NetworkError: a link is to delay or lose frames.
    """
    refuse_impairments(topology.ports(name))
    (parent,) = (switch.parent for switch in topology.switches if switch.name == name)
    ports = topology.ports(name)
    return options(
        [port.ifname for port in ports],
        topology.address(name),
        None if parent is None else topology.address(parent),
        next((port.ifname for port in ports if port.peer == parent), None),
        offload=offload,
    )


def options(
    ports: Sequence[str],
    address: IPv4Address,
    parent: IPv4Address | None = None,
    uplink: str | None = None,
    *,
    offload: bool = True,
) -> list[str]:
    """For a switch with these ports, one of which may lead to its parent."""
    found = ["--ports", ",".join(ports), "--address", str(address), "--port", str(PORT)]
    if parent is not None and uplink is not None:
        found += ["--parent", f"{parent}:{PORT}", "--uplink", uplink]
    return found if offload else [*found, "--no-offload"]


def refuse_impairments(ports: Sequence[Port]) -> None:
    """Rather than have frames pass in time and whole where they were to be late, or lost.

    Switch ports that impair are told so here, in an option for each port.

    Raises:
        NetworkError: a link is to delay or lose frames.
    """
    for port in ports:
        settings = port.link.settings()
        if wanted := [f"{name}={settings[name]}" for name in ("delay", "loss") if name in settings]:
            raise NetworkError(
                f"link {port.link.a}-{port.link.b}: {' and '.join(wanted)} cannot be kept, for "
                "switch ports do not impair frames yet; leave it out"
            )
