"""Replayed traces of switches that share their memory give what was captured, to the last bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from iswitch.cli import main
from iswitch.core.jobs.limits import Limits
from tests.traces.test_replay import all_equal, generate, replayed

RACKS = "rack:2x3,rate=1Gbit,delay=20us,loss=1%"


@pytest.mark.parametrize("policy", ["besteffort", "preempt"])
def test_parts_go_up(tmp_path: Path, policy: str) -> None:
    """Which ones, whose sums they are, and aggregates, which are not kept."""
    given = Limits(policy=policy, slots=8)
    trace = generate(tmp_path / "tor1.pcapng", RACKS, "tor1", given)
    report = replayed(trace, limits=given)
    all_equal(report)
    counters = report["counters"]
    assert counters["passed_on"] > counters["accumulated"] > 0
    assert report["compared"]["to_parent"] > counters["to_parent"] > 0


def test_parts_are_merged(tmp_path: Path) -> None:
    trace = generate(
        tmp_path / "core1.pcapng", RACKS, "core1", Limits(policy="besteffort", slots=8)
    )
    report = replayed(trace)
    all_equal(report)
    assert report["counters"]["merged"] > 0
    (job,) = report["jobs"]
    assert sum(one["last_of_round"] for one in job["members"]) == job["rounds"] == 4


@pytest.mark.parametrize(
    ("given", "options"),
    [
        ({"policy": "besteffort", "slots": 8}, "--policy besteffort (or preempt) and --slots N"),
        ({"policy": "lanes:fair"}, "--policy lanes:... and --memory"),
        ({"slots": 8}, "--slots 8"),
        ({"policy": "pool"}, "--policy pool"),
    ],
)
def test_a_switch_that_shares_otherwise_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], given: dict[str, Any], options: str
) -> None:
    """Its sums would be others; with its options it is replayed."""
    form, switch = ("rack:2x2", "tor1") if "--slots N" in options else ("star:2", "s1")
    trace = generate(tmp_path / "s.pcapng", form, switch, Limits(**given), rounds=1)
    assert main(["replay", str(trace)]) == 2
    assert options in capsys.readouterr().err
    right = [word for name, value in given.items() for word in (f"--{name}", str(value))]
    assert main(["replay", str(trace), *right]) == 0
    assert "equal to the last bit" in capsys.readouterr().out
