"""Runs one worker of one strategy: `python -m iswitch.lab.bench.member SOCKET NUMBER LINKS`.

The conductor at SOCKET gives it orders; NUMBER is the number of its group there. LINKS is `links`,
or `none` in the loopback world. An order is a tuple: the name of a method of `BenchWorker` and its
arguments. The worker sends back what the method returns. An exception ends the process; its last
line on stderr says why.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from multiprocessing.connection import Client
from typing import Any

import numpy as np

from worker_lib import AsynchronousWorker
from worker_lib.strategies import make
from worker_lib.strategies.base import Vector
from worker_lib.strategies.collectives import make_exchange, sizes

from .group import Done, Free
from .plan import ALLREDUCE, ASYNC
from .vectors import exact, given

LINKS = "links"  # the word for a worker that has links of its own
QUIET = 0.001  # seconds from its last round to its answer: other workers may still be busy
FRESH = 16  # rounds after which a vector is reset: until then no sum overflows
MOMENTUM, RATE = np.float32(0.9), np.float32(0.01)


class BenchWorker:
    """Executes a conductor's orders, on vectors of whole numbers, so that sums are exact.

    Args:
        rank: rank of this worker.
        workers: the number of workers.
        count: returns the bytes received and sent so far on the worker's link.
        cpu: returns the CPU seconds of its process so far.
    """

    def __init__(
        self,
        rank: int,
        workers: int,
        count: Callable[[], tuple[int, int]],
        cpu: Callable[[], float] = time.process_time,
    ) -> None:
        self.rank = rank
        self.workers = workers
        self._count, self._cpu = count, cpu
        self.pace: Callable[[], float] = lambda: 1.0  # factor of the next computing time
        self._stack = ExitStack()
        self._strategy: Any = None
        self._times: list[float] = []  # when the iterations of a run ended
        self._collective, self._numel = ALLREDUCE, 0
        self._out = np.empty(0, np.float32)  # receives results that are not in place

    def join(self, name: str, numel: int, job: int, options: dict[str, Any]) -> None:
        """Join a group.

        Args:
            name: name of the strategy.
            numel: elements of a vector.
            job: the number of the job, at a switch.
            options: options of the strategy.
        """
        os.environ["ISWITCH_JOB"] = str(job)
        self._collective, self._numel = ALLREDUCE, numel
        self._own = given(self.rank, numel)
        self._vector = self._own.copy()
        self._moments, self._weights = np.zeros_like(self._own), np.zeros_like(self._own)
        if name == ASYNC:
            state = [self._weights, self._moments]
            worker = AsynchronousWorker.from_env(numel, update=self._apply, state=state, **options)
            self._strategy = self._stack.enter_context(worker)
        else:
            self._strategy = self._stack.enter_context(make(name, numel, **options))

    def join_exchange(
        self, name: str, collective: str, numel: int, job: int, options: dict[str, Any]
    ) -> None:
        """Join a group for a collective other than allreduce.

        Args:
            name: name of the strategy.
            collective: the collective.
            numel: elements of the whole vector, a multiple of the workers.
            job: the number of the job, at a switch.
            options: options of the strategy.
        """
        os.environ["ISWITCH_JOB"] = str(job)
        self._collective, self._numel = collective, numel
        gives, gets = sizes(collective, numel, self.workers, self.rank)
        self._own = given(self.rank, gives)
        self._vector = self._own.copy()
        self._out = np.full(gets, np.nan, np.float32)
        made = make_exchange(name, collective, numel, **options)
        self._strategy = self._stack.enter_context(made)

    def leave(self) -> dict[str, Any]:
        """Leave the group; return the strategy's statistics."""
        stats: dict[str, Any] = self._strategy.stats()
        self._stack.close()
        return stats

    def prepare(self) -> None:
        """Reset the vector for the next rounds, and forget results."""
        np.copyto(self._vector, self._own)
        self._out.fill(np.nan)

    def go(self, at: float, compute: float, update: bool, rounds: int) -> Done:
        """Sleep as if computing, aggregate several times, and update if asked to.

        The strategy's sum is the vector of the next round, so that only calls are measured.

        Args:
            at: when to begin, by the monotonic clock.
            compute: seconds to sleep, times `pace`.
            update: whether to update at the end.
            rounds: the number of calls.
        """
        before = self._count()
        late = max(0.0, time.monotonic() - at)
        cpu = self._cpu()
        time.sleep(max(0.0, at + self._computing(compute) - time.monotonic()))
        ends = []
        for i in range(rounds):
            if i and not i % FRESH:
                np.copyto(self._vector, self._own)
            self._call()
            ends.append(time.monotonic())
        cpu = self._cpu() - cpu
        if update:
            self._update(self.workers)
        updated = time.monotonic()
        time.sleep(QUIET)
        received, sent = np.subtract(self._count(), before).tolist()
        return Done(late, ends, updated, cpu, received, sent)

    def run(self, at: float, count: int, compute: float) -> Free:
        """Run iterations without waiting for other workers: compute, then contribute.

        A parameter server answers every gradient with its values; a switch makes a version of as
        many gradients as there are workers.

        Args:
            at: when to begin, by the monotonic clock.
            count: iterations.
            compute: seconds to sleep in each.
        """
        time.sleep(max(0.0, at - time.monotonic()))
        cpu = self._cpu()
        self._times.clear()
        worker = self._strategy
        while len(self._times) < count:
            if isinstance(worker, AsynchronousWorker):
                version = worker.read([self._vector])
                time.sleep(self._computing(compute))
                worker.contribute(self._own, version)
            else:
                time.sleep(self._computing(compute))
                np.copyto(self._vector, self._own)
                worker.allreduce(self._vector)
                self._times.append(time.monotonic())
        return Free(self._times[:count], self._cpu() - cpu)

    def _computing(self, seconds: float) -> float:
        """Return how long this worker computes where an even one needs some seconds."""
        return seconds * self.pace() if seconds else 0.0

    def check(self) -> int:
        """Count the wrong elements of the last result."""
        wanted = exact(self._collective, self._numel, self.workers, self.rank)
        return 0 if wanted is None else int(np.count_nonzero(self._sum != wanted))

    def _call(self) -> None:
        """Call the collective once."""
        if self._collective == ALLREDUCE:
            self._sum = self._strategy.allreduce(self._vector)
            return
        self._strategy.exchange(self._collective, self._vector, self._out)
        self._sum = self._out if len(self._out) else self._vector

    def _update(self, contributions: int) -> None:
        """Update by gradient descent with momentum, on the mean."""
        self._sum /= np.float32(contributions)
        self._moments *= MOMENTUM
        self._moments += self._sum
        np.multiply(self._moments, RATE, out=self._sum)
        self._weights -= self._sum

    def _apply(self, total: Vector, contributions: int, _version: int) -> None:
        self._sum = total.copy()
        self._update(contributions)
        self._times.append(time.monotonic())


def traffic() -> tuple[int, int]:
    """Read the bytes received and sent at the interfaces of this process's namespace."""
    received = sent = 0
    with open("/proc/self/net/dev") as file:
        for line in file.readlines()[2:]:
            name, _, numbers = line.partition(":")
            if name.strip() != "lo":
                fields = numbers.split()
                received += int(fields[0])
                sent += int(fields[8])
    return received, sent


def nothing() -> tuple[int, int]:
    """Return zeros: interfaces that others share count the bytes of others, too."""
    return 0, 0


def main() -> None:
    """Execute orders until the conductor closes the connection."""
    rank, workers = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    member = BenchWorker(rank, workers, traffic if sys.argv[3] == LINKS else nothing)
    with Client(sys.argv[1], "AF_UNIX") as conductor:
        conductor.send((int(sys.argv[2]), rank))
        while True:
            try:
                order, *arguments = conductor.recv()
            except EOFError:
                return
            conductor.send(getattr(member, order)(*arguments))


if __name__ == "__main__":
    main()
