"""`iswitch demo`, with real processes: what it shows, what it checks, and how it ends."""

from __future__ import annotations

import base64
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import StringIO
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from iswitch.lab.training.demo import LEARNED, DemoRecord, DemoScreen
from iswitch.lab.training.plot import curve, plot, rolling
from iswitch.lab.training.record import PARTS
from iswitch.lab.training.sums import sum_is_exact
from tests.conftest import heed_interrupts
from tests.support import ROOT
from topologies import Topology

DEMO = [sys.executable, "-m", "iswitch", "demo"]
SHORT = ["--workers", "2", "--iterations", "6", "--seed", "3"]


def record_of(workers: int, iterations: int) -> DemoRecord:
    return DemoRecord(Topology.parse(f"star:{workers}"), iterations, seed=0)


def demo(*options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*DEMO, *options], capture_output=True, text=True, timeout=120)


def processes() -> dict[int, tuple[int, str]]:
    """What runs: the parent and the command line, by process."""
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                state, parent, *_ = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue  # it has just ended
            if state != "Z":
                found[int(entry.name)] = int(parent), command
    return found


def children(of: int, needle: str) -> list[int]:
    """Processes that `of` started and whose command line holds `needle`."""
    return [
        pid for pid, (parent, command) in processes().items() if parent == of and needle in command
    ]


def wait_for(condition: Callable[[], object], seconds: float = 30.0) -> None:
    limit = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < limit, "it did not happen in time"
        time.sleep(0.02)


