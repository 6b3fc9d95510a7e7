"""Reads a network again and again, and shows it on the terminal until q is pressed."""

from __future__ import annotations

import os
import select
import sys
import termios
import time
import tty
from collections.abc import Iterator
from contextlib import closing, contextmanager

from rich.console import Console, ConsoleDimensions
from rich.live import Live

from iswitch.outside import UsageError
from iswitch.watch.eye import Eye
from iswitch.watch.judging import Scene
from iswitch.watch.reader import Observer
from iswitch.watch.rows import job_rows

from .acting import Prompt, Target
from .view import KEYS, draw

PATIENCE = 1.0  # seconds in which a switch must answer
KEY_PAUSE = 0.2  # seconds between two looks at a question's answer
WHOLE = 1000, 10_000  # columns and rows of a view that no terminal cuts


def target_of(scene: Scene, chosen: int | None) -> Target | None:
    """Return the chosen job as a target for commands; the first job if none is chosen."""
    rows = job_rows(scene)
    for name, job in rows:
        if chosen in (None, job.now["job"]):
            network, shape = scene.network, job.now["shape"]
            where = network.control or scene.changes[name].now["listening"]
            segments = shape["segments"] if shape else 1
            return Target(job.now["job"], job.now["round"], segments, where, network.entry)
    return None


def next_job(scene: Scene, chosen: int | None) -> int | None:
    """Return the job after the chosen one, round and round."""
    numbers: list[int] = [job.now["job"] for _, job in job_rows(scene)]
    if not numbers:
        return None
    return next((number for number in numbers if number > (chosen or -1)), numbers[0])


def show(place: str | None, every: float, once: bool, console: Console | None = None) -> int:
    """Show a network until q is pressed; return the exit status.

    Args:
        place: a switch's socket, or the folder of a network; None: the newest network.
        every: seconds between two looks.
        once: print one view of an interval, whole if that is not to a terminal, and return.
        console: the terminal; None: this process's.

    Raises:
        OutsideError: there is no such place, or no terminal.
    """
    console = console or Console()
    with closing(Observer(place, PATIENCE)) as observer:
        eye = Eye(observer)
        if once:
            eye.look()
            time.sleep(every)
            if not console.is_terminal:
                console.size = ConsoleDimensions(*WHOLE)
            console.print(draw(eye.look(), console.size, foot=""))
            return 0
        if not (console.is_terminal and sys.stdin.isatty()):
            raise UsageError("top needs a terminal; `iswitch top --once` prints one view anywhere")
        with single_keys(), Live(console=console, screen=True, auto_refresh=False) as live:
            watch(eye, live, every)
    return 0


def watch(eye: Eye, live: Live, every: float) -> None:
    """Look, draw what has changed, and take keys until q is pressed."""
    prompt, chosen, drawn = Prompt(), None, None
    scene, looks = eye.look(), 1
    due = time.monotonic() + every
    while True:
        target = target_of(scene, chosen)
        view = looks, live.console.size, prompt.line() or KEYS, target.job if target else None
        if view != drawn:
            live.update(draw(scene, *view[1:]), refresh=True)
            drawn = view
        key = next_key(min(KEY_PAUSE, max(0.0, due - time.monotonic())))
        if key in ("q", "\x04") and not prompt.is_open:
            return
        if key == "j" and not prompt.is_open:
            chosen = next_job(scene, target.job if target else None)
        elif key:
            prompt.key(key, target)
        if time.monotonic() >= due:
            scene, looks, due = eye.look(), looks + 1, time.monotonic() + every


def next_key(seconds: float) -> str:
    """Return a key that is pressed within that time; "": none."""
    if not select.select([sys.stdin], (), (), seconds)[0]:
        return ""
    return os.read(sys.stdin.fileno(), 1).decode(errors="replace") or "q"  # the terminal has gone


@contextmanager
def single_keys() -> Iterator[None]:
    """Have the terminal hand over each key at once, without showing it."""
    before = termios.tcgetattr(sys.stdin)
    try:
        tty.setcbreak(sys.stdin)
        yield
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)
