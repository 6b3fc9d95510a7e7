"""Soak finds switches that give slots away too early, and workers with too large a window."""

from __future__ import annotations

import pytest

from iswitch.core.sums.slotted import SlottedAccelerator
from iswitch.lab.soak.generate import generate
from iswitch.lab.soak.run import run
from tests.lab.test_soak import CAUGHT, Break
from worker_lib.protocol.member import Member

pytestmark = pytest.mark.unit


def slots_given_away_too_early(monkeypatch: pytest.MonkeyPatch) -> None:
    """A set has half the slots that were promised."""
    original = SlottedAccelerator.__init__
    half = lambda self, shape, slots, *ways: original(self, shape, slots // 2, *ways)  # noqa: E731
    monkeypatch.setattr(SlottedAccelerator, "__init__", half)


def all_slots_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers leave no slot for what others may still lack."""
    monkeypatch.setattr(Member, "reach", property(lambda self: self.slots or self.shape.segments))


@pytest.mark.slow
@pytest.mark.parametrize("broken", [slots_given_away_too_early, all_slots_under_way])
def test_broken_slots_are_caught(broken: Break, monkeypatch: pytest.MonkeyPatch) -> None:
    """Histories that come to no end take minutes to shrink: here they are only found."""
    broken(monkeypatch)
    short = (one for one in map(generate, range(CAUGHT)) if one.horizon < 1)
    slotted = (one for one in short if one.slots and not one.policy)
    found = next(violation for one in slotted if (violation := run(one).violation))
    assert found in ("no progress", "aggregate missed")
