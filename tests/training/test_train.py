"""`iswitch train`, with real processes."""

from __future__ import annotations

import csv
import json
import os
import signal
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
from iswitch.cli import train
from iswitch.lab.training.train import TrainRecord, TrainScreen
from tests.conftest import heed_interrupts
from tests.support.one_process import OneProcess
from worker_lib.rl import workloads
from worker_lib.rl.plan import Plan
from worker_lib.rl.setup import Workload, deterministic
from worker_lib.rl.workloads import PAIRS

pytestmark = pytest.mark.serial

TRAIN = [sys.executable, "-m", "iswitch", "train"]
SHORT = ["--set", "learning_starts=40"]
QUICK = {"dqn": SHORT, "ddpg": SHORT, "ppo": ["--set", "steps=64"], "a2c": []}
# Each once; the other mode of the cheap ones is that of tests below.
PAIRS_AND_MODES = [
    (*pair, mode) for pair, mode in zip(PAIRS, cycle(["async", "sync"]), strict=False)
]


def run(*options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*TRAIN, *options], capture_output=True, text=True, timeout=120)


def state_in(folder: Path) -> list[np.ndarray[Any, Any]]:
    """The arrays of a checkpoint."""
    with np.load(folder / "checkpoint.npz") as stored:
        return [stored[str(i)] for i in range(len(stored.files) - 1)]


