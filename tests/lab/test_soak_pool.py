"""Soak finds pools that give slots or memory away too early."""

from __future__ import annotations

import pytest

from iswitch.core.jobs.membership import Membership
from iswitch.core.jobs.shares import Pool
from iswitch.lab.soak import run as soak_run
from iswitch.lab.soak.generate import generate
from iswitch.lab.soak.run import run
from tests.lab.test_soak import Break

pytestmark = pytest.mark.unit


def taken_back_too_early(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory counts as free before the rounds that use it are over."""
    original = Pool.uses
    monkeypatch.setattr(Pool, "uses", lambda self, job, _: original(self, job, 0))


def slots_of_the_smallest(monkeypatch: pytest.MonkeyPatch) -> None:
    """A round has as many slots as the worker with the smallest window needs."""

    def slots_of(self: Membership, round_: int) -> int:
        bounds = (member.bound for member in self.contributors())
        return min(bound.of(round_) for bound in bounds if bound is not None)

    monkeypatch.setattr(Membership, "slots_of", slots_of)


@pytest.mark.parametrize(
    ("broken", "seed", "what"),
    [(taken_back_too_early, 5, "memory"), (slots_of_the_smallest, 56, "no progress")],
)
def test_broken_pools_are_caught(
    broken: Break, seed: int, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By one of the seeds from 0 to 199; without the defect all is well."""
    scenario = generate(seed)
    assert scenario.policy == Pool.name
    monkeypatch.setattr(soak_run, "BOUND", 2.0)  # seconds; more takes long to play
    assert not run(scenario).violation
    broken(monkeypatch)
    assert run(scenario).violation == what
