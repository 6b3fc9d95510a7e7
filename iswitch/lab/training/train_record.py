"""What is known of a training from outside: heard from its workers, kept in files, summed up."""

from __future__ import annotations

import csv
import json
import math
import os
import sys
import time
from collections import deque
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Self

import numpy as np

from iswitch.outside import OutsideError, reading, writing
from iswitch.system.boundary import OUTSIDE
from iswitch.system.files import open_at_once
from worker_lib.rl.plan import window

if TYPE_CHECKING:
    from iswitch.lab.launch.launch import Worker
    from worker_lib.rl.plan import Plan

PARTS = ("compute", "aggregate", "update")
ROW_PAUSE = 1.0  # seconds between rows of progress.csv
COLUMNS = (
    "seconds", "iteration", "episodes", "mean_return", "iterations_per_second", *PARTS
)  # fmt: skip
EPISODE_COLUMNS = ("seconds", "iteration", "rank", "return")
LAST_WORDS = 5  # lines of stderr that are kept


@dataclass
class Member:
    """What is known of one worker."""

    rank: int
    iteration: int = 0
    seconds: float = 0.0  # it has trained
    spent: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PARTS, 0.0))
    gradients: int = 0
    discarded: int = 0  # too stale to be sent
    episodes: int = 0
    last: deque[float] = field(default_factory=deque)  # returns
    words: deque[str] = field(default_factory=lambda: deque(maxlen=LAST_WORDS))
    done: dict[str, Any] | None = None


