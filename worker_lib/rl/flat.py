"""The parameters of torch modules as flat vectors, and Adam on them.

The state that all workers share is NumPy arrays, which are sent, compared, saved and restored
directly. Modules hold views of these arrays.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, from_numpy, nn

Vector: TypeAlias = NDArray[np.float32]
Floats: TypeAlias = NDArray[np.floating[Any]]

BETA1, BETA2, EPSILON = 0.9, 0.999, 1e-8  # as in its paper
BLOCK = 1 << 15  # elements that Adam updates at a time, so that they stay in the cache


def weights_of(module: nn.Module) -> Vector:
    """Copy the module's parameters, in order, into one flat float32 vector."""
    parts = [parameter.detach().numpy().ravel() for parameter in module.parameters()]
    return np.concatenate(parts, dtype=np.float32)


def numel_of(module: nn.Module) -> int:
    """Return the number of elements of all the module's parameters."""
    return sum(parameter.numel() for parameter in module.parameters())


def bind(module: nn.Module, weights: Vector, gradient: Vector | None = None) -> None:
    """Make the module's parameters views of `weights`, and their gradients views of `gradient`.

    Writing to the vectors changes the module at once, and a backward pass adds to `gradient`.

    Args:
        module: the module to bind.
        weights: flat float32, [parameters].
        gradient: flat float32, [parameters]; None: the parameters require no gradient.

    Raises:
        ValueError: a vector's length is not the module's number of parameters.
    """
    numel = numel_of(module)
    if weights.size != numel or (gradient is not None and gradient.size != numel):
        raise ValueError(f"the module has {numel} parameters; the vectors need as many elements")
    start = 0
    for parameter in module.parameters():
        stop = start + parameter.numel()
        parameter.data = view(weights, start, stop, parameter)
        if gradient is None:
            parameter.requires_grad_(False)
        else:
            parameter.grad = view(gradient, start, stop, parameter)
        start = stop


def view(vector: Vector, start: int, stop: int, like: Tensor) -> Tensor:
    """View elements start..stop-1 of a vector as a tensor shaped like `like`."""
    return from_numpy(vector[start:stop]).view_as(like)


class Adam:
    """Adam (Kingma and Ba 2015, arXiv:1412.6980) on flat float32 vectors, in NumPy.

    Every operation is element-wise IEEE 754 with its own rounding, so equal gradients give equal
    bits on all machines, whatever their vector instructions. (torch's kernels may fuse
    multiplications and additions.)

    Attributes:
        state: the arrays that a step changes: both moments, float32 [numel], and beta1^t and
            beta2^t, float64 [2].
    """

    def __init__(self, numel: int) -> None:
        self._moment1, self._moment2 = np.zeros(numel, np.float32), np.zeros(numel, np.float32)
        self._decays = np.ones(2)
        self.state: list[Floats] = [self._moment1, self._moment2, self._decays]
        self._scratch = np.empty((2, min(BLOCK, numel)), np.float32)

    def step(self, weights: Vector, gradient: Vector, rates: Sequence[tuple[int, float]]) -> None:
        """Move the weights against the gradient.

        Args:
            weights: float32 [numel], changed in place.
            gradient: gradient of the loss by the weights, float32 [numel]; not changed.
            rates: pairs (stop, learning rate), by ascending stop; a pair's rate applies from the
                previous pair's stop, or 0, to `stop` - 1.
        """
        self._decays *= BETA1, BETA2
        decay1, decay2 = self._decays.tolist()
        correction = math.sqrt(1 - decay2)  # because the moments began at zero
        start = 0
        for stop, rate in rates:
            for a in range(start, stop, BLOCK):
                part = slice(a, min(a + BLOCK, stop))
                step = rate * correction / (1 - decay1)
                self._step(weights[part], gradient[part], part, step, correction)
            start = stop

    def _step(
        self, weights: Vector, gradient: Vector, part: slice, rate: float, correction: float
    ) -> None:
        m, v = self._moment1[part], self._moment2[part]
        change, root = self._scratch[:, : weights.size]
        np.subtract(gradient, m, out=change)
        change *= 1 - BETA1
        m += change
        np.multiply(gradient, gradient, out=change)
        change -= v
        change *= 1 - BETA2
        v += change
        np.sqrt(v, out=root)
        root += EPSILON * correction
        np.divide(m, root, out=change)
        change *= rate
        weights -= change


def clip(gradient: Vector, max_norm: float) -> None:
    """Scale a gradient in place to the Euclidean norm `max_norm` if its norm is larger."""
    norm = math.sqrt(np.square(gradient, dtype=np.float64).sum())
    if norm > max_norm:
        gradient *= max_norm / norm
