"""iswitch bench: what is to be measured, turns, checks, what follows from rounds, and real runs."""

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
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from iswitch.cli.bench import configure
from iswitch.cli.bench import run as run_bench
from iswitch.faults.units import QuantityError
from iswitch.lab.bench import html
from iswitch.lab.bench.choosing import check_ways, everything
from iswitch.lab.bench.figures import Pictures
from iswitch.lab.bench.group import BenchFailed, Done, Group, Round, WrongSum, cpu_seconds
from iswitch.lab.bench.measure import measure
from iswitch.lab.bench.member import FRESH, BenchWorker, whole_numbers
from iswitch.lab.bench.network import pin, with_children
from iswitch.lab.bench.plan import PAPER, Plan, Setting, Size, Way, networks, split
from iswitch.lab.bench.report import CSV_COLUMNS, as_csv, as_json, hint, limits, ms, note, tables
from iswitch.lab.bench.result import Results, Series, wire_bound
from iswitch.lab.launch.worlds import network_of
from iswitch.lab.options import foot
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
SMALL = Size("4kB", 1000)
STAR = Setting("star:4")


# What is to be measured


def test_sizes() -> None:
    assert Size.parse("dqn") == PAPER["dqn"]
    assert [size.bytes for size in PAPER.values()] == [40_988, 161_308, 3_465_756, 6_724_248]
    assert Size.parse("40kB") == Size("40kB", 10_000)
    assert Size.parse("1MiB").numel == 2**18
    assert Size.parse("1B").numel == 1
    with pytest.raises(QuantityError, match="write size=40kB"):
        Size.parse("big")


def test_ways() -> None:
    assert Way.parse("ring") == Way("ring", "ring")
    way = Way.parse("ps:servers=2:tau=inf:block=100")
    assert (way.label, way.name) == ("ps:servers=2:tau=inf:block=100", "ps")
    assert way.options == {"servers": 2, "tau": inf, "block": 100}
    assert (way.servers, way.adds) == (2, False)
    assert (Way.parse("ps").servers, Way.parse("ring").servers) == (1, 0)
    assert Way.parse("ps").adds
    assert not Way.parse("forward").adds
    with pytest.raises(ValueError, match="write ps:OPTION=VALUE"):
        Way.parse("ps:servers")


def test_networks() -> None:
    found = networks(["star", "rack"], [6, 9], ["1Gbit", "none"], ["0", "1%"])
    assert len(found) == 16
    assert found[0] == Setting("star:6", "1Gbit", None)
    assert found[-1].text == "rack:3x3,loss=1%"
    assert networks(["tree:2x2x3,delay=1ms"], [4], ["0"], ["0"])[0].text == "tree:2x2x3,delay=1ms"
    with pytest.raises(ValueError, match="three workers in each rack"):
        networks(["rack"], [4], ["0"], ["0"])


def test_commas_of_lists_and_of_forms() -> None:
    assert split("star:4,delay=1ms,rack:2x3") == ["star:4,delay=1ms", "rack:2x3"]
    assert split("") == []


# Turns and checks


class Recorded(Group):
    """Takes rounds of known length, and notes what it was told."""

    def __init__(self, label: str, log: list[str], wrong: int = 0, seconds: float = 0.001) -> None:
        super().__init__(Way.parse(label), 4)
        self.log = log
        self.wrong = wrong
        self.seconds = seconds

    def order(self, *order: Any) -> list[Any]:
        self.log.append(f"{self.way.label} {order[0]}")
        return [0, 0, self.wrong, 0] if order[0] == "check" else [{}] * 4

    def row(
        self, count: int, warm: int = 0, compute: float = 0.0, update: bool = False
    ) -> list[Round]:
        turn = f"{warm}+{count}" if warm else "iteration" if update else "round"
        self.log.append(f"{self.way.label} {turn}")
        one = Round(compute, self.seconds, 0.0005 * update, 0.002, 0.004, 4000, 8000)
        return [one] * count


def run(groups: list[Group], plan: Plan) -> Results:
    results = Results()
    measure(plan, STAR, groups, results, lambda *_: None)
    return results


def test_rounds_are_taken_in_turns() -> None:
    log: list[str] = []
    plan = Plan([SMALL], [STAR], [], rounds=2, warmup=1, iterations=1, compute=0.01)
    results = run([Recorded("iswitch", log), Recorded("forward", log)], plan)
    turn = ["iswitch round", "forward round"]
    checks = ["iswitch round", "iswitch check", "forward round"]  # which adds nothing
    assert log == [
        "iswitch join", "forward join", *checks, *turn, *turn, *turn,
        "iswitch iteration", "forward iteration", *checks, "iswitch leave", "forward leave",
    ]  # fmt: skip
    assert [(len(one.rounds), len(one.iterations)) for one in results.series] == [(2, 1), (2, 1)]
    assert [one.exact for one in results.series] == [True, None]


