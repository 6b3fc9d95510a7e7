"""The vectors that workers contribute, and what a collective makes of them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from worker_lib.strategies.base import Vector
from worker_lib.strategies.collectives import ROOT, sizes

from .plan import ALLREDUCE, BARRIER


def given(rank: int, numel: int) -> Vector:
    """Draw the vector of a rank: whole numbers; sums of 64 are exact in float32, in any order."""
    return np.random.default_rng(rank).integers(-9, 9, numel).astype(np.float32)


def exact(collective: str, numel: int, workers: int, rank: int) -> Vector | None:
    """Return the exact result of a rank; None: it gets nothing.

    Args:
        collective: the collective.
        numel: elements of the whole vector, unless in an allreduce a multiple of the workers.
        workers: the number of workers.
        rank: the rank.
    """
    everyone = range(workers)
    if collective == BARRIER:
        return None
    if collective == ALLREDUCE:
        return _sum(numel, workers)
    own = slice(rank * numel // workers, (rank + 1) * numel // workers)
    match collective:
        case "gather" | "reduce" if rank != ROOT:
            return None
        case "reduce":
            return _sum(numel, workers)
        case "reduce_scatter":
            return _sum(numel, workers)[own]
        case "broadcast":
            return given(ROOT, numel)
        case "scatter":
            return given(ROOT, numel)[own]
        case "all_to_all":
            return _joined((given(other, numel)[own].copy() for other in everyone), numel)
    gives = [sizes(collective, numel, workers, other)[0] for other in everyone]
    return _joined((given(other, n) for other, n in zip(everyone, gives, strict=True)), numel)


def _joined(blocks: Iterator[Vector], numel: int) -> Vector:
    """Join blocks as they are drawn, so that they are not there twice."""
    found, at = np.empty(numel, np.float32), 0
    for block in blocks:
        found[at : at + len(block)] = block
        at += len(block)
    return found


def _sum(numel: int, workers: int) -> Vector:
    total = np.zeros(numel, np.float32)
    for other in range(workers):
        total += given(other, numel)
    return total
