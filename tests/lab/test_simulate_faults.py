"""`iswitch simulate` on links that lose packets, or carry those of others, too."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from iswitch.cli import main
from iswitch.lab.simulate.predicting import predict
from iswitch.outside import UsageError
from tests.lab.test_simulate import scenario
from tests.support import ROOT

pytestmark = pytest.mark.unit

NETWORK = "--topology star:4,rate=10Gbit,delay=1us --size 40kB --processes 1"


def test_background_traffic_takes_its_rate() -> None:
    network = "--topology rack:2x2,delay=1us --size 400kB --rate"
    with_others = predict(scenario(f"{network} 1Gbit --background 400Mbit"), "iswitch")
    alone = predict(scenario(f"{network} 600Mbit"), "iswitch")
    assert with_others.seconds == pytest.approx(alone.seconds)
    swept = [predict(scenario(f"{network} 600Mbit --background {none}"), "iswitch", changes=False)
             for none in ("0", "0bit")]  # fmt: skip
    assert {one.seconds for one in swept} == {alone.seconds}


@pytest.mark.parametrize(
    "what", ["--rate 1bit", "--rate 1Gbit --compute fixed:2000000ms --slow 0=4"]
)
def test_what_takes_too_long_to_be_counted_is_refused(what: str) -> None:
    with pytest.raises(UsageError, match="ps: an exchange would take an hour or more"):
        predict(scenario(f"--topology star:2 --size 4MB {what}"), "ps")


def test_losses_cost_time_and_are_of_the_seed() -> None:
    network = "--topology star:4,rate=10Gbit,delay=1us --size 600kB --iterations 30"
    plain = predict(scenario(network), "iswitch")
    lossy = [
        predict(scenario(f"{network} --loss 0.5% --seed {seed}"), "iswitch", changes=False)
        for seed in (1, 1, 2)
    ]
    assert lossy[0] == lossy[1] != lossy[2]
    assert lossy[0].seconds > 1.2 * plain.seconds
    assert not lossy[0].exact
    ring = predict(scenario(f"{network} --loss 0.5%"), "ring", changes=False)
    assert ring.seconds == predict(scenario(network), "ring", changes=False).seconds


def test_that_others_lose_nothing_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In the tables, and in the page."""
    line = f"simulate {NETWORK} --iterations 1 --no-changes".split()
    for more, said in (
        ("--loss 1% --strategy iswitch,ring,ps", True), ("--loss 1% --strategy iswitch", False),
        ("--strategy iswitch,ring", False),
        ("--sweep loss=0,1% --strategy ring,iswitch", True),
    ):  # fmt: skip
        path = tmp_path / "page.html"
        words = [*more.split(), "--html", str(path)]
        assert main([*line, *words]) == 0
        told = capsys.readouterr().out
        note = "over connections that lose nothing; --loss is of iswitch's packets alone"
        assert (note in told) == said
        assert ("over connections that lose nothing" in path.read_text()) == said
        assert "bottleneck" not in told  # of which nothing is known without changes


def test_what_slots_cost_is_predicted() -> None:
    """The table of docs/slots.md, which was measured in virtual time."""
    text = (ROOT / "docs" / "slots.md").read_text()
    rows = re.findall(r"^\| (whole vector|[\d,]+) \| [\d.]+ MiB \| (.*) \|$", text, re.M)
    assert len(rows) == 8
    for name, cells in rows:
        slots = "" if name == "whole vector" else f"--slots {name.replace(',', '')}"
        for delay, told in zip(("1us", "10us", "50us", "200us"), cells.split(" | "), strict=True):
            network = f"--topology star:4 --rate 10Gbit --delay {delay} --size dqn"
            found = predict(scenario(f"{network} {slots}"), "iswitch", changes=False)
            assert 1e3 * found.seconds == pytest.approx(float(told), abs=0.006)
