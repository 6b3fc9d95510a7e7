"""Tells predictions: tables and sentences for people, rows for CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from typing import Any

from iswitch.faults.units import RATE, count
from iswitch.lab.bench.report import ms

from .predicting import Point

HEAD = ("strategy", "iteration, ms", "aggregation, ms", "times as long", "packets")
LOSING = "iswitch"
ESTIMATE = "≈: estimated (docs/simulate.md)"


def title(one: Point) -> str:
    """Name a point: the job and the network."""
    return f"{count(one.workers, 'worker')}, {one.size}, {one.network}"


def seconds_text(prediction: dict[str, Any]) -> str:
    """Write the time of an iteration in milliseconds; an estimate says so."""
    return f"{'' if prediction['exact'] else '≈ '}{ms(prediction['seconds'])}"


def ratio(value: float | None) -> str:
    """Write how many times as fast the first strategy is, or as long another takes."""
    return "" if value is None else f"{value:.2f}"


def notes(points: Sequence[Point]) -> list[str]:
    """Return the lines that explain the table: what is estimated, and what loses nothing."""
    every = [found for one in points for found in one.predictions]
    lines = [] if all(found["exact"] for found in every) else [ESTIMATE]
    if any(found["loss"] for found in every):
        others = dict.fromkeys(found["strategy"] for found in every if found["strategy"] != LOSING)
        if others:
            lines.append(
                f"{', '.join(others)}: over connections that lose nothing; --loss is of "
                f"{LOSING}'s packets alone"
            )
    return lines


def _tried(points: Sequence[Point]) -> bool:
    """Return whether changes were tried, without which nothing is known of bottlenecks."""
    return any(found["changes"] for one in points for found in one.predictions)


def head(one: Point) -> tuple[str, ...]:
    """Return the columns of `rows`."""
    return (*HEAD, *["bottleneck"] * _tried([one]))


def rows(one: Point) -> list[tuple[str, ...]]:
    """Return a row for each strategy."""
    return [
        (
            found["strategy"],
            seconds_text(found),
            ms(found["aggregation"]),
            ratio(one.speedup(i)),
            f"{found['packets']:,}",
            *[found["bottleneck"] or "-"] * _tried([one]),
        )
        for i, found in enumerate(one.predictions)
    ]


def link_rows(one: Point) -> list[tuple[str, ...]]:
    """Return how busy each class of links is, a row for each, with a column for each strategy."""
    found = []
    for i, link in enumerate(one.predictions[0]["links"]):
        rate = RATE.format(link["rate"]) if link["rate"] else "any"
        uses = [prediction["links"][i] for prediction in one.predictions]
        used = (f"{use['up']:.1%} / {use['down']:.1%}" for use in uses)
        found.append((link["name"], f"{link['count']:,}", rate, *used))
    return found


def link_head(one: Point) -> tuple[str, ...]:
    """Return the columns of `link_rows`."""
    return "links", "number", "rate", *(found["strategy"] for found in one.predictions)


def memory_text(one: Point) -> str:
    """Say what memory switches need; "": none adds."""
    for found in one.predictions:
        if found["memory"]:
            each = (f"{name} {need / 2**20:,.2f} MiB" for name, need in found["memory"].items())
            return f"memory of a switch ({found['strategy']}): {', '.join(each)}"
    return ""


def change_rows(one: Point) -> list[tuple[str, ...]]:
    """Return what would make iterations shorter, a row for each change that was tried."""
    whats = dict.fromkeys(
        change["what"] for found in one.predictions for change in found["changes"]
    )
    table = []
    for what in whats:
        cells = []
        for found in one.predictions:
            after = [c["seconds"] for c in found["changes"] if c["what"] == what]
            gain = f"{after[0] / found['seconds'] - 1:+.0%}" if after and found["seconds"] else ""
            cells.append(gain.replace("-0%", "0%").replace("+0%", "0%"))
        table.append((what, *cells))
    return table


def sweep_rows(points: Sequence[Point]) -> list[tuple[str, ...]]:
    """Return a row for each point of a sweep."""
    tried = _tried(points)
    return [
        (
            *one.options.values(),
            *(seconds_text(found) for found in one.predictions),
            *(ratio(one.speedup(i)) for i in range(1, len(one.predictions))),
            *[one.predictions[0]["bottleneck"] or "-"] * tried,
        )
        for one in points
    ]


def sweep_head(points: Sequence[Point]) -> tuple[str, ...]:
    """Return the columns of `sweep_rows`."""
    one = points[0]
    names = [found["strategy"] for found in one.predictions]
    return (
        *(name.replace("_", "-") for name in one.options),
        *(f"{name}, ms" for name in names),
        *(f"over {name}" for name in names[1:]),
        *[f"bottleneck of {names[0]}"] * _tried(points),
    )


def as_csv(points: Sequence[Point]) -> str:
    """Return a line for each point and strategy."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    swept = list(points[0].options) if points else []
    head = ["network", "workers", "bytes", "strategy", "seconds", "compute", "aggregation"]
    head += ["exact", "packets", "times_as_long", "busiest_links", "busiest_use", "memory"]
    head += ["bottleneck"]
    writer.writerow([f"swept_{name}" for name in swept] + head)
    for one in points:
        for i, found in enumerate(one.predictions):
            busiest = max(found["links"], key=lambda link: max(link["up"], link["down"]))
            writer.writerow(
                [
                    *one.options.values(), one.network, one.workers, one.bytes, found["strategy"],
                    found["seconds"], found["compute"], found["aggregation"], found["exact"],
                    found["packets"], one.speedup(i), busiest["name"],
                    max(busiest["up"], busiest["down"]), max(found["memory"].values(), default=0),
                    found["bottleneck"],
                ]
            )  # fmt: skip
    return file.getvalue()
