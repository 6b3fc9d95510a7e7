"""Packs spanning trees into a network, each with a share of the vector, to fill its links.

This is the packing of Blink (Wang et al., MLSys 2020), for hosts at switches that only forward:

- The vertices are the workers; any two are neighbours, over the path of links between their hosts.
- A tree works in both directions at once: it reduces pieces up to its root and broadcasts them
  down again. So wherever its root is, it uses each direction of a link at its share times the
  number of its edges over that link. (Rates are equal in both directions, so the cheapest
  arborescence is a minimum spanning tree with any root; the root is chosen to make it shallow.)
- **Packing.** Multiplicative weights (Garg and Koenemann, FOCS 1998) find fractions of trees that
  nearly fill the links: again and again take the cheapest tree and raise the prices of its links.
- **Few trees.** From these trees an integer program (HiGHS) picks the fewest that carry 95 % of
  the best rate, and their rates.

    python -m worker_lib.strategies.packing

reads a network in JSON from standard input, and writes its trees to standard output as a line of
JSON. `packed` runs it in a separate process, since the solver prints.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import cached_property
from itertools import combinations, pairwise
from math import inf
from typing import Any, NamedTuple

import numpy as np

from iswitch.outside import extra

from .base import lacking
from .errors import Unavailable

MACHINE = 40e9  # bit/s assumed for a link without a rate, which the machine's speed limits
EPSILON = 0.1  # relative price step of a full link; smaller: closer to the optimum, slower
ENOUGH = 0.95  # fraction of the best rate that fewer trees must reach (as in Blink)
CANDIDATES = 64  # trees that the integer program chooses from
SECONDS = 3.0  # time limit of the integer program, which then returns its best result so far

Edge = tuple[int, int]  # two workers, the lower rank first
Edges = tuple[Edge, ...]
Direction = tuple[str, str]  # of a link: from, to


class Tree(NamedTuple):
    """A spanning tree of the workers, and its share of the vector.

    Attributes:
        parents: parent of each rank; None for the root.
        share: fraction of the vector, 0 to 1.
    """

    parents: tuple[int | None, ...]
    share: float

    def children(self, rank: int) -> list[int]:
        """Return the ranks whose parent is `rank`."""
        return [child for child, parent in enumerate(self.parents) if parent == rank]

    @property
    def depth(self) -> int:
        """Return the number of edges from the root to the rank furthest from it."""

        def above(rank: int) -> int:
            parent = self.parents[rank]
            return 0 if parent is None else 1 + above(parent)

        return max(above(rank) for rank in range(len(self.parents)))


class Network:
    """The hosts of the workers, and the links between hosts and switches; loops are allowed.

    Args:
        hosts: name of each rank's host.
        links: two nodes and a rate in bit/s; None: no rate is set.
    """

    def __init__(
        self, hosts: Sequence[str], links: Sequence[tuple[str, str, float | None]]
    ) -> None:
        self.hosts = list(hosts)
        self.rates = {frozenset((a, b)): rate or MACHINE for a, b, rate in links}

    @classmethod
    def from_json(cls, text: str) -> Network:
        """Parse a network from the JSON that `iswitch run` puts into ISWITCH_NETWORK.

        Raises:
            ValueError: the text describes no network; the message shows the format.
        """
        try:
            said = json.loads(text)
            links = [(a, b, None if rate is None else float(rate)) for a, b, rate in said["links"]]
            names = [*said["hosts"], *(name for a, b, _ in links for name in (a, b))]
            if not all(isinstance(name, str) for name in names):
                raise ValueError("hosts and switches have names")
            if not all(rate is None or 0 < rate < inf for _, _, rate in links):
                raise ValueError("rates are bit/s, above 0")
            return cls(said["hosts"], links)
        except (ValueError, KeyError, TypeError, RecursionError, OverflowError) as error:
            raise ValueError(
                f"ISWITCH_NETWORK is no network ({error}): write "
                '{"hosts": ["h1", "h2"], "links": [["h1", "s1", 1e9], ["h2", "s1", null]]}'
            ) from None

    @cached_property
    def _paths(self) -> Mapping[str, Mapping[str, list[str]]]:
        import networkx

        graph = networkx.Graph([tuple(link) for link in self.rates])
        graph.add_nodes_from(self.hosts)
        return dict(networkx.all_pairs_shortest_path(graph))

    def path(self, source: int, target: int) -> list[Direction]:
        """Return the shortest path between two workers' hosts; empty on the same host.

        Raises:
            ValueError: the hosts are not connected.
        """
        here, there = self.hosts[source], self.hosts[target]
        if there not in self._paths[here]:
            raise ValueError(f"no links lead from {here} to {there}; mend the network's links")
        nodes = self._paths[here][there]
        return list(pairwise(nodes))


class Packing:
    """Finds the trees of a network and their rates."""

    def __init__(self, network: Network) -> None:
        self.size = len(network.hosts)
        self._links = list(network.rates)
        self._rates = np.array([network.rates[link] for link in self._links])
        numbers = {link: number for number, link in enumerate(self._links)}
        self._edges = list(combinations(range(self.size), 2))
        self._uses = np.zeros((len(self._edges), len(self._links)))  # 1: the edge uses the link
        for row, (a, b) in enumerate(self._edges):
            for direction in network.path(a, b):
                self._uses[row, numbers[frozenset(direction)]] += 1
        self._rows = {edge: row for row, edge in enumerate(self._edges)}

    def crossings(self, edges: Edges) -> Any:
        """Return the number of a tree's edges that go over each link, [links]."""
        return self._uses[[self._rows[edge] for edge in edges]].sum(axis=0)

    def fractional(self) -> dict[Edges, float]:
        """Find trees and their rates in bit/s, by multiplicative weights."""
        if not self._uses.any():  # all on one host
            return {self._cheapest(np.zeros(len(self._links))): MACHINE}
        count = len(self._links)
        delta = (1 + EPSILON) * ((1 + EPSILON) * count) ** (-1 / EPSILON)
        prices = delta / self._rates
        found: dict[Edges, float] = {}
        load = np.zeros(count)
        while self._rates @ prices < 1:
            edges = self._cheapest(prices)
            crossings = self.crossings(edges)
            used = crossings > 0
            rate = (self._rates[used] / crossings[used]).min()
            found[edges] = found.get(edges, 0.0) + rate
            load += rate * crossings
            prices *= 1 + EPSILON * rate * crossings / self._rates
        excess = (load / self._rates).max()
        return {edges: rate / excess for edges, rate in found.items()}

    def _cheapest(self, prices: Any) -> Edges:
        from scipy.sparse import csr_array
        from scipy.sparse.csgraph import minimum_spanning_tree

        costs = self._uses @ prices
        # SciPy ignores edges of cost 0. Adding a constant to all edges changes no choice.
        costs += costs[costs > 0].min(initial=1.0)
        columns, ends = np.array(self._edges)[:, 1], np.cumsum(range(self.size)[::-1])
        graph = csr_array((costs, columns, [0, *ends]), shape=(self.size, self.size))
        rows, columns = minimum_spanning_tree(graph).nonzero()
        return tuple(sorted(zip(rows.tolist(), columns.tolist(), strict=True)))

    def few(self, trees: Mapping[Edges, float]) -> dict[Edges, float]:
        """Return the fewest trees that reach ENOUGH times the best rate, with new rates."""
        from scipy.optimize import Bounds, LinearConstraint, milp

        kept = sorted(trees, key=lambda edges: -trees[edges])[:CANDIDATES]
        count = len(kept)
        # Rates in units of the fastest link. Each tree has two variables: its rate, and whether it
        # is used.
        unit = self._rates.max()
        rates = self._rates / unit
        crossings = np.array([self.crossings(edges) for edges in kept]).T
        room = LinearConstraint(crossings, ub=rates)
        best = milp(-np.ones(count), constraints=room)
        with np.errstate(divide="ignore"):
            most = np.min(rates[:, None] / crossings, axis=0)
        nothing = np.zeros_like(crossings)
        chosen = milp(
            np.repeat([0.0, 1.0], count),
            constraints=[
                LinearConstraint(np.hstack([crossings, nothing]), ub=rates),
                LinearConstraint(np.hstack([np.eye(count), -np.diag(most)]), ub=0.0),
                LinearConstraint(np.repeat([1.0, 0.0], count), lb=-ENOUGH * best.fun),
            ],
            integrality=np.repeat([0, 1], count),
            bounds=Bounds(0.0, np.repeat([np.inf, 1.0], count)),
            options={"time_limit": SECONDS, "presolve": False},
        )
        used = chosen.x[count:] > 0.5
        last = milp(-np.ones(count), constraints=room, bounds=Bounds(0.0, np.where(used, most, 0)))
        return {
            edges: float(rate * unit)
            for edges, rate in zip(kept, last.x, strict=True)
            if rate > 1e-9
        }


