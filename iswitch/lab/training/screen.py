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
LINE_PAUSE = 5.0  # seconds between lines where there is no terminal
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
    unit: ClassVar[str] = "iteration"  # what is counted

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or Console(highlight=False)
        self._progress = Progress(
            TextColumn(self.unit),
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

    def verify(self) -> None:  # noqa: B027  (few need it)
        """Do what takes long once all processes have ended, before the summary."""

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
        text = f"{self.unit} {done:>{self.digits}} of {total}  {state}"
        self.console.print(text, soft_wrap=True)

    def tell(self, rows: Sequence[tuple[str, str]], checks: Sequence[Check]) -> int:
        """Print rows of a summary, then the checks; return the exit status."""
        for name, value in rows:
            self.console.print(f" {name:12} {value}", soft_wrap=True)
        for holds, promise, short in checks:
            mark = MARKS["ok" if holds else "short" if short else "FAILED"]
            self.console.print(f" {mark} {promise}", soft_wrap=True)
        return 0 if all(check.holds for check in checks) else 1


class TrainingScreen(Screen):
    """Shows who is awaited, an introduction once they have begun, and then how far they are."""

    def __init__(self, console: Console | None = None) -> None:
        super().__init__(console)
        self._introduced = False

    @abstractmethod
    def _awaited(self) -> str | None:
        """Say who is to begin; None: all have begun."""

    @abstractmethod
    def _introduce(self) -> None:
        """Print what is trained."""

    @abstractmethod
    def _reached(self) -> tuple[int, int] | None:
        """Return how much is done, and of how much; None: nothing yet."""

    @abstractmethod
    def _state(self) -> str:
        """Write how good it is, in a line."""

    def refresh(self) -> None:
        """Show how far the training is; where there is no terminal, every LINE_PAUSE seconds."""
        awaited, live = self._awaited(), self.console.is_terminal
        if awaited is not None:
            if live:
                self._live.update(Text(f"starting {awaited}"), refresh=True)
            return
        if not self._introduced:
            self._introduced = True
            self._introduce()
        reached = self._reached()
        if reached is None:
            return
        if live:
            self.draw(*reached, self._state())
        elif self._is_due():
            self.line(*reached, self._state())

    def _is_due(self) -> bool:
        """Tell, every LINE_PAUSE seconds, that a line is due."""
        if time.monotonic() - self._shown < LINE_PAUSE:
            return False
        self._shown = time.monotonic()
        return True
