"""`iswitch simulate`: the times of virtual time, sweeps that go on, and sentences for mistakes."""

from __future__ import annotations

import argparse
import csv
import json
import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from iswitch.cli import main
from iswitch.cli import simulate as cli
from iswitch.lab.bench.plan import ALLREDUCE, Setting, Way
from iswitch.lab.bench.simulated import Step, run
from iswitch.lab.launch.simulated import Virtual
from iswitch.lab.simulate import sweeping, ways
from iswitch.lab.simulate.predicting import predict
from iswitch.lab.simulate.scenario import OPTIONS, Scenario, read
from iswitch.outside import UsageError
from iswitch.sim.grain import SINGLE
from iswitch.sim.handling import Handling
from iswitch.sim.model import plans
from iswitch.sim.model.bounds import pushed_and_answered
from iswitch.sim.model.fabric import Fabric
from iswitch.sim.model.messages import Exchange
from iswitch.virtual.computing import Plan
from tests.support import ROOT, options_of, python
from topologies import Topology

pytestmark = pytest.mark.unit

PAGE = ROOT / "docs" / "simulate.md"
NETWORK = "simulate --topology star:3,rate=1Gbit --processes 1"
SMALL = f"{NETWORK} --size 40kB"
SWEEP = f"{NETWORK} --sweep workers=2,3 --sweep size=4kB,40kB"


