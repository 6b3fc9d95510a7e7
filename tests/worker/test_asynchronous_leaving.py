"""What an asynchronous worker that leaves takes along, and those that are behind then."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.support.models import PATIENCE, Make, Model, crew, make, pool, train
from worker_lib import AsynchronousWorker

__all__ = ["make", "pool"]  # fixtures


def test_who_leaves_lets_those_behind_take_its_state(
    pool: ThreadPoolExecutor,
    make: Make,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """One loses all packets while the other makes more versions than the switch keeps."""
    models = [Model(seed) for seed in range(2)]
    fast, slow = crew(pool, make, models, threshold=1)
    with monkeypatch.context() as patch:
        lose_all(slow, patch)
        train(fast, 30, 1)
        leaving = pool.submit(fast.leave)
        with pytest.raises(TimeoutError):
            leaving.result(0.3)
    leaving.result(PATIENCE)
    last = models[0].versions[-1]
    assert slow.wait_for(last, PATIENCE) == last
    assert (models[1].weights == models[0].weights).all()
    assert last not in models[1].versions, "it has missed nothing"
    assert "are lost" not in caplog.text


def test_who_goes_on_without_versions_says_so(
    pool: ThreadPoolExecutor,
    make: Make,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The other one ends by an error, so it waits for nobody."""
    fast, slow = crew(pool, make, [Model(seed) for seed in range(2)], threshold=1)
    with monkeypatch.context() as patch:
        lose_all(slow, patch)
        train(fast, 30, 1)
        with pytest.raises(ZeroDivisionError), fast:
            raise ZeroDivisionError
    assert slow.wait_for(fast.version, PATIENCE) >= fast.version
    assert "are lost: while this worker was behind" in caplog.text


def lose_all(worker: AsynchronousWorker, patch: pytest.MonkeyPatch) -> None:
    """Have a worker lose all packets that come."""
    pull = worker._membership.port.pull
    patch.setattr(worker._membership.port, "pull", lambda: list(pull())[:0])
