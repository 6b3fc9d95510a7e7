"""`iswitch bench sharing`: what it plays in virtual time, and its reports."""

from __future__ import annotations

import json
import signal
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from iswitch.cli import main
from iswitch.core.format.wire import Vector
from iswitch.core.jobs.policies import POLICIES
from iswitch.core.jobs.policy import Policy
from iswitch.core.sums.pool import Pool
from iswitch.lab.bench.belonging import OF_SHARING
from iswitch.lab.sharing import bench, plan, report, simulated
from iswitch.lab.sharing.plan import EXPERIMENTS, Experiment, Sharing, Task, lent
from iswitch.lab.sharing.played import Failed, Played, Ran
from iswitch.lab.sharing.watched import Watched
from iswitch.system.interrupts import Stopped
from topologies import Topology

ALL = ",".join(POLICIES)
TREE = Topology.parse("rack:2x3,rate=1Gbit,delay=10us")


def few(topology: Topology = TREE, jobs: int = 3) -> Experiment:
    """Jobs of different lengths with a worker in each rack; memory for two in a lane."""
    tasks = tuple(
        Task(j + 1, f"job {j + 1}", (f"h{j + 1}", f"h{j + 4}"), 3000, 12 // (j + 1), 1e-3, 1e-3 * j)
        for j in range(jobs)
    )
    return Experiment("few", "A few jobs", topology, tasks, lent(tasks[:2]))


@pytest.mark.parametrize("policy", POLICIES)
def test_every_policy_ends_all_jobs_within_the_memory(policy: str) -> None:
    """And each sum is checked, whatever policies there are."""
    experiment = few()
    done: list[int] = []
    played = simulated.play(experiment, experiment.way(policy), done.append)
    assert done[-1] == experiment.rounds
    assert [len(played.jobs[task.number].rounds) for task in experiment.tasks] == [12, 6, 4]
    assert all(one.ends > one.comes for one in played.jobs.values())
    record = played.record
    assert record is not None
    assert 0 < max(reserved for _, reserved in record.memory) <= experiment.memory
    slots = Pool.memory(experiment.way(policy).slots)
    assert record.memory[-1][1] == slots
    if POLICIES[policy].takes_turns:
        assert sorted(job for job, _, _ in record.turns) == [1] * 12 + [2] * 6 + [3] * 4
        assert record.refused == 0
        assert played.let_in(3) > played.jobs[3].comes  # it waited
    assert (0 < played.share <= 1) if POLICIES[policy].passes_on else played.share == 1


def test_equal_plans_give_equal_times() -> None:
    experiment = few()
    ways = [Sharing("x", "lanes:fair", experiment.memory)] * 2
    first, second = (simulated.play(experiment, way, lambda _: None) for way in ways)
    assert first.jobs == second.jobs
    assert first.record == second.record


def test_slots_are_a_way_to_share() -> None:
    experiment = few()
    slots = plan.slots_within(experiment.tasks, 2, experiment.memory)
    assert 2 <= slots < experiment.tasks[0].shape.segments
    way = Sharing("slots", "static", experiment.memory, slots)
    played = simulated.play(experiment, way, lambda _: None)
    assert played.record is not None
    assert played.record.refused == 0


def test_a_wrong_sum_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Task, "total", lambda _, numbers: numbers)
    with pytest.raises(Failed, match=r"job . has a wrong sum in round 0"):
        simulated.play(few(), Sharing("x", "static", 1 << 30), lambda _: None)


def test_jobs_that_do_not_end_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(simulated, "LIMIT", 1.0)
    with pytest.raises(Failed, match="too little: job 1 does not end"):
        simulated.play(few(), Sharing("too little", "static", 1000), lambda _: None)


def test_what_is_watched_is_asked_for_everything() -> None:
    """A method that `Watched` did not pass on would be answered by `Policy`."""
    asked = {name for name, one in vars(Policy).items() if callable(one) or type(one) is property}
    assert asked - {"__init__"} <= set(vars(Watched))


@pytest.mark.parametrize("small", [False, True])
@pytest.mark.parametrize("name", EXPERIMENTS)
def test_memory_is_short_in_every_experiment(name: str, small: bool) -> None:
    experiment = EXPERIMENTS[name](small)
    assert experiment.memory < 0.75 * sum(sum(task.parts) for task in experiment.tasks)
    assert all(sum(task.parts) <= experiment.memory for task in experiment.tasks)
    hosts = {host.name for host in experiment.topology.hosts}
    assert all(hosts.issuperset(task.hosts) for task in experiment.tasks)
    numbers = [task.number for task in experiment.tasks]
    assert len(set(numbers)) == len(numbers)


