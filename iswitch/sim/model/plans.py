"""What workers send to each other in an allreduce by parameter servers, trees and rings.

The sizes and the order of messages are those of `worker_lib.strategies`.
"""

from __future__ import annotations

from collections.abc import Sequence

from worker_lib.strategies.base import F32, bounds, check_piece, pieces
from worker_lib.strategies.packing import Tree
from worker_lib.strategies.ps_group import HEADER
from worker_lib.strategies.ps_table import BLOCK
from worker_lib.strategies.ring import PIECE as RING_PIECE
from worker_lib.strategies.tcp import PIECE
from worker_lib.strategies.tree import shares

from .messages import Message, Stream


def chunks(numel: int, workers: int) -> list[list[int]]:
    """Return the bytes of the pieces of each chunk that goes round a ring."""
    ends, most = bounds(numel, workers), check_piece(RING_PIECE)
    return [
        [F32 * (part.stop - part.start) for part in pieces(ends[i], ends[i + 1], most)]
        for i in range(workers)
    ]


def ring(numel: int, workers: int) -> list[Stream]:
    """Plan a ring: each worker forwards what comes from the one before it."""
    parts = chunks(numel, workers)
    steps = range(2 * (workers - 1))
    first: list[list[int]] = []  # message of each worker's steps
    count = 0
    for rank in range(workers):
        first.append([])
        for step in steps:
            first[rank].append(count)
            count += len(parts[(rank - step) % workers])
    return [
        Stream(
            rank,
            (rank + 1) % workers,
            [
                Message(size, [(first[rank - 1][step - 1] + i, size)] if step else ())
                for step in steps
                for i, size in enumerate(parts[(rank - step) % workers])
            ],
        )
        for rank in range(workers if workers > 1 else 0)
    ]


def ps(numel: int, workers: int, servers: int = 1, first: int = 0) -> list[Stream]:
    """Plan parameter servers: a push to each, answered block by block.

    Args:
        numel: elements of the vector.
        workers: how many, on the hosts from 0 on.
        servers: how many, on the hosts from `first` on; by default beside the first workers.
        first: the host of the first server.
    """
    ends = bounds(numel, servers)
    pushes: list[Stream] = []
    answers: list[Stream] = []
    for server in range(servers):
        start, stop = ends[server], ends[server + 1]
        if start == stop:
            continue
        size = F32 * (stop - start)
        pushed = range(len(pushes), len(pushes) + workers)  # one message each
        at = first + server
        pushes += [Stream(rank, at, [Message(HEADER.size + size)]) for rank in range(workers)]
        blocks = pieces(start, stop, BLOCK)
        sums = [
            Message(
                F32 * (block.stop - block.start),
                [(push, HEADER.size + F32 * (block.stop - start)) for push in pushed],
                of_worker=False,
            )
            for block in blocks
        ]
        answers += [Stream(at, rank, sums) for rank in range(workers)]
    return pushes + answers


def tree(numel: int, trees: Sequence[Tree]) -> list[Stream]:
    """Plan packed spanning trees: pieces go up as they are summed, and down from the roots.

    A worker that begins late sends first what it has as a leaf, then what it can tree by tree.
    """
    most = check_piece(PIECE)
    branches = [
        [F32 * (one.stop - one.start) for one in pieces(part.start, part.stop, most)]
        for part in shares(numel, trees)
    ]
    edges = [
        (number, child, parent)
        for number, packed in enumerate(trees)
        for child, parent in enumerate(packed.parents)
        if parent is not None
    ]
    first: dict[tuple[int, int, bool], int] = {}  # by tree, child, and whether it goes up
    count = 0
    for up in (True, False):
        for number, child, _ in edges:
            first[number, child, up] = count
            count += len(branches[number])

    def message(number: int, child: int, parent: int, up: bool, i: int) -> Message:
        packed, size = trees[number], branches[number][i]
        source = child if up else parent
        below = packed.children(source)
        if up or packed.parents[source] is None:
            after = [(first[number, one, True] + i, size) for one in below]
        else:
            after = [(first[number, source, False] + i, size)]
        return Message(size, after, turn=(int(not up or bool(below)), number, i))

    return [
        Stream(
            child if up else parent,
            parent if up else child,
            [message(number, child, parent, up, i) for i in range(len(branches[number]))],
        )
        for up in (True, False)
        for number, child, parent in edges
    ]
