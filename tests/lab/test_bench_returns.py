"""iswitch bench paper --returns: what is trained, what is printed and written, what is refused."""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path

import pytest

from iswitch.cli.bench import configure
from iswitch.lab.bench import returns
from iswitch.lab.bench.group import BenchFailed
from iswitch.lab.bench.returns import GAMES, Game, Reached
from iswitch.outside import UsageError

pytestmark = pytest.mark.unit

CURVE = [(0.0, 10.0), (1.0, 200.0)]


def parsed(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    configure(parser)
    return parser.parse_args(["paper", "--world", "sim", "--returns", *words])


def fake(game: Game, mode: str, compute: float) -> Reached:
    assert compute == 2.0
    slow = 3.0 if mode == "sync" else 1.5
    reached = (game.env, mode) != ("Hopper-v5", "async")
    return Reached(game, mode, slow, 100, reached, CURVE)


@pytest.mark.slow  # it draws
def test_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = [tmp_path / "out.json", tmp_path / "out.html"]
    args = parsed("--compute", "2", "--json", str(files[0]), "--html", str(files[1]))
    assert returns.returns(args, fake) == 1  # one return was not reached
    shown = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["CartPole-v1", "475", "3.00", "100", "1.50", "100", "2.00x"] in shown
    assert ["Hopper-v5", "200", "3.00", "100", ">", "1.50", "100"] in shown
    told = json.loads(files[0].read_text())
    assert [(one["env"], one["mode"]) for one in told[:2]] == [
        ("CartPole-v1", "sync"),
        ("CartPole-v1", "async"),
    ]
    page = files[1].read_text()
    assert page.count("<svg") == len(GAMES)
    assert "takes 2 ms" in page


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--rate", "1Gbit"], "--rate does not go with --returns"),
        (["--in-a-row", "2"], "--in-a-row does not go with --returns"),
        (["--world", "netns"], "iswitch bench paper --world sim --returns"),
    ],
)
def test_mistakes(words: list[str], said: str) -> None:
    with pytest.raises(UsageError, match=re.escape(said)):
        returns.returns(parsed(*words), fake)


def test_a_failure_ends_it_with_what_was_measured(capsys: pytest.CaptureFixture[str]) -> None:
    def failing(game: Game, mode: str, compute: float) -> Reached:
        if mode == "async":
            raise BenchFailed("no switch")
        return fake(game, mode, compute)

    assert returns.returns(parsed("--compute", "2"), failing) == 1
    out = capsys.readouterr()
    assert "iswitch bench: no switch" in out.err
    assert "CartPole-v1" in out.out


@pytest.mark.slow
def test_a_training() -> None:
    """The slow worker, which takes 9 ms for a gradient, does not hold up asynchronous updates."""
    pytest.importorskip("torch")
    found = returns.train(Game("ppo", "CartPole-v1", 500.0, 20), "async", 3.0)
    assert (found.reached, found.iterations, found.mode) == (False, 20, "async")
    assert 0.003 < found.seconds / found.iterations < 0.009
