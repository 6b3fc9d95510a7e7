"""Runs of iswitch bench, and mistakes on its command line."""

from __future__ import annotations

import argparse
import csv
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from iswitch.cli.bench import configure
from iswitch.cli.bench import run as run_bench
from iswitch.lab.bench.choosing import check_ways, everything
from iswitch.lab.bench.group import BenchFailed, Group
from iswitch.lab.bench.network import pin, with_children
from iswitch.lab.bench.plan import Way
from iswitch.outside import OutsideError, UsageError
from tests.conftest import heed_interrupts
from tests.support import ROOT
from tests.support.browser import browser
from tests.support.machine import communicated
from topologies import Topology
from worker_lib.strategies import STRATEGIES, base
from worker_lib.strategies.packing import Network, pack

pytestmark = pytest.mark.serial

PATIENCE = 60.0  # seconds until a test is given up, of a machine that is fit


def bench(*options: str, **more: Any) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "iswitch", "bench", *options]
    more = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **more}
    with subprocess.Popen(command, cwd=ROOT, text=True, **more) as process:
        out, errors = communicated(process, PATIENCE)
    return subprocess.CompletedProcess(command, process.returncode, out, errors)


def test_loopback(tmp_path: Path) -> None:
    """Everything that it writes, and the page opens without a console error or a request."""
    files = {kind: tmp_path / f"out.{kind}" for kind in ("json", "csv", "html")}
    done = bench(
        "--sizes", "4kB,ppo", "--strategies", "iswitch,forward", "--workers", "2,3",
        "--rounds", "3", "--iterations", "2",
        *(word for kind, path in files.items() for word in (f"--{kind}", str(path))),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "40.02 KB (10,247 elements), 3 workers, star:3" in done.stdout
    told = json.loads(files["json"].read_text())
    assert told["complete"]
    assert told["command"].startswith("iswitch bench --sizes 4kB,ppo")
    assert {"CPU", "cores", "kernel", "Python", "NumPy"} < set(told["machine"])
    assert [(r["bytes"], r["workers"], r["strategy"]) for r in told["results"]] == [
        (size, workers, strategy)
        for workers in (2, 3)
        for size in (4000, 40_988)
        for strategy in ("iswitch", "forward")
    ]
    for result in told["results"]:
        assert (len(result["seconds"]), result["in_a_row"]) == (3, 10)
        assert min(result["seconds"]) > 0
        assert result["exact"] is (None if result["strategy"] == "forward" else True)
        assert result["switch_cpu_per_gb"] > 0
        assert result["workers_cpu_per_gb"] > 0
        assert result["link_sent_bits_per_s"] == result["link_received_bits_per_s"] == 0
        assert (result["compute"] is None) is (result["size"] == "4kB")
        assert len(result["stats"]) == result["workers"]
    assert len(list(csv.DictReader(files["csv"].read_text().splitlines()))) == 8
    if shutil.which("chromium") is None:
        assert os.geteuid() != 0, "apt-get install chromium, or make tools"
        return
    with browser() as tab:
        visit = tab.visit(files["html"], 390)
    assert visit.requests == [files["html"].as_uri()]
    assert visit.trouble == []
    assert visit.width == 390


@pytest.mark.root(reason="building namespaces needs root")
@pytest.mark.usefixtures("nothing_is_left")
@pytest.mark.parametrize("world", ["netns", "mininet"])
def test_links_with_a_rate(world: str, tmp_path: Path) -> None:
    """1 MB at 100 Mbit/s takes 83 ms, whoever adds, but for what may pass at once."""
    path = tmp_path / "out.json"
    done = bench(
        "--world", world, "--sizes", "1MB", "--strategies", "iswitch,ring",
        "--topologies", "star:2,rate=100Mbit", "--rounds", "12", "--iterations", "0",
        "--json", str(path),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    for result in json.loads(path.read_text())["results"]:
        assert result["exact"]
        assert 0.9 * result["wire_bound"] < result["p50"]
        assert result["min"] < 1.6 * result["wire_bound"]
        assert 0.2e6 < result["link_sent_bits_per_s"] < 110e6


@pytest.mark.root(reason="building namespaces needs root")
@pytest.mark.usefixtures("nothing_is_left")
def test_collectives(tmp_path: Path) -> None:
    """Some of them, exact, and none with fewer bytes than its formula."""
    files = {kind: tmp_path / f"out.{kind}" for kind in ("json", "html")}
    names = ("allreduce", "reduce_scatter", "gather", "barrier")
    done = bench(
        "--collective", ",".join(names), "--world", "netns", "--no-offload", "--workers", "2",
        "--sizes", "10kB,30kB", "--rounds", "2", "--iterations", "0",
        *(word for kind, path in files.items() for word in (f"--{kind}", str(path))),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    told = json.loads(files["json"].read_text())["results"]
    assert [(r["collective"], r["size"], r["strategy"]) for r in told] == [
        (name, size, strategy)
        for name in names
        for size in (["no payload"] if name == "barrier" else ["10kB", "30kB"])
        for strategy in ("iswitch", "mpi", "gloo")
    ]
    for result in told:
        assert result["exact"] is (None if result["collective"] == "barrier" else True)
        predicted = result["predicted_sent_bytes"], result["predicted_received_bytes"]
        if result["strategy"] != "iswitch" or result["collective"] == "allreduce":
            assert predicted == (None, None)
        else:
            assert result["link_sent_bytes"] >= predicted[0]
            assert result["link_received_bytes"] >= predicted[1]
    assert "reduce_scatter, 10kB (2,500 elements), 2 workers, star:2" in done.stdout
    assert "Time of a reduce_scatter against the vector" in files["html"].read_text()


@pytest.mark.root(reason="building namespaces needs root")
@pytest.mark.usefixtures("nothing_is_left")
def test_links_that_lose(tmp_path: Path) -> None:
    """Then others go through iSwitches, too, which do the losing."""
    path = tmp_path / "out.json"
    done = bench(
        "--world", "netns", "--sizes", "200kB", "--strategies", "iswitch,ring", "--workers", "2",
        "--loss", "0,1%", "--rounds", "5", "--iterations", "0", "--pin", "--json", str(path),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads(path.read_text())["results"]
    assert [(r["loss"], r["strategy"], r["exact"]) for r in found] == [
        (loss, strategy, True) for loss in (None, "1%") for strategy in ("iswitch", "ring")
    ]
    assert [r["switch_cpu_per_gb"] > 0 for r in found] == [True, False, True, True]


def test_trees_are_those_of_the_network(tmp_path: Path) -> None:
    """Of a rack's links, not of a star's."""
    path = tmp_path / "out.json"
    done = bench(
        "--sizes", "4kB", "--strategies", "tree", "--topologies", "rack:2x2", "--rounds", "2",
        "--in-a-row", "1", "--iterations", "0", "--json", str(path),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    (result,) = json.loads(path.read_text())["results"]
    assert (len(result["seconds"]), result["in_a_row"]) == (2, 1)
    assert "of single rounds from a common start" in done.stdout
    wanted = json.loads(json.dumps([tree._asdict() for tree in pack(network("rack:2x2"))]))
    assert [stats["trees"] for stats in result["stats"]] == [wanted] * 4
    assert wanted != json.loads(json.dumps([tree._asdict() for tree in pack(network("star:4"))]))


def network(form: str) -> Network:
    topology = Topology.parse(form)
    return Network.from_json(topology.network_of([host.name for host in topology.hosts]))


def test_ctrl_c_prints_what_was_measured(tmp_path: Path) -> None:
    path = tmp_path / "out.json"
    command = [sys.executable, "-m", "iswitch", "bench", "--sizes", "4kB,8kB", "--strategies"]
    command += ["iswitch", "--workers", "2", "--seconds", "3", "--json", str(path)]
    with subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        preexec_fn=heed_interrupts,
    ) as process:  # fmt: skip
        assert process.stderr is not None
        assert process.stderr.readline().startswith("iswitch bench: to watch: iswitch top /")
        assert process.stderr.readline() == "4kB, star:2\n"
        assert process.stderr.readline() == "8kB, star:2\n"
        process.send_signal(signal.SIGINT)
        out, errors = communicated(process, PATIENCE)
    assert process.returncode == 130
    assert "stopped by SIGINT; what was measured until then" in errors
    assert "4kB (1,000 elements), 2 workers" in out
    told = json.loads(path.read_text())
    assert not told["complete"]
    assert len(told["results"][0]["seconds"]) >= 20


def test_a_worker_that_dies_is_named() -> None:
    command = [sys.executable, "-m", "iswitch", "bench", "--sizes", "4kB", "--strategies"]
    command += ["iswitch", "--workers", "2", "--seconds", "600"]
    with subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        assert "to watch: " in process.stderr.readline()
        assert process.stderr.readline().startswith("4kB, ")
        time.sleep(0.5)
        os.kill(member_of(process.pid), signal.SIGKILL)
        _, errors = communicated(process, PATIENCE)
    assert process.returncode == 1
    assert "of iswitch was killed by SIGKILL" in errors


def member_of(parent: int) -> int:
    """The process of a worker that this one has started."""
    for child in Path(f"/proc/{parent}/task/{parent}/children").read_text().split():
        if b"iswitch.lab.bench.member" in Path(f"/proc/{child}/cmdline").read_bytes():
            return int(child)
    raise AssertionError("there is none")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("--sizes big", "--sizes big: size 'big' is not a number and a unit"),
        ("--sizes ,", "--sizes names none"),
        ("--strategies abacus", "no strategy 'abacus'; there are iswitch, "),
        ("--strategies async", "no strategy 'async'; there are iswitch, "),
        ("--strategies ring:foo=1", "ring:foo=1: ring takes timeout, piece here"),
        ("--strategies ps:filter=kkt", "ps takes timeout, servers, tau, block here"),
        ("--strategies iswitch:dtype=int32", "iswitch takes on_member_lost, reproducible, "),
        ("--strategies ps:servers=some", "servers is how many hosts serve"),
        ("--strategies iswitch:offload=Flase", "iswitch:offload=Flase: offload is true or false"),
        ("--strategies iswitch:offload=0", "offload is true or false"),
        ("--strategies iswitch:priority=true", "priority is a whole number"),
        ("--strategies forward:shorter=yes", "shorter is true or false"),
        ("--strategies iswitch:rounds=1.5", "rounds is a whole number"),
        ("--strategies iswitch:on_member_lost=go", "is one of wait, continue, raise"),
        ("--strategies ring:timeout=1s", "ring:timeout=1s: timeout is a number"),
        ("--strategies ps:tau=True", "tau is a number"),
        ("--strategies iswitch,iswitch", "--strategies names one twice"),
        ("--strategies iswitch:offload", "write iswitch:OPTION=VALUE"),
        ("--strategies iswitch,forward --topologies rack:2x2", "forward is of one switch"),
        ("--collective sum", "--collective sum: there are allreduce, reduce_scatter, all_gather"),
        ("--collective reduce,reduce", "--collective reduce,reduce: name one or more, each once"),
        ("--collective reduce --strategies ring", "ring has allreduce only; leave it out: iswitch"),
        ("paper --collective reduce --world netns", "paper has its own --collective; leave it out"),
        ("--workers four", "--workers four: whole numbers"),
        ("--workers 0", "--workers 0: whole numbers"),
        ("--workers 4 --topologies rack", "three workers in each rack"),
        ("--topologies ball:3", "--topologies: "),
        ("--topologies none.toml", "--topologies: cannot read none.toml: No such file"),
        ("--rate 1Gbit", "the loopback world has no links; use --world netns"),
        ("--topologies net.toml --rate 1Gbit", "net.toml: leave out --rate and --loss: the file"),
        ("--loss 1%", "the loopback world has no links; use --world netns"),
        ("--rate fast", "--rate fast: rate 'fast' is not a number and a unit"),
        ("--rate 1Gbit,1Gbut", "--rate 1Gbut: rate '1Gbut'"),
        ("--loss 200%", "--loss 200%: loss 2.0 is not in [0, 1)"),
        ("--switch=--foo=1 --switch=--spin=0.1", "--switch: iswitch switch has no --foo=1"),
        (
            "--switch=--policy=preempt --switch=--slots=8",
            "star:4 is one switch, with none above it",
        ),
        ("--pin --switch=--cpu=0", "--switch: with --pin every switch has its core; leave out"),
        ("--switch=--spin=fast", "--switch: argument --spin: 'fast' is not a number"),
        ("--json /nowhere/at/all", "cannot write /nowhere/at/all"),
    ],
)
def test_mistakes_are_told_before_anything_starts(options: str, said: str) -> None:

    parser = argparse.ArgumentParser()
    configure(parser)
    with pytest.raises(OutsideError, match=re.escape(said)):
        run_bench(parser.parse_args(options.split()))


def test_seconds_or_rounds(capsys: pytest.CaptureFixture[str]) -> None:
    parser = argparse.ArgumentParser()
    configure(parser)
    with pytest.raises(SystemExit):
        parser.parse_args(["--seconds", "5", "--rounds", "3"])
    assert "argument --rounds: not allowed with argument --seconds" in capsys.readouterr().err


def test_each_process_has_its_core() -> None:
    """In turns."""
    with ExitStack() as stack:
        processes = []
        for _ in range(3):
            process = stack.enter_context(subprocess.Popen(["cat"], stdin=subprocess.PIPE))
            stack.callback(process.kill)
            processes.append(process.pid)
        cores = sorted(os.sched_getaffinity(0))
        pin(processes)
        assert [os.sched_getaffinity(process) for process in processes] == [
            {cores[i % len(cores)]} for i in range(3)
        ]


def test_what_a_switch_has_started_is_counted_with_it() -> None:
    """A bmv2 is a process of its switch's, in a session of its own."""
    script = "setsid sleep 60 & wait"
    with subprocess.Popen(["sh", "-c", script]) as parent:
        limit = time.monotonic() + PATIENCE
        while len(found := with_children([parent.pid])) < 2 and time.monotonic() < limit:
            time.sleep(0.01)
        assert found[0] == parent.pid
        assert len(found) == len(set(found)) == 2
        for process in found:
            os.kill(process, signal.SIGTERM)
    assert with_children([parent.pid]) == [parent.pid]


def test_all_that_can_be_had_is_measured_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base, "find_spec", lambda name: None if name == "scipy" else name)
    monkeypatch.setattr(
        "worker_lib.strategies.base.shutil.which", lambda name: None if name == "orted" else name
    )
    assert [way.name for way in everything()] == ["iswitch", "ring", "ps", "gloo"]
    with pytest.raises(UsageError, match=r"the strategy tree needs scipy: .* or leave it out"):
        check_ways([Way.parse("tree")], of_paper=False)
    with pytest.raises(UsageError, match=r"the strategy mpi needs orted: .*openmpi-bin"):
        check_ways([Way.parse("mpi")], of_paper=False)


def test_the_page_names_all_strategies() -> None:
    table = (ROOT / "docs/bench.md").read_text().partition("## Strategies")[2].partition("\n## ")[0]
    assert set(re.findall(r"^\| `(\w+)` \|", table, re.M)) == {*STRATEGIES, "forward"}


def test_a_process_that_ends_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own words are told, though it hangs up a while before it ends."""
    group, slept = Group(Way.parse("ring"), 1), 0.0

    def sleep(_: float) -> None:
        nonlocal slept
        slept += 1.0

    def watch() -> None:
        if slept >= 5.0:
            raise BenchFailed("worker 0 of ring ended: there is no memory")

    group.connections[0] = Mock(send=Mock(side_effect=BrokenPipeError))
    group.watch = watch
    clock = Mock(sleep=sleep, monotonic=lambda: slept)
    monkeypatch.setattr("iswitch.lab.bench.group.time", clock)
    with pytest.raises(BenchFailed, match="there is no memory"):
        group.order("prepare")
    group.watch = lambda: None
    with pytest.raises(BenchFailed, match="a worker of ring has gone"):
        group.order("prepare")
