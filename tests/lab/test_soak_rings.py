"""Soak over rings in shared memory: they are used in every way, and a broken one is caught."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from iswitch.lab.soak import rings
from iswitch.lab.soak.generate import generate
from iswitch.lab.soak.run import run
from iswitch.lab.soak.scenario import Scenario
from iswitch.ports.rings.members import Group
from iswitch.ports.rings.memory import HEAD
from iswitch.ports.rings.ring import Packets, Writer
from iswitch.sim.trace import Trace
from tests.support import open_files


def ringed(count: int, *events: str) -> list[Scenario]:
    """The first histories with rings, and with one of these events."""
    found: list[Scenario] = []
    seed = 0
    while len(found) < count:
        scenario = generate(seed)
        if scenario.rings and scenario.has(*events) and scenario.horizon < 0.3:
            found.append(scenario)
        seed += 1
    return found


def test_rings_wrap_are_full_and_bring_sums_to_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: Counter[str] = Counter()
    lay, put = Writer.lay, Group.put

    def spied(self: Writer, packets: Packets, taken: int) -> bool:
        before = self.written
        done = lay(self, packets, taken)
        seen["written" if done else "full"] += 1
        seen["wrapped"] += before // self.size != self.written // self.size
        assert len(self.data) == rings.SIZE
        return done

    def together(self: Group, packets: Packets, due: float | None = None) -> bool:
        seen["for a group"] += 1
        return put(self, packets, due)

    monkeypatch.setattr(Writer, "lay", spied)
    monkeypatch.setattr(Group, "put", together)
    before = open_files()
    for scenario in (*ringed(1, "pause"), *ringed(1, "restart"), *ringed(1, "reborn")):
        assert not run(scenario).violation
    assert min(seen[what] for what in ("written", "full", "wrapped", "for a group")) > 0, seen
    assert open_files() == before
    assert HEAD % rings.SIZE == 0


def test_a_history_over_rings_is_the_same_again() -> None:
    (scenario,) = ringed(1, "reborn")
    digests = []
    for _ in range(2):
        trace = Trace()
        run(scenario, trace)
        digests.append(trace.digest())
    assert digests[0] == digests[1]
    trace = Trace()
    run(replace(scenario, rings=False), trace)
    assert trace.digest() != digests[0]


def test_a_ring_that_loses_a_record_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Though workers would send it again."""
    lay = Writer.lay
    count = Counter[Writer]()

    def forgetful(self: Writer, packets: Packets, taken: int) -> bool:
        count[self] += 1
        return count[self] == 3 or lay(self, packets, taken)

    monkeypatch.setattr(Writer, "lay", forgetful)
    assert run(ringed(1, "pause")[0]).violation in ("lost in a ring", "wrong ring")
