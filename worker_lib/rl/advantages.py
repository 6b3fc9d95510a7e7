"""Generalised advantage estimation (Schulman et al. 2016, arXiv:1506.02438)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float32]


def estimate(
    rewards: Array,
    values: Array,
    beyond: Array,
    ended: NDArray[np.bool_],
    discount: float,
    trace: float,
) -> Array:
    """Advantages [steps, environments], float32, of steps that were played one after the other.

    Args:
        rewards, values: of each step, and of the state it was taken in.
        beyond: the value of the state it led to; 0 where nothing follows.
        ended: the next row is not what followed: an episode has ended, or the rollout.
        discount: gamma, per step.
        trace: lambda; 1: n-step returns less the values.
    """
    surprises = rewards + np.float32(discount) * beyond - values
    advantages = np.empty_like(surprises)
    later = np.zeros_like(surprises[0])
    for t in reversed(range(len(surprises))):
        later = surprises[t] + np.float32(discount * trace) * later * ~ended[t]
        advantages[t] = later
    return advantages
