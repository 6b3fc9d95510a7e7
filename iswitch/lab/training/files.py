"""The files of `iswitch train --out`: progress.csv, episodes.csv, and events for TensorBoard."""

from __future__ import annotations

import csv
import math
import os
import sys
import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Any

import numpy as np

from iswitch.outside import OutsideError, reading, writing
from iswitch.system.files import open_at_once

from .record import PARTS

COLUMNS = (
    "seconds", "iteration", "episodes", "mean_return", "iterations_per_second", *PARTS
)  # fmt: skip
EPISODE_COLUMNS = ("seconds", "iteration", "rank", "return")


def load_event_files() -> None:
    """Load tensorboardX without torch, since no tensors are written.

    Loading torch takes seconds, in which Ctrl-C would have to wait.
    """
    if hidden := "torch" not in sys.modules:
        sys.modules["torch"] = None  # type: ignore[assignment]
    try:
        import tensorboardX  # noqa: F401
    finally:
        if hidden:
            del sys.modules["torch"]


def tables(folder: Path) -> list[tuple[Path, tuple[str, ...]]]:
    """Name the CSV files of a training, and their columns."""
    return [(folder / "progress.csv", COLUMNS), (folder / "episodes.csv", EPISODE_COLUMNS)]


def whole_rows(path: Path, columns: tuple[str, ...]) -> tuple[int, float]:
    """Measure the whole rows of a CSV file: their bytes, and the most seconds in one of them.

    A process that is killed may leave half a row at the end, which does not count.

    Raises:
        OutsideError: the file has other columns, or something other than numbers in them.
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
        """Begin the files; with `goes_on` append to the CSV files that are there."""
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
        """Open a CSV file to append behind its first `size` bytes; 0: begin it anew."""
        with writing(str(path)):
            file = open(path, "a" if size else "w", newline="")  # noqa: SIM115  (closed by close)
            if size:
                file.truncate(size)
        self._files[str(path)] = file
        writer = csv.writer(file)
        if not size:
            writer.writerow(columns)
        return writer

    def episodes(self, seconds: float, iteration: int, rank: int, returns: list[float]) -> None:
        """Append the returns of episodes that a worker has finished.

        Args:
            seconds: since the training began or was resumed.
            iteration: iteration of the worker.
            rank: rank of the worker.
            returns: one for each episode.

        Raises:
            OutsideError: the file cannot be written.
        """
        at = (f"{self._before + seconds:.3f}", iteration, rank)
        with writing(f"{self._folder}/episodes.csv"):
            self._episodes.writerows([(*at, value) for value in returns])

    def row(
        self, seconds: float, iteration: int, episodes: int, values: Mapping[str, float]
    ) -> None:
        """Append how far the training is.

        Args:
            seconds: since the training began or was resumed.
            iteration: iterations that all workers have done.
            episodes: episodes that all workers have finished.
            values: values of the other columns, by name; NaN: not known.

        Raises:
            OutsideError: a file cannot be written.
        """
        row = [f"{values[name]:.6g}" for name in COLUMNS[3:]]
        with writing(f"{self._folder}/progress.csv"):
            self._progress.writerow([f"{self._before + seconds:.3f}", iteration, episodes, *row])
        for name, value in values.items():
            if not math.isnan(value):
                group = "time" if name in PARTS else "training"
                self._scalar(f"{group}/{name}", value, iteration)

    def _scalar(self, name: str, value: float, at: int) -> None:
        from tensorboardX.proto.event_pb2 import Event
        from tensorboardX.summary import scalar

        event = Event(wall_time=time.time(), step=at, summary=scalar(name, value))
        with writing(f"{self._folder}/events.out.tfevents.*"):
            self._board.write_event(event)

    def close(self) -> None:
        """Write the rest from memory, and close the files.

        Raises:
            OutsideError: a file cannot be written, for example because the disk is full.
        """
        with ExitStack() as all_of_them:
            for path, file in self._files.items():
                all_of_them.enter_context(writing(path))
                all_of_them.callback(file.close)
            all_of_them.enter_context(writing(f"{self._folder}/events.out.tfevents.*"))
            all_of_them.callback(self._board.close)
