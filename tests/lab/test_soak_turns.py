"""Soak finds memory that is lent twice or given away too early, and sums that turns have spoilt."""

from __future__ import annotations

import pytest

from iswitch.core.jobs import memory, turns
from iswitch.core.jobs.lanes import Lanes
from iswitch.core.jobs.lodging import Lane
from iswitch.core.sums.by_round import OneRound
from iswitch.core.sums.turns import TurnAccelerator
from iswitch.lab.soak import run as soak_run
from iswitch.lab.soak.generate import generate
from iswitch.lab.soak.run import run
from iswitch.lab.soak.scenario import Scenario
from tests.lab.test_soak import Break

pytestmark = pytest.mark.unit

# A history in which somebody lacks an aggregate when its job loses the lane.
LOSSY = """
{"seed":201,"topology":"star:5","jobs":[{"number":1,"mode":"whole","hosts":["h5"],
"dtype":"float16","numel":1,"elements":1,"keyed":true},
{"number":2,"mode":"whole","hosts":["h1","h2","h3","h4"],
"dtype":"float16","numel":1,"elements":1}],
"links":"delay=100us,jitter=100us,rate=20Mbit,queue=20","events":[{"at":0.055386,
"what":"pause","who":"h4","lasting":0.02},
{"at":0.090758,"what":"echo","who":"h5","lasting":0.1},
{"at":0.124467,"what":"cut","who":"h5","lasting":0.1},
{"at":0.175571,"what":"echo","who":"h5","lasting":0.1},
{"at":0.197727,"what":"impostor","who":"h3","lasting":0.002}],
"horizon":0.4,"think":0.01,"latency":2e-05,"ports":true,"policy":"lanes:srtf","memory":520}
"""


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


def lane_of_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """A lane stays with the job that had it first, whoever else of its jobs asks for it."""
    original = Lanes._give

    def give(self: Lanes, lane: Lane) -> list[int]:
        first = lane.holder
        if first is None:
            return original(self, lane)
        given = first.asked is not None
        first.asked = None
        return [first.number] * given

    monkeypatch.setattr(Lanes, "_give", give)


def turn_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """A job that has lost its lane gives its memory back, and takes it again for its next round."""
    original = TurnAccelerator.rest

    def rest(self: TurnAccelerator) -> None:
        original(self)
        self.open = True

    monkeypatch.setattr(TurnAccelerator, "rest", rest)


@pytest.mark.parametrize(
    ("broken", "what"),
    [
        (lane_not_switched, "memory"),
        (turn_kept, "memory"),
        (lane_of_the_first, "no progress"),
        (sums_counted_twice, "counted twice"),
    ],
)
def test_broken_turns_are_caught(broken: Break, what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the first of the seeds from 0 on with turns; without the defect all is well."""
    scenario = generate(42)
    assert scenario.policy.startswith("lanes:")
    monkeypatch.setattr(soak_run, "BOUND", 2.0)  # seconds; more takes long to play
    assert not run(scenario).violation
    broken(monkeypatch)
    assert run(scenario).violation == what


def test_aggregates_given_away_too_early_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """By about one of 40 histories with turns."""
    scenario = Scenario.from_json(LOSSY)
    assert not run(scenario).violation
    kept_given_away_too_early(monkeypatch)
    assert run(scenario).violation == "made again"
