"""`iswitch train fedavg|fedprox`, in processes and in virtual time."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

from iswitch.cli import main
from iswitch.lab.federated.train import ENDING, FederatedRecord
from iswitch.lab.training import screen
from worker_lib.fedprox import members
from worker_lib.fedprox.data import Floats
from worker_lib.fedprox.model import Steps
from worker_lib.fedprox.process import Plan
from worker_lib.fedprox.rounds import Setting, State, train

SMALL = [
    "--devices", "4", "--picked", "3", "--rounds", "3", "--epochs", "3", "--stragglers", "34",
    "--reproducible", "--check",
]  # fmt: skip
EQUAL = "ok     all models equal those of one process, to the last bit"


def rounds(path: Path) -> list[dict[str, object]]:
    found = json.loads(path.read_text())
    assert found["failure"] is None
    assert found["status"] == 0
    return list(found["rounds"])


def test_processes_train_as_one_process_does(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "found.json"
    assert main(["train", "fedavg", *SMALL, "--json", str(path)]) == 0
    said = capsys.readouterr().out
    assert EQUAL in said
    assert "in the sums  6 of 9 picked" in said
    found = rounds(path)
    assert [one["round"] for one in found] == [0, 1, 2, 3]
    setting = Setting("fedavg", devices=4, picked=3, rounds=3, epochs=3, stragglers=0.34)
    assert [one["in_sum"] for one in found] == [list(one.in_sum) for one in train(setting)]


DIES = """
import os, signal, sys
if os.environ.get("RANK") == "1" and "worker_lib.fedprox.process" in sys.orig_argv:
    if os.path.exists({mark!r}):
        os.kill(os.getpid(), signal.SIGKILL)
    from worker_lib.fedprox import members
    real = members.train_device
    def train_device(setting, model, samples, weights, number, device):
        if number >= 1:  # a device that is held up may miss a round
            open({mark!r}, "w").close()
            os.kill(os.getpid(), signal.SIGKILL)
        return real(setting, model, samples, weights, number, device)
    members.train_device = train_device
"""


def test_the_others_go_on_without_a_device_that_dies(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a tree; rank 1 dies in its second round, is restarted once, and dies again."""
    (tmp_path / "sitecustomize.py").write_text(DIES.format(mark=str(tmp_path / "died")))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    path = tmp_path / "found.json"
    words = ["--topology", "rack:2x2", "--devices", "4", "--picked", "4", "--rounds", "5"]
    more = ["--epochs", "2", "--deadline", "1", "--max-restarts", "1", "--reproducible", "--check"]
    assert main(["train", "fedprox", *words, *more, "--json", str(path)]) == 0
    said = capsys.readouterr().out
    assert "was killed by SIGKILL; starting it again (1 of 1)" in said
    assert "after 1 restarts in a row; the others go on without it" in said
    assert EQUAL in said
    found = json.loads(path.read_text())
    assert found["lost"] == [1]
    assert found["racks"] == [[0, 1], [2, 3]]
    assert all(1 not in one["in_sum"] for one in found["rounds"][2:])


def test_without_a_deadline_a_device_that_dies_ends_the_training() -> None:
    record = FederatedRecord(Plan(Setting(devices=3)))
    record.started = {}
    assert not record.can_spare(1)
    dead = Mock(rank=1, status=137)
    assert record.complaint(dead).startswith("; with --deadline SECONDS the others go on")


def test_who_may_be_lost_and_when_all_is_done() -> None:
    record = FederatedRecord(Plan(Setting(devices=3), deadline=1.0))
    assert not record.can_spare(0)  # before all have begun
    record.started = {}
    assert [record.can_spare(rank) for rank in range(4)] == [True, True, True, False]
    record.lost = [0, 1]
    assert not record.can_spare(2)  # nobody would be left
    record.learners[3].done = {}
    record.tick(100.0)
    assert not record.done
    record.tick(100.0 + ENDING)  # the last device has been stopped, say
    assert record.done