@contextmanager
def running_demo() -> Iterator[tuple[subprocess.Popen[str], list[int], int]]:
    """A long demo in mid-training: its process, its workers' ids and its switch's."""
    process = subprocess.Popen(
        [*DEMO, "--workers", "3", "--iterations", "100000"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=heed_interrupts,
    )
    assert process.stdout is not None
    family: set[int] = set()
    try:
        lines = iter(process.stdout.readline, "")
        assert any(line.startswith("iteration    0 of") for line in lines)
        wait_for(lambda: len(children(process.pid, "worker_lib.rl.demo_worker")) == 3)
        workers = children(process.pid, "worker_lib.rl.demo_worker")
        (switch,) = children(process.pid, "iswitch switch")
        family = {*workers, switch}
        wait_for(lambda: all(cpu_seconds(pid) > 1.0 for pid in workers))  # imports are done
        yield process, workers, switch
        wait_for(lambda: not family & processes().keys(), 10)
    finally:
        for pid in family & processes().keys():
            os.kill(pid, signal.SIGKILL)
        process.kill()
        process.communicate()


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_learns(tmp_path: Path) -> None:
    """The default run: it learns, the checks hold, and it takes less than a minute."""
    report, picture = tmp_path / "demo.json", tmp_path / "demo.png"
    began = time.monotonic()
    done = demo("--json", str(report), "--plot", str(picture))
    assert done.returncode == 0, done.stdout + done.stderr
    assert time.monotonic() - began < 60
    measured = json.loads(report.read_text())
    assert measured["checks"] == {"learned": True, "weights equal": True, "sum exact": True}
    assert measured["mean_return_end"] >= 195 > measured["mean_return_start"]
    segments = -(-measured["elements"] // 366)
    rounds = 302  # one more at the start, to agree, and one at the end, to stay until all are done
    assert measured["packets_aggregated"] == 4 * rounds * segments
    assert measured["aggregates"] == rounds * segments
    assert measured["bytes_aggregated"] == 4 * rounds * 4 * measured["elements"]
    assert measured["restarts"] == {"switches": {}, "workers": {}}
    assert sum(measured["share"].values()) == pytest.approx(1)
    assert len(measured["per_worker"]) == 4
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert (
        " ok     recorded round equals the local sum in rank order, to the last bit" in done.stdout
    )
    readme = (ROOT / "README.md").read_text().splitlines()
    promised = [line for line in readme if line.startswith(" ok ")]
    assert len(promised) == 3
    assert set(promised) <= set(done.stdout.splitlines())
    assert not done.stderr


def test_repeats_bit_for_bit(tmp_path: Path) -> None:
    """Same seed, same weights; another seed, others. Too short to learn, which it says."""
    weights = []
    for seed in ("3", "3", "4"):
        report = tmp_path / "demo.json"
        done = demo(*SHORT, "--seed", seed, "--json", str(report))
        assert done.returncode == 1
        assert " short  learned: too few iterations to judge" in done.stdout
        measured = json.loads(report.read_text())
        assert measured["checks"] == {"learned": False, "weights equal": True, "sum exact": True}
        weights.append(measured["weights_sha256"])
    assert weights[0] == weights[1] != weights[2]


def test_alone_in_a_narrow_pipe() -> None:
    command = [*DEMO, *SHORT, "--workers", "1"]
    narrow = {**os.environ, "COLUMNS": "40"}
    done = subprocess.run(command, env=narrow, capture_output=True, text=True, timeout=120)
    lines = done.stdout.splitlines()
    assert lines[0] == "1 worker trains CartPole-v1; the switch passes on its gradients"
    assert lines[1].startswith(" to watch: iswitch top /")
    assert "mean return     -     - iterations/s   - % of the time" in lines[2]
    assert " ok     weights: nothing to compare with one worker" in lines
    assert [line for line in lines if line != line.rstrip()] == []


@pytest.mark.parametrize(
    ("iterations", "mean", "line"),
    [
        (299, 194.9, " short  learned: too few iterations to judge; 300 are enough"),
        (299, 195.0, " ok     learned: mean return of at least 195"),
        (300, 194.9, " FAILED learned: mean return of at least 195"),
    ],
)
def test_judgement_of_learning(iterations: int, mean: float, line: str) -> None:
    report = {
        "mean_return_start": 20.0, "mean_return_end": mean, "episodes": 9, "bytes_aggregated": 0,
        "packets_aggregated": 0, "allreduce_p50": 0.0, "allreduce_p99": 0.0,
        "share": dict.fromkeys(PARTS, 0.0), "checks": {"learned": mean >= LEARNED},
        "restarts": {"switches": {}, "workers": {}},
    }  # fmt: skip
    printed = StringIO()
    screen = DemoScreen(record_of(4, iterations), Console(file=printed))
    screen.__dict__["report"] = report
    screen.record.counters = {"s1": {"accumulated": 3, "passed_on": 5}, "fallback": {}}
    screen.summarise()
    lines = printed.getvalue().splitlines()
    assert lines[-1] == line
    assert " added        37.5% in s1, the rest in the fallback" in lines


def test_rate_is_of_what_was_timed() -> None:
    """From when all have done an iteration; none is told of a moment."""
    run = record_of(2, 100)
    for now, done, seconds, rate in [
        (5.0, (3, 0), 0.0, None),
        (6.0, (8, 2), 0.0, None),
        (6.1, (9, 4), 0.1, None),
        (8.0, (12, 12), 2.0, 5.0),
        (9.0, (13, 12), 2.0, 5.0),  # nothing new that all have done
    ]:
        for learner, count in zip(run.learners, done, strict=True):
            if count:
                parts = dict.fromkeys(PARTS, 0.0)
                told = {"event": "iteration", "iteration": count - 1, "returns": [], "at": now}
                run.take(learner, told | parts)
        assert run.seconds == pytest.approx(seconds)
        assert run.rate == rate


def kill_again_and_again(demo: int, needle: str, pid: int) -> int:
    """Kill what takes the place of a process, as soon as it is there, until nothing does."""
    while True:
        others = set(children(demo, needle)) - {pid}
        os.kill(pid, signal.SIGKILL)
        limit = time.monotonic() + 6
        while not (found := set(children(demo, needle)) - others - {pid}):
            if demo not in processes() or time.monotonic() > limit:
                return pid
            time.sleep(0.02)
        (pid,) = found


def test_worker_that_dies_again_and_again_is_named() -> None:
    with running_demo() as (process, workers, _):
        last = kill_again_and_again(process.pid, "worker_lib.rl.demo_worker", workers[1])
        assert process.wait(10) == 1
        assert process.stderr is not None
        error = process.stderr.read()
        ending = f"process {last}) was killed by SIGKILL, after 5 restarts in a row\n"
        assert error.startswith("iswitch demo: h")
        assert error.endswith(ending)
        assert "Traceback" not in error


def test_switch_that_dies_again_and_again_is_named() -> None:
    with running_demo() as (process, _, switch):
        last = kill_again_and_again(process.pid, "iswitch switch", switch)
        assert process.wait(10) == 1
        assert process.stderr is not None
        error = process.stderr.read()
        wanted = f"switch (process {last}) was killed by SIGKILL, after 5 restarts in a row"
        assert wanted in error


def test_interrupt_ends_all() -> None:
    with running_demo() as (process, _, _):
        os.kill(process.pid, signal.SIGINT)
        assert process.wait(10) == 130
        assert process.stderr is not None
        assert "Traceback" not in process.stderr.read()


def test_crashed_parent_leaves_no_orphans() -> None:
    with running_demo() as (process, _, _):
        process.kill()
        process.wait(10)


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (["--workers", "65"], "a switch takes 1 to 64 workers"),
        (["--iterations", "0"], "is not a whole number of 1 or more"),
        (["--seed", "-1"], "is not a whole number of 0 or more"),
        (["--plot", "demo.doc"], "a name that ends in .png"),
        (["--json", "/nowhere/demo.json"], "cannot write /nowhere/demo.json"),
    ],
)
def test_misuse(options: list[str], complaint: str) -> None:
    done = demo(*options)
    assert done.returncode == 2
    assert complaint in done.stderr


def test_failed_run_leaves_no_empty_file(tmp_path: Path) -> None:
    report = tmp_path / "demo.json"
    done = demo("--json", str(report), "--plot", "/nowhere/demo.png")
    assert done.returncode == 2
    assert not report.exists()


