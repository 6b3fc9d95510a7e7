"""`iswitch train fedavg|fedprox`, in processes and in virtual time."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from iswitch.cli import main
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

    def other(setting: Setting, racks: object) -> Iterator[State]:
        assert racks == []
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
        ("fedprox --topology rack:2x15", "--world sim only"),
        ("fedprox --world sim --deadline 3", "--deadline"),
        ("fedprox --topology star:4", "say --devices 4"),
    ],
)
def test_what_cannot_be_trained_is_refused(
    words: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", *words.split()]) == 2
    assert said in capsys.readouterr().err


def test_a_plan_survives_the_command_line() -> None:
    plan = Plan(Setting(steps=Steps(0.5, 0.1, 3), speeds=1.0), True, 2.5)
    assert Plan.from_json(plan.to_json()) == plan
