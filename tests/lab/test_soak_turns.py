"""Soak finds memory that is lent twice or given away too early, and sums that turns have spoilt."""

from __future__ import annotations

import pytest

from iswitch.core.jobs import memory, turns
from iswitch.core.sums.by_round import OneRound
from iswitch.core.sums.turns import TurnAccelerator
from iswitch.lab.soak.generate import generate
from iswitch.lab.soak.run import run
from tests.lab.test_soak import Break

pytestmark = pytest.mark.unit


def lane_not_switched(monkeypatch: pytest.MonkeyPatch) -> None:
    """The job that had a lane goes on to hold its memory."""
    for module in (memory, turns):
        monkeypatch.setattr(module, "take_back", lambda record: record.policy.losses())


def sums_counted_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was given up stays in the sums, and its senders contribute again."""
    original = OneRound.begin

    def begin(self: OneRound, round_: int) -> None:
        dirty = self.rows.copy()
        original(self, round_)
        self.states.sets[0].words[:, 0] = round_
        self.states.sets[0].words[:, 1] = 1 << 63  # nobody's: so the next one is added, not copied
        self.rows[...] = dirty

    monkeypatch.setattr(OneRound, "begin", begin)


def kept_given_away_too_early(monkeypatch: pytest.MonkeyPatch) -> None:
    """With its lane a job gives away the aggregates of its last round, which somebody may lack."""
    original = TurnAccelerator.rest

    def rest(self: TurnAccelerator) -> None:
        original(self)
        self.kept = None

    monkeypatch.setattr(TurnAccelerator, "rest", rest)


@pytest.mark.parametrize(
    ("broken", "seed", "what"),
    [
        (lane_not_switched, 55, "memory"),
        (sums_counted_twice, 55, "counted twice"),
        (kept_given_away_too_early, 201, "made again"),
    ],
)
def test_broken_turns_are_caught(
    broken: Break, seed: int, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the first of the seeds from 0 on that shows it."""
    scenario = generate(seed)
    assert scenario.policy.startswith("lanes:")
    broken(monkeypatch)
    assert run(scenario).violation == what
