"""What all workers of a training have in common, and how a mean gradient changes it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from torch import nn

from .flat import Adam, Vector, clip, weights_of

Follow: TypeAlias = Callable[[Vector, Vector, int], None]


class Updater:
    """The weights and all that an update reads and writes, as arrays.

    Equal states and equal mean gradients give equal states, to the last bit. So workers that begin
    alike and get the same means stay alike, target networks included.

    Args:
        network: its parameters are the first weights.
        rates: learning rates as `Adam.step` takes them.
        max_norm: a longer mean gradient is scaled down to this Euclidean norm.
        anneal: updates until the learning rate has fallen to zero; None: it stays.
        follow: called after every update with the weights, the weights of the target network, to
            be changed in place, and the number of updates; None: there is no target network.

    Attributes:
        state: the weights, those of the target network if there is one, then what belongs to Adam,
            and the number of updates; they are changed in place only.
        model: the first one or two of them: what a gradient is computed from.
    """

    def __init__(
        self,
        network: nn.Module,
        rates: Sequence[tuple[int, float]],
        *,
        max_norm: float | None = None,
        anneal: int | None = None,
        follow: Follow | None = None,
    ) -> None:
        self.weights = weights_of(network)
        self.model = [self.weights] if follow is None else [self.weights, self.weights.copy()]
        self._rates, self._max_norm, self._anneal, self._follow = rates, max_norm, anneal, follow
        self._adam = Adam(self.weights.size)
        self._updates = np.zeros(1, np.int64)
        self.state: list[NDArray[Any]] = [*self.model, *self._adam.state, self._updates]

    @property
    def updates(self) -> int:
        """How many there were."""
        return int(self._updates[0])

    def update(self, mean: Vector) -> None:
        """Move the weights against the mean gradient, which may be written to: clip, then Adam."""
        if self._max_norm is not None:
            clip(mean, self._max_norm)
        left = 1.0 if self._anneal is None else max(0.0, 1 - self.updates / self._anneal)
        self._adam.step(self.weights, mean, [(stop, rate * left) for stop, rate in self._rates])
        self._updates += 1
        if self._follow is not None:
            weights, target = self.model
            self._follow(weights, target, self.updates)
