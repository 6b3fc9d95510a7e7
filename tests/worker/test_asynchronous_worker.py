"""Asynchronous workers at a switch in a process of its own: all have the same weights."""

from __future__ import annotations

import inspect
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.conftest import StartSwitch, Where
from tests.support import ROOT, python
from tests.support.models import (
    NUMEL,
    PATIENCE,
    RATE,
    Make,
    Model,
    assert_equal_at_equal_versions,
    crew,
    make,
    meet,
    pool,
    train,
)
from worker_lib import AsynchronousWorker, WorkerError

__all__ = ["make", "pool"]  # fixtures


def test_alone(make: Make) -> None:
    model = Model()
    before = model.weights.copy()
    with make(model) as worker:
        start = worker.version
        assert worker.contribute(np.ones(NUMEL, np.float32), start)
        assert worker.wait_for(start + 1) == start + 1
        into = [np.empty(NUMEL, np.float32)]
        assert worker.read(into) == start + 1
        assert (into[0] == before - RATE).all()
        assert model.versions == [start + 1]
        stats = worker.stats()
        assert stats["contributed"] == stats["applied"] == stats["contributions"] == 1
        assert stats["staleness"] == {0: 1}


def test_weights_are_equal_at_equal_versions(pool: ThreadPoolExecutor, make: Make) -> None:
    """Also at the start: all take the state of one of them."""
    models = [Model(seed) for seed in range(4)]
    workers = crew(pool, make, models)
    list(pool.map(train, workers, [30] * 4, range(4), [0.0, 0.0, 0.002, 0.004]))
    last = meet(workers)
    for model in models:
        assert (model.weights == models[0].weights).all()
        assert (model.moments == models[0].moments).all()
    assert assert_equal_at_equal_versions(workers) >= last - 1
    stats = [worker.stats() for worker in workers]
    assert stats[0]["contributions"] <= sum(each["contributed"] for each in stats)
    assert all(each["contributions"] <= 4 * each["applied"] for each in stats)  # or greetings


@pytest.mark.parametrize("threshold", [None, 2])
def test_equal_under_loss(
    pool: ThreadPoolExecutor, make: Make, start_switch: StartSwitch, threshold: int | None
) -> None:
    """Of 5 % of the packets in both directions, also with H of N."""
    impaired = start_switch("127.0.0.1:0", "--impair", "loss=5%,duplicate=2%,seed=3")[1]
    models = [Model(seed) for seed in range(4)]
    workers = crew(pool, make, models, switch=impaired, threshold=threshold)
    sent = sum(pool.map(train, workers, [30] * 4, range(4), [0.001, 0.001, 0.002, 0.004]))
    last = meet(workers)
    for model in models:
        assert (model.weights == models[0].weights).all()
    assert assert_equal_at_equal_versions(workers) > 5  # on a busy machine some take snapshots
    stats = [worker.stats() for worker in workers]
    h = threshold or 4
    assert all(each["contributions"] <= h * each["applied"] for each in stats)  # or greetings
    assert last > sent // h // 2
    assert sum(each["helps"] for each in stats)


@pytest.mark.parametrize("staleness", [0, 1])
def test_no_standstill_under_loss(
    pool: ThreadPoolExecutor, make: Make, start_switch: StartSwitch, staleness: int
) -> None:
    """Segments may be four versions apart at the switch; then no gradient must be too old."""
    impaired = start_switch("127.0.0.1:0", "--impair", "loss=5%,seed=3")[1]
    models = [Model(seed) for seed in range(2)]
    workers = crew(pool, make, models, switch=impaired, staleness=staleness)
    last = workers[0].version + 40
    until = time.monotonic() + PATIENCE

    def go_on(worker: AsynchronousWorker) -> None:
        while worker.version < last and time.monotonic() < until:
            train(worker, 1, worker.rank, 0.001)

    list(pool.map(go_on, workers))
    assert min(worker.version for worker in workers) >= last
    assert_equal_at_equal_versions(workers)


@pytest.mark.parametrize("threshold", [None, 1])
def test_six_start_without_delay(
    pool: ThreadPoolExecutor, make: Make, threshold: int | None
) -> None:
    """Also if some take their first state from one another, and not from the first."""
    for _ in range(3):
        began = time.monotonic()
        workers = crew(pool, make, [Model(seed) for seed in range(6)], threshold=threshold)
        assert time.monotonic() - began < PATIENCE / 2
        list(pool.map(AsynchronousWorker.leave, workers))


