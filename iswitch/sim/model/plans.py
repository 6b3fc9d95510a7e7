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


def ps(numel: int, workers: int, servers: int = 1) -> list[Stream]:
    """Plan parameter servers beside the first workers: a push to each, answered block by block."""
    ends = bounds(numel, servers)
    pushes: list[Stream] = []
    answers: list[Stream] = []
    for server in range(servers):
        start, stop = ends[server], ends[server + 1]
        if start == stop:
            continue
        size = F32 * (stop - start)
        pushed = range(len(pushes), len(pushes) + workers)  # one message each
        pushes += [Stream(rank, server, [Message(HEADER.size + size)]) for rank in range(workers)]
        blocks = pieces(start, stop, BLOCK)
        sums = [
            Message(
                F32 * (block.stop - block.start),
                [(push, HEADER.size + F32 * (block.stop - start)) for push in pushed],
                of_worker=False,
            )
            for block in blocks
        ]
        answers += [Stream(server, rank, sums) for rank in range(workers)]
    return pushes + answers


def tree(numel: int, trees: Sequence[Tree]) -> list[Stream]:
    """Plan packed spanning trees: pieces go up as they are summed, and down from the roots."""
    most = check_piece(PIECE)
    edges = []  # tree, child, parent, sizes
    for packed, part in zip(trees, shares(numel, trees), strict=True):
        sizes = [F32 * (one.stop - one.start) for one in pieces(part.start, part.stop, most)]
        found = [
            (child, parent) for child, parent in enumerate(packed.parents) if parent is not None
        ]
        edges += [(packed, child, parent, sizes) for child, parent in found]
    first: dict[tuple[int, int, int], int] = {}  # by tree, child, and 0: up, 1: down
    count = 0
    for way in (0, 1):
        for packed, child, _, sizes in edges:
            first[id(packed), child, way] = count
            count += len(sizes)

    def below(packed: Tree, rank: int, i: int, size: int) -> list[tuple[int, int]]:
        return [(first[id(packed), child, 0] + i, size) for child in packed.children(rank)]

    ups = [
        Stream(
            child,
            parent,
            [Message(size, below(packed, child, i, size)) for i, size in enumerate(sizes)],
        )
        for packed, child, parent, sizes in edges
    ]
    downs = [
        Stream(
            parent,
            child,
            [
                Message(
                    size,
                    below(packed, parent, i, size)
                    if packed.parents[parent] is None
                    else [(first[id(packed), parent, 1] + i, size)],
                )
                for i, size in enumerate(sizes)
            ],
        )
        for packed, child, parent, sizes in edges
    ]
    return ups + downs
