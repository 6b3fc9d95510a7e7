"""The arithmetic of federated rounds, in one process: who is picked, and weighted means.

A round over a switch computes the same: `weighted_mean` is the algorithm, not an approximation of
it, so its results equal those of a coordinator with `reproducible` to the last bit.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np

from iswitch.core.format.wire import Vector

EXACT = 1 << 24  # float32 holds all whole numbers up to this one


def picks(seed: int, number: int, num_workers: int, per_round: int) -> tuple[int, ...]:
    """Draw `per_round` of the ranks 0..num_workers-1 for a round; return them ascending.

    The draw depends on the seed and on the round's number alone, not on the rounds before.
    """
    draw = np.random.default_rng((seed, number))
    return tuple(sorted(int(r) for r in draw.choice(num_workers, per_round, replace=False)))


def weighted(weights: Vector, n: float) -> Vector:
    """Return n * weights, float32 [numel]: each product is rounded once."""
    product: Vector = np.multiply(weights, np.float32(n), dtype=np.float32)
    return product


def weighted_mean(
    contributions: Mapping[int, tuple[Vector, float]],
    racks: Collection[Collection[int]] = (),
) -> tuple[Vector, float]:
    """Return the weighted mean of some ranks' weights, and the sum of their n.

    All is float32, rounded to nearest even after every step: the products n_k * w_k, their sum and
    the sum of the n_k by ascending rank, and the quotient. Whole n_k that sum up to 2^24 at most
    are added without rounding.

    Args:
        contributions: (weights, n) by rank; weights are float32 [numel], n is positive.
        racks: ranks of each rack of a two-level tree; their sums are added by lowest rank.

    Returns:
        the mean, float32 [numel], and n.

    Raises:
        ValueError: there are no contributions.
    """
    if not contributions:
        raise ValueError("contributions is empty: a mean needs at least one rank's weights")
    parts = {rank: (weighted(*one), np.float32(one[1])) for rank, one in contributions.items()}
    if racks:
        inside = {min(rack): [r for r in rack if r in parts] for rack in racks}
        parts = {
            first: _summed({rank: parts[rank] for rank in own})
            for first, own in inside.items()
            if own
        }
    total, n = _summed(parts)
    return mean(total, float(n)), float(n)


def _summed(parts: Mapping[int, tuple[Vector, np.float32]]) -> tuple[Vector, np.float32]:
    """Return the sums of vectors and of numbers, by ascending rank."""
    first, *others = sorted(parts)
    total, n = parts[first][0].copy(), parts[first][1]
    for rank in others:
        total += parts[rank][0]
        n += parts[rank][1]
    return total, n


def mean(total: Vector, n: float) -> Vector:
    """Return total / n, float32 [numel]."""
    quotient: Vector = np.divide(total, np.float32(n), dtype=np.float32)
    return quotient