def test_last_episodes_are_the_last_of_all() -> None:
    rng = np.random.default_rng(0)
    run = record_of(4, 50)
    for learner, size in zip(run.learners, (0, 3, 40, 200), strict=True):
        ended = np.sort(rng.integers(50, size=size))
        learner.returns = [(int(i), float(r)) for i, r in zip(ended, rng.random(size), strict=True)]
    for last in (1, 20, 242, 243, 1000):
        assert run.episodes(last) == run.episodes()[-last:]


def test_curve() -> None:
    points = curve([(1, 10.0), (1, 20.0), (3, 60.0)], 5)
    assert points == pytest.approx([np.nan, 15, 15, 30, 30], nan_ok=True)
    assert np.isnan(curve([], 3)).all()


def recorded(contributions: list[np.ndarray], aggregates: list[np.ndarray]) -> DemoRecord:
    run = record_of(len(contributions), 1)
    for rank, parts in enumerate(zip(contributions, aggregates, strict=True)):
        run.learners[rank].recorded = {3: record(rank, *parts)}
    return run


def exact(run: DemoRecord) -> bool:
    return sum_is_exact(run.topology, run.recorded(), run.any_order)


def record(rank: int, contribution: np.ndarray, aggregate: np.ndarray) -> dict[str, object]:
    return {
        "rank": rank,
        "contribution": base64.b64encode(contribution.tobytes()).decode(),
        "aggregate": base64.b64encode(aggregate.tobytes()).decode(),
    }


def test_sum_check_finds_one_flipped_bit() -> None:
    rng = np.random.default_rng(0)
    parts = [rng.standard_normal(100).astype(np.float32) for _ in range(3)]
    total = (parts[0] + parts[1]) + parts[2]
    assert exact(recorded(parts, [total] * 3))
    wrong = total.copy()
    wrong.view(np.uint32)[7] ^= 1
    assert not exact(recorded(parts, [total, wrong, total]))
    assert not exact(recorded(parts, [wrong] * 3))


@pytest.mark.parametrize("form", ["star:4", "rack:2x2"])
def test_sum_check_where_contributions_come_in_any_order(form: str) -> None:
    """In each segment in another one, as a P4 program adds; through a tree in the tree's way."""
    rng = np.random.default_rng(0)
    a, b, c, d = (rng.standard_normal(100).astype(np.float32) for _ in range(4))
    by_tree = np.concatenate([((d + c) + (a + b))[:50], ((b + a) + (c + d))[50:]])
    one_by_one = np.concatenate([(((d + c) + a) + b)[:50], (((b + c) + d) + a)[50:]])
    right, wrong = (one_by_one, by_tree) if form == "star:4" else (by_tree, one_by_one)
    for total in (right, wrong):
        run = recorded([a, b, c, d], [total] * 4)
        run.topology, run.any_order = Topology.parse(form), True
        for host, learner in zip(run.topology.hosts, run.learners, strict=True):
            learner.host = host.name
            learner.recorded[3]["elements"] = 50
        assert exact(run) == (total is right)


def test_sum_check_takes_the_newest_round_that_all_have_recorded() -> None:
    """With the ranks as they were then: after a restart of the switch they are others."""
    parts = [np.array([x], np.float32) for x in (1e8, -1e8, 1.0)]  # the order matters
    run = recorded(parts, [parts[2] * 0] * 3)
    assert not exact(run)  # (1e8 - 1e8) + 1 is 1
    for learner, rank, part in zip(run.learners, (0, 2, 1), parts, strict=True):
        learner.recorded[5] = record(rank, part, parts[2] * 0)
    assert exact(run)  # (1e8 + 1) - 1e8 is 0
    run.learners[1].recorded[6] = record(0, parts[0], parts[0])
    assert exact(run)
    del run.learners[0].recorded[3], run.learners[0].recorded[5]
    assert not exact(run)


def test_iterations_of_one_that_was_started_again() -> None:
    """What it skips and what it does again leaves every iteration at its place."""
    run = record_of(1, 10)
    (learner,) = run.learners
    for iteration, seconds in [(0, 1.0), (1, 2.0), (4, 3.0), (3, 4.0)]:
        told = {"event": "iteration", "iteration": iteration, "returns": [], "at": 0.0}
        run.take(learner, told | dict.fromkeys(PARTS, seconds))
    assert learner.seconds["aggregate"] == [1.0, 2.0, 0.0, 4.0]


def test_rolling_mean() -> None:
    values = np.arange(50.0)
    means = [values[max(0, i - 19) : i + 1].mean() for i in range(50)]
    assert rolling(values) == pytest.approx(means)


def test_axes_of_iterations_are_whole(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from matplotlib import pyplot

    monkeypatch.setattr(pyplot, "close", lambda _: None)
    run = record_of(2, 4)
    for learner in run.learners:
        learner.returns = [(i, 20.0 + i) for i in range(4)]
        learner.seconds = {part: [0.01] * 4 for part in learner.seconds}
    plot(run, str(tmp_path / "plot.png"))
    for axes in pyplot.gcf().axes:
        assert {float(at).is_integer() for at in axes.get_xticks()} == {True}
    pyplot.clf()
