"""What `iswitch train` shows: progress while it runs, and a summary."""

from __future__ import annotations

import math
import time

from rich.console import Console, Group
from rich.text import Text

from iswitch.lab.options import workers
from worker_lib.rl.plan import WINDOW

from .live_screen import LiveScreen
from .train_record import PARTS, Training

LINE_PAUSE = 5.0  # seconds between lines where there is no terminal


class Screen(LiveScreen):
    """Live progress on a terminal; a line now and then elsewhere."""

    command = "train"

    def __init__(self, training: Training, world: str, console: Console | None = None) -> None:
        super().__init__(console)
        self.training = training
        self._world = world
        self._introduced = False

    def refresh(self) -> None:
        """Show how far it is."""
        training = self.training
        if training.started is None:
            if self.console.is_terminal:
                self._live.update(Text(f"starting {workers(len(training.members))}"), refresh=True)
            return
        if not self._introduced:
            self._introduced = True
            self._introduce()
        pause = 0.1 if self.console.is_terminal else LINE_PAUSE
        if time.monotonic() - self._shown < pause or training.rate is None:
            return
        self._shown = time.monotonic()
        total = training.started["iterations"]
        if self.console.is_terminal:
            self._progress.update(self._task, completed=training.iteration, total=total)
            self._live.update(Group(Text(self._state()), self._progress), refresh=True)
        else:
            line = f"iteration {training.iteration:>6} of {total}  {self._state()}"
            self.console.print(line, soft_wrap=True)

    def _introduce(self) -> None:
        training = self.training
        assert training.started is not None
        plan, started = training.plan, training.started
        how = "the switch adds, asynchronously" if plan.mode == "async" else "the switch adds"
        how = how if plan.strategy == "iswitch" else f"{plan.strategy} adds"
        size, unit = started["bytes"] / 1024, "KiB"
        if size > 1024:
            size, unit = size / 1024, "MiB"
        self.console.print(
            f"{plan.algorithm} in {plan.env}: {workers(len(training.members))} ({self._world}), "
            f"{how}; gradient of {started['parameters']:,} parameters, {size:.2f} {unit}",
            soft_wrap=True,
        )
        if started["start"]:
            self.console.print(f" goes on after iteration {started['start']}", soft_wrap=True)

    def _state(self) -> str:
        training = self.training
        mean = training.mean_return
        known = "     -" if math.isnan(mean) else f"{mean:6.1f}"
        return f"return {known}  {training.rate or 0.0:6.1f} iterations/s  {self._split()}"

    def _split(self) -> str:
        share = self.training.share()
        return ", ".join(f"{part} {100 * share[part]:.0f} %" for part in PARTS)

    def summarise(self) -> int:
        """Print the summary; returns the exit status."""
        training = self.training
        plan, report = training.plan, training.report()
        mean = "too few to tell a mean return"
        if report["window_return"] is not None:
            mean = f"mean return {report['window_return']:.1f} of the last {WINDOW}"
        done = report["iterations"] - report["start"]
        rate = f"{training.rate or 0:.1f} per second"
        rows = [
            ("iterations", f"{done} in {report['seconds']:.1f} s, {rate}"),
            ("time", self._split()),
            ("episodes", f"{report['episodes']}, {mean}"),
        ]  # fmt: skip
        if plan.mode == "async":
            sent = sum(m.gradients - m.discarded for m in training.members)
            stale = sum(m.discarded for m in training.members)
            rows.append(("gradients", f"{sent} sent, {stale} too stale"))
        for name, value in rows:
            self.console.print(f" {name:12} {value}", soft_wrap=True)
        equal = f"weights of {workers(len(training.members))} equal to the last bit"
        checks = [(report["weights_equal"], equal)]
        if plan.target_return is not None:
            text = f"mean return of at least {plan.target_return:g} over {WINDOW} episodes"
            checks.append((report["reached"], text))
        for holds, text in checks:
            mark = "[green]ok[/]    " if holds else "[red]FAILED[/]"
            self.console.print(f" {mark} {text}", soft_wrap=True)
        return 0 if all(holds for holds, _ in checks) else 1