class Training:
    """A training run as the parent sees it; a context, at whose end its files are closed.

    Args:
        plan: what it is to be.
        workers: how many there are.
        out: a folder for CSV and TensorBoard event files.

    Raises:
        OutsideError: it is to resume, and the files in `out` are damaged.
    """

    def __init__(self, plan: Plan, workers: int, out: str | None) -> None:
        self.plan = plan
        last = window(workers)  # episodes that are looked at
        self.members = [Member(rank, last=deque(maxlen=last)) for rank in range(workers)]
        self.started: dict[str, Any] | None = None  # what the first that has begun told
        self.failure: str | None = None
        self.status = 0  # of the command, for that
        self.counters: dict[str, dict[str, int]] = {}  # by switch
        self.curve: list[tuple[float, int, float]] = []  # seconds, iteration, mean return
        self._out = out
        self._files: Files | None = None
        if out is not None and plan.resume:
            for path, columns in tables(Path(out)):
                whole_rows(path, columns)
        self._next_row = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._files is not None:
            self._files.close()

    def prepare(self) -> None:
        """Load what writes event files, while workers start."""
        if self._out is not None:
            load_event_files()

    def go_on(self) -> str:
        """What an early end leaves to be said."""
        path = self.plan.checkpoint
        kept = self.started is not None and path is not None and Path(path).exists()
        return "; go on with --resume" if kept else ""

    def hear(self, worker: Worker, line: str, is_error: bool) -> None:
        """Take a line that a worker prints."""
        member = self.members[worker.rank]
        if is_error:
            member.words.append(line)
            return
        try:
            message = json.loads(line)
        except json.JSONDecodeError:
            member.words.append(line)
            return
        match message["event"]:
            case "started":
                if self.started is None:
                    self._begin(message)
                for one in self.members:
                    one.iteration = max(one.iteration, message["start"])
            case "progress":
                self._progress(member, message)
            case "done":
                member.done = message
                if self.done:
                    self._row()
            case "error":
                self.fail(f"{worker.called}: {message['message']}", message["outside"])

    def fail(self, why: str, is_outside: bool = False) -> None:
        """End the training, for this reason if there is none yet.

        Args:
            why: in words.
            is_outside: a full disk, say, is the reason.
        """
        if self.failure is None:
            self.failure, self.status = why, OUTSIDE if is_outside else 1

    def _begin(self, message: dict[str, Any]) -> None:
        if self._out is not None:  # not before: a training that is refused leaves no files
            self._files = Files(Path(self._out), self.plan.resume)
        self.started = message

    def _progress(self, member: Member, message: dict[str, Any]) -> None:
        for name in ("iteration", "seconds", "gradients", "discarded"):
            setattr(member, name, message[name])
        member.spent = {part: message[part] for part in PARTS}
        member.last += message["returns"]
        member.episodes += len(message["returns"])
        if self._files is not None:
            self._files.episodes(member, message["returns"])
        if time.monotonic() >= self._next_row:
            self._next_row = time.monotonic() + ROW_PAUSE
            self._row()

    def _row(self) -> None:
        if not math.isnan(self.mean_return):
            self.curve.append((self.seconds, self.iteration, self.mean_return))
        if self._files is not None:
            self._files.row(self)

    def complaint(self, worker: Worker) -> str:
        """The last that a worker that failed has said; of one that was killed it tells nothing."""
        words = self.members[worker.rank].words
        return f": {words[-1]}" if words and (worker.status or 0) < 128 else ""

    @property
    def done(self) -> bool:
        """Whether all workers are."""
        return all(member.done is not None for member in self.members)

    @property
    def over(self) -> bool:
        """Whether there is nothing more to wait for."""
        return self.done or self.failure is not None

    @property
    def iteration(self) -> int:
        """Updates that all workers have done."""
        return min(member.iteration for member in self.members)

    @property
    def seconds(self) -> float:
        """How long they have trained."""
        return max(member.seconds for member in self.members)

    @property
    def rate(self) -> float | None:
        """Updates per second; None before the first."""
        if self.started is None or not self.seconds or self.iteration <= self.started["start"]:
            return None
        done: int = self.iteration - self.started["start"]
        return done / self.seconds

    @property
    def episodes(self) -> int:
        """Finished by all workers."""
        return sum(member.episodes for member in self.members)

    @property
    def mean_return(self) -> float:
        """Mean over the last episodes of each worker; NaN before there is one."""
        last = [value for member in self.members for value in member.last]
        return sum(last) / len(last) if last else math.nan

    def share(self) -> dict[str, float]:
        """By part: what it takes of all workers' time.

        In an asynchronous training updates go on beside the rest, and are counted beside it.
        """
        sums = {part: sum(member.spent[part] for member in self.members) for part in PARTS}
        whole = sum(member.seconds for member in self.members)
        return {part: value / whole if whole else 0.0 for part, value in sums.items()}

    def equal(self) -> bool:
        """Whether all workers have the same weights, moments and targets, to the last bit."""
        return len({member.done["state"] for member in self.members if member.done}) == 1

    def final_return(self) -> float | None:
        """The mean return by which all workers have decided to end; None: too few episodes."""
        told: float | None = (self.members[0].done or {}).get("mean_return")
        return told

    def report(self) -> dict[str, Any]:
        """All that was measured."""
        started = self.started or {}
        plan, mean = self.plan, self.mean_return
        return {
            "algorithm": plan.algorithm,
            "env": plan.env,
            "mode": plan.mode,
            "strategy": plan.strategy if plan.mode == "sync" else "iswitch",
            "seed": plan.seed,
            "workers": len(self.members),
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
            "window_return": self.final_return(),
            "target_return": plan.target_return,
            "reached": any(bool(m.done and m.done["reached"]) for m in self.members),
            "weights_equal": self.done and self.equal(),
            "weights_sha256": sorted({m.done["weights"] for m in self.members if m.done}),
            "failure": self.failure,
            "curve": self.curve,
            "switches": self.counters,
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
                for m in self.members
            ],
        }


def load_event_files() -> None:
    """Load tensorboardX, but not torch for its sake, whose tensors nobody writes: it takes seconds.

    Meanwhile Ctrl-C would wait.
    """
    if hidden := "torch" not in sys.modules:
        sys.modules["torch"] = None  # type: ignore[assignment]
    try:
        import tensorboardX  # noqa: F401
    finally:
        if hidden:
            del sys.modules["torch"]


def tables(folder: Path) -> list[tuple[Path, tuple[str, ...]]]:
    """The CSV files of a training, and their columns."""
    return [(folder / "progress.csv", COLUMNS), (folder / "episodes.csv", EPISODE_COLUMNS)]


