"""The base of the learners of all algorithms."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import nn

from .envs import Envs
from .flat import Vector, bind


class Learner(ABC):
    """Plays one worker's environments and computes gradients, with its own random numbers.

    Args:
        network: reads its weights from `model`, and adds its gradients to `gradient`.
        envs: this worker's environments.
        settings: the algorithm's `Settings`.
        seed: seeds the random numbers; differs between workers.
        model: flat float32 vectors: the weights, and the target network's weights if any.
        gradient: flat float32 vector, as long as the weights.

    Attributes:
        returns: undiscounted return of every finished episode.
    """

    def __init__(
        self,
        network: nn.Module,
        envs: Envs,
        settings: Any,
        seed: int,
        model: list[Vector],
        gradient: Vector,
    ) -> None:
        self.settings, self.envs = settings, envs
        self.returns = envs.returns
        self._network: Any = network
        self._gradient = gradient
        self._rng: Any = torch.Generator().manual_seed(seed)
        bind(network, model[0], gradient)

    def prepare(self) -> None:  # noqa: B027 (most algorithms need none)
        """Play the steps that the algorithm needs before its first gradient; by default none."""

    @abstractmethod
    def gradient(self) -> None:
        """Play, then write a gradient to the vector given at construction."""
