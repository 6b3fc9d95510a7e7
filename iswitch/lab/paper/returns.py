"""Measures the time to a return in virtual time, synchronously and asynchronously.

A synchronous iteration waits for the slowest worker; an asynchronous one does not, but its
gradients are of older weights. So what counts is when training reaches a return: `iswitch train`
trains each game both ways, with one slow worker, over the paper's links.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from iswitch.lab.bench.ending import say_stopped
from iswitch.lab.bench.figures import Picture, axes_of
from iswitch.lab.bench.group import BenchFailed
from iswitch.lab.options import command, quantity, refuse
from iswitch.lab.progress import Bar
from iswitch.lab.reports.page import INK, Page, check_drawing
from iswitch.outside import UsageError
from iswitch.system.files import check_writable, whole
from iswitch.system.interrupts import Signals, Stopped

MODES = ("sync", "async")
OTHERS: Mapping[str, object] = {
    "papers": [], "workers": None, "world": None, "host_overhead": None, "switch_latency": None,
}  # fmt: skip
NETWORK = "star:4,rate=10Gbit"
SLOW = "3=3"  # rank 3 computes three times as long
COMPUTE = 3.0  # ms of a gradient, unless --compute says so
NOTE = (
    f"Virtual seconds over {NETWORK} until the mean return of the last 20 episodes was that of the "
    "column before. Computing a gradient takes {compute:g} ms, and three times as long at rank 3. "
    "One seed each: of another seed, times differ."
)


class Game(NamedTuple):
    """What is trained, to which return, and for how many updates at most."""

    algorithm: str
    env: str
    target: float
    iterations: int


GAMES = (
    Game("ppo", "CartPole-v1", 475, 4000),
    Game("ddpg", "Pendulum-v1", -300, 8000),
    Game("ppo", "Hopper-v5", 200, 8000),
)


class Reached(NamedTuple):
    """A training: virtual seconds, updates, whether it reached the return, and how it learned."""

    game: Game
    mode: str
    seconds: float
    iterations: int
    reached: bool
    curve: list[tuple[float, float]]  # virtual seconds and mean returns


Tell = Callable[[int], None]  # told of iterations that are done
Train = Callable[[Game, str, float, Tell], Reached]
ITERATION = re.compile(r"iteration +(\d+) of ")  # a line of `iswitch train`


def train(game: Game, mode: str, compute: float, tell: Tell) -> Reached:
    """Train a game in virtual time.

    Raises:
        BenchFailed: the training failed otherwise than by missing the return.
    """
    with TemporaryDirectory(prefix="iswitch-returns-") as folder:
        file, errors = Path(folder) / "train.json", Path(folder) / "errors"
        words = [
            "train", game.algorithm, "--env", game.env, "--mode", mode, "--world", "sim",
            "--topology", NETWORK, "--compute", f"fixed:{compute:g}ms", "--slow", SLOW,
            "--target-return", f"{game.target:g}", "--iterations", str(game.iterations),
            "--json", str(file),
        ]  # fmt: skip
        _run([sys.executable, "-m", "iswitch", *words], errors, tell)
        told: dict[str, Any] = {"failure": errors.read_text().strip()}
        if file.exists():
            told = json.loads(file.read_text())
    if not told.get("weights_equal"):
        raise BenchFailed(f"iswitch {' '.join(words[:-2])}: {told.get('failure')}")
    curve = [(seconds, value) for seconds, _, value in told["curve"] if value is not None]
    seconds, iterations = told["seconds"], told["iterations"]
    return Reached(game, mode, seconds, iterations, told["reached"], curve)


def _run(words: Sequence[str], errors: Path, tell: Tell) -> None:
    """Run a training, and end it if this is stopped."""
    with (
        errors.open("w") as file,
        subprocess.Popen(words, stdout=subprocess.PIPE, stderr=file, text=True) as process,
    ):
        assert process.stdout is not None
        try:
            for line in process.stdout:
                if (found := ITERATION.match(line)) is not None:
                    tell(int(found[1]))
        except Stopped:
            process.terminate()
            raise


def returns(args: argparse.Namespace, train: Train = train, games: Sequence[Game] = GAMES) -> int:
    """Train all games both ways, print and write what was found; return the exit status.

    Raises:
        UsageError: an option does not go with it.
    """
    refuse(args, OTHERS, "does not go with --returns")
    check_writable(args.html)
    if args.html:
        check_drawing()
    try:
        compute = COMPUTE if args.compute == "gpu" else quantity(0)(args.compute)
    except argparse.ArgumentTypeError as error:
        raise UsageError(f"--compute with --returns: milliseconds, such as 3: {error}") from None
    found: list[Reached] = []
    status = 0
    with Signals() as signals:
        try:
            with Bar(len(games) * len(MODES), "starting") as bar:
                for game, mode in product(games, MODES):
                    tell = _teller(bar, len(found), game, mode)
                    found.append(train(game, mode, compute, tell))
        except BenchFailed as error:
            print(f"iswitch paper: {error}", file=sys.stderr)
            status = 1
        except Stopped as stopped:
            status = say_stopped(stopped, bool(found))
        signals.hold()
        if found:
            _report(args, found, compute)
    return status or int(not all(one.reached for one in found))


def _teller(bar: Bar, before: int, game: Game, mode: str) -> Tell:
    """Make what shows how far a training is, after a number of others."""
    what = f"{game.algorithm} in {game.env}, {mode}"

    def tell(done: int) -> None:
        bar.show(before + done / game.iterations, f"{what}: {done:,} updates")

    tell(0)
    if not sys.stderr.isatty():
        print(what, file=sys.stderr, flush=True)
    return tell


def _report(args: argparse.Namespace, found: Sequence[Reached], compute: float) -> None:
    """Print and write what was found."""
    if args.json:
        print(json.dumps([one._asdict() | one.game._asdict() for one in found], indent=1))
    else:
        for line in table(found):
            print("".join(f"{word:>{width}}" for word, width in zip(line, WIDTHS, strict=True)))
        print(f"\n{NOTE.format(compute=compute)}")
    if args.html:
        page(found, compute, args.html)


HEAD = ("environment", "return", "sync, s", "updates", "async, s", "updates", "sync / async")
WIDTHS = (14, 9, 11, 9, 11, 9, 14)


def table(found: Sequence[Reached]) -> list[list[str]]:
    """Make the head and a line for each game; what was not reached has `>`."""
    lines = [list(HEAD)]
    for game in dict.fromkeys(one.game for one in found):
        ways = {one.mode: one for one in found if one.game == game}
        line = [game.env, f"{game.target:g}"]
        for mode in MODES:
            one = ways.get(mode)
            mark = "" if one is None or one.reached else "> "
            line += ["", ""] if one is None else [f"{mark}{one.seconds:.2f}", str(one.iterations)]
        both = [ways[mode] for mode in MODES if mode in ways and ways[mode].reached]
        both_reached = len(both) == len(MODES)
        line.append(f"{both[0].seconds / both[1].seconds:.2f}x" if both_reached else "")
        lines.append(line)
    return lines


def page(found: Sequence[Reached], compute: float, path: str) -> None:
    """Write a page with the table and a plot for each game."""
    made = Page("Time to a return", "iSwitch, synchronous and asynchronous, in virtual time")
    for game in dict.fromkeys(one.game for one in found):
        made.figure(*picture([one for one in found if one.game == game]))
    head, *rows = table(found)
    made.table(head, rows)
    made.text(NOTE.format(compute=compute))
    made.code(command())
    with whole(path):
        made.write(path)


def picture(ways: Sequence[Reached]) -> Picture:
    """Draw mean returns over virtual time, of one game."""
    game = ways[0].game
    with axes_of(figsize=(5, 3.4)) as (figure, axes):
        hints = {}
        for i, one in enumerate(ways):
            gid = f"{game.env}-{one.mode}"
            axes.plot(*zip(*one.curve, strict=True), label=one.mode, color=f"C{i}")[0].set_gid(gid)
            hints[gid] = f"{one.mode}: {one.seconds:.2f} s, {one.iterations} updates"
        axes.axhline(game.target, color=INK, linewidth=0.8, linestyle=":")
        axes.set(xlabel="virtual seconds", ylabel="mean return")
        axes.legend()
    return Picture(figure, f"{game.algorithm} in {game.env}: dotted, the return to reach.", hints)
