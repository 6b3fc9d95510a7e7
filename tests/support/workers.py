"""Workers that have all joined, and their calls side by side."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
import pytest

from worker_lib import (
    Worker,
)

PATIENCE = 20.0  # seconds until a test is given up
NUMEL = 1000  # three segments
Where = tuple[str, int]
Make = Callable[..., list[Worker]]


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(16) as pool:
        yield pool


@pytest.fixture
def make(switch: Where, job: int, pool: ThreadPoolExecutor) -> Iterator[Make]:
    """Makes workers that have all joined, by rank; they leave at the end."""
    made: list[Worker] = []

    def make_workers(count: int, numel: int = NUMEL, **kwargs: object) -> list[Worker]:
        arguments = {"timeout": PATIENCE, **kwargs}
        joining = [
            pool.submit(Worker, switch, job, numel, count, **arguments)  # type: ignore[arg-type]
            for _ in range(count)
        ]
        workers = sorted((w.result(PATIENCE) for w in joining), key=lambda w: w.rank)
        made.extend(workers)
        return workers

    yield make_workers
    for worker in made:
        worker.leave()


def together(
    pool: ThreadPoolExecutor, workers: list[Worker], vectors: list[np.ndarray], **kwargs: object
) -> list[np.ndarray]:
    """One round of all these workers."""
    waiting: list[Future[np.ndarray]] = [
        pool.submit(worker.allreduce, vector, **kwargs)  # type: ignore[arg-type]
        for worker, vector in zip(workers, vectors, strict=True)
    ]
    return [w.result(PATIENCE) for w in waiting]


def ones(value: float = 1.0) -> np.ndarray:
    return np.full(NUMEL, value, np.float32)
