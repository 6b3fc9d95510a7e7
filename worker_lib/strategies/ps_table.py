"""The table of a parameter server: the values of a range of keys, and the clocks of the workers.

It does no I/O. Keys are the indices of a vector's elements, grouped in blocks. Each worker has a
clock for each block, which counts its pushes (a vector clock over ranges: Li et al., OSDI 2014,
section 4.2). A pull of a block waits until no clock is more than `tau` behind that of the pulling
worker:

- tau = 0, synchronous: the values are the sum of one round, which has one push of each worker. Two
  rounds are kept, since slow workers pull one while fast workers push to the next.
- 0 < tau < inf, bounded delay, and tau = inf, asynchronous: the values are the sum of all pushes so
  far. They are weights if workers push updates of weights.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from .base import Vector

Indices = npt.NDArray[np.uint32]


ASYNCHRONOUS = -1  # stands for an infinite tau, which JSON cannot express
BLOCK = 1 << 16  # most elements of a block, which a server adds at once
MOST_KEYS = 1 << 30  # of one server: 4 GB of values
MOST_WORKERS = 1 << 16
MOST_CLOCKS = 1 << 24  # blocks times workers


class Shape(NamedTuple):
    """The parameters of a table, which all workers of a group must give alike.

    Attributes:
        numel: number of keys.
        block: keys of a block.
        num_workers: number of workers.
        tau: pushes that a worker may be behind when another pulls, or ASYNCHRONOUS.
    """

    numel: int
    block: int
    num_workers: int
    tau: int  # or ASYNCHRONOUS

    def check(self) -> Shape:
        """Return this shape if a table can have it.

        Raises:
            ValueError: a number is out of range; the message names the mend.
        """
        if not all(type(number) is int for number in self):
            raise ValueError("a shape is four whole numbers")
        numel, block, workers, tau = self
        if not 0 <= numel <= MOST_KEYS:
            raise ValueError(f"{numel} keys: a server has up to {MOST_KEYS}; take more servers")
        if not 1 <= block <= BLOCK:
            raise ValueError(f"block = {block}: pass 1 to {BLOCK} elements")
        if not 1 <= workers <= MOST_WORKERS or tau < ASYNCHRONOUS:
            raise ValueError(f"{workers} workers, tau = {tau}: there can be no such group")
        if -(-numel // block) * workers > MOST_CLOCKS:
            raise ValueError(
                f"block = {block}: too small for {numel} elements of {workers} workers"
            )
        return self


class Table:
    """Holds the values of keys 0 to numel - 1 of one server, and the clocks of their blocks.

    Args:
        numel: number of keys.
        block: keys of a block; the last block may have fewer.
        num_workers: number of workers that push and pull.
        tau: pushes that a worker may be behind when another pulls; 0 to inf.

    Attributes:
        clock: number of pushes, by block and worker.
    """

    def __init__(self, numel: int, block: int, num_workers: int, tau: float) -> None:
        self.numel = numel
        self.block = block
        self.tau = tau
        self.clock = [[0] * num_workers for _ in range(-(-numel // block))]
        self._sums = np.zeros((2 if tau == 0 else 1, numel), np.float32)

    def size(self, number: int) -> int:
        """Return the number of keys in a block."""
        return min(self.block, self.numel - number * self.block)

    def push(self, worker: int, number: int, values: Vector) -> bool:
        """Add a worker's values to a block; return whether a waiting pull may now be ready.

        Args:
            worker: rank of the worker.
            number: number of the block.
            values: float32 [size of the block].
        """
        sums, is_first = self._place(worker, number)
        if is_first:
            sums[:] = values
        else:
            np.add(sums, values, out=sums)
        return self._tick(worker, number)

    def push_some(self, worker: int, number: int, indices: Indices, values: Vector) -> bool:
        """Add values at some keys of a block; return whether a waiting pull may now be ready.

        Args:
            worker: rank of the worker.
            number: number of the block.
            indices: uint32 [n], distinct positions in the block.
            values: float32 [n].
        """
        sums, is_first = self._place(worker, number)
        if is_first:
            sums[:] = 0
        sums[indices] += values
        return self._tick(worker, number)

    def behind(self, worker: int, number: int) -> list[int]:
        """Return the workers for which a pull of block `number` by `worker` waits."""
        clock = self.clock[number]
        least = clock[worker] - self.tau
        return [other for other, time in enumerate(clock) if time < least]

    def ready(self, worker: int, number: int) -> bool:
        """Return whether a pull of block `number` by `worker` can be answered."""
        clock = self.clock[number]
        return min(clock) >= clock[worker] - self.tau

    def read(self, worker: int, number: int) -> Vector:
        """Return the values that answer a pull: a view, float32 [size of the block].

        If synchronous, the view keeps the worker's last round until the second round after it
        begins; otherwise it changes with every push.
        """
        return self._of_round(self.clock[number][worker] - 1, number)

    def _place(self, worker: int, number: int) -> tuple[Vector, bool]:
        """Return the view that a push adds to, and whether the push is the first of its round."""
        clock = self.clock[number]
        round_ = clock[worker]
        return self._of_round(round_, number), self.tau == 0 and max(clock) == round_

    def _of_round(self, round_: int, number: int) -> Vector:
        start = number * self.block
        found: Vector = self._sums[round_ % len(self._sums), start : start + self.block]
        return found

    def _tick(self, worker: int, number: int) -> bool:
        clock = self.clock[number]
        slowest = min(clock)
        clock[worker] += 1
        return min(clock) > slowest
