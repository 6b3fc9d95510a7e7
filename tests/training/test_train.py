"""`iswitch train`, with real processes."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from io import StringIO
from itertools import cycle
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from iswitch import cli
from iswitch.lab.training.command import workload_of
from iswitch.lab.training.train import TrainRecord, TrainScreen
from iswitch.outside import OutsideError
from tests.support.one_process import OneProcess
from worker_lib.rl.plan import Plan
from worker_lib.rl.setup import Workload, deterministic
from worker_lib.rl.workloads import PAIRS

TRAIN = [sys.executable, "-m", "iswitch", "train"]
SHORT = ["--set", "learning_starts=40"]
QUICK = {"dqn": SHORT, "ddpg": SHORT, "ppo": ["--set", "steps=64"], "a2c": []}
# Each once; the other mode of the cheap ones is that of tests below. Two of them are played there.
BELOW = {("ddpg", "Pendulum-v1", "sync"), ("ppo", "CartPole-v1", "async")}
PAIRS_AND_MODES = [
    (*pair, mode) for pair, mode in zip(PAIRS, cycle(["async", "sync"]), strict=False)
]
assert set(PAIRS_AND_MODES) > BELOW


def run(*options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*TRAIN, *options], capture_output=True, text=True, timeout=120)


def state_in(folder: Path) -> list[np.ndarray[Any, Any]]:
    """The arrays of a checkpoint."""
    with np.load(folder / "checkpoint.npz") as stored:
        return [stored[str(i)] for i in range(len(stored.files) - 1)]


def tells_what_it_did(stdout: str, report: Path, workers: int, iterations: int) -> None:
    """Read a report, and compare it with itself and with what is shown."""
    measured: dict[str, Any] = json.loads(report.read_text())
    assert measured["iterations"] == iterations
    assert measured["weights_equal"] is True
    assert measured["gradient_bytes"] == 4 * measured["parameters"]
    assert measured["iterations_per_second"] > 0
    assert all(part > 0 for part in measured["share"].values())
    size = measured["gradient_bytes"] / 1024
    shown = f"{size:.2f} KiB" if size <= 1024 else f"{size / 1024:.2f} MiB"
    assert f"gradient of {measured['parameters']:,} parameters, {shown}" in stdout
    assert f" ok     weights of {workers} workers equal to the last bit" in stdout


@pytest.mark.parametrize(
    ("algorithm", "env", "mode"), [one for one in PAIRS_AND_MODES if one not in BELOW]
)
def test_every_pair_runs(algorithm: str, env: str, mode: str, tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    options = ["--env", env, "--workers", "2", "--iterations", "3", "--mode", mode]
    done = run(algorithm, *options, *QUICK[algorithm], "--json", str(report))
    assert done.returncode == 0, done.stdout + done.stderr
    tells_what_it_did(done.stdout, report, 2, 3)


def test_asynchronous_in_racks_with_a_slow_worker() -> None:
    """In virtual time; each rack sends up a sum of two of its three workers."""
    options = ["--env", "CartPole-v1", "--world", "sim", "--topology", "rack:2x3,rate=1Gbit"]
    options += ["--compute", "fixed:3ms", "--mode", "async", "--threshold", "2", "--slow", "1=4"]
    done = run("ppo", *options, "--iterations", "12", *QUICK["ppo"])
    assert done.returncode == 0, done.stdout + done.stderr
    assert " ok     weights of 6 workers equal to the last bit" in done.stdout


def test_asynchronous_options_and_resuming(tmp_path: Path) -> None:
    """Two of three contributions make an update; it goes on where the checkpoint was."""
    report, out = tmp_path / "report.json", tmp_path / "out"
    options = ["ddpg", "--env", "Pendulum-v1", "--workers", "3", "--mode", "async", *SHORT]
    options += ["--threshold", "2", "--staleness", "1", "--out", str(out)]
    first = run(*options, "--iterations", "20")
    assert first.returncode == 0, first.stdout + first.stderr
    assert state_in(out)[-1].tolist() == [20]
    second = run(*options, "--iterations", "40", "--resume", "--json", str(report))
    assert second.returncode == 0, second.stdout + second.stderr
    assert state_in(out)[-1].tolist() == [40]
    measured = json.loads(report.read_text())
    assert (measured["start"], measured["iterations"]) == (20, 40)
    assert measured["weights_equal"] is True
    stats = [one["stats"] for one in measured["per_worker"]]
    for one in stats:
        # A worker that begins later, or falls behind, takes a state with some versions in it.
        assert one["applied"] >= 20 or one["snapshots_taken"]
        assert set(one["staleness"]) <= {"0", "1"}
    # Two each, but for what workers greet each other with at the start.
    applied = sum(one["applied"] for one in stats)
    assert 20 <= applied < sum(one["contributions"] for one in stats)
    sent = sum(one["gradients"] - one["discarded"] for one in measured["per_worker"])
    assert f"{sent} sent" in second.stdout


# Equivalence


@pytest.mark.parametrize(
    ("algorithm", "env", "iterations"), [("ppo", "CartPole-v1", 20), ("ddpg", "Pendulum-v1", 20)]
)
def test_as_one_process_that_adds_in_rank_order(
    algorithm: str, env: str, iterations: int, tmp_path: Path
) -> None:
    """Three workers through the switch, to the last bit: weights, targets, moments."""
    out, report = tmp_path / "out", tmp_path / "report.json"
    options = ["--env", env, "--workers", "3", "--seed", "5", "--reproducible", "--out", str(out)]
    options += ["--iterations", str(iterations), "--json", str(report), *QUICK[algorithm]]
    done = run(algorithm, *options)
    assert done.returncode == 0, done.stdout + done.stderr
    deterministic()
    changes = dict([QUICK[algorithm][1].split("=")]) if QUICK[algorithm] else {}
    one = OneProcess(Workload(algorithm, env, changes), workers=3, seed=5, iterations=iterations)
    one.iterate(iterations)
    found = state_in(out)
    assert len(found) == len(one.updater.state)
    for array, expected in zip(found, one.updater.state, strict=True):
        assert array.dtype == expected.dtype
        assert array.tobytes() == expected.tobytes()
    tells_what_it_did(done.stdout, report, 3, iterations)


def test_gloo_is_equal_within_rounding(tmp_path: Path) -> None:
    """After one update the sums differ by what float32 additions in another order may."""
    options = ["--env", "Pendulum-v1", "--workers", "3", "--seed", "5", "--strategy", "gloo"]
    done = run("ddpg", *options, "--iterations", "1", *SHORT, "--out", str(tmp_path))
    assert done.returncode == 0, done.stdout + done.stderr
    deterministic()
    workload = Workload("ddpg", "Pendulum-v1", dict([SHORT[1].split("=")]))
    one = OneProcess(workload, workers=3, seed=5, iterations=1)
    one.iterate(1)
    ours, theirs = one.updater, state_in(tmp_path)
    # The first moment is a tenth of the mean gradient (clipped to a norm, which is rounded, too).
    moment, gradients = (
        len(ours.model),
        np.abs([message[: ours.weights.size] for message in one.messages]),
    )
    bound = 0.1 * 8 * np.finfo(np.float32).eps * gradients.mean(axis=0) + np.finfo(np.float32).tiny
    assert (np.abs(theirs[moment] - ours.state[moment]) <= bound).all()
    np.testing.assert_allclose(theirs[0], ours.weights, atol=1e-6)


# Files


def test_files_and_resuming(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["ddpg", "--env", "Pendulum-v1", "--workers", "2", *SHORT]
    options += ["--out", str(tmp_path), "--checkpoint-every", "100"]
    first = run(*options, "--iterations", "170")
    assert first.returncode == 0, first.stdout + first.stderr
    before = state_in(tmp_path)
    assert before[-1].tolist() == [170]
    assert cli.main(["train", *options]) == 2
    assert capsys.readouterr().err == (
        f"iswitch train: --out {tmp_path} has a training; add --resume, or name another folder\n"
    )
    second = run(*options, "--iterations", "171", "--resume")
    assert second.returncode == 0, second.stdout + second.stderr
    assert "goes on after iteration 170" in second.stdout
    assert "1 in " in second.stdout
    after = state_in(tmp_path)
    assert after[-1].tolist() == [171]
    # One step of Adam, from where the weights and moments were.
    assert 0 < np.abs(after[0] - before[0]).max() < 0.01
    np.testing.assert_allclose(after[3], 0.999 * before[3], atol=1e-2 * before[3].max())
    assert before[2].any()

    with open(tmp_path / "progress.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [int(row["iteration"]) for row in rows][-2:] == [170, 171]
    seconds = [float(row["seconds"]) for row in rows]
    assert seconds == sorted(seconds)  # the second training's go on from the first's
    assert set(rows[0]) == {"seconds", "iteration", "episodes", "mean_return",
        "iterations_per_second", "compute", "aggregate", "update"}  # fmt: skip
    with open(tmp_path / "episodes.csv", newline="") as file:
        episodes = list(csv.DictReader(file))
    assert {row["rank"] for row in episodes} == {"0", "1"}
    assert all(-2000 < float(row["return"]) < 0 for row in episodes)
    tags = set().union(*(tags_in(path) for path in tmp_path.glob("events.out.tfevents.*")))
    assert tags == {"training/mean_return", "training/iterations_per_second",
        "time/compute", "time/aggregate", "time/update"}  # fmt: skip


def tags_in(path: Path) -> set[str]:
    """What an event file of TensorBoard has scalars of (TFRecord framing)."""
    from tensorboardX.proto.event_pb2 import Event

    data, tags = path.read_bytes(), set()
    while data:
        length = int.from_bytes(data[:8], "little")
        event = Event.FromString(data[12 : 12 + length])
        tags |= {value.tag for value in event.summary.value}
        data = data[16 + length :]
    return tags


def test_it_ends_at_the_target_return(tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    options = ["--env", "CartPole-v1", "--workers", "2", "--iterations", "2000"]
    done = run("ppo", *options, "--target-return", "30", "--json", str(report))
    assert done.returncode == 0, done.stdout + done.stderr
    measured = json.loads(report.read_text())
    assert measured["reached"] is True
    assert measured["window_return"] >= 30
    assert measured["iterations"] < 2000
    assert [one["iterations"] for one in measured["per_worker"]] == [measured["iterations"]] * 2
    assert " ok     mean return of at least 30 over 20 episodes" in done.stdout


def test_a_target_that_is_missed_is_a_failure() -> None:
    options = ["--env", "CartPole-v1", "--workers", "1", "--iterations", "2"]
    done = run("ppo", *options, "--target-return", "500")
    assert done.returncode == 1
    assert " FAILED mean return of at least 500" in done.stdout


def test_a_workload_is_what_all_workers_have_reported() -> None:
    """An allreduce of all ranks' messages in each iteration that all have finished."""
    training = TrainRecord(Plan("ddpg", "Pendulum-v1"), 2, None)
    with pytest.raises(OutsideError, match="x is not written: no worker has finished an iteration"):
        workload_of(training, "x")
    split = dict.fromkeys(("compute", "aggregate", "update", "gradients", "discarded"), 0)
    for rank, gaps in ((0, [0.5, 0.25]), (1, [0.125, 1.0, 2.0])):
        worker: Any = SimpleNamespace(rank=rank, called=f"h{rank}")
        started = {"event": "started", "start": 0, "message": 48}
        told = {"event": "progress", "iteration": 3, "returns": [], "seconds": 1.0, **split}
        for message in (started, {**told, "gaps": gaps}):
            training.hear(worker, json.dumps(message), False)
    workload = workload_of(training, "x")
    assert (workload.ranks, workload.label) == (2, "ddpg in Pendulum-v1")
    assert [(one.step, one.rank, one.compute, one.bytes) for one in workload.records] == [
        (0, 0, 0.5, 48), (0, 1, 0.125, 48), (1, 0, 0.25, 48), (1, 1, 1.0, 48),
    ]  # fmt: skip