def test_turns_of_rounds_in_a_row() -> None:
    """The last turn is shorter, and iterations are single."""
    log: list[str] = []
    plan = Plan([SMALL], [STAR], [], rounds=5, in_a_row=3, warmup=0, iterations=1, compute=0.01)
    results = run([Recorded("iswitch", log), Recorded("ring", log)], plan)
    first, last = log.index("iswitch 2+3"), log.index("ring iteration")
    assert log[first : last + 1] == [
        "iswitch 2+3", "ring 2+3", "iswitch 2+2", "ring 2+2", "iswitch iteration", "ring iteration",
    ]  # fmt: skip
    assert [(len(one.rounds), len(one.iterations)) for one in results.series] == [(5, 1), (5, 1)]
    plan = replace(plan, rounds=None, seconds=1e-9, least=7)
    assert [len(one.rounds) for one in run([Recorded("iswitch", [])], plan).series] == [9]


def test_a_round_in_a_row_lasts_from_the_end_of_the_one_before() -> None:
    """Of the last worker; all are said to cost the same."""
    group = Group(Way.parse("ring"), 2)
    orders: list[Any] = []

    def order(what: str, *arguments: Any) -> list[Any]:
        orders.append((what, *arguments[1:]))
        if what == "prepare":
            return [None, None]
        ends = [arguments[0] + seconds for seconds in (0.5, 1.0, 3.0)]
        done = Done(0.0, ends, ends[-1], 6.0, 300, 60)
        return [done, done._replace(ends=[ends[0] + 0.25, *ends[1:]], cpu=3.0, received=0)]

    group.order = order  # type: ignore[method-assign]
    found = group.row(3, warm=2)
    assert orders == [("prepare",), ("go", 0.0, False, 2), ("go", 0.0, False, 3)]
    assert [round(one.aggregate, 6) for one in found] == [0.75, 0.25, 2.0]
    assert {one[3:] for one in found} == {(3.0, 0.0, 50.0, 20.0)}


class Doubling:
    """A strategy of two workers that have the same vector."""

    def __init__(self) -> None:
        self.took: list[float] = []

    def allreduce(self, vector: Any) -> Any:
        self.took.append(vector[0])
        vector *= 2
        return vector


def test_a_vector_gets_its_numbers_anew_before_it_overflows() -> None:
    member = BenchWorker(0, 2, counts=False)
    member._own = whole_numbers(0, 100)
    member._vector = member._own.copy()
    member._strategy = Doubling()
    member.prepare()
    done = member.go(time.monotonic(), 0.0, False, FRESH + 2)
    assert member._strategy.took == [member._own[0] * 2**i for i in (*range(FRESH), 0, 1)]
    assert done.ends == sorted(done.ends)
    assert len(done.ends) == FRESH + 2
    most = abs(member._own).max()
    assert np.isfinite(np.float32(most) * np.float32(200) ** FRESH)


def test_seconds_end_the_turns_but_not_before_the_least() -> None:
    plan = Plan([SMALL], [STAR], [], seconds=1e-9, least=7)
    assert len(run([Recorded("iswitch", [])], plan).series[0].rounds) == 7


def test_a_wrong_sum_is_an_error() -> None:
    with pytest.raises(WrongSum, match="ring: 3 elements of rank 2's sum are wrong"):
        run([Recorded("ring", [], wrong=3)], Plan([SMALL], [STAR], [], rounds=1))


def test_a_member_finds_wrong_elements() -> None:
    member = BenchWorker(0, 3)
    member._own = whole_numbers(0, 100)
    member._sum = sum((whole_numbers(rank, 100) for rank in range(3)), member._own * 0)
    assert member.check() == 0
    member._sum[[3, 70]] += 1
    assert member.check() == 2


def test_who_comes_late_is_waited_for_longer() -> None:
    """And that round does not count."""
    group = Group(Way.parse("ring"), 1)
    answers = [Done(0.1, [inf], inf, 0.5, 10, 20), Done(0.0, [], 0.0, 0.5, 10, 20)]
    starts: list[float] = []

    def order(what: str, *arguments: Any) -> list[Any]:
        if what == "prepare":
            return [None]
        answer = answers.pop(0)
        starts.append(arguments[0] - time.monotonic())
        return [answer._replace(ends=[arguments[0] + 0.25], updated=arguments[0] + 0.5)]

    group.order = order  # type: ignore[method-assign]
    found = group.round(update=True)
    assert not answers
    assert starts[1] > 1.5 * starts[0]
    assert (round(found.aggregate, 6), round(found.update, 6)) == (0.25, 0.25)
    assert (found.workers_cpu, found.received, found.sent) == (0.5, 10, 20)


