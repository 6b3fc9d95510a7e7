"""How a training ends early, and what it refuses."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from iswitch import cli
from iswitch.cli import train
from tests.conftest import heed_interrupts
from tests.training.test_train import TRAIN, run, state_in
from worker_lib.rl import workloads
from worker_lib.rl.workloads import PAIRS


def test_a_worker_that_dies_is_named() -> None:
    process = subprocess.Popen(
        [*TRAIN, "ppo", "--env", "CartPole-v1", "--workers", "2", "--iterations", "1000000"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=heed_interrupts,
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdout.readline().startswith(" to watch: iswitch top /")
    assert "ppo in CartPole-v1: 2 workers" in process.stdout.readline()
    (victim,) = [pid for pid, rank in workers_of(process.pid) if rank == "1"]
    os.kill(victim, signal.SIGKILL)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 1
    assert errors == f"iswitch train: h2 (rank 1, process {victim}) was killed by SIGKILL\n"


@pytest.mark.parametrize(("rank", "mode"), [("0", "sync"), ("1", "async")])
def test_whoever_dies_the_others_keep_what_was_learned(
    rank: str, mode: str, tmp_path: Path
) -> None:
    options = ["--env", "CartPole-v1", "--workers", "2", "--iterations", "1000000"]
    process = subprocess.Popen(
        [*TRAIN, "ppo", *options, "--mode", mode, "--out", str(tmp_path)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=heed_interrupts,
    )  # fmt: skip
    assert process.stdout is not None
    while not process.stdout.readline().startswith("iteration "):
        assert process.poll() is None
    (victim,) = [pid for pid, its in workers_of(process.pid) if its == rank]
    os.kill(victim, signal.SIGKILL)
    process.communicate(timeout=60)
    assert process.returncode == 1
    assert state_in(tmp_path)[-1] > 0  # updates


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
    assert process.stdout.readline().startswith(" to watch: iswitch top /")
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


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (["--resume"], "--resume: name the folder of the checkpoint with --out"),
        (["--mode", "async", "--strategy", "gloo"], "--strategy gloo is synchronous; leave --mode"),
        (
            ["--mode", "async", "--topology", "rack:2x3", "--threshold", "4"],
            "--threshold 4: it counts at each rack, and one has 3 workers; take as many or fewer",
        ),
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
