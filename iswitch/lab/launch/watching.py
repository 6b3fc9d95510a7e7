"""Tells watchers of a launched network how its nodes are called, and where commands go."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from iswitch.watch.places import Network, Watch

if TYPE_CHECKING:
    from .world import World


def network_of(
    watch: Watch, world: World, listening: Mapping[str, str], ranks: Sequence[str]
) -> Network:
    """Name all there is in a network.

    Args:
        watch: names the network.
        world: the network.
        listening: the addresses of its switches, HOST:PORT, by name.
        ranks: the host of each rank.
    """
    topology = world.topology
    addresses = {host.name: world.address(host.name) for host in topology.hosts}
    shared = Counter(addresses.values())
    first = topology.hosts[0].name
    return Network(
        title=watch.title,
        hosts={at: name for name, at in addresses.items() if shared[at] == 1},
        ranks=list(ranks),
        switches=dict(listening),
        ports={
            port.ifname: (port.peer, port.link.rate)
            for switch in topology.tree
            for port in topology.ports(switch.name)
        },
        parents=dict(topology.parents),
        below={one.name: [h.name for h in topology.hosts_at(one.name)] for one in topology.tree},
        control=listening.get(topology.switch_of(first), ""),
        entry=shlex.split(world.entry(first)),
    )
