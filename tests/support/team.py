"""CollectiveWorkers of one job, and their calls side by side."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from tests.support.workers import PATIENCE, Where
from worker_lib import CollectiveWorker
from worker_lib.collective import Collective

CAPACITY = 1500  # elements of a block in one round


class Team:
    """Workers of one job by rank, and their calls side by side."""

    def __init__(self, pool: ThreadPoolExecutor, workers: list[CollectiveWorker]) -> None:
        self.pool = pool
        self.workers = sorted(workers, key=lambda worker: worker.rank)

    def call(self, method: str, *each: Any, **same: Any) -> list[Any]:
        """Call a method of all with an argument of each; their results by rank."""
        arguments = zip(*each, strict=True) if each else [()] * len(self.workers)
        waiting = [
            self.pool.submit(getattr(worker, method), *own, **same)
            for worker, own in zip(self.workers, arguments, strict=True)
        ]
        return [one.result(PATIENCE) for one in waiting]

    def alone(self, rank: int, method: str, *arguments: Any, **same: Any) -> Future[Any]:
        """Call a method of one."""
        return self.pool.submit(getattr(self.workers[rank], method), *arguments, **same)


Make = Callable[..., Team]


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(16) as pool:
        yield pool


@pytest.fixture
def team(switch: Where, jobs: Iterator[int], pool: ThreadPoolExecutor) -> Iterator[Make]:
    """Makes workers that have all joined; they leave at the end."""
    made: list[CollectiveWorker] = []

    def make(count: int, collective: Collective, numel: int = CAPACITY, **kwargs: Any) -> Team:
        options = {"switch": switch, "job": next(jobs), "timeout": PATIENCE, **kwargs}
        joining = [
            pool.submit(
                CollectiveWorker,
                collective=collective,
                numel=numel,
                num_workers=count,
                **options,
            )
            for _ in range(count)
        ]
        workers = [one.result(PATIENCE) for one in joining]
        made.extend(workers)
        return Team(pool, workers)

    yield make
    for worker in made:
        worker.leave()
