"""What a model is: parameters in one flat vector, trained and measured."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from .data import Floats, Samples

Order: TypeAlias = NDArray[np.int64]


class Steps(NamedTuple):
    """How a device trains.

    Attributes:
        rate: learning rate.
        mu: weight of the proximal term, mu/2 |w - w_global|^2; 0: none.
        batch: samples in a step; the last step of an epoch takes the rest.
    """

    rate: float = 0.01
    mu: float = 0.0
    batch: int = 10


class Measure(NamedTuple):
    """What a model is at some samples: mean loss, its gradient float64 [numel], correct answers."""

    loss: float
    gradient: NDArray[np.float64]
    correct: int


class Model(Protocol):
    """A model whose parameters are one flat float32 vector."""

    numel: int

    def start(self, seed: int) -> Floats:
        """Draw the first parameters, float32 [numel]."""

    def solve(
        self, weights: Floats, samples: Samples, orders: Iterable[Order], steps: Steps
    ) -> Floats:
        """Train from `weights`, an epoch for each order of the samples; return new parameters.

        A step is w -= rate (g + mu (w - weights)), where g is the gradient of the mean loss of its
        batch. Equal arguments give equal bits on one machine.
        """

    def measure(self, weights: Floats, samples: Samples) -> Measure:
        """Measure the model at samples; there must be some."""