# What is shown


def test_the_screen_of_a_terminal() -> None:
    console = Console(file=StringIO(), force_terminal=True, width=120, highlight=False)
    training = TrainRecord(Plan("ddpg", "Pendulum-v1", mode="async", target_return=-300.0), 2, None)
    screen = TrainScreen(training, "loopback", console)
    split = {"seconds": 2.0, "compute": 1.0, "aggregate": 0.5, "update": 0.1}
    told = {"event": "progress", "iteration": 40, "returns": [-900.0, -700.0], **split}
    told |= {"gradients": 44, "discarded": 3}
    done = {"event": "done", "iteration": 80, "reached": True, "mean_return": -290.0}
    done |= {"weights": "a", "state": "b", "stats": {}}
    with screen:
        screen.refresh()  # nothing is known yet
        for rank in (0, 1):
            worker: Any = SimpleNamespace(rank=rank, called=f"h{rank}")
            started = {"rank": rank, "parameters": 262144, "bytes": 2**20, "iterations": 100}
            for message in ({"event": "started", "start": 20, **started}, told):
                training.hear(worker, json.dumps(message), False)
        screen.refresh()
        assert (training.rate, training.mean_return, training.over) == (10.0, -800.0, False)
        for rank in (0, 1):
            worker = SimpleNamespace(rank=rank, called=f"h{rank}")
            training.hear(worker, json.dumps(done), False)
        assert training.over
    assert screen.summarise() == 0
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    assert "2 workers (loopback), the switch adds, asynchronously" in shown
    assert "262,144 parameters, 1024.00 KiB" in shown
    assert "goes on after iteration 20" in shown
    assert "return -800.0    10.0 iterations/s  compute 50 %, aggregate 25 %, update 5 %" in shown
    assert "40/100" in shown
    assert "82 sent, 6 too stale" in shown
    assert "mean return -290.0 of the last 20" in shown
