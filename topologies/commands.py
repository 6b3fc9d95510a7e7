"""The options with which `iswitch switch` becomes a switch of a network."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from ipaddress import IPv4Address

from .description import Topology

SWITCHES = 1 << 16  # more than there are in a network


def switch_options(
    topology: Topology, name: str, *, offload: bool = True, bmv2: Collection[str] = ()
) -> list[str]:
    """List the options of a switch in a network of namespaces, some of them P4 programs."""
    parent = topology.parents[name]
    ports = topology.ports(name)
    return options(
        [port.ifname for port in ports],
        topology.address(name),
        None if parent is None else topology.address(parent),
        next((port.ifname for port in ports if port.peer == parent), None),
        offload=offload,
        impair=impair_options(topology, name),
        world="bmv2" if name in bmv2 else "raw",
    )


def impair_options(topology: Topology, name: str) -> list[str]:
    """List the options that impair a switch's ports like their links; empty if all are sound.

    A host does nothing to its own frames, so its switch impairs both directions; between two
    switches each impairs what it sends. So every direction of a link is impaired once. Every switch
    makes its own random draws from the one seed.
    """
    switches = [switch.name for switch in topology.switches]
    found: list[str] = []
    for port in topology.ports(name):
        if impairment := port.link.impairment:
            direction = "out:" if port.peer in switches else ""
            found += ["--impair", f"{port.ifname}:{direction}{impairment}"]
    if found:
        found += ["--seed", str(topology.seed * SWITCHES + switches.index(name))]
    return found


def options(
    ports: Sequence[str],
    address: IPv4Address,
    parent: IPv4Address | None = None,
    uplink: str | None = None,
    *,
    offload: bool = True,
    impair: Sequence[str] = (),
    world: str = "raw",
) -> list[str]:
    """List the options of a switch with these ports, one of which may lead to its parent.

    `impair`: options as `impair_options` gives them. `world`: raw, or bmv2.
    """
    found = ["--ports", ",".join(ports), "--address", str(address)]
    if world != "raw":
        found += ["--world", world]
    if parent is not None and uplink is not None:
        found += ["--parent", str(parent), "--uplink", uplink]
    found += impair
    return found if offload else [*found, "--no-offload"]
