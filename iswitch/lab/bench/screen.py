"""How far a measurement is, with the time left."""

from __future__ import annotations

import sys
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn


class Bar:
    """A progress bar on a terminal; elsewhere a line for every size and network, both on stderr."""

    def __init__(self, cells: int) -> None:
        self._bar = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TextColumn("{task.percentage:.0f} %"),
            TimeRemainingColumn(),
            console=Console(stderr=True),
            disable=not sys.stderr.isatty(),
            transient=True,
        )
        self._task = self._bar.add_task("starting", total=cells)
        self._said = ""

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def show(self, done: float, what: str) -> None:
        """Show how many cells are done, and what is being done."""
        self._bar.update(self._task, completed=done, description=what)
        if what != self._said and not sys.stderr.isatty():
            print(what, file=sys.stderr, flush=True)
        self._said = what
