"""Where devices and their coordinator are in a network, and how fast their links are."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from iswitch.core.format.wire import MAX_MEMBERS
from iswitch.lab.bench.network import with_hosts
from iswitch.lab.launch.worlds import read_topology
from iswitch.outside import UsageError
from topologies import Topology

LINKS = 5  # purpose of a seed; worker_lib.fedprox has the others
LEAST_RATE = 10_000  # bit/s of a link that is drawn
Place = tuple[str, int]


def network(form: str | None, devices: int, spread: float = 0.0, seed: int = 1) -> Topology:
    """Make a network with a device on each host but the last, the coordinator's, at the root.

    Args:
        form: as of `iswitch run --topology`; None: a star of the devices, or, if they are too many
            for one switch, racks of 50 at most.
        devices: the number of devices; the form must have as many hosts.
        spread: deviation of the logarithm of a factor that each device's rate is multiplied by.
        seed: of these factors.

    Raises:
        UsageError: there is no such network, or it has another number of hosts.
    """
    if form is None or is_implied(form):
        form = star(devices) + (form or "")
    plain = read_topology(form)
    count = len(plain.hosts)
    if count != devices:
        raise UsageError(
            f"{form} has {count} hosts, and there are {devices} devices: say --devices {count}"
        )
    if any(switch.parent not in (None, plain.root.name) for switch in plain.tree):
        raise UsageError(f"{form}: rounds are played in trees of two levels; take one, or a star")
    topology = with_hosts(plain, 1)
    if not spread:
        return topology
    random = np.random.default_rng([seed, LINKS])
    factors = dict(
        zip((h.name for h in plain.hosts), random.lognormal(0, spread, devices), strict=True)
    )
    links = []
    for link in topology.links:
        factor = factors.get(link.a, factors.get(link.b))
        if factor is not None:
            if link.rate is None:
                raise UsageError(f"{form} has no rate to be spread; add one, such as ,rate=10Mbit")
            link = replace(link, rate=max(LEAST_RATE, round(link.rate * factor)))
        links.append(link)
    return replace(topology, links=tuple(links))


def is_implied(form: str | None) -> bool:
    """Return whether a form names no network, but at most properties of its links."""
    return form is None or form.startswith(",")


def star(devices: int) -> str:
    """Write a star of devices, or, if they are too many for one switch, a tree of two levels."""
    # The coordinator is a member, too.
    return f"star:{devices}" if devices < MAX_MEMBERS else tree(devices)


def tree(devices: int) -> str:
    """Write a tree of two levels for some devices: the fewest equal racks that there can be.

    Raises:
        UsageError: they are no equal racks.
    """
    for racks in range(2, MAX_MEMBERS):
        if devices % racks == 0 and devices // racks <= MAX_MEMBERS:
            return f"rack:{racks}x{devices // racks}"
    raise UsageError(
        f"--devices {devices}: they are no equal racks of {MAX_MEMBERS} or fewer; take another "
        "number, such as 300, or name a network with --topology"
    )


def racks_of(topology: Topology, at: Callable[[str], Place]) -> Mapping[Place, Sequence[int]]:
    """Return the devices of each rack by the address of its switch; none: there is one switch.

    Args:
        topology: network of `network`.
        at: tells the address of a switch by its name.
    """
    if len(topology.tree) == 1:
        return {}
    found: dict[Place, list[int]] = {}
    for rank, host in enumerate(topology.hosts[:-1]):
        found.setdefault(at(topology.switch_of(host.name)), []).append(rank)
    return found
