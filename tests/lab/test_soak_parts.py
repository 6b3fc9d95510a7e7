"""Soak finds parts that are merged twice, and slots that are given away too early."""

from __future__ import annotations

import numpy as np
import pytest

from iswitch.core.format.packets import Rows, Stretch
from iswitch.core.jobs.policies import POLICIES
from iswitch.core.sums.assembly import Assembly
from iswitch.core.sums.passing import PassingAccelerator
from iswitch.core.sums.pool import FREE, Owner, Pool
from iswitch.lab.soak.generate import generate
from iswitch.lab.soak.run import run
from tests.lab.test_soak import Break

pytestmark = pytest.mark.unit

NOBODY = 1 << 63  # a seat that no history has
GIVE_BACK = Pool.give_back


def merged_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """A part is added although a seat of it is in the sum."""
    original = Assembly._merge_run

    def merge_run(
        self: Assembly, round_: int, start: int, stop: int, rows: Rows, bits: int, all_: int
    ) -> list[Stretch]:
        table = self.sets[round_ % self.SETS]
        holds, has, wanted = table.get(start)
        if holds == round_ and bits & has:
            table.set(start, stop, holds, has & ~bits | NOBODY, wanted)
        return original(self, round_, start, stop, rows, bits, all_)

    monkeypatch.setattr(Assembly, "_merge_run", merge_run)


def given_away_too_early(monkeypatch: pytest.MonkeyPatch) -> None:
    """A slot goes to a job of a higher priority while a sum in it stays there."""

    def make_room(self: Pool, owner: Owner, wanted: int) -> None:
        taken = self._priorities != FREE
        outranked = [self._outranks(owner.priority, one) for one in self._priorities.tolist()]
        self.give_back(np.flatnonzero(taken & outranked)[:wanted])

    monkeypatch.setattr(Pool, "_make_room", make_room)
    # Else it would be noticed that it is given back twice.
    monkeypatch.setattr(Pool, "give_back", lambda self, slots: _give_back(self, slots))


def _give_back(self: Pool, slots: np.ndarray) -> None:
    GIVE_BACK(self, slots[self._priorities[slots] != FREE])


def taken_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A segment that has gone on gets a slot, with contributors that have gone on before."""

    def forget(self: PassingAccelerator, round_: int, start: int, stop: int) -> None:
        table = self.states.sets[round_ % self.SETS]
        for a, b in table.uniform(start, stop):
            holds, how_far, _ = table.get(a)
            if holds == round_ and how_far in (self.COMPLETE, self.PASSED):
                table.set(a, b, round_, self.OPEN, 0)

    monkeypatch.setattr(PassingAccelerator, "forget", forget)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("broken", "seed", "what"),
    [
        (merged_twice, 9, "counted twice"),
        (given_away_too_early, 161, "too few"),
        (taken_again, 77, "no progress"),
    ],
)
def test_broken_parts_are_caught(
    broken: Break, seed: int, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By one of the seeds from 0 to 199."""
    scenario = generate(seed)
    assert POLICIES[scenario.policy].passes_on
    broken(monkeypatch)
    assert run(scenario).violation == what
