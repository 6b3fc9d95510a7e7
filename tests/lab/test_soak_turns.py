"""Soak finds memory that is lent twice or given away too early, and sums that turns have spoilt."""

from __future__ import annotations

import itertools

import pytest

from iswitch.core.jobs import memory, turns
from iswitch.core.sums.by_round import OneRound
from iswitch.core.sums.turns import TurnAccelerator
from iswitch.lab.soak.generate import generate
from iswitch.lab.soak.run import run
from tests.lab.test_soak import CAUGHT, Break

pytestmark = pytest.mark.unit

SHORT = 1.0  # seconds; longer histories take long to play


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


@pytest.mark.slow
@pytest.mark.parametrize(
    "broken", [lane_not_switched, sums_counted_twice, kept_given_away_too_early]
)
def test_broken_turns_are_caught(broken: Break, monkeypatch: pytest.MonkeyPatch) -> None:
    """Within 200 histories in which jobs take turns."""
    histories = (one for one in map(generate, itertools.count()) if one.memory)
    chosen = itertools.islice((one for one in histories if one.horizon < SHORT), CAUGHT)
    broken(monkeypatch)
    assert any(run(one).violation for one in chosen)
