"""Shows trainings: their progress, a summary, and whether checks hold."""

from __future__ import annotations

import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar, NamedTuple, Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

FRAME_PAUSE = 0.1  # seconds between two pictures on a terminal
MARKS = {"ok": "[green]ok[/]    ", "FAILED": "[red]FAILED[/]", "short": "[yellow]short[/] "}


class Check(NamedTuple):
    """A promise and whether it holds; `short`: the training was too short to check it."""

    holds: bool
    promise: str
    short: bool = False


class Screen(ABC):
    """A bar of iterations, live on a terminal; a line now and then elsewhere."""

    command: ClassVar[str]  # of iswitch
    digits: ClassVar[int]  # of the number of an iteration

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or Console(highlight=False)
        self._progress = Progress(
            TextColumn("iteration"),
            MofNCompleteColumn(),
            BarColumn(bar_width=None),
            TimeRemainingColumn(),
            console=self.console,
        )
        self._task = self._progress.add_task("", total=None)
        self._live = Live(console=self.console, auto_refresh=False, transient=True)
        self._shown = 0.0

    def __enter__(self) -> Self:
        if self.console.is_terminal:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.console.is_terminal:
            self._live.stop()

    @abstractmethod
    def refresh(self) -> None:
        """Show how far the training is, if it is time to; called some times a second."""

    @abstractmethod
    def summarise(self) -> int:
        """Print the summary; return the exit status."""

    def fail(self, message: str) -> None:
        """Say on stderr why the training ended early."""
        print(f"iswitch {self.command}: {message}", file=sys.stderr)

    def say(self, message: str) -> None:
        """Print a message above the bar."""
        self.console.print(f" {message}", soft_wrap=True, markup=False)

    def draw(self, done: int, total: int, state: str, *below: RenderableType) -> None:
        """Draw the bar on a terminal, with the state above it and anything else below it.

        Args:
            done: iterations.
            total: iterations.
            state: a line.
            below: anything that rich can draw.
        """
        if time.monotonic() - self._shown >= FRAME_PAUSE:
            self._shown = time.monotonic()
            self._progress.update(self._task, completed=done, total=total)
            self._live.update(Group(Text(state), self._progress, *below), refresh=True)

    def line(self, done: int, total: int, state: str) -> None:
        """Print the state as a line, where there is no terminal."""
        text = f"iteration {done:>{self.digits}} of {total}  {state}"
        self.console.print(text, soft_wrap=True)

    def tell(self, rows: Sequence[tuple[str, str]], checks: Sequence[Check]) -> int:
        """Print rows of a summary, then the checks; return the exit status."""
        for name, value in rows:
            self.console.print(f" {name:12} {value}", soft_wrap=True)
        for holds, promise, short in checks:
            mark = MARKS["ok" if holds else "short" if short else "FAILED"]
            self.console.print(f" {mark} {promise}", soft_wrap=True)
        return 0 if all(check.holds for check in checks) else 1
