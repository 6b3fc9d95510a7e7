"""What the screens of `iswitch demo` and `iswitch train` have in common."""

from __future__ import annotations

import sys
from typing import ClassVar, Self

from rich.console import Console
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn


class LiveScreen:
    """A bar of iterations, live where there is a terminal."""

    command: ClassVar[str]  # of iswitch

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

    def fail(self, message: str) -> None:
        """Say why it ended early."""
        print(f"iswitch {self.command}: {message}", file=sys.stderr)

    def say(self, message: str) -> None:
        """Tell the user something meanwhile."""
        self.console.print(f" {message}", soft_wrap=True, markup=False)
