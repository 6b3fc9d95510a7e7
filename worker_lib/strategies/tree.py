"""Trees: reduce to the root, then broadcast, over several spanning trees at once, over TCP.

Each tree carries its share of the vector (`packing`): so many trees, and such shares, as make the
most of the links, whatever their rates are. In a tree a piece (`tcp.PIECE`) goes up as soon as all
children's have been added to it, and down from the root at once; every element is added up at its
tree's nodes only, so all ranks get the same bits.

Which links there are is in ISWITCH_NETWORK, which `iswitch run` sets, or in `network`; without
either, all workers hang at one switch with equal links.

Cost, for X bytes: as many steps as twice the depth of the deepest tree. Over each edge of a tree
its share of X goes up and down once: from a worker, X times the sum of shares times its neighbours.
With equal links at one switch that is 2X(N - 1)/N for all, as in a ring, in as few steps as 2 to N.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from . import Vector
from .base import F32, TIMEOUT, Base, check_piece, pieces
from .cost import Cost, Node
from .errors import RendezvousError, Unavailable
from .packing import Network, Tree, lacks, packed
from .rendezvous import meet
from .tcp import PIECE, Connection, accept, connect, doors, wait

__all__ = ["Trees", "cost", "join", "lacks"]

NETWORK = "ISWITCH_NETWORK"
PACKING = 60.0  # seconds more to wait for rank 0, which packs then


class Branch:
    """A worker's place in one tree: what comes from where, and where it goes on to.

    Args:
        parts: the pieces of the tree's share.
        above: the parent, None at the root.
        below: the children.
    """

    def __init__(
        self, parts: Sequence[slice], above: Connection | None, below: Sequence[Connection]
    ) -> None:
        self.parts = parts
        self.above = above
        self.below = below

    def begin(self) -> None:
        """Before each vector."""
        self._added = [0] * len(self.parts)

    def leaf_sends(self, vector: Vector) -> None:
        """What waits for nobody."""
        if not self.below and self.above is not None:
            for part in self.parts:
                self.above.send(vector[part])

    def add(self, number: int, came: Vector, vector: Vector) -> None:
        """A piece has come from a child."""
        own = vector[self.parts[number]]
        np.add(own, came, out=own)
        self._added[number] += 1
        if self._added[number] == len(self.below):
            if self.above is not None:
                self.above.send(own)
            else:
                self.pass_down(number, vector)

    def pass_down(self, number: int, vector: Vector) -> None:
        """A piece is the sum."""
        for child in self.below:
            child.send(vector[self.parts[number]])


class Stream:
    """Pieces that come over a connection, one after the other.

    Args:
        branch: where they belong.
        connection: where they come from.
        from_below: they are a child's, to be added; else sums.
    """

    def __init__(self, branch: Branch, connection: Connection, from_below: bool) -> None:
        self.connection = connection
        self._branch = branch
        self._from_below = from_below
        most = max((part.stop - part.start for part in branch.parts), default=0)
        self._scratch = np.empty(most if from_below else 0, np.float32)

    def begin(self, vector: Vector) -> None:
        """Before each vector."""
        self._vector = vector
        self._number = -1
        self._next()

    def _next(self) -> None:
        self._number += 1
        if self.done:
            return
        part = self._branch.parts[self._number]
        size = part.stop - part.start
        self._came = self._scratch[:size] if self._from_below else self._vector[part]
        self._view = self._came.data.cast("B")

    @property
    def done(self) -> bool:
        """Whether all pieces have come."""
        return self._number == len(self._branch.parts)

    def read(self) -> bool:
        """Take what is there; whether there was anything."""
        moved = False
        while not self.done and (got := self.connection.take(self._view)):
            moved = True
            self._view = self._view[got:]
            if not self._view:
                if self._from_below:
                    self._branch.add(self._number, self._came, self._vector)
                else:
                    self._branch.pass_down(self._number, self._vector)
                self._next()
        return moved


class Trees(Base):
    """A worker in all trees."""

    def __init__(
        self, rank: int, num_workers: int, numel: int, trees: Sequence[Tree], branches: list[Branch]
    ) -> None:
        super().__init__(rank, num_workers, numel)
        self.trees = trees
        self._branches = branches
        self._streams = [
            Stream(branch, connection, connection is not branch.above)
            for branch in branches
            for connection in (*branch.below, *([branch.above] if branch.above else []))
        ]
        self._connections = [stream.connection for stream in self._streams]
        self._steps = cost(numel, trees).steps

    def allreduce(self, vector: Vector) -> Vector:
        """Add up, at each node of a tree in order of arrival."""
        self.check(vector)
        self.rounds += 1
        for branch in self._branches:
            branch.begin()
        for stream in self._streams:
            stream.begin(vector)
        for branch in self._branches:
            branch.leaf_sends(vector)
        while True:
            moved = [stream.read() for stream in self._streams]
            unsent = [connection for connection in self._connections if not connection.flush()]
            open_ = [stream.connection for stream in self._streams if not stream.done]
            if not open_ and not unsent:
                return vector
            if not any(moved):
                wait(open_, unsent, self._connections[0].timeout)

    def close(self) -> None:
        """Leave, which breaks the trees."""
        for connection in self._connections:
            connection.close()

    def stats(self) -> dict[str, Any]:
        """Rounds, trees, and of all rounds together: steps, and bytes to and from neighbours."""
        return {
            "rounds": self.rounds,
            "steps": self.rounds * self._steps,
            "trees": [tree._asdict() for tree in self.trees],
            "bytes_sent": sum(connection.sent for connection in self._connections),
            "bytes_received": sum(connection.received for connection in self._connections),
        }


def shares(numel: int, trees: Sequence[Tree]) -> list[slice]:
    """The part of a vector that each tree carries."""
    ends = [0, *(round(numel * end) for end in np.cumsum([tree.share for tree in trees]))]
    ends[-1] = numel if trees else 0
    return [slice(ends[i], ends[i + 1]) for i in range(len(trees))]


def cost(numel: int, trees: Sequence[Tree]) -> Cost:
    """What an allreduce of float32 takes."""
    flows: dict[tuple[Node, Node], int] = {}
    for tree, part in zip(trees, shares(numel, trees), strict=True):
        for rank, parent in enumerate(tree.parents):
            if parent is not None and part.stop > part.start:
                for ends in ((rank, parent), (parent, rank)):
                    flows[ends] = flows.get(ends, 0) + F32 * (part.stop - part.start)
    return Cost(2 * max((tree.depth for tree in trees), default=0), flows)


def join(
    numel: int, *, timeout: float = TIMEOUT, network: str | None = None, piece: int = PIECE
) -> Trees:
    """Join the trees of RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT.

    Args:
        numel: elements of every vector.
        timeout: seconds for all to come, and then of silence.
        network: hosts and links, as in ISWITCH_NETWORK; rank 0's is taken.
        piece: bytes that go on as one.

    Raises:
        ValueError: the environment lacks what it needs, the network is none, or an argument
            cannot be.
        RendezvousError: not all have come, or rank 0 could not pack.
        Unavailable: networkx or SciPy is not installed, on rank 0.
    """
    most = check_piece(piece)
    said = network or os.environ.get(NETWORK)
    with doors(f"trees of {numel} elements", 64, timeout) as (found, door):
        rank, size = found.rank, found.num_workers
        trees = _agreed(said, timeout)
        above: list[Connection | None] = []
        for number, tree in enumerate(trees):
            parent = tree.parents[rank]
            if parent is None:
                above.append(None)
            else:
                at = found.told[parent]
                above.append(connect(at, rank, number, f"rank {parent}", timeout))
        expected = {(child, i) for i, tree in enumerate(trees) for child in tree.children(rank)}
        came = accept(door, expected, timeout)
    branches = [
        Branch(
            pieces(part.start, part.stop, most),
            above[i],
            [came[child, i] for child in tree.children(rank)],
        )
        for i, (tree, part) in enumerate(zip(trees, shares(numel, trees), strict=True))
    ]
    return Trees(rank, size, numel, trees, branches)


def _agreed(said: str | None, timeout: float) -> list[Tree]:
    """What rank 0 packs, when all have come; the others wait for it."""
    faults: list[Exception] = []

    def tell(_: str) -> Any:
        if os.environ["RANK"] != "0":
            return None
        try:
            return _trees(said), None
        except (ValueError, Unavailable) as error:
            faults.append(error)
            return None, str(error)

    own = timeout if os.environ["RANK"] == "0" else timeout + PACKING
    trees, fault = meet("the trees", tell, own).told[0]
    if faults:
        raise faults[0]
    if fault:
        raise RendezvousError(f"rank 0 could not pack trees: {fault}")
    return [Tree(tuple(parents), share) for parents, share in trees]


def _trees(said: str | None) -> list[Tree]:
    size = int(os.environ["WORLD_SIZE"])
    hosts = [f"h{rank + 1}" for rank in range(size)]
    star = {"hosts": hosts, "links": [(host, "s1", None) for host in hosts]}
    said = said or json.dumps(star)
    known = len(Network.from_json(said).hosts)
    if known != size:
        raise ValueError(
            f"the network has hosts for {known} workers, and WORLD_SIZE is {size}; name a host for "
            f"each, in {NETWORK} or network=..."
        )
    return packed(said)
