"""Trees: reduce to the root, then broadcast, over several spanning trees at once, over TCP.

Each tree carries a share of the vector; `packing` chooses trees and shares that make the most of
the links, whatever their rates. A worker sends a piece (`tcp.PIECE`) up as soon as it has added
the pieces of all children, and the root sends its sum down at once. Every element is summed along
one tree, so all ranks get equal bits.

The links are given in ISWITCH_NETWORK, which `iswitch run` sets, or in `network`. By default all
workers are at one switch, with equal links.

Cost, for X bytes: twice the depth of the deepest tree, in steps. Each edge of a tree carries the
tree's share of X up and down once, so a worker sends X times the sum, over the trees, of share
times neighbours. With equal links at one switch that is 2X(N - 1)/N for each worker, as in a ring,
in only 2 to N steps.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from .base import F32, TIMEOUT, Vector, check_piece, pieces
from .cost import Cost, Node
from .errors import RendezvousError, Unavailable
from .packing import Network, Tree, lacks, packed
from .rendezvous import Meeting, meet
from .tcp import PIECE, Connected, Connection, accept, connect, doors, wait

__all__ = ["Trees", "cost", "join", "lacks"]

NETWORK = "ISWITCH_NETWORK"
PACKING = 60.0  # extra seconds to wait for rank 0 while it packs trees


class Branch:
    """A worker's place in one tree: adds pieces from its children and forwards them.

    Args:
        parts: the pieces of the tree's share, as slices of the vector.
        above: connection to the parent; None at the root.
        below: connections to the children.
    """

    def __init__(
        self, parts: Sequence[slice], above: Connection | None, below: Sequence[Connection]
    ) -> None:
        self.parts = parts
        self.above = above
        self.below = below

    def begin(self) -> None:
        """Prepare for the next vector."""
        self._added = [0] * len(self.parts)

    def leaf_sends(self, vector: Vector) -> None:
        """Send the whole share up if this worker is a leaf, since it waits for no child."""
        if not self.below and self.above is not None:
            for part in self.parts:
                self.above.send(vector[part])

    def add(self, number: int, came: Vector, vector: Vector) -> None:
        """Add a child's piece to the vector; forward it if it was the last child's.

        Args:
            number: number of the piece.
            came: the child's values, float32, as long as the piece.
            vector: this worker's vector, float32 [numel].
        """
        own = vector[self.parts[number]]
        np.add(own, came, out=own)
        self._added[number] += 1
        if self._added[number] == len(self.below):
            if self.above is not None:
                self.above.send(own)
            else:
                self.pass_down(number, vector)

    def pass_down(self, number: int, vector: Vector) -> None:
        """Send a finished piece to all children."""
        for child in self.below:
            child.send(vector[self.parts[number]])


class Stream:
    """Receives pieces over one connection, in order.

    Args:
        branch: handles complete pieces.
        connection: connection to a child or the parent.
        from_below: true: pieces come from a child and are added; false: they are sums from the
            parent.
    """

    def __init__(self, branch: Branch, connection: Connection, from_below: bool) -> None:
        self.connection = connection
        self._branch = branch
        self._from_below = from_below
        most = max((part.stop - part.start for part in branch.parts), default=0)
        self._scratch = np.empty(most if from_below else 0, np.float32)

    def begin(self, vector: Vector) -> None:
        """Prepare to receive the pieces of the next vector, float32 [numel]."""
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
        """Return whether all pieces have arrived."""
        return self._number == len(self._branch.parts)

    def read(self) -> bool:
        """Receive available bytes and handle complete pieces; return whether any byte arrived."""
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


class Trees(Connected):
    """A member of all trees.

    Args:
        meeting: the result of the rendezvous.
        numel: elements of every vector.
        trees: the trees with their shares.
        branches: this worker's place in each tree.
    """

    def __init__(
        self, meeting: Meeting, numel: int, trees: Sequence[Tree], branches: list[Branch]
    ) -> None:
        self.trees = trees
        self._branches = branches
        self._streams = [
            Stream(branch, connection, connection is not branch.above)
            for branch in branches
            for connection in (*branch.below, *([branch.above] if branch.above else []))
        ]
        connections = [stream.connection for stream in self._streams]
        super().__init__(meeting, numel, connections, steps=cost(numel, trees).steps)

    def allreduce(self, vector: Vector) -> Vector:
        """Sum in place; each node of a tree adds in order of arrival."""
        with self.calling(vector):
            for branch in self._branches:
                branch.begin()
            for stream in self._streams:
                stream.begin(vector)
            for branch in self._branches:
                branch.leaf_sends(vector)
            self._move()
        return vector

    def _move(self) -> None:
        """Move pieces until all have arrived and none is unsent."""
        while True:
            moved = [stream.read() for stream in self._streams]
            unsent = [connection for connection in self._connections if not connection.flush()]
            open_ = [stream.connection for stream in self._streams if not stream.done]
            if not open_ and not unsent:
                return
            if not any(moved):
                wait(open_, unsent, self._connections[0].timeout)

    def stats(self) -> dict[str, Any]:
        """Return the counts of `Connected.stats`, and the trees."""
        return {**super().stats(), "trees": [tree._asdict() for tree in self.trees]}


def shares(numel: int, trees: Sequence[Tree]) -> list[slice]:
    """Return the slice of a vector that each tree carries."""
    ends = [0, *(round(numel * end) for end in np.cumsum([tree.share for tree in trees]))]
    ends[-1] = numel if trees else 0
    return [slice(ends[i], ends[i + 1]) for i in range(len(trees))]


def cost(numel: int, trees: Sequence[Tree]) -> Cost:
    """Return the cost of a float32 allreduce over these trees."""
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
        timeout: seconds for all workers to come, and then of silence.
        network: hosts and links, as JSON like ISWITCH_NETWORK; only rank 0's counts.
        piece: bytes that are added and forwarded at a time.

    Raises:
        ValueError: a variable is missing or wrong, an argument is out of range, or the network is
            invalid.
        RendezvousError: a worker did not come, or rank 0 could not pack the trees.
        PeerLost, PeerSilent: a neighbour did not connect.
        Unavailable: networkx or SciPy is not installed, on rank 0.
    """
    most = check_piece(piece)
    said = network or os.environ.get(NETWORK)
    with doors(f"trees of {numel} elements", 64, timeout) as (found, door):
        rank = found.rank
        trees = _agreed(said, timeout)
        above: list[Connection | None] = []
        for number, tree in enumerate(trees):
            parent = tree.parents[rank]
            if parent is None:
                above.append(None)
            else:
                at = found.told[parent]
                above.append(connect(at, rank, number, f"rank {parent}", timeout))
        wanted = {(child, i) for i, tree in enumerate(trees) for child in tree.children(rank)}
        came = accept(door, wanted, timeout)
    branches = [
        Branch(
            pieces(part.start, part.stop, most),
            above[i],
            [came[child, i] for child in tree.children(rank)],
        )
        for i, (tree, part) in enumerate(zip(trees, shares(numel, trees), strict=True))
    ]
    return Trees(found, numel, trees, branches)


def _agreed(said: str | None, timeout: float) -> list[Tree]:
    """Return the trees that rank 0 packs; the others wait for them."""
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
