"""iswitch bench paper: what is compared with what, the headline, asynchronous runs, a real one."""

from __future__ import annotations

import argparse
import json
import re
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from iswitch.cli.bench import configure
from iswitch.lab.bench import paper
from iswitch.lab.bench.choosing import plan_of
from iswitch.lab.bench.group import Free, Group, Round
from iswitch.lab.bench.plan import PAPER, Setting
from iswitch.lab.bench.result import Results, Series
from iswitch.outside import UsageError
from tests.support import python

pytestmark = pytest.mark.serial


def test_the_networks_of_the_paper() -> None:
    plan = paper.plan(list(PAPER.values()), paper.WORKERS, paper.RATES, "netns")
    assert [setting.text for setting in plan.settings[:4]] == [
        "star:4,rate=100Mbit", "rack:2x3,rate=100Mbit", "rack:3x3,rate=100Mbit",
        "rack:4x3,rate=100Mbit",
    ]  # fmt: skip
    assert (len(plan.settings), plan.cells) == (8, 32)
    labels = [[way.label for way in plan.ways_on(setting)] for setting in plan.settings[:2]]
    assert labels == [["iswitch", "ps", "ring", "iswitch async", "ps async"], labels[0][:3]]
    assert plan.computing("allreduce", PAPER["dqn"]) == 1 / 38
    with pytest.raises(ValueError, match="8 workers are not three in each rack"):
        paper.settings([4, 8], ["1Gbit"])


def series(label: str, iterations: list[tuple[float, float]]) -> Series:
    """Of (compute, aggregate)."""
    ways = {way.label: way for way in (*paper.SYNCHRONOUS, *paper.ASYNCHRONOUS)}
    rounds = [Round(*one, 0.0, 0.1, 0.1, 1.0, 1.0) for one in iterations]
    size, setting = PAPER["dqn"], Setting("star:4", "1Gbit")
    return Series(ways[label], size, setting, 4, rounds, rounds, exact=True)


FOUND = [
    series("iswitch", [(1.0, 1.0), (1.0, 1.0)]),
    series("ps", [(1.0, 4.0), (1.0, 6.0)]),
    series("ring", [(1.0, 2.0), (1.0, 2.0)]),
    series("iswitch async", [(1.0, 0.0), (1.0, 0.0)]),
    series("ps async", [(1.0, 3.0), (1.0, 4.0)]),
]


def test_speedups_and_the_headline() -> None:
    (one,) = paper.compare(Results(FOUND))
    assert one.over == {"ps": 3.0, "ring": 1.5, "ps async": 4.5}
    assert one.seconds["ps"] == 6.0
    assert one.communication == (4 / 5 + 6 / 7) / 2
    assert one.line() == [
        "6.41 MB", "2000", "6000", "3000", "3.00x", "1.50x", "83 %", "1000", "4500", "4.50x",
    ]  # fmt: skip
    assert paper.headlines([one]) == [
        "At 1Gbit/s, up to 3.00x over ps (paper: up to 3.66x), 1.50x over ring (paper: up to "
        "3.66x), 4.50x over ps async (paper: up to 3.71x), 83 % communication (paper: 83 %)."
    ]
    assert list(paper.tables([one])) == [("4 workers, star:4,rate=1Gbit", [one.line()])]
    plan = paper.plan([PAPER["dqn"]], [4], ["1Gbit"], "netns")
    assert "6.41 MB: 26.3 ms" in paper.conditions(plan)
    assert "6.41 MB: 5.00 ms" in paper.conditions(replace(plan, compute=0.005))


def test_what_was_not_reached_is_left_out() -> None:
    """As after Ctrl-C."""
    assert paper.compare(Results(FOUND[:1])) == []
    (one,) = paper.compare(Results(FOUND[:2]))
    assert one.line()[2:] == ["6000", "", "3.00x", "", "83 %", "", "", ""]
    assert "ring" not in paper.headlines([one])[0]


def test_asynchronous_iterations_are_the_time_between_ends() -> None:
    """The first ones do not count: what was under way makes them short."""
    group = Group(paper.SERVER_ASYNC, 2)

    def order(what: str, at: float, count: int, compute: float) -> list[Any]:
        assert (what, count, compute) == ("run", 5, 0.5)
        assert at > time.monotonic()
        return [Free([1.0, 1.1, 1.2, 3.2, 5.2], 1.0), Free([2.0, 2.1, 2.2, 6.2, 10.2], 2.0)]

    group.order = order  # type: ignore[method-assign]
    found = group.free(5, 0.5)
    assert found.iteration == pytest.approx((2.0 + 4.0) / 2)
    assert found.compute == 0.5
    assert found.aggregate == pytest.approx(2.5)
    assert found.workers_cpu == pytest.approx(3.0 / 5)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("--strategies ring", "paper has its own --strategies; leave it out"),
        ("--topologies star", "paper has its own --topologies; leave it out"),
        ("--loss 1%", "paper has its own --loss; leave it out"),
        ("--in-a-row 10", "paper has its own --in-a-row; leave it out"),
        ("--workers 7", "7 workers are not three in each rack"),
        ("--world sim", "iswitch paper repeats the paper's comparisons in virtual time; use that"),
        ("--world loopback", "the loopback world has no links; use --world netns"),
        ("--rate fast", "--rate fast: rate 'fast'"),
    ],
)
def test_mistakes(options: str, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("iswitch.lab.bench.choosing.os", SimpleNamespace(geteuid=lambda: 0))
    parser = argparse.ArgumentParser()
    configure(parser)
    with pytest.raises(UsageError, match=re.escape(said)):
        plan_of(parser.parse_args(["paper", *options.split()]))


def test_it_wants_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("iswitch.lab.bench.choosing.os", SimpleNamespace(geteuid=lambda: 1000))
    parser = argparse.ArgumentParser()
    configure(parser)
    with pytest.raises(UsageError, match=r"run it as root \(sudo\)"):
        plan_of(parser.parse_args(["paper"]))


@pytest.mark.root(reason="building namespaces needs root")
@pytest.mark.usefixtures("nothing_is_left")
def test_a_comparison(tmp_path: Path) -> None:
    """A megabyte at 100 Mbit/s takes 83 ms by the switch, and a server must take it in twice."""
    files = {kind: tmp_path / f"out.{kind}" for kind in ("json", "html")}
    done = python(
        "-m", "iswitch", "bench", "paper", "--workers", "2", "--sizes", "1MB",
        "--rate", "100Mbit", "--rounds", "1", "--compute", "1",
        *(word for kind, path in files.items() for word in (f"--{kind}", str(path))),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    told = {r["strategy"]: r for r in json.loads(files["json"].read_text())["results"]}
    assert list(told) == ["iswitch", "ps", "ring", "iswitch async", "ps async"]
    assert [told[name]["exact"] for name in told] == [True, True, True, None, None]
    bound = told["iswitch"]["wire_bound"]
    assert 0.9 * bound < told["iswitch"]["aggregate"]
    assert 1.8 * bound < told["ps"]["aggregate"]
    assert 0.8 * bound < told["iswitch async"]["iteration"]
    assert 1.6 * bound < told["ps async"]["iteration"]
    assert "over ps (paper: up to 3.66x)" in done.stdout
    assert "Emulated: the hosts" in done.stdout
    assert "The paper&#x27;s comparisons" in files["html"].read_text()