def test_ctrl_c_ends_a_comparison(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from iswitch.lab.federated import train as command

    def stopped(*_: object, **__: object) -> Iterator[State]:
        signal.raise_signal(signal.SIGINT)
        yield from ()

    monkeypatch.setattr(command, "alone", stopped)
    assert main(["train", "fedprox", *SMALL, "--world", "sim"]) == 130
    assert "stopped by SIGINT after 3 rounds" in capsys.readouterr().err


def test_a_comparison_shows_how_far_it_is(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(screen, "LINE_PAUSE", 0.0)
    assert main(["train", "fedprox", *SMALL, "--world", "sim"]) == 0
    assert "round    2 of 3  training in one process, to compare" in capsys.readouterr().out


def test_a_training_that_diverges_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def train_device(*arguments: Any) -> Floats:
        return np.full(arguments[1].numel, np.nan, np.float32)

    monkeypatch.setattr(members, "train_device", train_device)
    path = tmp_path / "found.json"
    words = ["--devices", "2", "--rounds", "2", "--mu", "1", "--learning-rate", "1.5"]
    assert main(["train", "fedprox", *words, "--world", "sim", "--json", str(path)]) == 1
    said = capsys.readouterr().err
    assert "after round 1 the model is not finite; take a smaller learning rate than 1.5" in said

    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is no JSON")

    found = json.loads(path.read_text(), parse_constant=refuse)
    assert "the training diverges" in found["failure"]


@pytest.mark.parametrize("form", ["star:4,rate=10Mbit", "rack:2x2,rate=10Mbit"])
def test_virtual_time_trains_as_one_process_does(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], form: str
) -> None:
    path = tmp_path / "found.json"
    more = ["--world", "sim", "--topology", form, "--mu", "1", "--round-time", "2"]
    assert main(["train", "fedprox", *SMALL, *more, "--spread", "1", "--json", str(path)]) == 0
    said = capsys.readouterr().out
    assert EQUAL in said
    assert "virtual seconds" in said
    found = rounds(path)
    assert all(isinstance(one["accuracy"], float) for one in found)
    assert [found[-1][name] > found[0][name] for name in ("seconds", "bytes")] == [True, True]  # type: ignore[operator]


def test_a_model_that_differs_fails_the_check(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from iswitch.lab.federated import train as command

    def other(setting: Setting, racks: object, in_sums: object) -> Iterator[State]:
        assert racks == []
        assert in_sums is None
        for state in train(setting):
            yield state._replace(weights=state.weights + (state.rounds == 2))

    monkeypatch.setattr(command, "alone", other)
    assert main(["train", "fedprox", *SMALL, "--world", "sim"]) == 1
    assert "FAILED all models" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("fedprox --env Pong", "--env is not of fedavg and fedprox"),
        ("fedprox --set a=1", "--set is not of fedavg"),
        ("ppo --mu 1", "--mu is of fedavg and fedprox"),
        ("fedavg --mu 1", "--mu is of fedprox"),
        ("fedprox --devices 3 --picked 4", "there are 3 devices"),
        ("fedprox --stragglers 101", "0 to 100"),
        ("fedprox --speeds 1", "--stragglers 50"),
        ("fedprox --speeds 1 --stragglers 99", "a device must finish; say fewer"),
        ("fedprox --deadline 2 --round-time 2", "devices compute for 2 s; take more"),
        ("fedprox --check", "add --reproducible"),
        ("fedprox --devices 300", "--topology rack:5x60 (300 processes), or add --world sim"),
        ("fedprox --mu 200", "take less than 200"),
        ("fedavg --workers 4", "say --devices"),
        ("fedprox --iterations 4", "say --rounds"),
        ("fedprox --max-restarts 1", "add --deadline SECONDS"),
        ("fedprox --world sim --deadline 3", "--deadline"),
        ("fedprox --topology star:4", "say --devices 4"),
        ("fedavg --devices 4 --spread 0.5", "add --world sim or --world netns"),
    ],
)
def test_what_cannot_be_trained_is_refused(
    words: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", *words.split()]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("world", ["sim", "loopback"])
def test_a_missing_library_is_named_before_anything_starts(
    world: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("worker_lib.fedprox.data.find_spec", lambda _: None)
    monkeypatch.setattr("iswitch.lab.federated.train.FederatedScreen", None)  # what comes next
    assert main(["train", "fedavg", "--data", "digits", "--world", world]) == 2
    said = capsys.readouterr()
    assert "the data digits are of scikit-learn" in said.err
    assert not said.out


def test_a_training_of_nobody_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--devices", "3", "--picked", "1", "--rounds", "2", "--epochs", "2", "--world", "sim"]
    assert main(["train", "fedavg", *words, "--stragglers", "100", "--round-time", "1"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "2 of 2 rounds have no contribution; nobody ever trained" in said


def test_a_plan_survives_the_command_line() -> None:
    plan = Plan(Setting(steps=Steps(0.5, 0.1, 3), speeds=1.0), True, 2.5)
    assert Plan.from_json(plan.to_json()) == plan