@pytest.mark.parametrize(("algorithm", "env", "mode"), PAIRS_AND_MODES)
def test_every_pair_runs(algorithm: str, env: str, mode: str, tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    options = ["--env", env, "--workers", "2", "--iterations", "3", "--mode", mode]
    done = run(algorithm, *options, *QUICK[algorithm], "--json", str(report))
    assert done.returncode == 0, done.stdout + done.stderr
    measured = json.loads(report.read_text())
    assert measured["iterations"] == 3
    assert measured["weights_equal"] is True
    assert measured["gradient_bytes"] == 4 * measured["parameters"]
    assert measured["iterations_per_second"] > 0
    assert all(part > 0 for part in measured["share"].values())
    size = measured["gradient_bytes"] / 1024
    shown = f"{size:.2f} KiB" if size <= 1024 else f"{size / 1024:.2f} MiB"
    assert f"gradient of {measured['parameters']:,} parameters, {shown}" in done.stdout
    assert " ok     weights of 2 workers equal to the last bit" in done.stdout


@pytest.mark.root(reason="building namespaces needs root")
@pytest.mark.usefixtures("nothing_is_left")
@pytest.mark.parametrize("strategy", ["iswitch", "gloo"])
def test_on_a_network_of_three_switches(strategy: str) -> None:
    options = ["--env", "CartPole-v1", "--world", "netns", "--topology", "rack:2x2"]
    done = run("ppo", *options, "--iterations", "3", "--strategy", strategy)
    assert done.returncode == 0, done.stdout + done.stderr
    assert " ok     weights of 4 workers equal to the last bit" in done.stdout


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
    founders = [one for one in measured["per_worker"] if not one["stats"]["snapshots_taken"]]
    assert founders
    assert all(one["stats"]["applied"] >= 20 for one in founders)
    for one in measured["per_worker"]:
        assert one["stats"]["applied"] > 0  # the others may have begun with a later version
        # Two each, but for what workers greet each other with at the start.
        assert one["stats"]["applied"] < one["stats"]["contributions"]
        assert set(one["stats"]["staleness"]) <= {"0", "1"}
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
    assert json.loads(report.read_text())["weights_equal"] is True


@pytest.mark.parametrize(("algorithm", "env"), [("ppo", "CartPole-v1"), ("ddpg", "Pendulum-v1")])
def test_gloo_is_equal_within_rounding(algorithm: str, env: str, tmp_path: Path) -> None:
    """After one update the sums differ by what float32 additions in another order may."""
    options = [
        "--env",
        env,
        "--workers",
        "3",
        "--seed",
        "5",
        "--strategy",
        "gloo",
        "--iterations",
        "1",
    ]
    done = run(algorithm, *options, *QUICK[algorithm], "--out", str(tmp_path))
    assert done.returncode == 0, done.stdout + done.stderr
    deterministic()
    changes = dict([QUICK[algorithm][1].split("=")]) if QUICK[algorithm] else {}
    one = OneProcess(Workload(algorithm, env, changes), workers=3, seed=5, iterations=1)
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


# How it ends early


def test_a_worker_that_dies_is_named() -> None:
    process = subprocess.Popen(
        [*TRAIN, "ppo", "--env", "CartPole-v1", "--workers", "2", "--iterations", "1000000"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=heed_interrupts,
    )  # fmt: skip
    assert process.stdout is not None
    assert "ppo in CartPole-v1: 2 workers" in process.stdout.readline()
    (victim,) = [pid for pid, rank in workers_of(process.pid) if rank == "1"]
    os.kill(victim, signal.SIGKILL)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 1
    assert errors == f"iswitch train: h2 (rank 1, process {victim}) was killed by SIGKILL\n"


def test_resuming_what_is_not_there_leaves_no_folder(tmp_path: Path) -> None:
    folder = tmp_path / "nodir"
    done = run("ppo", "--env", "CartPole-v1", "--out", str(folder), "--resume")
    assert done.returncode == 2
    assert f"--resume: there is no {folder}/checkpoint.npz; leave it out to begin" in done.stderr
    assert not folder.exists()


def test_event_files_do_not_take_torch() -> None:
    """Loading it takes seconds, in which Ctrl-C would wait."""
    code = (
        "import sys\n"
        "from iswitch.lab.training.files import load_event_files; load_event_files()\n"
        "import tensorboardX, tensorboardX.summary\n"
        "assert 'torch' not in sys.modules; import torch; torch.zeros(1)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_ctrl_c_ends_all_and_keeps_what_was_learned(mode: str, tmp_path: Path) -> None:
    options = ["--env", "CartPole-v1", "--workers", "2", "--iterations", "1000000"]
    options += ["--mode", mode, "--out", str(tmp_path)]
    process = subprocess.Popen(
        [*TRAIN, "ppo", *options],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=heed_interrupts,
    )  # fmt: skip
    assert process.stdout is not None
    assert "ppo in CartPole-v1: 2 workers" in process.stdout.readline()
    family = [pid for pid, _ in workers_of(process.pid)]
    assert len(family) == 2
    assert "iteration " in process.stdout.readline()
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert errors == "iswitch train: stopped by SIGINT; go on with --resume\n"
    assert state_in(tmp_path)[-1].item() > 0
    assert not list(tmp_path.glob("*.partial"))
    assert not [pid for pid in family if Path(f"/proc/{pid}").exists()]


def workers_of(parent: int) -> list[tuple[int, str]]:
    """The worker processes it started, and their ranks."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                stat = (entry / "stat").read_text().rpartition(")")[2].split()
                command = (entry / "cmdline").read_bytes()
                environment = (entry / "environ").read_bytes().split(b"\0")
            except OSError:
                continue  # it has just ended, or is another's
            if int(stat[1]) == parent and b"worker_lib.rl.worker" in command:
                (rank,) = [line[5:] for line in environment if line.startswith(b"RANK=")]
                found.append((int(entry.name), rank.decode()))
    return found


# Misuse


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (["--resume"], "--resume: name the folder of the checkpoint with --out"),
        (["--mode", "async", "--strategy", "gloo"], "--strategy gloo is synchronous; leave --mode"),
        (["--mode", "async", "--topology", "rack:2x2"], "an asynchronous job is of one switch"),
        (["--mode", "async", "--reproducible"], "asynchronous sums have no order; use --mode sync"),
        (["--strategy", "gloo", "--reproducible"], "is the switch's; use --strategy iswitch"),
        (["--staleness", "2"], "in --mode sync no gradient is late; use --mode async"),
        (["--mode", "async", "--threshold", "5"], "--threshold 5: there are 4 workers; take as"),
        (["--set", "rate=1"], "no setting 'rate'; there are envs, steps"),
        (["--set", "steps=40", "--set", "envs=1"], "minibatches=32: of 40 steps, two or more"),
        (["--env", "ALE/Pong-v5"], "ppo learns tasks whose state is a vector; ALE/Pong-v5 is none"),
        (["--env", "Nowhere-v0"], "Nowhere-v0: "),
        (["--threshold", "2"], "in --mode sync all contribute; use --mode async"),
        (["--slow", "4=2"], "--slow 4=2: write RANK=FACTOR, with a RANK of 0..3"),
        (["--slow", "3=0.5"], "--slow 3=0.5: '0.5' is not a number of 1 or more"),
        (["--set", "steps"], "--set steps: write NAME=VALUE"),
        (["--workers", "65"], "--workers 65: a switch takes 1 to 64 workers a job"),
        (["--workers", "2", "--topology", "star:2"], "leave --workers out"),
    ],
)
def test_misuse(options: list[str], complaint: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["train", "ppo", *options]) == 2
    assert complaint in capsys.readouterr().err


def test_what_is_not_installed_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(workloads, "find_spec", lambda _: None)
    assert cli.main(["train", "dqn"]) == 2
    lacking = "torch, gymnasium, tensorboardX, ale_py, cv2"
    expected = f"iswitch train: ALE/Pong-v5 needs {lacking}: pip install -e '.[rl]'"
    assert capsys.readouterr().err.startswith(expected)


def test_what_cannot_be_gone_on_with(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def complaint(*options: str, **names: str) -> str:
        names = {"algorithm": "ppo", "env": "CartPole-v1"} | names
        arrays: Any = {"0": np.array(70)}
        np.savez(tmp_path / "checkpoint.npz", names=np.array(json.dumps(names)), **arrays)
        place = ["--env", "CartPole-v1", "--out", str(tmp_path), "--resume"]
        assert cli.main(["train", "ppo", *place, *options]) == 2
        return capsys.readouterr().err

    said = complaint(algorithm="dqn")
    assert "checkpoint.npz is of another training: algorithm dqn, env CartPole-v1; name" in said
    assert "checkpoint.npz has 70 already" in complaint("--iterations", "70")


def test_what_a_worker_refuses_is_told(tmp_path: Path) -> None:
    names = '{"algorithm": "ppo", "env": "CartPole-v1"}'
    arrays: dict[str, Any] = {"0": np.zeros(3, np.float32), "1": np.array(70)}
    np.savez(tmp_path / "checkpoint.npz", names=np.array(names), **arrays)
    done = run("ppo", "--env", "CartPole-v1", "--out", str(tmp_path), "--resume")
    assert done.returncode == 2
    assert "checkpoint.npz has weights of other shapes; name another --out\n" in done.stderr
    assert done.stderr.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint.npz"]


def test_help_names_the_pairs() -> None:
    for algorithm, env in PAIRS:
        assert algorithm in (train.__doc__ or "")
        assert env in (train.__doc__ or "")