def test_clocks_and_counters_of_the_kernel() -> None:
    before = cpu_seconds(os.getpid())
    while time.process_time() < before + 0.02:
        pass
    assert 0.015 < cpu_seconds(os.getpid()) - before < 0.5


# What follows from rounds


def series(label: str, seconds: list[float], rate: str | None = None) -> Series:
    rounds = [Round(0.0, s, 0.0, 0.2, 0.1, 4e6, 8e6) for s in seconds]
    setting = Setting("star:4", rate)
    return Series(Way.parse(label), Size("4 MB", 1_000_000), setting, 4, rounds, exact=True)


def test_ratios_are_of_pairs() -> None:
    first, other = series("iswitch", [1.0, 2.0, 4.0]), series("ring", [2.0, 2.0, 16.0])
    assert other.ratio(first) == (1.5, 2.0, 3.0)  # of 2, 1, 4
    assert first.ratio(first) == (1.0, 1.0, 1.0)
    assert other.quartiles.middle == 2.0


def test_cpu_is_per_gb_of_all_contributions() -> None:
    one = series("iswitch", [1.0, 1.0])  # 2 rounds x 4 workers x 4 MB = 0.032 GB
    assert one.cpu_per_gb() == pytest.approx((0.2 / 0.032, 0.4 / 0.032))
    assert one.link() == (32e6, 64e6)


def test_no_more_cores_are_busy_than_there_are() -> None:
    """In rounds of microseconds (of a single worker, say) processes mostly wake and sleep."""
    assert series("ring", [1.0]).cores_busy(2) == pytest.approx(0.3)
    assert series("ring", [0.01]).cores_busy(2) == 2.0
    assert "ring 2.0 of 2 cores" in limits([series("ring", [0.01])], 2)


def test_bound_of_the_wire() -> None:
    """Each of 28 frames of 366 elements, but for the last, has 50 bytes beside them."""
    assert wire_bound(PAPER["ppo"], 1e9) == (10_247 * 4 + 28 * 50) * 8 / 1e9
    assert series("iswitch", [1.0]).bound is None
    of_form = replace(series("iswitch", [1.0]), setting=Setting("star:4,rate=100Mbit", slowest=1e8))
    assert of_form.bound == series("iswitch", [1.0], "100Mbit").bound
    assert series("iswitch", [1.0], "100Mbit").bound == pytest.approx(0.331, abs=0.001)


def test_what_limits_it() -> None:
    """0.3 s of CPU time in a round, 64 Mbit on a worker's link, four times that on a server's."""
    first, slow = series("iswitch", [0.1]), series("ring", [0.6])
    assert [one.limit(4) for one in (first, slow)] == ["cores", ""]  # 3 and 0.5 of 4
    assert limits([first, slow], 4) == (
        "Limit: cores (iswitch 3.0 of 4 cores); neither, but the wait for others (ring 0.5 of 4 "
        "cores)"
    )
    on_links = [series("iswitch", [0.7], "100Mbit"), series("ring", [1.0], "100Mbit")]
    on_links.append(series("ps:servers=2", [1.5], "100Mbit"))
    assert [one.limit(4) for one in on_links] == ["wire", "", "wire"]
    assert limits(on_links, 4) == (
        "Limit: the wire (iswitch 91 % of the rate, ps:servers=2 85 % of the rate); neither, but "
        "the wait for others (ring 64 % of the rate, 0.3 of 4 cores)"
    )
    assert limits([series("iswitch", [0.2])], 1) == "Limit: cores (iswitch 1.0 of 1 core)"
    assert "iswitch bench --world netns --rate 100Mbit" in hint(Plan([SMALL], [STAR], []))
    assert hint(Plan([SMALL], [STAR], [], "netns")) == ""
    assert "packets a second" in hint(Plan([SMALL], [STAR], [], "bmv2"))


def test_links_at_the_foot_save_by_the_chosen_names() -> None:
    assert foot(None, "out/mine.html", "csv") == "mine.csv"
    assert foot("/tmp/all.txt", "out/mine.html", "csv") == "all.txt"
    found = html.page(Plan([SMALL], [STAR], []), results(), {}, "", True, (), ["a.csv", "b.json"])
    assert re.findall(r'<a download="([^"]*)"', found.html()) == ["a.csv", "b.json"]


