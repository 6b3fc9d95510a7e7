"""Models that asynchronous workers train at a switch in a process of its own."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from tests.conftest import Where
from worker_lib import AsynchronousWorker

NUMEL = 3000
PATIENCE = 20.0
RATE = np.float32(0.01)


class Model:
    """Weights with momentum, and how they are updated."""

    def __init__(self, seed: int = 0, numel: int = NUMEL) -> None:
        self.weights = np.random.default_rng(seed).standard_normal(numel).astype(np.float32)
        self.moments = np.zeros(numel, np.float64)
        self.versions: list[int] = []

    @property
    def state(self) -> list[np.ndarray]:
        return [self.weights, self.moments]

    def update(self, total: np.ndarray, contributions: int, version: int) -> None:
        self.moments *= 0.9
        self.moments += total / np.float32(contributions)
        self.weights -= RATE * self.moments.astype(np.float32)
        self.versions.append(version)


Make = Callable[..., AsynchronousWorker]


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(16) as pool:
        yield pool


@pytest.fixture
def make(switch: Where, job: int) -> Iterator[Make]:
    """Makes a worker of a model; all leave at the end."""
    made: list[AsynchronousWorker] = []

    def make_worker(model: Model, num_workers: int = 1, **kwargs: Any) -> AsynchronousWorker:
        ways: dict[str, Any] = {"timeout": PATIENCE, "check": True, "state": model.state, **kwargs}
        at = ways.pop("switch", switch)
        worker = AsynchronousWorker(
            at,
            job,
            model.weights.size,
            num_workers,
            update=model.update,
            **ways,
        )
        made.append(worker)
        return worker

    yield make_worker
    for worker in made:
        worker.leave()


def crew(
    pool: ThreadPoolExecutor, make: Make, models: list[Model], **kwargs: object
) -> list[AsynchronousWorker]:
    """A worker for each model, all in one job."""
    joining = [pool.submit(make, model, len(models), **kwargs) for model in models]
    return [each.result(PATIENCE) for each in joining]


def train(worker: AsynchronousWorker, steps: int, seed: int, pause: float = 0.0) -> int:
    """Gradients towards zero, with noise; how many were sent."""
    weights = np.empty(worker.numel, np.float32)
    noise = np.random.default_rng(seed)
    sent = 0
    for _ in range(steps):
        version = worker.read([weights])
        gradient = weights + noise.standard_normal(weights.size).astype(np.float32)
        time.sleep(pause)
        sent += worker.contribute(gradient, version)
    return sent


def assert_equal_at_equal_versions(workers: list[AsynchronousWorker]) -> int:
    """Digests of all versions that several have; how many those are."""
    digests = [worker.stats()["digests"] for worker in workers]
    compared = 0
    for version in set().union(*digests):
        held = [d[version] for d in digests if version in d]
        assert len(set(held)) == 1, f"version {version}"
        compared += len(held) > 1
    return compared


def meet(workers: list[AsynchronousWorker]) -> int:
    """Wait until all have come to the version of whoever is furthest."""
    last = -1
    while last != (last := max(worker.version for worker in workers)):
        for worker in workers:
            worker.wait_for(last)
        time.sleep(0.1)
    return last
