"""Keeps the state that all workers of a training share, and changes it by mean gradients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from torch import nn

from .flat import Adam, Vector, clip, numel_of, weights_of

Follow: TypeAlias = Callable[[Vector, Vector, int], None]


class Updater:
    """Updates the weights with mean gradients; holds all arrays that an update reads and writes.

    Equal states and equal mean gradients give equal states, to the last bit. So workers that begin
    with equal states and get equal means keep equal states, target networks included.

    Args:
        network: its parameters are copied as the first weights.
        rates: pairs (stop, learning rate), see `Adam.step`.
        max_norm: Euclidean norm to which longer mean gradients are scaled; None: no limit.
        anneal: updates until the learning rates have fallen to zero; None: they are constant.
        follow: called after every update as `follow(weights, target, updates)` to change the
            target network's weights in place; None: there is no target network.

    Attributes:
        state: arrays, changed only in place: the weights, the target network's weights if any,
            Adam's arrays, and the number of updates.
        model: the arrays of `state` from which gradients are computed: the weights, and the target
            network's weights if any.
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
        """Return the number of updates done."""
        return int(self._updates[0])

    def update(self, mean: Vector) -> None:
        """Clip the mean gradient, in place, and move the weights against it by a step of Adam."""
        if self._max_norm is not None:
            clip(mean, self._max_norm)
        left = 1.0 if self._anneal is None else max(0.0, 1 - self.updates / self._anneal)
        self._adam.step(self.weights, mean, [(stop, rate * left) for stop, rate in self._rates])
        self._updates += 1
        if self._follow is not None:
            weights, target = self.model
            self._follow(weights, target, self.updates)


def annealed(network: nn.Module, settings: Any, iterations: int) -> Updater:
    """Make an Adam updater whose learning rate falls linearly to zero over `iterations`.

    Args:
        network: its parameters are the first weights.
        settings: an algorithm's, with `learning_rate` and `max_norm`.
        iterations: updates of the training.
    """
    rates = [(numel_of(network), settings.learning_rate)]
    return Updater(network, rates, max_norm=settings.max_norm, anneal=iterations)
