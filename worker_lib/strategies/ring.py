"""A ring: scatter-reduce, then all-gather, over TCP between neighbours.

The vector is cut into as many chunks as there are workers. In step s of 2(N - 1), rank r sends
chunk r - s to rank r + 1 and receives chunk r - s - 1 from rank r - 1 (modulo N). In the first half
of the steps it adds the received chunk to its own, after which each rank has the sum of one chunk.
In the second half these sums go round the ring. So every chunk is summed once, in the order of the
ring, and all ranks get equal bits.

No rank waits for a whole step: it forwards each piece of a chunk (1 MiB) as soon as it has added
it.

Cost, for X bytes: 2(N - 1) steps. In each step every rank sends X / N to the next rank, up to one
element more or less, in total 2X(N - 1)/N. This is the minimum without a switch that adds
(Patarasuk and Yuan, JPDC 2009). Baidu's and Horovod's allreduce work in this way.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .base import F32, TIMEOUT, Vector, bounds, check_piece, pieces
from .cost import Cost, Node
from .rendezvous import Meeting
from .tcp import Connected, Connection, accept, connect, doors

PIECE = 1 << 20  # bytes of a piece: small pieces cost more wakeups, large ones longer waits


class Ring(Connected):
    """A member of a ring of TCP connections.

    Args:
        meeting: the result of the rendezvous.
        numel: elements of every vector.
        connections: those from the previous rank and to the next; empty for a single worker.
        most: largest number of elements in a piece.
    """

    def __init__(
        self, meeting: Meeting, numel: int, connections: Sequence[Connection], most: int
    ) -> None:
        rank, num_workers, _ = meeting
        super().__init__(meeting, numel, connections, steps=2 * (num_workers - 1))
        ends = bounds(numel, num_workers)
        chunks = [pieces(ends[i], ends[i + 1], most) for i in range(num_workers)]
        self._first = chunks[rank]
        # Pieces in order of receipt; whether to add each, and whether to forward it.
        self._plan = [
            (part, step < num_workers - 1, step < self._steps - 1)
            for step in range(self._steps)
            for part in chunks[(rank - step - 1) % num_workers]
        ]
        self._scratch = np.empty(min(most, -(-numel // num_workers)), np.float32)

    def allreduce(self, vector: Vector) -> Vector:
        """Sum in place, each chunk in the order of the ring."""
        with self.calling(vector):
            if self._connections:
                self._go_round(vector)
        return vector

    def _go_round(self, vector: Vector) -> None:
        previous, following = self._connections
        for part in self._first:
            following.send(vector[part])
        for part, adds, passes in self._plan:
            own = vector[part]
            if adds:
                came = self._scratch[: own.size]
                previous.receive(came, following)
                np.add(own, came, out=own)
            else:
                previous.receive(own, following)
            if passes:
                following.send(own)
        following.drain()


def cost(numel: int, num_workers: int) -> Cost:
    """Return the cost of a float32 allreduce."""
    ends = bounds(numel, num_workers)
    sizes = [F32 * (ends[i + 1] - ends[i]) for i in range(num_workers)]
    steps = 2 * (num_workers - 1)
    flows: dict[tuple[Node, Node], int] = {
        (rank, (rank + 1) % num_workers): sum(
            sizes[(rank - step) % num_workers] for step in range(steps)
        )
        for rank in range(num_workers)
    }
    return Cost(steps, flows if num_workers > 1 else {})


def join(numel: int, *, timeout: float = TIMEOUT, piece: int = PIECE) -> Ring:
    """Join the ring of RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT.

    Args:
        numel: elements of every vector.
        timeout: seconds for all workers to come, and then of silence.
        piece: bytes that are added and forwarded at a time.

    Raises:
        ValueError: a variable is missing or wrong, or an argument is out of range.
        RendezvousError: a worker did not come.
        PeerLost, PeerSilent: a neighbour did not connect.
    """
    most = check_piece(piece)
    with doors(f"a ring of {numel} elements", 1, timeout) as (found, door):
        rank, size, told = found
        connections = []
        if size > 1:
            after, before = (rank + 1) % size, (rank - 1) % size
            following = connect(told[after], rank, 0, f"rank {after}", timeout)
            connections = [*accept(door, {(before, 0)}, timeout).values(), following]
    return Ring(found, numel, connections, most)
