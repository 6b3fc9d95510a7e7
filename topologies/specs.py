"""Short forms of usual networks: `star:4`, `rack:2x3`, `leafspine:2x4x4`, `fattree:k=4` and such.

Hosts are called h1, h2 and so on, from left to right below the tree.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from ipaddress import IPv4Network
from math import prod
from typing import NamedTuple, TypeVar

from .errors import TopologyError
from .parts import Host, Link, Switch, parse_settings
from .plan import SUBNET, Plan, spanning_tree

SPEC = re.compile(
    r"(?P<kind>[a-z]+):(?P<k>k=)?(?P<numbers>\d{1,5}(?:x\d{1,5}){0,7})"
    r"(?P<settings>(?:,[a-z]+=[^,]+)*)",
    re.ASCII,
)
MOST_DIGITS = 40  # of a seed; more of them make no more chances
MOST_PORTS = 64  # of the switches of a fat tree: its hosts are then MAX_HOSTS
MAX_HOSTS = 1 << 16  # more than any of them can have; far less than would fill the memory

P = TypeVar("P", bound=Plan)
Pairs = list[tuple[str, str]]


def star(hosts: int) -> tuple[str, Pairs]:
    """Plan N hosts at one switch, s1."""
    return "s1", [(f"h{i}", "s1") for i in range(1, hosts + 1)]


def rack(racks: int, hosts: int) -> tuple[str, Pairs]:
    """Plan A top-of-rack switches, tor1 to torA, of B hosts each, under the root core1."""
    uplinks = [(f"tor{r}", "core1") for r in range(1, racks + 1)]
    return "core1", uplinks + below([tor for tor, _ in uplinks], hosts, "h")


def tree(*fanouts: int) -> tuple[str, Pairs]:
    """Plan AxB...xN: A switches below the root s1, B below each, and so on; N hosts at the last."""
    *inner, hosts = fanouts
    level, pairs, count = ["s1"], [], 1
    for fanout in inner:
        found = below(level, fanout, "s", count)
        level, count = [name for name, _ in found], count + len(found)
        pairs += found
    return "s1", pairs + below(level, hosts, "h")


def leafspine(spines: int, leaves: int, hosts: int) -> tuple[str, Pairs]:
    """Plan A spines, each linked to each of B leaves, and C hosts at each leaf.

    The tree's root is spine1; the links to the others stand by. Bridges without a spanning-tree
    protocol must not be plugged into more than one spine, and one aggregation tree needs no more.
    `root=spine2` makes another spine the root.
    """
    pairs = [(f"leaf{b}", f"spine{a}") for a in range(1, spines + 1) for b in range(1, leaves + 1)]
    return "spine1", pairs + below([f"leaf{b}" for b in range(1, leaves + 1)], hosts, "h")


def fattree(k: int) -> tuple[str, Pairs]:
    """Plan k pods of k/2 edge and k/2 aggregation switches, with k/2 hosts at each edge switch.

    The (k/2)^2 cores have k ports each, as all switches have: as many links lead up from a switch
    as down. The tree's root is core1, below which one aggregation switch of each pod carries all;
    the others stand by, as the spines of `leafspine` do.

    Raises:
        TopologyError: there is no such tree.
    """
    half = k // 2
    if k % 2 or not 2 <= k <= MOST_PORTS:
        raise TopologyError(
            f"fattree:k={k}: the number of ports is even, from 2 to {MOST_PORTS}; write k=4"
        )
    aggs = [[f"agg{pod * half + i}" for i in range(1, half + 1)] for pod in range(k)]
    edges = [[f"edge{pod * half + i}" for i in range(1, half + 1)] for pod in range(k)]
    pairs = [
        (agg, f"core{i * half + j}")
        for pod in aggs
        for i, agg in enumerate(pod)
        for j in range(1, half + 1)
    ]
    pairs += [(edge, agg) for i in range(k) for edge in edges[i] for agg in aggs[i]]
    return "core1", pairs + below([edge for pod in edges for edge in pod], half, "h")


def below(parents: list[str], fanout: int, prefix: str, count: int = 0) -> Pairs:
    """Add `fanout` nodes under each parent, numbered on from `count`."""
    return [
        (f"{prefix}{count + i * fanout + j}", parent)
        for i, parent in enumerate(parents)
        for j in range(1, fanout + 1)
    ]


class Kind(NamedTuple):
    """A short form: its maker, its count of numbers (0: any), an example, its meaning."""

    make: Callable[..., tuple[str, Pairs]]
    numbers: int
    example: str
    meaning: str


KINDS = {
    "star": Kind(star, 1, "star:4", "4 hosts at one switch"),
    "rack": Kind(rack, 2, "rack:2x3", "2 top-of-rack switches of 3 hosts each, under a root"),
    "tree": Kind(tree, 0, "tree:2x2x3", "a root, 2 switches, 2 below each, 3 hosts at each"),
    "leafspine": Kind(leafspine, 3, "leafspine:2x4x4", "2 spines, 4 leaves, 4 hosts at each leaf"),
    "fattree": Kind(fattree, 1, "fattree:k=4", "a fat tree of switches with 4 ports, 16 hosts"),
}


def parse(text: str, make: type[P]) -> P:
    """Make the network of a short form, an object of the class `make`.

    Settings after commas apply to every link.

    `root=` names another root of the tree, `subnet=` another subnet, `seed=` another seed of
    chances; `Link.of` reads the others.

    Raises:
        TopologyError: no such form; the message lists them.
    """
    compact = text.replace(" ", "")
    found = SPEC.fullmatch(compact)
    kind = KINDS.get(compact.partition(":")[0])
    if kind is None:
        raise wrong(text, "is not a topology")
    if not found or bool(found["k"]) != ("k=" in kind.example):
        example = kind.example
        raise wrong(text, f"is not written as {example}, or {example},loss=1%,delay=5ms")
    numbers = [int(number) for number in found["numbers"].split("x")]
    if kind.numbers not in (0, len(numbers)):
        count = f"{len(numbers)} number{'s' * (len(numbers) != 1)}"
        raise wrong(text, f"has {count}, {found['kind']} takes {kind.numbers}")
    if not 0 < prod(numbers) <= MAX_HOSTS:
        raise wrong(text, f"has {prod(numbers)} hosts, not 1 to {MAX_HOSTS}")
    settings = [setting.partition("=") for setting in found["settings"].split(",")[1:]]
    chosen = {name: value for name, _, value in settings}
    if len(chosen) < len(settings):
        raise wrong(text, "says something twice")
    root, pairs = kind.make(*numbers)
    root = chosen.pop("root", root)
    subnet = parse_subnet(chosen.pop("subnet", str(SUBNET)))
    seed = parse_seed(chosen.pop("seed", "0"))
    values = parse_settings(chosen)
    links = tuple(Link(a, b, **values) for a, b in pairs)  # type: ignore[arg-type]
    names = dict.fromkeys(name for pair in pairs for name in reversed(pair))
    hosts = tuple(Host(name) for name in names if name.startswith("h"))
    switches = tuple(Switch(name) for name in names if not name.startswith("h"))
    tree = spanning_tree(switches, links, root)
    return make(hosts, tree, links, subnet, text.strip(), seed)


def parse_subnet(text: str) -> IPv4Network:
    """Parse an IPv4 network.

    Raises:
        TopologyError: the text is no IPv4 network.
    """
    try:
        return IPv4Network(text)
    except ValueError as error:
        raise TopologyError(f"subnet {text!r}: {error}; write one such as {SUBNET}") from error


def parse_seed(text: str) -> int:
    """Parse a seed.

    Raises:
        TopologyError: the text is no seed.
    """
    if not text.isdecimal() or len(text) > MOST_DIGITS:
        raise TopologyError(f"seed {text!r} is not a whole number of 0 or more; write seed=1")
    return int(text)


def wrong(text: str, fault: str) -> TopologyError:
    """Say what is wrong with a short form, and what would be right."""
    forms = "; ".join(f"{kind.example} ({kind.meaning})" for kind in KINDS.values())
    return TopologyError(
        f"{text!r} {fault}; write one of {forms}, with settings such as "
        f"star:4,rate=1Gbit,delay=2ms,loss=0.1%, or the path of a .toml file"
    )
