"""The tree of a network as arrays: the way that the packets of a job take."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from topologies import Topology

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
NONE = -1  # in place of the root's parent


class Fabric(NamedTuple):
    """Nodes of a tree, level by level, those of one parent side by side; the first is the root.

    Attributes:
        parent: the parent of each node, (n,); NONE: of the root.
        rate: bit/s of the link above each node, (n,); inf: it has no limit.
        delay: seconds that it takes on top, (n,), one way.
        hosts: the node of each rank.
        names: the name of each node.
        mtu: bytes of the largest IP packet that all links take.
    """

    parent: Ints
    rate: Floats
    delay: Floats
    hosts: Ints
    names: tuple[str, ...]
    mtu: int

    @classmethod
    def of(cls, topology: Topology, workers: int | None = None) -> Fabric:
        """Return the tree above the first `workers` hosts of a network, up to its root."""
        used = [host.name for host in topology.hosts[:workers]]
        above = {host: topology.switch_of(host) for host in used}
        for name in list(above.values()):
            at: str | None = name
            while at is not None and at not in above:
                up = topology.parents[at]
                if up is None:
                    break
                above[at], at = up, up
        below: dict[str, list[str]] = {}
        for node, up in above.items():
            below.setdefault(up, []).append(node)
        order = [topology.root.name]
        for node in order:
            order += below.get(node, ())
        number = {name: i for i, name in enumerate(order)}
        links = [
            next(port.link for port in topology.ports(name) if port.peer == above[name])
            for name in order[1:]
        ]
        return cls(
            np.array([NONE, *(number[above[name]] for name in order[1:])]),
            np.array([np.inf, *(link.rate or np.inf for link in links)], np.float64),
            np.array([0.0, *(link.delay for link in links)]),
            np.array([number[host] for host in used]),
            tuple(order),
            min(link.mtu for link in links),
        )

    def depths(self) -> Ints:
        """Return how many links are between each node and the root, (n,)."""
        depth = np.zeros(len(self.parent), np.int64)
        for start, stop in self.levels()[1:]:
            depth[start:stop] = depth[self.parent[start]] + 1
        return depth

    def levels(self) -> list[tuple[int, int]]:
        """Return the first node of each level, and the one after its last."""
        found = [(0, 1)]
        while True:
            last = found[-1][1]
            stop = int(np.searchsorted(self.parent, last))
            if stop == last:
                return found
            found.append((last, stop))

    def part(self, ranks: Sequence[int]) -> tuple[Fabric, Ints]:
        """Return the tree above some of the ranks, and the number here of each node of it."""
        used = np.zeros(len(self.parent), bool)
        used[0] = used[self.hosts[list(ranks)]] = True
        for start, stop in reversed(self.levels()[1:]):
            used[self.parent[start:stop][used[start:stop]]] = True
        left = np.flatnonzero(used)
        number = np.full(len(used), NONE)
        number[left] = np.arange(len(left))
        part = Fabric(
            np.concatenate([[NONE], number[self.parent[left[1:]]]]),
            self.rate[left],
            self.delay[left],
            number[self.hosts[list(ranks)]],
            tuple(self.names[i] for i in left.tolist()),
            self.mtu,
        )
        return part, left

    def path(self, source: int, target: int) -> list[tuple[int, bool]]:
        """Return the lines between two nodes: of each, the node below it and whether it goes up."""
        ups: list[int] = []
        downs: list[int] = []
        while source != target:
            if source > target:  # parents come before their children
                ups.append(source)
                source = int(self.parent[source])
            else:
                downs.append(target)
                target = int(self.parent[target])
        return [(node, True) for node in ups] + [(node, False) for node in reversed(downs)]


class Folded(NamedTuple):
    """A tree without those nodes that behave as another one does.

    Attributes:
        fabric: the tree; its hosts are those that are left.
        starts: when they start, in seconds.
        of: the host there that stands for each rank.
    """

    fabric: Fabric
    starts: Floats
    of: Ints


def fold(fabric: Fabric, starts: Floats) -> Folded:
    """Keep one of those nodes under a parent that have equal links, starts and subtrees."""
    n = len(fabric.parent)
    start = np.full(n, np.nan)
    start[fabric.hosts] = starts
    kind = np.zeros(n, np.int64)  # equal in nodes of a level with equal subtrees
    levels = fabric.levels()
    for a, b in reversed(levels):
        looks = [fabric.rate[a:b], fabric.delay[a:b], start[a:b]]
        below = [tuple(sorted(kind[c:d].tolist())) for c, d in _children(fabric, a, b)]
        known: dict[tuple[int, ...], int] = {}
        looks.append(np.array([known.setdefault(kinds, len(known)) for kinds in below], float))
        columns = np.nan_to_num(np.stack(looks, axis=1), nan=-1.0, posinf=-2.0)
        kind[a:b] = np.unique(columns, axis=0, return_inverse=True)[1].reshape(-1)
    kept = np.zeros(n, np.int64)  # the node that stands for each
    for a, b in levels[1:]:
        above = kept[fabric.parent[a:b]]
        first: dict[tuple[int, int], int] = {}
        pairs = zip(above.tolist(), kind[a:b].tolist(), strict=True)
        mine = fabric.parent[a:b] == above  # only what is below a kept node is kept
        for i, (pair, own) in enumerate(zip(pairs, mine.tolist(), strict=True)):
            if own:
                first.setdefault(pair, a + i)
        pairs = zip(above.tolist(), kind[a:b].tolist(), strict=True)
        kept[a:b] = [first[pair] for pair in pairs]
    left = np.unique(kept)
    number = np.full(n, NONE)
    number[left] = np.arange(len(left))
    hosts = np.unique(kept[fabric.hosts])
    folded = Fabric(
        np.concatenate([[NONE], number[fabric.parent[left[1:]]]]),
        fabric.rate[left],
        fabric.delay[left],
        number[hosts],
        tuple(fabric.names[i] for i in left.tolist()),
        fabric.mtu,
    )
    return Folded(folded, start[hosts], np.searchsorted(hosts, kept[fabric.hosts]))


def _children(fabric: Fabric, start: int, stop: int) -> list[tuple[int, int]]:
    """Return the first child of each of some nodes, and the node after its last."""
    nodes = np.arange(start, stop)
    first = np.searchsorted(fabric.parent, nodes)
    last = np.searchsorted(fabric.parent, nodes, "right")
    return list(zip(first.tolist(), last.tolist(), strict=True))
