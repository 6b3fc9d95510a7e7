"""`iswitch simulate`: predicts what the options say, and tells."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence

from rich.console import Console

from iswitch.lab.gathering import gather
from iswitch.lab.options import command, foot
from iswitch.lab.reports.page import check_drawing
from iswitch.outside import UsageError
from iswitch.system.files import check_writable, whole, write, write_each
from iswitch.tables import Table, width

from . import sweeping, telling
from .predicting import Point


def simulate(args: argparse.Namespace) -> int:
    """Predict, tell, and write the files that options name; return the exit status.

    Raises:
        OutsideError: options make no sense, or a file cannot be written.
    """
    if args.resume and not args.save:
        raise UsageError("--resume goes on with the file of --save; name it")
    chosen = sweeping.choices(args)
    for path in (args.csv, args.html, *([] if args.resume else [args.save])):
        check_writable(path, *_read(chosen))
    if args.html:
        check_drawing()
    predicted = sweeping.predict(chosen, args)
    found, status = gather(predicted, len(chosen), "points", "iswitch simulate")
    points = [one for _, one in sorted(found, key=lambda each: each[0])]
    if args.json:
        print(json.dumps(sweeping.as_json(points, command(), not status), indent=1))
    elif points:
        show(points)
    if points:
        keep(args, points, not status)
    return status


def _read(chosen: Sequence[sweeping.Chosen]) -> set[str | None]:
    """Return what is read: topologies and times of computing, some of which are files."""
    return {text for one in chosen for text in (one.args.topology, one.args.compute)}


def show(points: Sequence[Point]) -> None:
    """Print what was predicted."""
    console = Console(highlight=False, markup=False, width=width())
    first = points[0]
    if first.options:
        console.print(Table(telling.sweep_head(points), telling.sweep_rows(points)))
    else:
        console.print(telling.title(first))
        console.print(Table(telling.head(first), telling.rows(first)))
        console.print(
            Table(telling.link_head(first), telling.link_rows(first), "busiest link, up / down")
        )
        if memory := telling.memory_text(first):
            console.print(memory)
        if changes := telling.change_rows(first):
            head = ("what if", *(found["strategy"] for found in first.predictions))
            console.print(Table(head, changes, "an iteration would take"))
    for line in telling.notes(points):
        console.print(line)


def keep(args: argparse.Namespace, points: Sequence[Point], complete: bool) -> None:
    """Write the files that the options name.

    Raises:
        OutsideError: some cannot be written; it names them. The others are complete.
    """

    def draw(path: str) -> None:
        from .page import page

        with whole(path):
            page(points, command(), complete, foot(args.csv, path, "csv")).write(path)

    write_each([
        (args.csv, lambda path: write(path, telling.as_csv(points))),
        (args.html, draw),
    ])  # fmt: skip