def test_nobody_reads_the_state_of_an_update_that_failed(make: Make) -> None:
    model = Model()

    def update(_total: np.ndarray, _contributions: int, _version: int) -> None:
        model.weights[: NUMEL // 2] = 77
        raise ArithmeticError

    model.update = update  # type: ignore[method-assign, assignment]
    worker = make(model)
    worker.contribute(np.ones(NUMEL, np.float32), worker.version)
    into = [np.empty(NUMEL, np.float32)]

    def read_on() -> None:
        while True:
            worker.read(into)
            assert not (into[0] == 77).any()

    with pytest.raises(ArithmeticError):
        read_on()


def test_stale_gradients_are_not_sent(make: Make) -> None:
    model = Model()
    worker = make(model, staleness=1)
    gradient = np.ones(NUMEL, np.float32)
    start = worker.version
    for _ in range(2):
        assert worker.contribute(gradient, worker.version)
        worker.wait_for(worker.version + 1) if worker.version == start else None
    worker.wait_for(start + 2)
    assert worker.contribute(gradient, start + 1)
    worker.wait_for(start + 3)
    assert not worker.contribute(gradient, start)
    assert not worker.contribute(gradient, start + 1)
    stats = worker.stats()
    assert (stats["stale"], stats["contributed"], stats["applied"]) == (2, 3, 3)
    assert stats["staleness"] == {0: 2, 1: 1}


def test_a_stale_gradient_waits_for_newer_weights(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the next gradient would be of the same weights, and too old like this one."""
    monkeypatch.setattr("worker_lib.asynchronous.worker.LOOK_PAUSE", PATIENCE)
    model = Model()

    update = model.update

    def update_late(*given: Any) -> None:
        while not worker.stats()["stale"]:
            time.sleep(0.001)
        update(*given)

    monkeypatch.setattr(model, "update", update_late)
    worker = make(model, staleness=0)
    version, gradient = worker.version, np.ones(NUMEL, np.float32)
    before = worker.stats()["received"]
    assert worker.contribute(gradient, version)
    while worker.stats()["received"] < before + worker.shape.segments:
        time.sleep(0.001)
    assert not worker.contribute(gradient, version)
    assert worker.version == version + 1


def test_what_update_raises_is_raised_in_the_users_thread(make: Make) -> None:
    def update(_total: np.ndarray, _contributions: int, version: int) -> None:
        raise ArithmeticError(f"at version {version}")

    model = Model()
    model.update = update  # type: ignore[method-assign, assignment]
    worker = make(model)
    version = worker.version + 1
    worker.contribute(np.ones(NUMEL, np.float32), worker.version)
    with pytest.raises(ArithmeticError, match=f"at version {version}"):
        worker.wait_for(version)
    with pytest.raises(ArithmeticError):
        worker.contribute(np.ones(NUMEL, np.float32), 0)
    with pytest.raises(ArithmeticError):
        worker.read()
    worker.leave()


@pytest.mark.parametrize("has_own", [False, True])
def test_the_end_of_a_block_tells_what_update_has_raised(make: Make, has_own: bool) -> None:
    """Unless a call has, or the program has an error of its own."""
    called = threading.Event()

    def update(*_: object) -> None:
        called.set()
        raise ArithmeticError("mine")

    model = Model()
    model.update = update  # type: ignore[method-assign, assignment]
    worker = make(model)

    def program() -> None:
        with worker:
            worker.contribute(np.ones(NUMEL, np.float32), worker.version)
            assert called.wait(60)
            if has_own:
                raise KeyError

    with pytest.raises(KeyError if has_own else ArithmeticError):
        program()
    worker.leave()


def test_a_slow_worker_does_not_hold_the_others_up(pool: ThreadPoolExecutor, make: Make) -> None:
    """The others make versions for as long as its one gradient takes."""
    workers = crew(pool, make, [Model(seed) for seed in range(3)])
    wanted = workers[0].version + 15
    has_read, may_send = threading.Event(), threading.Event()

    def slowly(worker: AsynchronousWorker) -> bool:
        version = worker.read([np.empty(NUMEL, np.float32)])
        has_read.set()
        assert may_send.wait(PATIENCE)
        return worker.contribute(np.ones(NUMEL, np.float32), version)

    def quickly(worker: AsynchronousWorker, seed: int) -> None:
        while worker.version < wanted:
            train(worker, 1, seed, 0.002)

    slow = pool.submit(slowly, workers[2])
    assert has_read.wait(PATIENCE)
    for each in [pool.submit(quickly, worker, i) for i, worker in enumerate(workers[:2])]:
        each.result(PATIENCE)
    assert meet(workers) >= wanted
    assert not slow.done()
    may_send.set()
    assert not slow.result(PATIENCE)  # its gradient has become stale
    assert workers[2].stats()["stale"] == 1


def test_keyed(
    pool: ThreadPoolExecutor, make: Make, start_switch: StartSwitch, tmp_path: Path
) -> None:
    keys = tmp_path / "keys.toml"
    keys.write_text("\n".join(f'{job} = "a secret"' for job in range(1, 60)))
    keys.chmod(0o600)
    where = start_switch("127.0.0.1:0", "--keys", str(keys))[1]
    models = [Model(seed) for seed in range(3)]
    workers = crew(pool, make, models, switch=where, key=b"a secret")
    list(pool.map(train, workers, [10] * 3, range(3)))
    meet(workers)
    assert (models[1].weights == models[0].weights).all()
    assert sum(worker.stats()["snapshots_given"] for worker in workers) == 2


def test_misuse(pool: ThreadPoolExecutor, make: Make) -> None:
    model = Model()
    for ways in (
        {"threshold": 2},
        {"staleness": -1},
        {"state": [model.weights[::2]]},
        {"timeout": 0},
    ):
        with pytest.raises(ValueError, match=r"pass|must"):
            make(model, 1, **ways)
    with pytest.raises(TypeError, match="NumPy"):
        make(model, 1, state=[[1.0, 2.0]])
    with pytest.raises(TypeError, match="state must be a list"):
        make(model, 1, state=model.weights)
    with pytest.raises(TypeError, match="pass a function"):
        AsynchronousWorker(("127.0.0.1", 9), 7, 1, 1, update=None, state=[])  # type: ignore[arg-type]
    worker = make(model)
    with pytest.raises(TypeError, match="float64"):
        worker.contribute(np.ones(NUMEL), 0)
    with pytest.raises(ValueError, match="2 elements"):
        worker.contribute(np.ones(2, np.float32), 0)
    with pytest.raises(ValueError, match="2 arrays, not 3"):
        worker.read([model.weights] * 3)
    with pytest.raises(TypeError, match="into must be a list"):
        worker.read(model.weights)  # type: ignore[arg-type]
    for version in (None, "3", 1.5, -1, True, 2**32):
        with pytest.raises(ValueError, match="pass what read"):
            worker.contribute(np.ones(NUMEL, np.float32), version)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="the weights are of version"):
        worker.contribute(np.ones(NUMEL, np.float32), worker.version + 1)
    for version in (None, "3", 1.5, -1, True, 2**32):
        with pytest.raises(ValueError, match="pass what read"):
            worker.wait_for(2**32 + 1 if version == 2**32 else version)  # type: ignore[arg-type]
    waiting = pool.submit(worker.wait_for, 1, float("inf"))
    worker.contribute(np.ones(NUMEL, np.float32), 0)
    assert waiting.result(PATIENCE) == 1
    worker.leave()
    with pytest.raises(WorkerError, match="has left"):
        worker.contribute(np.ones(NUMEL, np.float32), 0)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "int32"])
def test_other_element_types(pool: ThreadPoolExecutor, make: Make, dtype: str) -> None:
    """The addresses in a vector come through in each."""
    models = [Model(seed) for seed in range(3)]
    workers = crew(pool, make, models, dtype=dtype)
    start = workers[0].version
    ones = np.ones(NUMEL, workers[0]._dtype)
    for worker in workers:
        assert worker.contribute(ones, worker.version)
    for worker in workers:
        worker.wait_for(start + 1)
        assert len(worker._directory.addresses) == 3
    assert (models[0].weights == models[2].weights).all()


def test_the_pages_listing(pool: ThreadPoolExecutor, switch: Where, job: int) -> None:
    """Four workers end near the minimum, whatever was too old."""
    page = (ROOT / "docs" / "asynchronous.md").read_text()
    listing = page.partition("```python\n")[2].partition("```")[0]
    place = '("127.0.0.1", 26963), job=21'
    assert place in listing
    listing = listing.replace(place, f"{switch}, {job=}")
    for done in pool.map(python, ["-c"] * 4, [listing] * 4):
        assert not done.stderr
        version, mean, _ = done.stdout.split(maxsplit=2)
        assert int(version) >= 200
        assert float(mean) < 0.01  # of 0.8 at the start


def test_the_page_names_all(make: Make) -> None:
    page = (ROOT / "docs" / "asynchronous.md").read_text()
    for name in inspect.signature(AsynchronousWorker.__init__).parameters:
        assert name == "self" or f"`{name}`" in page, name
    for key in make(Model()).stats():
        assert f"`{key}`" in page, key


def test_from_env(switch: Where, job: int, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "ISWITCH_SWITCH": f"{switch[0]}:{switch[1]}",
        "ISWITCH_JOB": str(job),
        "WORLD_SIZE": "1",
    }.items():
        monkeypatch.setenv(name, value)
    model = Model()
    with AsynchronousWorker.from_env(
        NUMEL, update=model.update, state=model.state, staleness=7
    ) as worker:
        assert (worker.num_workers, worker.staleness) == (1, 7)
        assert worker.contribute(model.weights, worker.version)
