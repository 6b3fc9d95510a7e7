"""iswitch paper --returns: what is trained, what is printed and written, what is refused."""

from __future__ import annotations

import argparse
import json
import re
import signal
import sys
from pathlib import Path

import pytest

from iswitch.cli.paper import configure
from iswitch.lab.bench.group import BenchFailed
from iswitch.lab.paper import returns
from iswitch.lab.paper.returns import GAMES, Game, Reached, Tell
from iswitch.outside import UsageError
from iswitch.system.interrupts import Signals, Stopped

pytestmark = pytest.mark.unit

CURVE = [(0.0, 10.0), (1.0, 200.0)]


def parsed(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    configure(parser)
    return parser.parse_args(["--returns", *words])


def fake(game: Game, mode: str, compute: float, tell: Tell) -> Reached:
    tell(game.iterations // 2)
    assert compute == 2.0
    slow = 3.0 if mode == "sync" else 1.5
    reached = (game.env, mode) != ("Hopper-v5", "async")
    return Reached(game, mode, slow, 100, reached, CURVE)


@pytest.mark.slow  # it draws
def test_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "out.html"
    assert returns.returns(parsed("--compute", "2", "--html", str(file)), fake) == 1  # missed one
    shown = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["CartPole-v1", "475", "3.00", "100", "1.50", "100", "2.00x"] in shown
    assert ["Hopper-v5", "200", "3.00", "100", ">", "1.50", "100"] in shown
    assert returns.returns(parsed("--compute", "2", "--json"), fake) == 1
    told = json.loads(capsys.readouterr().out)
    assert [(one["env"], one["mode"]) for one in told[:2]] == [
        ("CartPole-v1", "sync"),
        ("CartPole-v1", "async"),
    ]
    page = file.read_text()
    assert page.count("<svg") == len(GAMES)
    assert "takes 2 ms" in page


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--workers", "6"], "--workers does not go with --returns"),
        (["--world", "sim"], "--world does not go with --returns"),
        (["--compute", "core"], "--compute with --returns: milliseconds, such as 3"),
    ],
)
def test_mistakes(words: list[str], said: str) -> None:
    with pytest.raises(UsageError, match=re.escape(said)):
        returns.returns(parsed(*words), fake)


def test_a_failure_ends_it_with_what_was_measured(capsys: pytest.CaptureFixture[str]) -> None:
    def failing(game: Game, mode: str, compute: float, tell: Tell) -> Reached:
        if mode == "async":
            raise BenchFailed("no switch")
        return fake(game, mode, compute, tell)

    assert returns.returns(parsed("--compute", "2"), failing) == 1
    out = capsys.readouterr()
    assert "iswitch paper: no switch" in out.err
    assert "CartPole-v1" in out.out


def test_ctrl_c_keeps_what_was_measured(capsys: pytest.CaptureFixture[str]) -> None:
    def stopped(game: Game, mode: str, compute: float, tell: Tell) -> Reached:
        if game == GAMES[1]:
            signal.raise_signal(signal.SIGINT)
        return fake(game, mode, compute, tell)

    assert returns.returns(parsed("--compute", "2", "--json"), stopped) == 130
    out = capsys.readouterr()
    assert "stopped by SIGINT; what was measured until then:" in out.err
    assert [one["mode"] for one in json.loads(out.out)] == ["sync", "async"]


@pytest.mark.slow
def test_a_training_tells_its_iterations_and_ends_with_the_bench(tmp_path: Path) -> None:
    told: list[int] = []
    ended = tmp_path / "ended"
    code = f"""
import atexit, pathlib, signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
atexit.register(pathlib.Path({str(ended)!r}).touch)
print("ppo in CartPole-v1: 4 workers")
for i in (7, 1200):
    print(f"iteration {{i:>6}} of 4000  return", flush=True)
time.sleep(600)
"""

    def tell(done: int) -> None:
        told.append(done)
        if done == 1200:
            signal.raise_signal(signal.SIGINT)

    with Signals(), pytest.raises(Stopped):
        returns._run([sys.executable, "-c", code], tmp_path / "errors", tell)
    assert told == [7, 1200]
    assert ended.exists()


@pytest.mark.slow
def test_a_training() -> None:
    """The slow worker, which takes 9 ms for a gradient, does not hold up asynchronous updates."""
    pytest.importorskip("torch")
    found = returns.train(Game("ppo", "CartPole-v1", 500.0, 20), "async", 3.0, lambda _: None)
    assert (found.reached, found.iterations, found.mode) == (False, 20, "async")
    assert 0.003 < found.seconds / found.iterations < 0.009
