"""Tensor fusion: many arrays in one vector, so that they are added up at once.

An allreduce has a price of its own for every step, whatever it carries; a network's layers have
biases of a few elements. In one vector all layers pay that price once (as Horovod's fusion buffer
has it).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from . import Strategy, Vector


class Fused:
    """Arrays of these shapes, side by side in one vector.

    Attributes:
        vector: float32 [numel], all of them.
        views: each of them, a part of the vector: who computes into these saves the copies.
    """

    def __init__(self, shapes: Sequence[Sequence[int]]) -> None:
        sizes = [prod(shape) for shape in shapes]
        self.vector = np.zeros(sum(sizes), np.float32)
        ends = np.cumsum(sizes)
        parts = np.split(self.vector, ends[:-1]) if sizes else []
        self.views = [part.reshape(tuple(shape)) for part, shape in zip(parts, shapes, strict=True)]

    def allreduce(self, strategy: Strategy, arrays: Sequence[Vector] | None = None) -> None:
        """Add up all arrays over all workers.

        Args:
            strategy: made for as many elements as they have together.
            arrays: copied into the views before, and from the sum afterwards. None: what is in the
                views is added up, and the sum is there afterwards.

        Raises:
            ValueError: other arrays than were said.
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
    """Add up arrays over all workers, each in place, in one allreduce.

    Where that is done often, a `Fused` that is kept saves the memory from being made anew.
    """
    Fused([array.shape for array in arrays]).allreduce(strategy, arrays)
