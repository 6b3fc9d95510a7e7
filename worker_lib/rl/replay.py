"""A replay buffer, which draws batches of the latest transitions at random, and its learners."""

from __future__ import annotations

import copy
from abc import abstractmethod
from typing import Any, NamedTuple

import numpy as np
from gymnasium.spaces import Discrete, Space
from torch import Tensor, from_numpy, nn

from .envs import Array, Envs, Step
from .flat import Vector, bind
from .learner import Learner


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


class ReplayLearner(Learner):
    """Plays one environment, and learns from its replay buffer with a target network."""

    def __init__(
        self,
        network: nn.Module,
        envs: Envs,
        settings: Any,
        seed: int,
        model: list[Vector],
        gradient: Vector,
    ) -> None:
        super().__init__(network, envs, settings, seed, model, gradient)
        self._target: Any = copy.deepcopy(network)
        bind(self._target, model[1])
        self._rng = np.random.default_rng(seed)
        self._replay = Replay(settings.capacity, envs.observations, envs.action_space)

    def prepare(self) -> None:
        """Play random actions until the buffer holds `learning_starts` transitions."""
        while len(self._replay) < self.settings.learning_starts:
            self._play(at_random=True)

    @abstractmethod
    def _play(self, at_random: bool = False) -> None:
        """Take one step, by the policy or at random, and add it to the buffer."""
