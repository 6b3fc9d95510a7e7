"""`iswitch bench federated`: what it trains and times, its tables, page and files."""

from __future__ import annotations

import json
import signal
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from iswitch.cli import main
from iswitch.lab.federated import bench
from iswitch.lab.federated.report import CLAIM, HEAD, headline, table
from iswitch.lab.federated.runs import FEDAVG, PLAIN, Found, Run, Tell, Way, settings_of, stop
from iswitch.lab.federated.runs import run as train
from iswitch.system.interrupts import Stopped
from worker_lib.fedprox.data import Federation
from worker_lib.fedprox.rounds import Setting

SMALL = [
    "bench", "federated", "--devices", "4", "--picked", "3", "--rounds", "4", "--epochs", "3",
    "--data", "synthetic_1_1",
]  # fmt: skip
PROX = Way("fedprox", 1.0)


def run(way: Way, accuracy: float, seed: int = 1, data: str = "synthetic_1_1") -> Run:
    rows = np.full((21, 3), accuracy)
    rows[:11, 1] = accuracy / 2
    setting = way.of(Setting(data=data, seed=seed, stragglers=0.9))
    return Run(setting, rows, [1] * 20)


def test_the_command_measures_and_draws(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    files = [str(tmp_path / name) for name in ("found.json", "found.html")]
    assert main([*SMALL, "--accuracy", "0.9", "--json", files[0], "--html", files[1]]) == 0
    said = capsys.readouterr()
    assert "percentage points more accurate than FedAvg" in " ".join(said.out.split())
    found = json.loads(Path(files[0]).read_text())
    assert found["complete"] is True
    assert [(one["stragglers"], one["algorithm"], one["mu"]) for one in found["runs"]] == [
        (0.0, "fedavg", 0.0), (0.0, "fedprox", 1.0),
        *((share, *way) for share in (0.5, 0.9) for way in (FEDAVG, PLAIN, PROX)),
    ]  # fmt: skip
    assert all(len(one["loss"]) == 5 for one in found["runs"])
    timed = {(one["network"], one["algorithm"]): one["points"] for one in found["timed"]}
    assert len(timed) == 6
    for algorithm in ("fedavg", "fedprox"):
        curves = [timed[name, algorithm] for name in ("switch", "server")]
        assert [p["accuracy"] for p in curves[0]] == [p["accuracy"] for p in curves[1]]
        alone = next(
            one["accuracy"] for one in found["runs"]
            if (one["stragglers"], one["algorithm"]) == (0.9, algorithm)
            and one["mu"] == (algorithm == "fedprox")
        )  # fmt: skip
        assert [p["accuracy"] for p in curves[0]] == alone[: len(curves[0])]
    page = Path(files[1]).read_text()
    assert page.count("<figure") == 3 + 2
    assert "<script" not in page


def test_ctrl_c_keeps_what_is_complete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    count = 0

    def stopped(setting: Setting, federation: Federation, tell: Tell) -> Run:
        nonlocal count
        count += 1
        if count == 3:
            raise Stopped(signal.SIGINT)
        return train(setting, federation, tell)

    monkeypatch.setattr(bench, "run", stopped)
    path = tmp_path / "found.json"
    assert main([*SMALL, "--json", str(path)]) == 130
    assert "what was measured until then" in capsys.readouterr().err
    found = json.loads(path.read_text())
    assert found["complete"] is False
    assert len(found["runs"]) == 2


def test_a_table_compares_seeds_in_pairs() -> None:
    runs = [
        run(FEDAVG, 0.5),
        run(FEDAVG, 0.7, 2),
        run(PLAIN, 0.6),
        run(PROX, 0.8),
        run(PROX, 0.9, 2),
    ]
    found = Found([*runs, run(Way("fedprox", 0.1), 0.4)])
    (line,) = table(found)
    assert dict(zip(HEAD, line, strict=True)) == {
        "data": "synthetic(1,1)", "stragglers": "90 %", "seeds": "2",
        "FedAvg": "60.0 (50.0 to 70.0)", "mu = 0": "60.0", "best mu": "85.0 (80.0 to 90.0)",
        "mu": "1", "best - FedAvg": "+25.0 (+20.0 to +30.0)",
        "of all rounds": "+18.8 (+15.0 to +22.5)",
    }  # fmt: skip
    assert "+25.0 percentage points more accurate than FedAvg on average of 1 h" in headline(found)
    assert f"(paper: +{CLAIM:g}" in headline(found)
    assert "not one contribution" not in headline(found)
    told = headline(Found([run(FEDAVG, 0.5, data="iid"), run(PROX, 0.6, data="iid")]))
    assert "claim is of 90 % stragglers on heterogeneous data (not iid)" in told
    assert "none is measured here" in told


def test_a_gain_below_zero_and_one_over_no_training_are_named() -> None:
    base, best = run(FEDAVG, 0.5), run(PROX, 0.49)
    told = headline(Found([base, best]))
    assert "ends 1.0 percentage points less accurate than FedAvg on average of 1 h" in told
    told = headline(Found([replace(base, contributions=[0] * 20), best]))
    assert "In 1 training FedAvg had not one contribution" in told


def test_rounds_that_nobody_finishes_are_told_as_free(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--stragglers", "90", "--accuracy", "0.99", "--mu", "0"]
    assert main([*SMALL[:-1], "iid", *words]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "rounds are counted, but as free, with no time and no bytes" in said


def test_accuracies_are_read_where_the_paper_reads_them() -> None:
    falling = np.linspace(3.0, 1.0, 21)
    assert stop(falling) == 20
    still = np.concatenate([falling[:5], [falling[4] - 0.00005], falling[6:]])
    assert stop(still) == 5
    rising = np.concatenate([falling[:12], [falling[2] + 1.01], falling[13:]])
    assert stop(rising) == 12
    one = run(PROX, 0.8)
    one.rows[:, 0] = falling
    assert one.stopped_accuracy == 0.8


def test_without_stragglers_fedavg_is_trained_once() -> None:
    found = settings_of(Setting(), ["iid"], [0.0, 0.5], [FEDAVG, PLAIN, PROX], [1, 2])
    assert len(found) == 2 * 5
    assert Found([run(FEDAVG, 0.5)]).of("synthetic_1_1", 0.9, PLAIN) == []


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("federated --data iid,cats", "'cats' is none of iid"),
        ("federated --stragglers 0,101", "more than 100"),
        ("federated --mu x", "--mu x"),
        ("federated --rate fast", "--rate fast"),
        ("federated --rate 1Mbit,2Mbit", "all links have one rate here; name one"),
        ("federated --devices 4 --picked 5", "there are 4 devices"),
        ("federated --devices 64", "or measure no times: --accuracy 0"),
        ("federated --devices 1", "2 to 63 devices"),
        ("federated --accuracy 70", "an accuracy is a share, 0 to 1"),
        ("federated --accuracy 0 --compute 5", "--compute is of times"),
        ("federated --world sim", "--world is not of iswitch bench federated"),
        ("paper --mu 1", "--mu is of iswitch bench federated"),
        ("--seeds 2", "--seeds is of iswitch bench federated"),
    ],
)
def test_what_cannot_be_measured_is_refused(
    words: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", *words.split()]) == 2
    assert said in capsys.readouterr().err