def test_the_command_plays_and_draws(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(bench, "search", lambda *args: replace(plan.search(*args), memory=1 << 20))
    pytest.importorskip("matplotlib")
    files = [str(tmp_path / name) for name in ("found.json", "found.html")]
    words = ["bench", "sharing", "--experiments", "search", "--trials", "4"]
    words += ["--policies", "static,lanes:srtf,lanes:pack"]
    assert main([*words, "--json", files[0], "--html", files[1]]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "4 trials of a hyper-parameter search" in said
    assert "not short" not in said
    assert "mean completion, SRTF over FIFO" in said
    found = json.loads(Path(files[0]).read_text())
    assert found["complete"] is True
    labels = [one["label"] for one in found["played"]]
    assert labels == ["one at a time", "static", "lanes:srtf", "lanes:pack"]
    for one in found["played"]:
        assert len(one["jobs"]) == 4
        assert 0 < one["jain"] <= 1
        assert 0 < one["mean_completion"] <= one["makespan"]
        assert max(reserved for _, reserved in one["reserved"]) <= one["memory"]
    page = Path(files[1]).read_text()
    assert page.count("<figure") == 4 + 3  # a Gantt chart for each, and three that compare
    assert "Salus" in page


def test_what_is_done_is_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """When Ctrl-C comes in the second way to share memory."""
    original, calls = simulated.play, []

    def play(experiment: Experiment, sharing: Sharing, *more: object) -> Played:
        calls.append(sharing.label)
        if sharing.label == "lanes:fair":
            raise Stopped(signal.SIGINT)
        return original(experiment, sharing, *more)  # type: ignore[arg-type]

    monkeypatch.setattr(simulated, "play", play)
    monkeypatch.setitem(EXPERIMENTS, "long", lambda _: few())
    path = tmp_path / "found.json"
    words = ["bench", "sharing", "--experiments", "long", "--policies", "static,lanes:fair"]
    assert main([*words, "--json", str(path)]) == 128 + signal.SIGINT
    assert calls == ["alone"] * 3 + ["static", "lanes:fair"]
    said = capsys.readouterr()
    assert "stopped by SIGINT; what was measured until then:" in said.err
    found = json.loads(path.read_text())
    assert found["complete"] is False
    assert [one["label"] for one in found["played"]] == ["static"]


@pytest.mark.parametrize(
    ("options", "fault"),
    [
        ("sharing --policies fair", "--policies fair: 'fair' is none of static, lanes:fifo"),
        ("sharing --experiments long,short", "'short' is none of long, search, tree"),
        ("sharing --experiments long --trials 5", "--trials is of the experiment search"),
        ("sharing --world netns --trials 33", "--trials 33: 32 at most have hosts"),
        ("sharing --world bmv2", "--world bmv2: jobs share memory in sim, netns, loopback"),
        ("sharing --workers 3", "--workers is not of iswitch bench sharing; leave it out"),
        ("sharing --mu 1", "--mu is not of iswitch bench sharing; leave it out"),
        ("sharing --rate 1Gbit", "--rate is not of iswitch bench sharing; leave it out"),
        ("--trials 5", "--trials is of iswitch bench sharing; leave it out"),
        ("paper --policies static", "--policies is of iswitch bench sharing; leave it out"),
        ("federated --experiments tree", "--experiments is of iswitch bench sharing"),
    ],
)
def test_options_that_do_not_go_together(
    options: str, fault: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", *options.split()]) == 2
    assert fault in capsys.readouterr().err


def played(label: str, *completions: float) -> Played:
    """Jobs that came at once and took these seconds, of which the first round is a tenth."""
    jobs = {n: Ran(0.0, end, [(0, end / 10), (end / 2, end)]) for n, end in enumerate(completions)}
    return Played(few(), Sharing(label, label, 1), jobs, None, 1.0)


def test_figures_of_what_was_played() -> None:
    one = played("x", 1.0, 3.0)
    assert one.makespan == 3.0
    assert one.completions.mean() == 2.0
    assert one.p99 == pytest.approx(0.5 + 0.99 * 1.0)  # first rounds do not count
    assert one.waited == 0
    assert [report.waiting(s) for s in (0.0, 1.06e-6, 66.54e-3)] == ["0.00", "0.00", "66.5"]
    assert one.jain({0: 1.0, 1: 3.0}) == pytest.approx(1)
    assert one.jain({0: 1.0, 1: 0.0}) == pytest.approx(1 / 2)


def test_ratios_are_those_that_salus_publishes() -> None:
    some = [played("one at a time", 4.0, 12.0), played("lanes:fifo", 3.0, 6.0)]
    some += [played("lanes:srtf", 1.0, 3.0), played("lanes:pack", 2.0, 5.0)]
    assert report.ratios(some) == [
        ["mean completion, SRTF over FIFO", "3.19", "4.00", "2.25"],
        ["makespan, PACK over FIFO", "2.38", "2.40", "1.20"],
    ]
    assert report.ratios(some[:1]) == []
    assert "not short" not in report.conditions(some[0], "sim")


def test_nothing_is_compared_where_memory_is_not_short() -> None:
    one = played("lanes:srtf", 1.0, 3.0)
    one.experiment = replace(few(), memory=1 << 20)
    assert report.ratios([played("one at a time", 4.0, 12.0), one]) != []
    assert report.ratios([one, one]) == []
    assert "Memory is not short" in report.conditions(one, "sim")


def test_the_sum_that_workers_expect() -> None:
    task = Task(1, "a", ("h1", "h2", "h3"), 4, 1, 0.0)
    numbers = np.arange(4, dtype=np.float32)
    vectors: list[Vector] = [numbers + np.float32(rank) for rank in range(3)]
    assert np.array_equal(np.sum(vectors, 0), task.total(numbers))


def test_options_are_those_that_others_refuse() -> None:
    """So none is taken and means nothing."""
    assert not set(OF_SHARING) & set(bench.OTHERS)