def pack(network: Network) -> list[Tree]:
    """Find a few trees that nearly fill the network; their shares add up to 1."""
    if len(network.hosts) == 1:
        return []
    packing = Packing(network)
    trees = packing.fractional()
    if len(trees) > 1:
        trees = packing.few(trees)
    total = sum(trees.values())
    size = len(network.hosts)
    return [rooted(edges, size, float(rate / total)) for edges, rate in trees.items()]


def rooted(edges: Edges, size: int, share: float) -> Tree:
    """Make a tree from edges, with its root in the middle.

    Args:
        edges: pairs of ranks.
        size: number of workers.
        share: fraction of the vector, 0 to 1.
    """
    import networkx

    graph = networkx.Graph(edges)
    root = min(networkx.center(graph))
    above = dict(networkx.bfs_predecessors(graph, root))
    return Tree(tuple(above.get(rank) for rank in range(size)), share)


def lacks() -> str:
    """Say what this machine lacks for packing trees, and how to get it; "" if nothing."""
    return lacking("tree", ["networkx", "scipy"], [], extra("tree"))


def packed(said: str) -> list[Tree]:
    """Run `pack` for a network in JSON in a separate process; return its trees.

    Raises:
        ValueError: the text describes no network, or packing failed.
        Unavailable: networkx or SciPy is not installed.
    """
    Network.from_json(said)
    if missing := lacks():
        raise Unavailable(missing)
    done = subprocess.run(
        [sys.executable, "-P", "-m", "worker_lib.strategies.packing"],
        input=said,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    if done.returncode:
        raise ValueError(done.stderr.strip().splitlines()[-1])
    lines = done.stdout.splitlines()
    return [Tree(tuple(parents), share) for parents, share in json.loads(lines[-1])]


def main() -> int:
    """Pack the network from standard input; return the exit status."""
    try:
        trees = pack(Network.from_json(sys.stdin.read()))
    except ValueError as error:
        print(error, file=sys.stderr)
        return 1
    print("\n" + json.dumps(trees))  # what the solver prints may end in no newline
    return 0


if __name__ == "__main__":
    sys.exit(main())
