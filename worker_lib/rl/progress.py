"""How far a training is: the updates of one worker, each in turn, until all agree to end.

A worker sends its gradient and after it, in a pair of elements of its own, how well it plays: the
mean return of its last episodes, and a one if there were enough of them to tell. So from the sums
every worker knows how well each plays, and decides alike whether that is enough, after the same
update.

The sum of means is divided by the sum of ones. Pairs stand at even places, and a segment that fills
a packet of Ethernet has an even number of elements, 366, so both of a pair are in one segment: of
contributions whose segments were lost, or came twice, to an asynchronous sum both are added equally
often.
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
    """Applies the sums of gradients to the weights until there were enough.

    Args:
        updater: has the weights.
        iterations: updates until the end.
        target: the end as soon as the mean return of the last episodes is at least this; None: not
            before `iterations`.
        workers: how many there are.
        after_update: called after every update with its number.

    Attributes:
        ended: set when it is at its end.
        returns: of each worker, the mean of its last `window` episodes, as told last; NaN until it
            has had so many. Part of the state, for one that takes that of another.
        seconds: spent in updates.
        is_updating: whether the state is halfway between two updates.
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
        """Elements of what is sent."""
        return self._pairs + 2 * self.returns.size

    @property
    def mean_return(self) -> float:
        """Of the last episodes of each worker; NaN until all have had enough."""
        return float(self.returns.mean())

    @property
    def reached(self) -> bool:
        """Whether that is the target."""
        return self.target is not None and self.mean_return >= self.target

    @property
    def iteration(self) -> int:
        """Updates done, since the start of the training."""
        return self.updater.updates

    @property
    def done(self) -> bool:
        """Whether it is at its end; what comes later changes nothing."""
        return self.reached or self.iteration >= self.iterations

    def tell(self, message: Vector, rank: int, returns: Sequence[float]) -> None:
        """Write after a gradient how well a worker plays, by the returns of its episodes."""
        message[self._mean.size :] = 0.0
        if len(returns) >= self.window:
            pairs = message[self._pairs :].reshape(-1, 2)
            pairs[rank] = np.mean(returns[-self.window :]), 1.0

    def apply(self, total: Vector, contributions: int, version: int = 0) -> None:  # noqa: ARG002
        """Update with a sum of so many messages; after the end do nothing."""
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