def options(text: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    cli.configure(parser)
    return parser.parse_args(shlex.split(text))


def scenario(text: str) -> Scenario:
    return read(options(text))


@pytest.mark.parametrize("strategy", ["iswitch", "ring"])
def test_times_are_those_of_bench_in_virtual_time(strategy: str) -> None:
    """Of programs that use the strategies, with single packets."""
    given = scenario("--topology rack:2x2,rate=1Gbit,delay=2us --size ppo")
    found = predict(given, strategy)
    setting = Setting("rack:2x2,rate=1Gbit,delay=2us")
    virtual = Virtual(Plan("zero"), False, SINGLE)
    reports = run(Way.parse(strategy), ALLREDUCE, given.size, setting, virtual, [Step(1)])
    (at, _), ends = reports[0].steps[0], [one.steps[0][1].ends[0] for one in reports]
    assert found.seconds == pytest.approx(max(ends) - at, abs=1e-9)


def test_iterations_with_computing() -> None:
    """An iteration ends when the slowest worker has computed, and its vector has passed."""
    network = "--topology star:4,rate=10Gbit --size dqn"
    plain = predict(scenario(network), "iswitch").seconds
    fixed = predict(scenario(f"{network} --compute fixed:3ms"), "iswitch")
    assert fixed.seconds == pytest.approx(plain + 0.003, abs=1e-6)
    assert fixed.iterations == (fixed.seconds,)
    slow = predict(scenario(f"{network} --compute fixed:3ms --slow 2=3"), "iswitch")
    assert slow.seconds == pytest.approx(plain + 0.009, abs=1e-6)
    assert slow.compute == pytest.approx(0.0045)
    words = f"{network} --compute fixed:3ms --jitter lognormal:0.3 --seed 5 --iterations 7"
    drawn = [predict(scenario(words), "iswitch").iterations for _ in range(2)]
    assert drawn[0] == drawn[1]
    assert len(set(drawn[0])) == 7
    assert min(drawn[0]) > plain + 0.002


def test_changes_are_tried() -> None:
    given = scenario("--topology rack:2x2,rate=10Gbit,delay=1us --size dqn")
    found = predict(given, "iswitch")
    assert found.bottleneck == "all links"
    tried = {change.what: change.seconds / found.seconds for change in found.changes}
    assert tried["all links twice as fast"] == pytest.approx(0.5, abs=0.01)
    assert tried["half as many bytes"] == pytest.approx(0.5, abs=0.01)
    assert tried["delays of links twice as short"] == pytest.approx(1, abs=0.01)
    far = predict(scenario("--topology star:2,rate=100Gbit,delay=1ms --size 40kB"), "iswitch")
    assert far.bottleneck == "delays of links"
    busy = scenario("--topology star:4,rate=10Gbit --compute fixed:50ms --size 40kB")
    assert predict(busy, "ring").bottleneck == "computing"
    assert predict(given, "iswitch", changes=False).changes == ()


def test_the_bottleneck_is_what_shortens_most() -> None:
    """All links, if the busiest of them alone do less; else the busiest."""
    network = "--topology fattree:k=4 --size 40kB --rate 10Gbit --delay 1us"
    found = predict(scenario(network), "ps")
    assert [change.what for change in found.changes].count("all links twice as fast") == 1
    tried = {change.what: change.seconds / found.seconds for change in found.changes}
    assert tried["all links twice as fast"] == pytest.approx(0.5, abs=0.01)
    assert tried["h-edge and edge-agg links twice as fast"] > 0.8
    assert found.bottleneck == "all links"
    given = scenario("--topology rack:2x2,rate=10Gbit,delay=1us --size dqn")
    rates = np.where(given.fabric.depths() == 1, 1e8, 1e10)
    narrow = replace(given, fabric=given.fabric._replace(rate=rates))
    assert predict(narrow, "iswitch").bottleneck == "tor-core links"


def test_many_workers_share_windows() -> None:
    """With a room for all, each of many workers has a segment under way only."""
    network = "--topology fattree:k=16 --rate 10Gbit --delay 1us --size 40kB"
    narrow = predict(scenario(f"{network} --room 2MB"), "iswitch")
    wide = predict(scenario(f"{network} --room 2GB"), "iswitch")
    assert narrow.seconds > 2 * wide.seconds
    assert narrow.bottleneck == "windows of workers"
    assert "windows" not in " ".join(change.what for change in wide.changes)


def test_slots_cost_time_and_save_memory() -> None:
    network = "--topology star:4,rate=10Gbit,delay=200us --size dqn"
    whole, few = (predict(scenario(f"{network}{more}"), "iswitch") for more in ("", " --slots 128"))
    assert few.seconds > 4 * whole.seconds
    tried = {change.what: change.seconds / few.seconds for change in few.changes}
    assert tried["windows of workers twice as large"] == pytest.approx(0.5, abs=0.05)
    assert 10 * few.memory["s"] < whole.memory["s"]


def test_links_and_memory() -> None:
    found = predict(scenario("--topology rack:2x2,rate=1Gbit --size dqn"), "iswitch")
    assert [(one.name, one.count) for one in found.links] == [("h-tor", 4), ("tor-core", 2)]
    assert all(0.99 < one.up == one.down <= 1 for one in found.links)
    assert found.memory["tor"] > found.memory["core"] > 2 * 4 * 1_681_062
    assert found.packets == 4 * 4594
    deep = predict(scenario("--topology tree:2x2x1,rate=1Gbit --size 4kB"), "ring")
    assert [one.name for one in deep.links] == ["h-s", "s-s of level 2", "s-s of level 1"]
    assert not deep.memory


@pytest.mark.parametrize("form", ["star:12", "rack:3x4"])
@pytest.mark.parametrize("servers", [1, 3])
def test_the_estimate_is_near(form: str, servers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of parameter servers with more frames than are worked out, and so with many blocks."""
    monkeypatch.setattr(plans, "BLOCK", 4096)
    fabric = Fabric.of(Topology.parse(f"{form},rate=10Gbit,delay=1us"))
    streams = plans.ps(400_000, 12, servers)
    starts, nodes = np.linspace(0, 1e-5, 12), (Handling(), 1e-6)
    exact = Exchange(fabric, streams, *nodes).play(starts).max()
    assert pushed_and_answered(fabric, streams, starts, *nodes).max() == pytest.approx(
        exact, rel=0.07
    )


def test_many_frames_are_estimated_or_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ways, "MOST_FRAMES", 10)
    given = scenario("--topology star:3,rate=1Gbit --size 40kB --strategy ps")
    assert not predict(given, "ps").exact
    monkeypatch.setattr(ways, "is_apart", lambda _: False)
    with pytest.raises(UsageError, match="are too many, 10 at most; take fewer workers"):
        predict(given, "ring")


# Sweeps


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    return tmp_path / "points.jsonl"


def test_a_sweep_has_every_combination(
    kept: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = tmp_path / "points.csv"
    assert main([*SWEEP.split(), "--json", "--save", str(kept), "--csv", str(table)]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["complete"]
    swept = [one["options"] for one in told["points"]]
    assert swept == [{"workers": n, "size": size} for n in "23" for size in ("4kB", "40kB")]
    with table.open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 4 * 3
    for one in told["points"]:
        for found in one["predictions"]:
            (row,) = [
                row
                for row in rows
                if (row["workers"], row["swept_size"], row["strategy"])
                == (str(one["workers"]), one["options"]["size"], found["strategy"])
            ]
            assert float(row["seconds"]) == found["seconds"]
            first = one["predictions"][0]["seconds"]
            assert float(row["times_as_long"]) == found["seconds"] / first
    head, *points = map(json.loads, kept.read_text().splitlines())
    assert head["format"] == sweeping.FORMAT
    assert points == told["points"]


def test_processes_find_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    outputs = []
    for processes in "12":
        assert main([*SWEEP.split(), "--json", "--processes", processes]) == 0
        outputs.append(json.loads(capsys.readouterr().out)["points"])
    assert outputs[0] == outputs[1]


CLUSTER = """
import io, json, sys
from contextlib import redirect_stdout
from distributed import LocalCluster
from iswitch.cli import main

def told(*more):
    with redirect_stdout(io.StringIO()) as out:
        assert main([*sys.argv[1:], "--json", *more]) == 0
    return json.loads(out.getvalue())["points"]

with LocalCluster(n_workers=2, threads_per_worker=1, processes=False, dashboard_address=None) as c:
    found = told("--scheduler", c.scheduler_address)
assert found == told("--processes", "1")
print(len(found), "points are equal")
"""


@pytest.mark.slow
def test_a_cluster_finds_the_same() -> None:
    sizes = ",".join(f"{n}kB" for n in range(1, 51))
    swept = ["--sweep", f"size={sizes}", "--sweep", "workers=1,2,3,4", "--no-changes"]
    done = python(
        "-c", CLUSTER, "simulate", "--topology", "rack:2x2,rate=1Gbit", "--strategy",
        "iswitch,ring", *swept,
    )  # fmt: skip
    assert done.stdout == "200 points are equal\n", done.stderr


@pytest.mark.slow
def test_a_scheduler_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*SWEEP.split(), "--scheduler", "nonsense://"]) == 2
    assert "--scheduler nonsense://: no scheduler answers" in capsys.readouterr().err


def test_a_sweep_goes_on_where_it_was_stopped(
    kept: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    line = [*SWEEP.split(), "--json", "--save", str(kept)]
    assert main(line) == 0
    whole, text = json.loads(capsys.readouterr().out), kept.read_text()
    worked: list[dict[str, str]] = []
    work = sweeping._work

    def stopped(_: Any, tasks: Sequence[sweeping.Task], __: int) -> Iterator[Any]:
        yield work(tasks[0])
        raise KeyboardInterrupt

    def counted(task: sweeping.Task) -> Any:
        worked.append(task.chosen.options)
        return work(task)

    assert main(line) == 2
    assert "the file is there; go on with its sweep with --resume" in capsys.readouterr().err
    assert kept.read_text() == text
    kept.unlink()
    with monkeypatch.context() as patch:
        patch.setattr(sweeping, "spread", stopped)
        assert main(line) == 130
    told = capsys.readouterr()
    assert "stopped by SIGINT after 1 of 4 points" in told.err
    assert not json.loads(told.out)["complete"]
    assert kept.read_text() == "".join(text.splitlines(keepends=True)[:2])
    with kept.open("a") as file:
        file.write('{"options": {"wor')  # killed while it wrote
    monkeypatch.setattr(sweeping, "_work", counted)
    assert main([*line, "--resume"]) == 0
    assert json.loads(capsys.readouterr().out)["points"] == whole["points"]
    assert len(worked) == 3
    assert kept.read_text() == text
    assert main([*line, "--resume", "--rate", "2Gbit"]) == 2
    assert "was written with other options" in capsys.readouterr().err
    kept.write_text("[")
    assert main([*line, "--resume"]) == 2


def test_points_are_checked_before_the_first_is_worked_out(
    kept: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sweeping, "spread", lambda *_: pytest.fail("worked"))
    line = [*SMALL.split(), "--sweep", "workers=2,3,8", "--save", str(kept)]
    assert main(line) == 2
    assert "--workers 8: star:3,rate=1Gbit has 3 hosts" in capsys.readouterr().err
    assert not kept.exists()


def test_networks_can_be_swept(capsys: pytest.CaptureFixture[str]) -> None:
    line = ["simulate", "--size", "4kB", "--rate", "1Gbit", "--processes", "1"]
    assert main([*line, "--json", "--sweep", "topology=star:2,star:3"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert [one["workers"] for one in told["points"]] == [2, 3]
    assert main(line) == 2
    assert "name a network with --topology" in capsys.readouterr().err


def test_the_page(tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    assert main([*SWEEP.split(), "--html", str(path)]) == 0
    text = path.read_text()
    assert "When does in-network aggregation pay?" in text
    assert "iswitch is at least 1.05 times as fast as ring at " in text
    assert text.count("<svg") == 2 + 2 + 2
    assert main([*SMALL.split(), "--html", str(path)]) == 0
    assert "What would move it" in path.read_text()


# The page of the docs


def test_options_are_documented() -> None:
    text = PAGE.read_text()
    for option in options_of(cli.configure):
        assert f"`{option}" in text, option
    for name in set(OPTIONS) - {"workload"}:
        assert f"--{name.replace('_', '-')}" in text


def test_the_listings_of_the_page(capsys: pytest.CaptureFixture[str]) -> None:
    found = re.findall(
        r"```console\n\$ iswitch ([^\n]*)\n```\n\n```text\n(.*?)```", PAGE.read_text(), re.S
    )
    assert len(found) == 7
    for line, text in found:
        assert main(shlex.split(line)) == 0
        assert capsys.readouterr().out == text
