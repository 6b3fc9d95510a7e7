"""The training loops of one worker: synchronous with any strategy, and asynchronous.

Each loop ends after the same update in all workers, with equal weights.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from iswitch.virtual.process import computed
from worker_lib.strategies.base import Strategy

from .flat import Vector
from .learner import Learner
from .progress import Progress

if TYPE_CHECKING:
    from worker_lib.asynchronous.worker import AsynchronousWorker

REPORT_PAUSE = 0.2  # seconds between reports


class Meter:
    """Measures where a worker's time goes, and reports its progress now and then.

    Args:
        learner: computes the gradients.
        progress: counts the updates.
        report: receives each report: its event, and its fields by name.
        rank: number of this worker among all.
        slow: factor by which to stretch computing time, by sleeping; 1: not at all.
        record: whether reports hold the seconds before each allreduce, too.
    """

    def __init__(
        self,
        learner: Learner,
        progress: Progress,
        report: Callable[..., None],
        rank: int = 0,
        slow: float = 1.0,
        record: bool = False,
    ) -> None:
        self.learner, self.progress, self.report = learner, progress, report
        self.rank, self.slow = rank, slow
        self.compute = self.aggregate = 0.0  # seconds
        self.gradients = self.discarded = 0
        self.began = self._told = time.perf_counter()
        self.seconds = 0.0  # until the last update
        self._gaps: list[float] | None = [] if record else None
        self._idle = self.began  # since the last allreduce
        self._returns_told = 0
        self._lock = threading.Lock()

    def gradient(self, message: Vector) -> None:
        """Compute a gradient; write it and the worker's pair to `message`, float32 [numel]."""
        began, busy = time.perf_counter(), time.thread_time()
        self.learner.gradient()
        self.progress.tell(message, self.rank, self.learner.returns)
        if self.slow > 1.0:  # CPU time: waiting for a core is not stretched
            time.sleep((self.slow - 1.0) * (time.thread_time() - busy))
        computed()
        self.compute += time.perf_counter() - began
        self.gradients += 1

    def start(self) -> None:
        """Count iterations from now on."""
        self.began = self._idle = time.perf_counter()

    def sum(self, call: Callable[[Vector], Vector], message: Vector) -> Vector:
        """Call an allreduce, and measure how long it takes."""
        began = time.perf_counter()
        if self._gaps is not None:
            self._gaps.append(began - self._idle)
        total = call(message)
        self._idle = time.perf_counter()
        self.aggregate += self._idle - began
        return total

    def tick(self) -> None:
        """Report if the last report is more than REPORT_PAUSE ago."""
        now = time.perf_counter()
        self.seconds = now - self.began
        if now - self._told > REPORT_PAUSE:
            self.tell()

    def tell(self) -> None:
        """Report the iteration, the new returns, and the totals so far."""
        with self._lock:
            self._told = time.perf_counter()
            returns = self.learner.returns
            count = len(returns)
            gaps = {} if self._gaps is None else {"gaps": self._gaps}
            self.report(
                "progress",
                iteration=self.progress.iteration,
                returns=returns[self._returns_told : count],
                seconds=self.seconds,
                compute=self.compute,
                aggregate=self.aggregate,
                update=self.progress.seconds,
                gradients=self.gradients,
                discarded=self.discarded,
                **gaps,
            )
            if self._gaps is not None:
                self._gaps = []
            self._returns_told = count


def synchronous(strategy: Strategy, progress: Progress, message: Vector, meter: Meter) -> None:
    """Train to the end; in every iteration all workers compute, sum and update together.

    Args:
        strategy: sums the messages of all workers.
        progress: updates the weights that the learner reads.
        message: float32 [numel] to which the learner writes its gradient; zeros at first.
        meter: computes gradients and takes times.
    """
    strategy.allreduce(message)  # of zeros: returns once all workers are ready
    meter.start()
    while not progress.done:
        meter.gradient(message)
        total = meter.sum(strategy.allreduce, message)
        progress.apply(total, strategy.num_workers)
        meter.tick()


def asynchronous(
    worker: AsynchronousWorker,
    progress: Progress,
    model: list[Vector],
    message: Vector,
    meter: Meter,
) -> None:
    """Train to the end; compute gradients from the current weights while another thread updates.

    Args:
        worker: applies `progress` to every aggregate.
        progress: updates arrays that are the worker's state.
        model: copies of the first of these arrays, which the learner reads.
        message: float32 [numel] to which the learner writes its gradient.
        meter: computes gradients and takes times.

    Raises:
        BaseException: computing or contributing failed before the end; the first failure.
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
    # In a daemon thread, which may wait forever at the end, when no other worker contributes.
    threading.Thread(target=guarded, daemon=True, name="LGC").start()
    progress.ended.wait()
    meter.seconds = time.perf_counter() - meter.began
    if not progress.done:
        raise failures[0]
