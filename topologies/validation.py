"""Checks whether a topology can be built; each error names the fault and the mend."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable

from iswitch.core.format.wire import MAX_MEMBERS

from .errors import TopologyError
from .plan import Plan

MAX_NAME = 9  # with -eth64 behind it an interface's name has 15 characters, the kernel's most
NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]*", re.ASCII)


def check(topology: Plan) -> None:
    """Refuse a description that cannot be built.

    Raises:
        TopologyError: the first fault that is found.
    """
    for look in CHECKS:
        look(topology)


def check_names(topology: Plan) -> None:
    """Require distinct names, short enough for interfaces to be named after them."""
    if not topology.hosts or not topology.switches:
        raise TopologyError("there is no host or no switch; describe at least one of each")
    names = [host.name for host in topology.hosts]
    names += [switch.name for switch in topology.switches]
    for name, times in Counter(names).items():
        if times > 1:
            raise TopologyError(f"{times} nodes are called {name!r}; give each its own name")
        if len(name) > MAX_NAME:
            raise TopologyError(
                f"the name {name!r} is too long for interfaces to be named after it; "
                f"take at most {MAX_NAME} characters"
            )
        if not NAME.fullmatch(name):
            raise TopologyError(
                f"{name!r} cannot be a name; take letters, digits, - and _, a letter first"
            )


def check_links(topology: Plan) -> None:
    """Require links that join two known nodes once, one of them a switch."""
    hosts = {host.name for host in topology.hosts}
    switches = {switch.name for switch in topology.switches}
    pairs = set()
    for link in topology.links:
        where = f"link {link.a}-{link.b}"
        for name in (link.a, link.b):
            if name not in hosts and name not in switches:
                raise TopologyError(f"{where}: there is no node {name!r}; add it, or mend the name")
        if {link.a, link.b} <= hosts:
            raise TopologyError(f"{where} joins two hosts; plug each into a switch")
        pair = frozenset((link.a, link.b))
        if pair in pairs:
            raise TopologyError(f"{where} is there twice; leave one out")
        pairs.add(pair)


def check_hosts(topology: Plan) -> None:
    """Require one link of every host."""
    links = Counter(name for link in topology.links for name in (link.a, link.b))
    for host in topology.hosts:
        if links[host.name] != 1:
            often = f"{links[host.name]} links" if links[host.name] else "no link"
            raise TopologyError(f"host {host.name!r} has {often}; give it one, to its switch")


def check_parents(topology: Plan) -> None:
    """Require parents that are neighbours, and no circle among them."""
    parents = topology.parents
    pairs = {frozenset((link.a, link.b)) for link in topology.links}
    for name, parent in parents.items():
        if parent is not None and parent not in parents:
            raise TopologyError(
                f"switch {name!r}: its parent {parent!r} is no switch; name one, or leave it out"
            )
        if parent is not None and frozenset((name, parent)) not in pairs:
            raise TopologyError(
                f"switch {name!r}: no link to its parent {parent!r}; add one, or name a neighbour"
            )
    sound: set[str] = set()
    for name in parents:
        path: dict[str, None] = {}  # a set that keeps the order
        above: str | None = name
        while above is not None and above not in sound:
            if above in path:
                names = list(path)
                circle = " -> ".join([*names[names.index(above) :], above])
                raise TopologyError(
                    f"the parents form a circle: {circle}; take the parent from one of these"
                )
            path[above] = None
            above = parents[above]
        sound.update(path)


def check_tree(topology: Plan) -> None:
    """Require one root above all nodes that have links."""
    active = filter(topology.active, topology.links)
    plugged = {name for link in active for name in (link.a, link.b)}
    roots = [s.name for s in topology.switches if s.parent is None and s.name in plugged]
    if len(roots) > 1:
        raise TopologyError(
            f"the network is in {len(roots)} parts: {listed(roots)} have no parent; there is one "
            "root, so name a parent for the others, and a link to it"
        )


def check_members(topology: Plan) -> None:
    """Require no more members of a switch than the protocol can count."""
    members: Counter[str | None] = Counter(topology.switch_of(host.name) for host in topology.hosts)
    members.update(switch.parent for switch in topology.switches)
    del members[None]
    for name, count in members.items():
        if count > MAX_MEMBERS:
            raise TopologyError(
                f"switch {name!r} has {count} hosts and child switches, {MAX_MEMBERS} at most; "
                "put switches between, such as rack:2x48"
            )


def check_addresses(topology: Plan) -> None:
    """Require an address in the subnet for every host and switch."""
    room = topology.subnet.num_addresses - 2
    count = len(topology.hosts) + len(topology.switches)
    if count > room:
        raise TopologyError(
            f"{topology.subnet} has {max(room, 0)} addresses for {count} nodes; take a larger one"
        )


def listed(names: Iterable[str]) -> str:
    """List names in a sentence."""
    *most, last = (repr(name) for name in names)
    return f"{', '.join(most)} and {last}" if most else last


CHECKS: tuple[Callable[[Plan], None], ...] = (
    check_names,
    check_links,
    check_hosts,
    check_parents,
    check_tree,
    check_members,
    check_addresses,
)
