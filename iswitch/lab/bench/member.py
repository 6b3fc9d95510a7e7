"""One worker of one strategy: `python -m iswitch.lab.bench.member SOCKET NUMBER LINKS`.

A conductor tells it what to do. LINKS is `links`, or `none` in the loopback world.

Orders come as tuples: the name of a method of `BenchWorker`, and its arguments. What the method
returns goes back. A fault ends the process; its last line on stderr says why.
"""

from __future__ import annotations

import os
import sys
import time
from contextlib import ExitStack
from multiprocessing.connection import Client
from typing import Any

import numpy as np

from worker_lib import AsynchronousWorker
from worker_lib.strategies import Vector, make

from .group import Done, Free
from .plan import ASYNC

LINKS = "links"  # the word for a worker that has some
QUIET = 0.001  # seconds after the end before it is told: others may still be at it
FRESH = 16  # rounds, after which a vector gets its numbers anew: 100**18 overflows nothing yet
MOMENTUM, RATE = np.float32(0.9), np.float32(0.01)


class BenchWorker:
    """Executes a conductor's orders, on vectors of whole numbers, so that sums are exact.

    Args:
        rank: this worker's.
        workers: how many there are.
        counts: the network interfaces are its own, so that what they count is told.
    """

    def __init__(self, rank: int, workers: int, counts: bool = True) -> None:
        self.rank = rank
        self.workers = workers
        self._count = traffic if counts else nothing
        self._stack = ExitStack()
        self._strategy: Any = None
        self._times: list[float] = []  # when the iterations of a run ended

    def join(self, name: str, numel: int, job: int, options: dict[str, Any]) -> None:
        """Join a group for vectors of `numel` elements."""
        os.environ["ISWITCH_JOB"] = str(job)
        self._own = whole_numbers(self.rank, numel)
        self._vector = self._own.copy()
        self._moments, self._weights = np.zeros_like(self._own), np.zeros_like(self._own)
        if name == ASYNC:
            state = [self._weights, self._moments]
            worker = AsynchronousWorker.from_env(numel, update=self._apply, state=state, **options)
            self._strategy = self._stack.enter_context(worker)
        else:
            self._strategy = self._stack.enter_context(make(name, numel, **options))

    def leave(self) -> dict[str, Any]:
        """Leave the group; returns the strategy's statistics."""
        stats: dict[str, Any] = self._strategy.stats()
        self._stack.close()
        return stats

    def prepare(self) -> None:
        """Reset the vector for the next rounds."""
        np.copyto(self._vector, self._own)

    def go(self, at: float, compute: float, update: bool, rounds: int) -> Done:
        """Sleep as if computing, from `at` on, aggregate `rounds` times, and update if asked to.

        From one round to the next the vector stays what the strategy has made of it, so that
        nothing but allreduces is measured.
        """
        before = self._count()
        late = max(0.0, time.monotonic() - at)
        cpu = time.process_time()
        time.sleep(max(0.0, at + compute - time.monotonic()))
        ends = []
        for i in range(rounds):
            if i and not i % FRESH:
                np.copyto(self._vector, self._own)
            self._sum = self._strategy.allreduce(self._vector)
            ends.append(time.monotonic())
        cpu = time.process_time() - cpu
        if update:
            self._update(self.workers)
        updated = time.monotonic()
        time.sleep(QUIET)
        received, sent = np.subtract(self._count(), before).tolist()
        return Done(late, ends, updated, cpu, received, sent)

    def run(self, at: float, count: int, compute: float) -> Free:
        """Run iterations from `at` on without waiting for others: compute, contribute.

        A parameter server answers every gradient with its values; a switch makes a version of as
        many gradients as there are workers.
        """
        time.sleep(max(0.0, at - time.monotonic()))
        cpu = time.process_time()
        self._times.clear()
        worker = self._strategy
        while len(self._times) < count:
            if isinstance(worker, AsynchronousWorker):
                version = worker.read([self._vector])
                time.sleep(compute)
                worker.contribute(self._own, version)
            else:
                time.sleep(compute)
                np.copyto(self._vector, self._own)
                worker.allreduce(self._vector)
                self._times.append(time.monotonic())
        return Free(self._times[:count], time.process_time() - cpu)

    def check(self) -> int:
        """Count the wrong elements of the last sum."""
        numel = len(self._own)
        exact = sum(
            (whole_numbers(r, numel) for r in range(self.workers)), np.zeros_like(self._own)
        )
        return int(np.count_nonzero(self._sum != exact))

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


def whole_numbers(rank: int, numel: int) -> Vector:
    """Draw the vector of a rank; sums of 64 of them are exact in float32, in any order."""
    return np.random.default_rng(rank).integers(-9, 9, numel).astype(np.float32)


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
    """Count nothing: without links of its own, the interfaces count other processes, too."""
    return 0, 0


def main() -> None:
    """Execute orders until the conductor closes the connection."""
    rank, workers = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    member = BenchWorker(rank, workers, counts=sys.argv[3] == LINKS)
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
