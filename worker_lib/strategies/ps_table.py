"""What a parameter server holds: a range of keys, their values, and a clock of every worker's.

Without I/O. Keys are the elements of a vector, in blocks. For each block, each worker has a clock,
which counts its pushes (a vector clock over ranges: Li et al., OSDI 2014, section 4.2). A pull of a
block waits until nobody's clock is more than `tau` behind that of the worker that pulls:

- tau = 0, synchronous: the values are the sum of the pushes of one round, one of each worker. The
  sums of two rounds are kept, since the slower pull one while the faster push to the next.
- 0 < tau < inf, bounded delay, and tau = inf, asynchronous: the values are the sum of all pushes so
  far, whoever's: weights, if what is pushed are their updates.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from . import Vector

Indices = npt.NDArray[np.uint32]


ASYNCHRONOUS = -1  # for infinity, which JSON has not
BLOCK = 1 << 16  # elements with a clock of their own; what a server adds at a time
MOST_KEYS = 1 << 30  # of a server's: a vector of 4 GB
MOST_WORKERS = 1 << 16
MOST_CLOCKS = 1 << 24  # of all workers for all blocks


class Shape(NamedTuple):
    """What all workers of a group want of a server: its keys, and how far others may be behind."""

    numel: int
    block: int
    num_workers: int
    tau: int  # or ASYNCHRONOUS

    def check(self) -> Shape:
        """Itself.

        Raises:
            ValueError: there can be no such table; the message names the mend.
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
    """Keys 0 to numel - 1 of one server.

    Args:
        numel: how many.
        block: in blocks of so many; the last may have fewer.
        num_workers: that push and pull.
        tau: see above.
    """

    def __init__(self, numel: int, block: int, num_workers: int, tau: float) -> None:
        self.numel = numel
        self.block = block
        self.tau = tau
        self.clock = [[0] * num_workers for _ in range(-(-numel // block))]
        self._sums = np.zeros((2 if tau == 0 else 1, numel), np.float32)

    def size(self, number: int) -> int:
        """Keys in a block."""
        return min(self.block, self.numel - number * self.block)

    def push(self, worker: int, number: int, values: Vector) -> bool:
        """Add a worker's values to a block; whether a pull may have waited for them."""
        sums, is_first = self._place(worker, number)
        if is_first:
            sums[:] = values
        else:
            np.add(sums, values, out=sums)
        return self._tick(worker, number)

    def push_some(self, worker: int, number: int, indices: Indices, values: Vector) -> bool:
        """The same with values at some keys of the block, by their places in it, each once."""
        sums, is_first = self._place(worker, number)
        if is_first:
            sums[:] = 0
        sums[indices] += values
        return self._tick(worker, number)

    def behind(self, worker: int, number: int) -> list[int]:
        """The workers that a pull by this one has to wait for."""
        clock = self.clock[number]
        least = clock[worker] - self.tau
        return [other for other, time in enumerate(clock) if time < least]

    def ready(self, worker: int, number: int) -> bool:
        """Whether a pull by this worker can be answered."""
        clock = self.clock[number]
        return min(clock) >= clock[worker] - self.tau

    def read(self, worker: int, number: int) -> Vector:
        """What a pull by this worker is answered with; of a round, until the next but one begins.

        Of an asynchronous table it is what is there whenever it is looked at.
        """
        return self._of_round(self.clock[number][worker] - 1, number)

    def _place(self, worker: int, number: int) -> tuple[Vector, bool]:
        """Where a push belongs, and whether it is the first of a round of its own."""
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
