"""Asynchronous workers that come late, are killed, halted or reset, and a restarted switch."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from iswitch.core.format.wire import Action
from tests.conftest import StartSwitch, Where
from tests.support.models import (
    NUMEL,
    PATIENCE,
    Make,
    Model,
    assert_equal_at_equal_versions,
    crew,
    make,
    meet,
    pool,
    train,
)
from worker_lib import AsynchronousWorker, TooFewWorkers, VersionTimeout, WorkerError
from worker_lib.controller import Controller

__all__ = ["make", "pool"]  # fixtures


def test_who_comes_late_takes_a_snapshot(pool: ThreadPoolExecutor, make: Make) -> None:
    models = [Model(seed) for seed in range(3)]
    workers = crew(pool, make, models)
    list(pool.map(train, workers, [20] * 3, range(3), [0.001] * 3))
    meet(workers)
    workers[1].leave()
    late = Model(99)
    training = [pool.submit(train, worker, 300, i, 0.005) for i, worker in enumerate(workers[::2])]
    newcomer = make(late, 3)
    assert newcomer.version > 10
    assert newcomer.stats()["snapshots_taken"] == 1
    training.append(pool.submit(train, newcomer, 50, 5, 0.001))
    for each in training:
        each.result(PATIENCE)
    there = [workers[0], workers[2], newcomer]
    meet(there)
    assert (late.weights == models[0].weights).all()
    assert (late.moments == models[2].moments).all()
    assert assert_equal_at_equal_versions(there) > 20


def test_who_is_too_far_behind_takes_a_snapshot(pool: ThreadPoolExecutor, make: Make) -> None:
    """An update that takes long: more versions are made meanwhile than are kept."""
    models = [Model(seed) for seed in range(3)]
    workers = crew(pool, make, models)
    slept = threading.Event()
    update = models[2].update

    def sleepy(total: np.ndarray, contributions: int, version: int) -> None:
        update(total, contributions, version)
        if len(models[2].versions) == 5 and not slept.is_set():
            slept.wait(PATIENCE)

    workers[2]._update = sleepy
    start = workers[0].version
    training = [pool.submit(train, worker, 60, i, 0.002) for i, worker in enumerate(workers[:2])]
    workers[0].wait_for(start + 25)
    assert models[2].versions[-1] == start + 5
    slept.set()
    for each in training:
        each.result(PATIENCE)
    meet(workers)
    stats = workers[2].stats()
    assert stats["snapshots_taken"] >= 1
    assert stats["behind"] >= 1
    assert models[2].versions == sorted(set(models[2].versions))
    assert assert_equal_at_equal_versions(workers) > 25
    assert (models[2].weights == models[0].weights).all()


def test_a_switch_is_restarted(
    pool: ThreadPoolExecutor, make: Make, start_switch: StartSwitch
) -> None:
    process, where = start_switch()
    models = [Model(seed) for seed in range(3)]
    workers = crew(pool, make, models, switch=where, threshold=2)
    training = [pool.submit(train, worker, 150, i, 0.003) for i, worker in enumerate(workers)]
    workers[0].wait_for(20)
    process.kill()
    process.wait()
    start_switch(f"{where[0]}:{where[1]}")
    for each in training:
        each.result(PATIENCE)
    last = meet(workers)
    assert all(worker.stats()["rejoins"] == 1 for worker in workers)
    assert last > 60
    assert assert_equal_at_equal_versions(workers) > 60
    for model in models:
        assert (model.weights == models[0].weights).all()
    applied = [set(worker.stats()["digests"]) for worker in workers]
    assert len(set.intersection(*applied)) > 60


def test_a_worker_is_restarted_at_its_place(pool: ThreadPoolExecutor, make: Make) -> None:
    models = [Model(seed) for seed in range(3)]
    workers = crew(pool, make, models)
    old = workers[2]
    training = [pool.submit(train, worker, 400, i, 0.005) for i, worker in enumerate(workers[:2])]
    workers[0].wait_for(10)
    host, port, *_ = old._membership.port.address
    kill(old)
    again = Model(7)
    worker = make(again, 3, bind=(host, port))
    assert worker.rank == old.rank
    assert worker.version >= 10
    training.append(pool.submit(train, worker, 30, 5))
    for each in training:
        each.result(PATIENCE)
    there = [*workers[:2], worker]
    meet(there)
    assert (again.weights == models[0].weights).all()
    assert assert_equal_at_equal_versions(there) > 20


def test_a_replacement_has_a_rank(
    pool: ThreadPoolExecutor, make: Make, start_switch: StartSwitch
) -> None:
    """It waits for that of the worker that died, as a `Worker` does, and never has none."""
    leasing = start_switch("127.0.0.1:0", "--lease", "6")[1]
    workers = crew(pool, make, [Model(), Model()], switch=leasing)
    rank = workers[1].rank
    kill(workers[1])
    with pytest.raises(TooFewWorkers, match="no rank was free within 1 s"):
        make(Model(), 2, switch=leasing, timeout=1.0)
    assert make(Model(), 2, switch=leasing).rank == rank


def kill(worker: AsynchronousWorker) -> None:
    """As if its process had been killed: no word to anybody, its sockets closed."""
    worker._session.member = False
    worker.leave()


def test_too_late_says_why(make: Make) -> None:
    worker = make(Model(), timeout=0.5)
    with pytest.raises(VersionTimeout, match=r"version 9 not made within 0\.2 s: .*H = 1"):
        worker.wait_for(9, timeout=0.2)


def test_halt_and_reset(pool: ThreadPoolExecutor, make: Make, switch: Where, job: int) -> None:
    """Contributing waits; after the reset all go on from the state of the furthest."""
    models = [Model(seed) for seed in range(3)]
    workers = crew(pool, make, models)
    training = [pool.submit(train, worker, 40, i, 0.005) for i, worker in enumerate(workers)]
    workers[0].wait_for(5)
    with Controller(switch, job) as controller:
        controller.join()
        controller.request(Action.HALT)
        time.sleep(0.3)
        halted_at = [worker.version for worker in workers]
        assert all(worker._session.halted for worker in workers)
        controller.request(Action.RESET)
        controller.leave()
    for each in training:
        each.result(PATIENCE)
    last = meet(workers)
    assert last > max(halted_at) + 5
    assert {worker.stats()["resets"] for worker in workers} == {1}
    for model in models:
        assert (model.weights == models[0].weights).all()
    assert assert_equal_at_equal_versions(workers) > 5


def test_a_halt_is_named(make: Make, switch: Where, job: int) -> None:
    worker = make(Model(), timeout=0.5)
    with Controller(switch, job) as controller:
        controller.join()
        controller.request(Action.HALT)
    while not worker._session.halted:
        time.sleep(0.01)
    with pytest.raises(VersionTimeout, match=r"not sent within 0\.5 s: the job is halted"):
        worker.contribute(np.ones(NUMEL, np.float32), worker.version)


def test_too_few(make: Make) -> None:
    with pytest.raises(WorkerError, match="1 of 2 workers joined job"):
        make(Model(), 2, timeout=1.0)
