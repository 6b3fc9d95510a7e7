"""Devices die, stop, are slow and lose packets in mid round, and switches are restarted.

The bitmap tells who is in the sum.
"""

from __future__ import annotations

import os
from collections.abc import Callable

import numpy as np
import pytest

from tests.support.federated import History
from worker_lib.federated import FederatedWorker, Said, Task
from worker_lib.federated.layout import Layout

from .__main__ import told

SEEDS = int(os.environ.get("ISWITCH_MODEL_SEEDS", "12"))  # `make model` takes more
MOST = 60  # seeds that may be needed to see a defect


@pytest.mark.parametrize("seed", range(SEEDS))
def test_the_bitmap_is_the_sum(seed: int) -> None:
    History(seed).play()


@pytest.mark.parametrize("seed", range(max(1, SEEDS // 8)))
def test_the_bitmap_is_the_sum_in_a_tree(seed: int) -> None:
    History(seed, racks=2).play()


def test_the_histories_are_of_what_they_are_for() -> None:
    """Rounds that are closed by the deadline, tried again, and members that are late.

    Switches that are restarted, and jobs that are reset.
    """
    found: dict[str, int] = {}
    for seed in range(30):
        found |= {name: 1 for name, count in told(History(seed).play()).items() if count}
    wanted = {"killed", "stopped", "restarted", "reset", "closed_by_deadline", "tried_again"}
    assert wanted | {"in", "late"} <= set(found)


def takes_any_sum(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody looks at the stamps: a sum that was closed early is taken for whole."""
    monkeypatch.setattr(Layout, "is_of", lambda *_: True)


def tells_too_early(monkeypatch: pytest.MonkeyPatch) -> None:
    """A member says that it is in the sum as soon as it was ready in time."""
    real = FederatedWorker._contribute

    def contribute(
        self: FederatedWorker, bids: int, number: int, weights: np.ndarray, n: float
    ) -> Said:
        said = real(self, bids, number, weights, n)
        return Said.IN if said is not Said.UNTOLD else said

    monkeypatch.setattr(FederatedWorker, "_contribute", contribute)


def sends_old_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """A member contributes what it has contributed before."""
    real = Task.contribute
    kept: dict[FederatedWorker, np.ndarray] = {}

    def contribute(self: Task, weights: np.ndarray, n: float) -> Said:
        old = kept.setdefault(self._worker, weights)
        return real(self, old, n)

    monkeypatch.setattr(Task, "contribute", contribute)


@pytest.mark.parametrize("breaks", [takes_any_sum, tells_too_early, sends_old_weights])
def test_the_oracle_sees(
    breaks: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    breaks(monkeypatch)

    def play_all() -> None:
        for seed in range(MOST):
            History(seed).play()

    with pytest.raises(AssertionError):
        play_all()
