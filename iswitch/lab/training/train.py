"""Records the training of `iswitch train`, and shows it."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console

from iswitch.lab.launch import shares
from iswitch.lab.options import workers
from worker_lib.rl.plan import WINDOW, Plan, window

from .files import Files, load_event_files, tables, whole_rows
from .record import PARTS, Learner, Record
from .screen import Check, TrainingScreen

ROW_PAUSE, ROW_PAUSE_OF_SIM = 1.0, 0.2  # seconds of training between rows of progress.csv


@dataclass
class TrainLearner(Learner):
    """The record of one worker of `iswitch train`."""

    iteration: int = 0
    seconds: float = 0.0  # it has trained
    spent: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PARTS, 0.0))
    gradients: int = 0
    discarded: int = 0  # too stale to be sent
    episodes: int = 0
    last: deque[float] = field(default_factory=deque)  # returns
    gaps: list[float] = field(default_factory=list)  # seconds before each allreduce


class TrainRecord(Record[TrainLearner]):
    """The record of a training by `iswitch train`.

    Args:
        plan: plan of the training.
        count: the number of workers.
        out: a folder for CSV and TensorBoard event files; None: none are written.
        pause: seconds of training between rows of the learning curve.

    Raises:
        OutsideError: the training resumes, and the files in `out` are damaged.
    """

    def __init__(self, plan: Plan, count: int, out: str | None, pause: float = ROW_PAUSE) -> None:
        last = window(count)  # episodes that are looked at
        super().__init__([TrainLearner(rank, last=deque(maxlen=last)) for rank in range(count)])
        self.plan = plan
        self.title = f"{plan.algorithm} in {plan.env}"
        self.target = plan.target_return
        self.started: dict[str, Any] | None = None  # what the first worker told at its start
        self.curve: list[tuple[float, int, float]] = []  # seconds, iteration, mean return
        self._out = out
        self._files: Files | None = None
        if out is not None and plan.resume:
            for path, columns in tables(Path(out)):
                whole_rows(path, columns)
        self._pause = pause
        self._next_row = 0.0  # seconds of training

    def __exit__(self, *_: object) -> None:
        if self._files is not None:
            self._files.close()

    def prepare(self) -> None:
        """Load the writer of event files while the workers start."""
        if self._out is not None:
            load_event_files()

    def resumable(self) -> str:
        """Say how to resume a training that ended early; "": there is no checkpoint."""
        path = self.plan.checkpoint
        kept = self.started is not None and path is not None and Path(path).exists()
        return "; go on with --resume" if kept else ""

    def take(self, learner: TrainLearner, message: dict[str, Any]) -> None:
        """Handle a worker's message, whose `event` names its kind."""
        match message["event"]:
            case "started":
                if self.started is None:
                    self._begin(message)
                for one in self.learners:
                    one.iteration = max(one.iteration, message["start"])
            case "progress":
                self._progress(learner, message)
            case "done" if self.done:
                self._row()

    def _begin(self, message: dict[str, Any]) -> None:
        if self._out is not None:  # not before: a training that is refused leaves no files
            self._files = Files(Path(self._out), self.plan.resume)
        self.started = message

    def _progress(self, learner: TrainLearner, message: dict[str, Any]) -> None:
        for name in ("iteration", "seconds", "gradients", "discarded"):
            setattr(learner, name, message[name])
        learner.spent = {part: message[part] for part in PARTS}
        learner.gaps += message.get("gaps", ())
        learner.last += message["returns"]
        learner.episodes += len(message["returns"])
        if self._files is not None:
            self._files.episodes(
                learner.seconds, learner.iteration, learner.rank, message["returns"]
            )
        if self.seconds >= self._next_row:
            self._next_row = self.seconds + self._pause
            self._row()

    def _row(self) -> None:
        if not math.isnan(self.mean_return):
            self.curve.append((self.seconds, self.iteration, self.mean_return))
        if self._files is not None:
            values = {
                "mean_return": self.mean_return,
                "iterations_per_second": self.rate or math.nan,
                **self.share(),
            }
            self._files.row(self.seconds, self.iteration, self.episodes, values)

    @property
    def iteration(self) -> int:
        """Return the number of updates that every worker has made."""
        return min(learner.iteration for learner in self.learners)

    @property
    def seconds(self) -> float:
        """Return the seconds that the workers have trained since the start of this process."""
        return max(learner.seconds for learner in self.learners)

    @property
    def rate(self) -> float | None:
        """Return the updates per second; None before the first one."""
        if self.started is None or not self.seconds or self.iteration <= self.started["start"]:
            return None
        done: int = self.iteration - self.started["start"]
        return done / self.seconds

    @property
    def episodes(self) -> int:
        """Return the number of episodes that all workers have finished."""
        return sum(learner.episodes for learner in self.learners)

    @property
    def mean_return(self) -> float:
        """Return the mean return of the last episodes of each worker; NaN before the first."""
        last = [value for learner in self.learners for value in learner.last]
        return sum(last) / len(last) if last else math.nan

    def point(self) -> tuple[float, int, float]:
        """Return the newest point of the learning curve."""
        return self.seconds, self.iteration, self.mean_return

    def share(self) -> dict[str, float]:
        """Split the workers' time: the share, from 0 to 1, of each of PARTS.

        An asynchronous training updates while it computes, so its shares add up to more than 1.
        """
        sums = {part: sum(learner.spent[part] for learner in self.learners) for part in PARTS}
        whole = sum(learner.seconds for learner in self.learners)
        return {part: value / whole if whole else 0.0 for part, value in sums.items()}

    def report(self) -> dict[str, Any]:
        """Collect all that was measured."""
        started = self.started or {}
        plan, mean = self.plan, self.mean_return
        states = {m.done["state"] for m in self.learners if m.done}  # weights, moments and targets
        return {
            "algorithm": plan.algorithm,
            "env": plan.env,
            "mode": plan.mode,
            "strategy": plan.strategy if plan.mode == "sync" else "iswitch",
            "seed": plan.seed,
            "workers": len(self.learners),
            "settings": started.get("settings"),
            "parameters": started.get("parameters"),
            "gradient_bytes": started.get("bytes"),
            "start": started.get("start"),
            "iterations": self.iteration,
            "seconds": self.seconds,
            "iterations_per_second": self.rate,
            "share": self.share(),
            "episodes": self.episodes,
            "mean_return": None if math.isnan(mean) else mean,
            "window_return": (self.learners[0].done or {}).get("mean_return"),
            "target_return": plan.target_return,
            "reached": any(bool(m.done and m.done["reached"]) for m in self.learners),
            "weights_equal": self.done and len(states) == 1,
            "weights_sha256": sorted({m.done["weights"] for m in self.learners if m.done}),
            "failure": self.failure,
            "curve": self.curve,
            "switches": self.counters,
            "share_added": shares.shares(self.counters),
            "per_worker": [
                {
                    "rank": m.rank,
                    "iterations": m.iteration,
                    "seconds": m.seconds,
                    "gradients": m.gradients,
                    "discarded": m.discarded,
                    "episodes": m.episodes,
                    **m.spent,
                    "stats": m.done["stats"] if m.done else None,
                }
                for m in self.learners
            ],
        }


