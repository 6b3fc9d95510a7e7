"""Tensor fusion: joins many arrays in one vector, to sum them in one allreduce.

Every allreduce has a fixed cost per step, however short its vector, and a network has many arrays
of a few elements, such as biases. One vector for all layers pays that cost once (as in Horovod's
fusion buffer).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from .base import Strategy, Vector


class Fused:
    """Joins arrays of given shapes in one vector.

    Attributes:
        vector: float32 [numel], all arrays one after the other.
        views: the arrays as views of the vector; computing into them saves copies.
    """

    def __init__(self, shapes: Sequence[Sequence[int]]) -> None:
        sizes = [prod(shape) for shape in shapes]
        self.vector = np.zeros(sum(sizes), np.float32)
        ends = np.cumsum(sizes)
        parts = np.split(self.vector, ends[:-1]) if sizes else []
        self.views = [part.reshape(tuple(shape)) for part, shape in zip(parts, shapes, strict=True)]

    def allreduce(self, strategy: Strategy, arrays: Sequence[Vector] | None = None) -> None:
        """Sum all arrays over all workers, in place.

        Args:
            strategy: sums the vector; made for its `numel`.
            arrays: copied to the views before, and from the views afterwards; None: the views
                themselves are summed in place.

        Raises:
            ValueError: the arrays do not have the number, shapes and dtype given at construction.
        """
        arrays = self.views if arrays is None else arrays
        for view, array in zip(self.views, arrays, strict=True):
            if array.dtype != view.dtype or array.shape != view.shape:
                raise ValueError(
                    f"an array is {array.dtype} {list(array.shape)}, and was to be {view.dtype} "
                    f"{list(view.shape)}; pass the same arrays, in the same order"
                )
        for view, array in zip(self.views, arrays, strict=True):
            if array is not view:
                view[...] = array
        total = strategy.allreduce(self.vector)
        if total is not self.vector:
            self.vector[:] = total
        for view, array in zip(self.views, arrays, strict=True):
            if array is not view:
                array[...] = view


def allreduce_many(strategy: Strategy, arrays: Sequence[Vector]) -> None:
    """Sum float32 arrays over all workers, in place, in one allreduce.

    To do this often, keep a `Fused` instead: it allocates its memory once.
    """
    Fused([array.shape for array in arrays]).allreduce(strategy, arrays)