def test_parts_of_an_iteration() -> None:
    one = series("iswitch", [1.0])
    assert one.split() is None
    one.iterations = [Round(1.0, 2.0, 3.0, 0, 0, 0, 0), Round(1.0, 4.0, 3.0, 0, 0, 0, 0)]
    assert one.split() == {"compute": 1.0, "aggregate": 3.0, "update": 3.0, "iteration": 7.0}


def test_forms_that_differ_otherwise_are_other_lines() -> None:
    """In a plot against workers; what counts the workers is one line."""
    forms = ["star:2", "star:4", "star:2,delay=1ms", "star:4,delay=1ms", "rack:2x3", "rack:3x2"]
    found = Results()
    for form in forms:
        one = series("iswitch", [1.0, 2.0])
        workers = 6 if form.startswith("rack") else int(form[5])
        found.series.append(replace(one, setting=Setting(form), workers=workers))
    captions = [picture.caption for picture in Pictures(found).against_workers()]
    assert [text.partition("workers; ")[2].partition(". ")[0] for text in captions] == [
        "star:N",
        "star:N,delay=1ms",
    ]


def results() -> Results:
    found = Results([series("iswitch", [0.001, 0.002]), series("ring", [0.002, 0.004])])
    found.series.append(Series(Way.parse("gloo"), SMALL, STAR, 4))  # nothing measured yet
    return found


def test_the_legend_is_of_the_columns_that_are_there() -> None:
    plan, found = Plan([SMALL], [STAR], []), results()
    columns = re.compile(r"\. (\w+): ")
    assert columns.findall(note(plan, found)) == ["ratio", "switch", "workers"]
    for one in found.series:
        one.setting = replace(one.setting, slowest=1e9)
    assert columns.findall(note(plan, found)) == ["ratio", "wire", "switch", "workers"]
    for one in found.series:
        one.rounds = [round_._replace(switch_cpu=0.0) for round_ in one.rounds]
    assert columns.findall(note(plan, found)) == ["ratio", "wire", "workers"]


def test_reports() -> None:
    plan = Plan([SMALL], [STAR], [])
    told = as_json(plan, results(), {"CPU": "x"}, "iswitch bench", False)
    assert (told["complete"], told["machine"], len(told["results"])) == (False, {"CPU": "x"}, 2)
    assert told["results"][1]["seconds"] == [0.002, 0.004]
    rows = list(csv.DictReader(as_csv(plan, results()).splitlines()))
    assert list(rows[0]) == list(CSV_COLUMNS)
    assert [row["strategy"] for row in rows] == ["iswitch", "ring"]
    assert [float(row["ratio_p50"]) for row in rows] == [1.0, 2.0]
    (table,) = tables(results())
    assert table.row_count == 2  # of nothing there is none
    assert [column.header for column in table.columns] == [
        "strategy", "p50, ms", "quartiles, ms", "p99, ms", "rounds", "ratio", "switch, s/GB",
        "workers, s/GB",
    ]  # fmt: skip
    assert [ms(value) for value in (1e-4, 1e-3, 0.01234, 1.234)] == [
        "0.100",
        "1.00",
        "12.3",
        "1234",
    ]


# Real runs


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
    return Network.from_json(network_of(topology, [host.name for host in topology.hosts]))


def test_ctrl_c_prints_what_was_measured(tmp_path: Path) -> None:
    path = tmp_path / "out.json"
    command = [sys.executable, "-m", "iswitch", "bench", "--sizes", "4kB,8kB", "--strategies"]
    command += ["iswitch", "--workers", "2", "--seconds", "3", "--json", str(path)]
    with subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        preexec_fn=heed_interrupts,
    ) as process:  # fmt: skip
        assert process.stderr is not None
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
        process.stderr.readline()
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
        ("--strategies iswitch,iswitch", "--strategies names one twice"),
        ("--strategies iswitch:offload", "write iswitch:OPTION=VALUE"),
        ("--strategies iswitch,forward --topologies rack:2x2", "forward is of one switch"),
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
        ("--switch=--foo=1", "--switch: iswitch switch has no --foo=1"),
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


def test_a_process_that_ends_is_an_error() -> None:
    group = Group(Way.parse("ring"), 1)

    class Gone:
        def send(self, _: object) -> None:
            raise BrokenPipeError

    group.connections[0] = Gone()  # type: ignore[assignment]
    with pytest.raises(BenchFailed, match="a worker of ring has gone"):
        group.order("prepare")