class TrainScreen(TrainingScreen):
    """Shows the progress of `iswitch train`, after an introduction once the workers have begun."""

    command = "train"
    digits = 6

    def __init__(self, record: TrainRecord, world: str, console: Console | None = None) -> None:
        super().__init__(console)
        self.record = record
        self._world = world

    def _awaited(self) -> str | None:
        record = self.record
        return workers(len(record.learners)) if record.started is None else None

    def _reached(self) -> tuple[int, int] | None:
        record = self.record
        if record.started is None or record.rate is None:
            return None
        return record.iteration, record.started["iterations"]

    def _introduce(self) -> None:
        record = self.record
        assert record.started is not None
        plan, started = record.plan, record.started
        how = "the switch adds, asynchronously" if plan.mode == "async" else "the switch adds"
        how = how if plan.strategy == "iswitch" else f"{plan.strategy} adds"
        size, unit = started["bytes"] / 1024, "KiB"
        if size > 1024:
            size, unit = size / 1024, "MiB"
        self.console.print(
            f"{plan.algorithm} in {plan.env}: {workers(len(record.learners))} ({self._world}), "
            f"{how}; gradient of {started['parameters']:,} parameters, {size:.2f} {unit}",
            soft_wrap=True,
        )
        if started["start"]:
            self.console.print(f" goes on after iteration {started['start']}", soft_wrap=True)

    def _state(self) -> str:
        record = self.record
        mean = record.mean_return
        known = "     -" if math.isnan(mean) else f"{mean:6.1f}"
        return f"return {known}  {record.rate or 0.0:6.1f} iterations/s  {self._split()}"

    def _split(self) -> str:
        share = self.record.share()
        return ", ".join(f"{part} {100 * share[part]:.0f} %" for part in PARTS)

    def summarise(self) -> int:
        """Print the summary; return the exit status."""
        record = self.record
        plan, report = record.plan, record.report()
        mean = "too few to tell a mean return"
        if report["window_return"] is not None:
            mean = f"mean return {report['window_return']:.1f} of the last {WINDOW}"
        done = report["iterations"] - report["start"]
        rate = f"{record.rate or 0:.1f} per second"
        rows = [
            ("iterations", f"{done} in {report['seconds']:.1f} s, {rate}"),
            ("time", self._split()),
            ("episodes", f"{report['episodes']}, {mean}"),
        ]
        if plan.mode == "async":
            sent = sum(m.gradients - m.discarded for m in record.learners)
            stale = sum(m.discarded for m in record.learners)
            rows.append(("gradients", f"{sent} sent, {stale} too stale"))
        if added := shares.told(record.counters):
            rows.append(("added", added))
        equal = f"weights of {workers(len(record.learners))} equal to the last bit"
        checks = [Check(report["weights_equal"], equal)]
        if plan.target_return is not None:
            text = f"mean return of at least {plan.target_return:g} over {WINDOW} episodes"
            checks.append(Check(report["reached"], text))
        return self.tell(rows, checks)
