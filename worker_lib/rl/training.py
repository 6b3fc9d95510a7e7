"""The loops of one worker: synchronous, over any way to add up, and asynchronous.

Both end after the same update in all workers, with the same weights.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from worker_lib.strategies import Strategy

from .flat import Vector
from .progress import Progress
from .setup import Learner

if TYPE_CHECKING:
    from worker_lib.asynchronous.worker import AsynchronousWorker

REPORT_PAUSE = 0.2  # seconds between reports


class Meter:
    """Where the time goes, and when to tell of it.

    Args:
        learner, progress: what is told of.
        report: takes what is told.
        rank: of this worker among all.
        slow: by what factor computing is to take longer than it does; 1: as long.
    """

    def __init__(
        self,
        learner: Learner,
        progress: Progress,
        report: Callable[[dict[str, Any]], None],
        rank: int = 0,
        slow: float = 1.0,
    ) -> None:
        self.learner, self.progress, self.report = learner, progress, report
        self.rank, self.slow = rank, slow
        self.compute = self.aggregate = 0.0  # seconds
        self.gradients = self.discarded = 0
        self.began = self._told = time.perf_counter()
        self.seconds = 0.0  # until the last update
        self._returns_told = 0
        self._lock = threading.Lock()

    def gradient(self, message: Vector) -> None:
        """Compute one, with what is told after it."""
        began, busy = time.perf_counter(), time.thread_time()
        self.learner.gradient()
        self.progress.tell(message, self.rank, self.learner.returns)
        if self.slow > 1.0:  # what others make it wait for a core is not made longer
            time.sleep((self.slow - 1.0) * (time.thread_time() - busy))
        self.compute += time.perf_counter() - began
        self.gradients += 1

    def tick(self) -> None:
        """Tell, if it is time."""
        now = time.perf_counter()
        self.seconds = now - self.began
        if now - self._told > REPORT_PAUSE:
            self.tell()

    def tell(self) -> None:
        """Tell how far it is, and the totals so far."""
        with self._lock:
            self._tell()

    def _tell(self) -> None:
        self._told = time.perf_counter()
        returns = self.learner.returns
        count = len(returns)
        self.report(
            {
                "event": "progress",
                "iteration": self.progress.iteration,
                "returns": returns[self._returns_told : count],
                "seconds": self.seconds,
                "compute": self.compute,
                "aggregate": self.aggregate,
                "update": self.progress.seconds,
                "gradients": self.gradients,
                "discarded": self.discarded,
            }
        )
        self._returns_told = count


def synchronous(strategy: Strategy, progress: Progress, message: Vector, meter: Meter) -> None:
    """Compute, add up, update: all workers together.

    Args:
        strategy: adds up.
        progress: has the weights that the learner looks at.
        message: where the learner writes its gradient.
        meter: has the learner.
    """
    strategy.allreduce(message)  # of zeros: all are ready
    meter.began = time.perf_counter()
    while not progress.done:
        meter.gradient(message)
        began = time.perf_counter()
        total = strategy.allreduce(message)
        meter.aggregate += time.perf_counter() - began
        progress.apply(total, strategy.num_workers)
        meter.tick()


def asynchronous(
    worker: AsynchronousWorker,
    progress: Progress,
    model: list[Vector],
    message: Vector,
    meter: Meter,
) -> None:
    """Compute gradients from whatever weights there are; another thread updates meanwhile.

    Args:
        worker: applies `progress` to every aggregate.
        progress: its arrays are the worker's.
        model: copies of the first of them, which the learner looks at.
        message: where the learner writes its gradient.
        meter: has the learner.
    """
    failures: list[BaseException] = []

    def compute() -> None:
        while not progress.done:
            began = time.perf_counter()
            version = worker.read(model)
            meter.aggregate += time.perf_counter() - began
            meter.gradient(message)
            began = time.perf_counter()
            meter.discarded += not worker.contribute(message, version)
            meter.aggregate += time.perf_counter() - began
            if not progress.done:
                meter.tick()

    def guarded() -> None:
        try:
            compute()
        except BaseException as error:
            failures.append(error)
        finally:
            progress.ended.set()

    meter.began = time.perf_counter()
    # In a thread, to be left where it waits: at the end nobody may be there to add with.
    threading.Thread(target=guarded, daemon=True, name="LGC").start()
    progress.ended.wait()
    meter.seconds = time.perf_counter() - meter.began
    if not progress.done:
        raise failures[0]
