"""Shows the progress of a command, and the time left, as a bar on a terminal."""

from __future__ import annotations

import sys
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn


class Bar:
    """A progress bar on stderr, shown inside its `with` block, on a terminal only.

    Args:
        total: number of units of work.
        start: text to show until the first call of `show`.
    """

    def __init__(self, total: float, start: str = "") -> None:
        self._bar = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TextColumn("{task.percentage:.0f} %"),
            TimeRemainingColumn(),
            console=Console(stderr=True),
            disable=not sys.stderr.isatty(),
            transient=True,
        )
        self._task = self._bar.add_task(start, total=total)

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def say(self, message: str) -> None:
        """Print a message on stderr, above the bar."""
        self._bar.console.print(message, soft_wrap=True, markup=False, highlight=False)

    def show(self, done: float, what: str) -> None:
        """Show how many units are done, and what is being done."""
        self._bar.update(self._task, completed=done, description=what)
