"""A replay in layers gives what one in the order of the trace gives."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from iswitch.traces import replay as replaying
from iswitch.traces.observed import Watch
from iswitch.traces.reader import Reader
from iswitch.traces.replay import Group, Replayer
from iswitch.traces.report import replay
from iswitch.traces.survey import survey

from .test_replay import all_equal, generate

FORMS = [
    "star:4,rate=1Gbit,seed=1",
    "star:4,rate=1Gbit,loss=0.1%,seed=3",
    "star:4,loss=2%,delay=300us,jitter=200us,duplicate=1%,reorder=2%,seed=5",
    "star:8,delay=400us,jitter=400us,reorder=20%,seed=4",
]


class Counting(Replayer):
    """Counts the groups that are handled."""

    handled = 0

    def _handle(self, group: Group, time_ns: int) -> None:
        self.handled += 1
        super()._handle(group, time_ns)


def report(path: Path, ordered: bool) -> dict[str, Any]:
    with Reader(path) as reader:
        setting = survey(reader)
        setting.ordered = ordered
        return replay(reader, setting)


@pytest.mark.parametrize("ordered", [True, False])
@pytest.mark.parametrize("form", FORMS)
def test_layers_change_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str, ordered: bool
) -> None:
    """Sums, what was dropped and why, and what is told of rounds: all of the report."""
    path = generate(tmp_path / "t", form, numel=9001)
    monkeypatch.setattr(replaying, "LEAST", 2)
    layered = report(path, ordered)
    all_equal(layered)
    monkeypatch.setattr(replaying, "LEAST", 1 << 60)
    assert report(path, ordered) == layered


def test_interleaved_packets_are_handled_in_groups(tmp_path: Path) -> None:
    path = generate(tmp_path / "t", "star:4,rate=1Gbit", numel=300_000)
    with Reader(path) as reader:
        replayer = Counting(reader, survey(reader), watch=Watch())
        replayer.run()
    tally = replayer.comparison.tally
    assert tally.equal == tally.captured > 10_000
    assert replayer.handled < replayer.passed["packets"] / 50


def test_what_is_sent_is_seen_in_its_order(tmp_path: Path) -> None:
    """Whoever takes what would be sent gets it in the order of the trace."""
    path = generate(tmp_path / "t", "star:4,rate=1Gbit", numel=30_000, rounds=1)
    times: list[int] = []
    with Reader(path) as reader:
        replayer = Counting(reader, survey(reader), sink=lambda _, at, __: times.append(at))
        replayer.run()
    assert len(times) > 80
    assert times == sorted(times)
