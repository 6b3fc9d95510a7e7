"""A replay buffer: keeps the latest transitions and draws batches of them at random."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from gymnasium.spaces import Discrete, Space
from torch import Tensor, from_numpy

from .envs import Array, Step


class Transitions(NamedTuple):
    """A batch: tensors [batch, ...]."""

    observations: Tensor
    actions: Tensor
    rewards: Tensor
    successors: Tensor
    terminated: Tensor  # float32: 1.0 where nothing follows


class Replay:
    """The last `capacity` transitions of one environment."""

    def __init__(self, capacity: int, envs: Array, action_space: Space[Any]) -> None:
        """Allocate an empty buffer.

        Args:
            capacity: transitions to keep.
            envs: observations [environments, ...], for their shape and dtype.
            action_space: space of the actions, for their shape and dtype.
        """
        shape, dtype = (capacity, *envs.shape[1:]), envs.dtype
        discrete = isinstance(action_space, Discrete)
        self._arrays = (
            np.empty(shape, dtype),
            np.empty((capacity, *(action_space.shape or ())), np.int64 if discrete else np.float32),
            np.empty(capacity, np.float32),
            np.empty(shape, dtype),
            np.empty(capacity, np.float32),
        )
        self._capacity = capacity
        self._count = 0  # ever added

    def __len__(self) -> int:
        return min(self._count, self._capacity)

    def add(self, observation: Array, action: Array, step: Step, rewards: Array) -> None:
        """Add the transition of one step of one environment; replace the oldest if full.

        Args:
            observation: observation before the step, [1, ...] as all below.
            action: the action taken.
            step: outcome of the step, except for its rewards.
            rewards: rewards to learn from.
        """
        at = self._count % self._capacity
        values = (observation, action, rewards, step.successors, step.terminated)
        for array, value in zip(self._arrays, values, strict=True):
            array[at] = value[0]
        self._count += 1

    def draw(self, size: int, rng: np.random.Generator) -> Transitions:
        """Draw `size` transitions, with replacement."""
        chosen = rng.integers(len(self), size=size)
        return Transitions(*(from_numpy(array[chosen]) for array in self._arrays))
