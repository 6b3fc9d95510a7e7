"""Progress of a training: one worker's updates in order, until all workers agree to end.

Each worker has its own pair of elements after the gradient. It holds the mean return of the
worker's last episodes and a one; both are zero until there were enough episodes. So the sums tell
every worker how well each one plays, and all decide to end after the same update.

The sum of means is divided by the sum of ones. Pairs begin at even indices, and a segment that
fills an Ethernet packet has an even number of elements, 366, so one segment carries both elements
of a pair. So an asynchronous sum with a segment missing or doubled has both elements missing or
doubled.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from .flat import Vector
from .plan import window
from .updater import Updater


class Progress:
    """Applies sums of gradients to the weights until the training ends.

    Args:
        updater: holds the weights.
        iterations: updates after which the training ends.
        target: mean return at which the training ends earlier; None: it never ends earlier.
        workers: number of workers.
        after_update: called after every update with its number.

    Attributes:
        ended: set when the training has ended.
        returns: float64 [workers]: mean return of each worker's last `window` episodes, as last
            received; NaN until that worker has had `window` episodes. It is part of the state that
            one worker takes from another.
        seconds: time spent in updates.
        is_updating: whether an update has begun and not ended.
    """

    def __init__(
        self,
        updater: Updater,
        iterations: int,
        target: float | None = None,
        workers: int = 1,
        after_update: Callable[[int], Any] = lambda _: None,
    ) -> None:
        self.updater, self.iterations, self.target = updater, iterations, target
        self.window = window(workers)
        self.returns = np.full(workers, np.nan)
        self.ended = threading.Event()
        self.seconds = 0.0
        self.is_updating = False
        self._after_update = after_update
        self._mean = np.empty_like(updater.weights)
        self._pairs = self._mean.size + self._mean.size % 2  # where they begin
        if self.done:
            self.ended.set()

    @property
    def numel(self) -> int:
        """Return the number of elements of a message: the gradient and the pairs."""
        return self._pairs + 2 * self.returns.size

    @property
    def mean_return(self) -> float:
        """Return the mean of `returns`; NaN until every worker has finished `window` episodes."""
        return float(self.returns.mean())

    @property
    def reached(self) -> bool:
        """Return whether the mean return has reached the target."""
        return self.target is not None and self.mean_return >= self.target

    @property
    def iteration(self) -> int:
        """Return the number of updates done since the start of the training."""
        return self.updater.updates

    @property
    def done(self) -> bool:
        """Return whether the training has ended; later sums change nothing."""
        return self.reached or self.iteration >= self.iterations

    def tell(self, message: Vector, rank: int, returns: Sequence[float]) -> None:
        """Write a worker's pair after its gradient.

        Args:
            message: float32 [numel], of which all elements after the gradient are overwritten.
            rank: number of this worker among all.
            returns: undiscounted returns of all its episodes, in order.
        """
        message[self._mean.size :] = 0.0
        if len(returns) >= self.window:
            pairs = message[self._pairs :].reshape(-1, 2)
            pairs[rank] = np.mean(returns[-self.window :]), 1.0

    def apply(self, total: Vector, contributions: int, version: int = 0) -> None:  # noqa: ARG002
        """Update the weights and `returns` with a sum of messages; after the end do nothing.

        Args:
            total: the sum, float32 [numel].
            contributions: number of messages in the sum.
            version: not used; asynchronous workers pass it.
        """
        if self.done:
            return
        began = time.perf_counter()
        self.is_updating = True
        np.divide(total[: self._mean.size], np.float32(contributions), out=self._mean)
        self.updater.update(self._mean)
        means, known = total[self._pairs :].reshape(-1, 2).T
        told = known > 0
        self.returns[told] = means[told] / known[told]
        self.is_updating = False
        self.seconds += time.perf_counter() - began
        self._after_update(self.iteration)
        if self.done:
            self.ended.set()
