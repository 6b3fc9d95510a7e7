"""Options of iswitch switch that impair its ports."""

from __future__ import annotations

import argparse
import json

import pytest

from iswitch.cli import main
from iswitch.cli.switch import configure, settings
from iswitch.faults.impairment import Impairment
from iswitch.serving.impairments import impairments
from tests.commands.test_switch_command import end, rounds, switch

pytestmark = pytest.mark.serial


def parsed(*words: str) -> dict[tuple[int, str], Impairment]:
    parser = argparse.ArgumentParser()
    configure(parser)
    return dict(impairments(settings(parser.parse_args(words)))[0])


def seed_of(*words: str) -> int:
    parser = argparse.ArgumentParser()
    configure(parser)
    return impairments(settings(parser.parse_args(words)))[1]


def test_impairments_by_port_and_direction() -> None:
    loss, late = Impairment(loss=0.01), Impairment(delay=0.005)
    assert parsed() == {}
    assert parsed("--impair", "loss=1%") == {(0, "in"): loss, (0, "out"): loss}
    assert parsed("--impair", "out:loss=1%") == {(0, "out"): loss}
    options = ["--ports", "a,b", "--impair", "b:in:loss=1%", "--impair", "a:delay=5ms"]
    options += ["--impair", "b:out:delay=5ms"]
    assert parsed(*options) == {
        (1, "in"): loss,
        (0, "in"): late,
        (0, "out"): late,
        (1, "out"): late,
    }


def test_the_seed_of_the_chances() -> None:
    assert seed_of() == seed_of("--impair", "loss=1%") == 0
    assert seed_of("--impair", "loss=1%", "--seed", "7") == 7
    assert seed_of("--impair", "loss=0.2,duplicate=0.1,seed=1") == 1
    both = ["--impair", "in:seed=3,loss=1%", "--impair", "out:loss=1%"]
    assert seed_of(*both) == seed_of(*both[:3], "out:loss=1%,seed=3") == 3
    bad = Impairment(loss=0.2, duplicate=0.1)
    assert parsed("--impair", "loss=0.2,duplicate=0.1,seed=1") == {(0, "in"): bad, (0, "out"): bad}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--impair loss=2", "--impair loss=2: loss 2.0 is not in [0, 1]; write 1%"),
        ("--impair speed=2", "'speed=2' is no impairment; write some of loss, burst, delay"),
        ("--impair s1-eth1:loss=1%", "'s1-eth1' is no direction; write in, out, or neither"),
        ("--ports a,b --impair loss=1%", "name one of --ports a,b first, such as --impair a:loss"),
        ("--ports a,b --impair c:loss=1%", "--impair c:loss=1%: name one of --ports a,b first"),
        ("--ports a,b --impair a:up:loss=1%", "'up' is no direction"),
        ("--impair loss=1% --impair in:delay=1ms", "that direction is impaired already; write all"),
        ("--impair loss=1% --seed -1", "--seed -1: 0 or more"),
        ("--impair loss=1%,seed=1 --seed 2", "the seed is 2 already; all chances have one"),
        ("--impair in:loss=1%,seed=1 --impair out:loss=1%,seed=2", "the seed is 1 already"),
        ("--impair loss=1%,seed=-1", "write one seed=N, N a whole number of 0 or more"),
        ("--impair loss=1%,seed=1,seed=1", "write one seed=N, N a whole number of 0 or more"),
        ("--impair seed=1", "impairs nothing; write loss=1%,seed=1"),
    ],
)
def test_impairments_that_are_refused(
    words: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["switch", *words.split()]) == 2
    assert message in capsys.readouterr().err


def test_sums_through_an_impaired_socket() -> None:
    """Exact ones, and everything that was to happen did."""
    faults = "loss=1%,delay=1ms,jitter=0.5ms,duplicate=1%,reorder=1%,corrupt=1%"
    with switch("--json", "--impair", faults, "--seed", "3") as (process, where):
        assert rounds(where, 3, 100_000, 3) == [3.0, 3.0, 3.0]
        counters = json.loads(end(process))
    for name in ("lost", "duplicated", "reordered", "corrupted"):
        assert counters[f"{name}_in"] > 0 < counters[f"{name}_out"], name
    assert counters["rx_frames"] == counters["bad_checksum"] == 0
