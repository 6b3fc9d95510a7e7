"""Predicts the points of a sweep on all cores, and keeps each as soon as it is done."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Generator, Sequence
from itertools import product
from typing import Any, NamedTuple

from iswitch.lab.spread import spread
from iswitch.outside import OutsideError, UsageError, reading, writing
from iswitch.system.files import read_text, write

from .cluster import on_cluster
from .predicting import Point, point
from .scenario import OPTIONS, read

MOST_POINTS = 100_000
FORMAT = "iswitch simulate 1"


UNSAID = {"world": "model"}  # values of options that nobody wrote, if not None


class Chosen(NamedTuple):
    """The options of one point, and the values of those that are swept, as text, by name."""

    args: argparse.Namespace
    options: dict[str, str]


def choices(args: argparse.Namespace) -> list[Chosen]:
    """Return a choice of options for each point of the sweep; without a sweep there is one.

    Raises:
        UsageError: a --sweep cannot be read.
    """
    swept: dict[str, list[str]] = {}
    for text in args.sweep:
        option, equals, values = text.partition("=")
        name = option.strip().removeprefix("--").replace("-", "_")
        words = [word.strip() for word in values.split(",") if word.strip()]
        if not equals or not words:
            raise UsageError(f"--sweep {text}: write OPTION=LIST, such as workers=4,16,64")
        if name == "strategy":
            raise UsageError(
                f"--sweep {text}: each point has all strategies; to compare them write "
                f"--strategy {','.join(words)}"
            )
        if name not in OPTIONS:
            known = ", ".join(one.replace("_", "-") for one in OPTIONS if one != "strategy")
            raise UsageError(f"--sweep {text}: choose an option of {known}")
        if getattr(args, name) not in (None, UNSAID.get(name)):
            raise UsageError(
                f"--sweep {text}: {_written(name)} says {getattr(args, name)}, too; leave one of "
                "them out"
            )
        if name in swept:
            raise UsageError(f"--sweep {text}: --sweep says {name} twice; name all values in one")
        swept[name] = list(dict.fromkeys(words))
    count = 1
    for words in swept.values():
        count *= len(words)
    if count > MOST_POINTS:
        raise UsageError(f"--sweep: {count:,} points are too many; name {MOST_POINTS:,} at most")
    return [
        _chosen(args, dict(zip(swept, values, strict=True))) for values in product(*swept.values())
    ]


def _written(name: str) -> str:
    return "WORKLOAD" if name == "workload" else f"--{name.replace('_', '-')}"


def _chosen(args: argparse.Namespace, options: dict[str, str]) -> Chosen:
    values = {}
    for name, text in options.items():
        try:
            values[name] = OPTIONS[name](text)
        except argparse.ArgumentTypeError as error:
            raise UsageError(f"--sweep {name.replace('_', '-')}: {error}") from None
    return Chosen(argparse.Namespace(**{**vars(args), **values}), options)


class Task(NamedTuple):
    """A point to predict in any process."""

    number: int
    chosen: Chosen
    changes: bool


class Failed(NamedTuple):
    """What was wrong with a point."""

    message: str


def predict(
    chosen: Sequence[Chosen], args: argparse.Namespace
) -> Generator[tuple[int, Point], None, None]:
    """Yield the number of each choice with its point, as they are done.

    Args:
        chosen: the choices.
        args: say which processes work, and where points are kept.

    Raises:
        OutsideError: a choice makes no sense, or the points cannot be kept.
    """
    # What is wrong with any of them is told at once. Points of one network come together: those
    # read last are remembered.
    for one in sorted(chosen, key=lambda one: (str(one.args.topology), one.args.workers or 0)):
        read(one.args)
    kept = _Kept(args) if args.save else None
    known = kept.points if kept is not None else {}
    left = []
    for number, one in enumerate(chosen):
        found = known.get(json.dumps(one.options))
        if found is None:
            left.append(Task(number, one, not args.no_changes))
        else:
            yield number, found
    if args.scheduler is None:
        results = spread(_work, left, args.processes)
    else:
        results = on_cluster(_work, left, args.scheduler)
    for number, result in results:
        if isinstance(result, Failed):
            raise UsageError(result.message)
        if kept is not None:
            kept.add(result)
        yield number, result


def _work(task: Task) -> tuple[int, Point | Failed]:
    """Predict a point; errors about options come back as text, since they have crossed over."""
    try:
        return task.number, point(read(task.chosen.args), task.chosen.options, task.changes)
    except OutsideError as error:
        return task.number, Failed(str(error))


class _Kept:
    """The file of --save: a line that says what was asked for, then one for each point.

    It is made with the first point.

    Raises:
        OutsideError: it cannot be written, or with --resume read, or is of another command.
    """

    def __init__(self, args: argparse.Namespace) -> None:
        self._path = args.save
        asked = {name: getattr(args, name) for name in (*OPTIONS, "slow", "sweep", "no_changes")}
        self._head = {"format": FORMAT, "asked": asked}
        self.points: dict[str, Point] = {}  # by their options
        self._is_made = False
        if args.resume and os.path.exists(self._path):
            text = self._load()
            with writing(self._path):
                os.truncate(self._path, len(text.encode()))
            self._is_made = True
        elif os.path.isfile(self._path) and os.path.getsize(self._path):
            raise UsageError(
                f"--save {self._path}: the file is there; go on with its sweep with --resume, or "
                "name another file"
            )

    def _load(self) -> str:
        """Read the points; return the lines that were written to their ends."""
        text, end, _ = read_text(self._path, UsageError).rpartition("\n")
        with reading(self._path, UsageError):
            head, *rest = [json.loads(line) for line in text.split("\n")]
            points = [Point(**line) for line in rest]
        if head != json.loads(json.dumps(self._head)):
            raise UsageError(
                f"--resume: {self._path} was written with other options; repeat those, or name "
                "another file with --save"
            )
        self.points = {json.dumps(one.options): one for one in points}
        return text + end

    def add(self, one: Point) -> None:
        """Write a point."""
        if not self._is_made:
            write(self._path, f"{json.dumps(self._head)}\n")
            self._is_made = True
        with writing(self._path), open(self._path, "a", encoding="utf-8") as file:
            file.write(f"{json.dumps(one._asdict())}\n")


def as_json(points: Sequence[Point], command: str, complete: bool) -> dict[str, Any]:
    """Return all points for JSON."""
    return {
        "command": command,
        "complete": complete,
        "points": [one._asdict() for one in points],
    }
