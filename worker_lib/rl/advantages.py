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
    """Estimate the advantages of consecutive steps; return float32 [steps, environments].

    Args:
        rewards: reward of each step, [steps, environments] as all below.
        values: value of the state in which each step began.
        beyond: value of the state to which each step led; 0 where nothing follows.
        ended: true where an episode or the rollout ended, so that the next row did not follow.
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