def whole_rows(path: Path, columns: tuple[str, ...]) -> tuple[int, float]:
    """How many bytes of a CSV file are whole rows, and the most seconds that one of them names.

    A process that is killed may leave half a row at the end, which does not count.

    Raises:
        OutsideError: it has other columns, or something other than numbers in them.
    """
    if not path.exists():
        return 0, 0.0

    def unusable(said: str) -> OutsideError:
        return OutsideError(f"{said}; --resume goes on with it: repair it, or move it away")

    with reading(str(path), unusable):
        with open_at_once(str(path)) as file:
            if not os.path.isfile(path):
                raise ValueError("it is no regular file")
            lines = file.read().decode().split("\n")[:-1]
        size = sum(len(line.encode()) + 1 for line in lines)
        if not lines:
            return 0, 0.0
        if tuple(lines[0].rstrip("\r").split(",")) != columns:
            raise ValueError(f"its columns are not {','.join(columns)}")
        if not lines[1:]:
            return size, 0.0
        values = np.loadtxt(lines[1:], delimiter=",", ndmin=2, comments=None)
        seconds = values[:, 0]
        if values.shape[1] != len(columns) or not np.isfinite(seconds).all():
            raise ValueError("a row is not of numbers in these columns")
        return size, float(seconds.max())


class Files:
    """progress.csv, episodes.csv and a TensorBoard event file in a folder."""

    def __init__(self, folder: Path, goes_on: bool) -> None:
        """Begin them; with `goes_on` the CSV files are gone on with."""
        load_event_files()
        from tensorboardX.event_file_writer import EventsWriter

        self._files: dict[str, IO[str]] = {}  # by path
        kept = [whole_rows(*table) if goes_on else (0, 0.0) for table in tables(folder)]
        self._before = kept[0][1]
        self._progress, self._episodes = (
            self._writer(path, columns, size)
            for (path, columns), (size, _) in zip(tables(folder), kept, strict=True)
        )
        # SummaryWriter has a thread that dies on a full disk, and a queue that is waited for then.
        self._folder = str(folder)
        with writing(self._folder):
            self._board = EventsWriter(str(folder / "events"))

    def _writer(self, path: Path, columns: tuple[str, ...], size: int) -> Any:
        """Go on after so many bytes of a file; 0 begins it."""
        with writing(str(path)):
            file = open(path, "a" if size else "w", newline="")  # noqa: SIM115  (closed by close)
            if size:
                file.truncate(size)
        self._files[str(path)] = file
        writer = csv.writer(file)
        if not size:
            writer.writerow(columns)
        return writer

    def episodes(self, member: Member, returns: list[float]) -> None:
        """Keep the returns of episodes."""
        at = (f"{self._before + member.seconds:.3f}", member.iteration, member.rank)
        with writing(f"{self._folder}/episodes.csv"):
            self._episodes.writerows([(*at, value) for value in returns])

    def row(self, training: Training) -> None:
        """Keep how far it is."""
        share, at = training.share(), training.iteration
        values = {
            "mean_return": training.mean_return,
            "iterations_per_second": training.rate or math.nan,
            **share,
        }
        row = [f"{values[name]:.6g}" for name in COLUMNS[3:]]
        seconds = f"{self._before + training.seconds:.3f}"
        with writing(f"{self._folder}/progress.csv"):
            self._progress.writerow([seconds, at, training.episodes, *row])
        for name, value in values.items():
            if not math.isnan(value):
                group = "time" if name in PARTS else "training"
                self._scalar(f"{group}/{name}", value, at)

    def _scalar(self, name: str, value: float, at: int) -> None:
        from tensorboardX.proto.event_pb2 import Event
        from tensorboardX.summary import scalar

        event = Event(wall_time=time.time(), step=at, summary=scalar(name, value))
        with writing(f"{self._folder}/events"):
            self._board.write_event(event)

    def close(self) -> None:
        """Write what is left.

        Raises:
            OutsideError: the disk is full, say.
        """
        with ExitStack() as all_of_them:
            for path, file in self._files.items():
                all_of_them.enter_context(writing(path))
                all_of_them.callback(file.close)
            all_of_them.enter_context(writing(f"{self._folder}/events"))
            all_of_them.callback(self._board.close)
