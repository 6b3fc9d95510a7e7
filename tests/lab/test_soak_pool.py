"""Soak finds pools that give slots or memory away too early."""

from __future__ import annotations

import pytest

from iswitch.core.jobs import resizing
from iswitch.core.jobs.membership import Membership
from iswitch.core.jobs.record import Record
from iswitch.core.jobs.requests import Answer, Request
from iswitch.core.jobs.shares import Pool
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


def not_confirmed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker counts as keeping to fewer slots as soon as it was told them."""
    original = resizing.answer

    def answer(record: Record, request: Request) -> Answer | None:
        found, bound = original(record, request), request.member.bound
        if found is not None and bound is not None:
            bound.after = bound.told
        return found

    monkeypatch.setattr(resizing, "answer", answer)


@pytest.mark.parametrize(
    ("broken", "seed", "what"),
    [
        (taken_back_too_early, 242, "memory"),
        (slots_of_the_smallest, 242, "aggregate missed"),
        (not_confirmed, 277, "aggregate missed"),
    ],
)
def test_broken_pools_are_caught(
    broken: Break, seed: int, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the first of the seeds from 0 on that shows it; without the defect all is well."""
    scenario = generate(seed)
    assert scenario.policy == Pool.name
    broken(monkeypatch)
    assert run(scenario).violation == what
