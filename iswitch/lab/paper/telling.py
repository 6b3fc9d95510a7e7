"""Tells the comparison with papers: tables for people, an object for machines."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from iswitch.lab.bench.report import ms

from .comparing import Row, Side, reasons_of
from .published import TITLES, Input
from .setups import MODEL, SIM

INPUTS = ("what", "value", "mark", "source")
NAMES = {MODEL: "model", SIM: "virtual time"}
NOTE = (
    "Ours stand with their deviations from the published number. The model has no asynchronous "
    "server, and leaves out the rate of a switch's pipeline."
)


class Told(NamedTuple):
    """Everything that was found.

    Attributes:
        command: the command line.
        complete: whether all of it was worked out.
        worlds: those in which it was asked for.
        inputs, rows, sides: what there is to tell.
    """

    command: str
    complete: bool
    worlds: Sequence[str]
    inputs: list[Input]
    rows: list[Row]
    sides: list[Side]

    @property
    def papers(self) -> list[str]:
        """Return the papers, in order."""
        return list(dict.fromkeys(row.headline.paper for row in self.rows))


def value(number: float | None, unit: str) -> str:
    """Write a speedup, or a share."""
    if number is None:
        return "-"
    return f"{number:.2f}x" if unit == "x" else f"{100 * number:.1f} %"


def ours(row: Row, world: str) -> str:
    """Write our value with its deviation."""
    off = row.deviation(world)
    told = value(row.ours[world], row.headline.unit)
    return told if off is None else f"{told} ({100 * off:+.0f} %)".replace("-0 %", "0 %")


def input_rows(told: Told, paper: str) -> list[tuple[str, ...]]:
    """Return a row for each input of a paper, under INPUTS."""
    return [(one.what, one.value, one.mark, one.source) for one in told.inputs
            if one.paper == paper]  # fmt: skip


def headline_head(told: Told) -> tuple[str, ...]:
    """Return the columns of `headline_rows`."""
    return "published", "value", "mark", *(NAMES[world] for world in told.worlds), "why"


def headline_rows(told: Told, paper: str) -> list[tuple[str, ...]]:
    """Return a row for each headline of a paper."""
    numbers = {name: str(i) for i, name in enumerate(reasons_of(told.rows), 1)}
    return [
        (
            row.headline.what,
            value(row.headline.value, row.headline.unit),
            row.headline.mark,
            *(ours(row, world) for world in told.worlds),
            ", ".join(sorted(numbers[name] for name in row.headline.reasons)),
        )
        for row in told.rows
        if row.headline.paper == paper
    ]


def side_head(told: Told) -> tuple[str, ...]:
    """Return the columns of `side_rows`."""
    times = (f"{NAMES[world]}, ms" for world in told.worlds)
    return "set-up", "strategy", *times, *["difference"] * (len(told.worlds) > 1)


def side_rows(told: Told, paper: str) -> list[tuple[str, ...]]:
    """Return a row for each strategy of each set-up of a paper."""
    found = []
    for one in told.sides:
        if one.setup.paper != paper:
            continue
        seconds = [one.seconds[world] for world in told.worlds]
        cells = [one.setup.name, one.strategy, *("-" if t is None else ms(t) for t in seconds)]
        if len(seconds) > 1:
            model, sim = seconds
            differs = f"{100 * (model / sim - 1):+.2f} %" if model and sim else ""
            cells.append(differs.replace("-0.00", "0.00"))
        found.append(tuple(cells))
    return found


def reason_lines(told: Told) -> list[str]:
    """Return the numbered reasons."""
    return [f"({i}) {text}" for i, text in enumerate(reasons_of(told.rows).values(), 1)]


def as_json(told: Told) -> dict[str, Any]:
    """Return all of it for JSON."""
    return {
        "command": told.command,
        "complete": told.complete,
        "papers": {name: TITLES[name] for name in told.papers},
        "inputs": [one._asdict() for one in told.inputs],
        "headlines": [row.as_json() for row in told.rows],
        "reasons": reasons_of(told.rows),
        "setups": [
            {
                "paper": one.setup.paper,
                "network": one.setup.network,
                "rate": one.setup.rate,
                "size": one.setup.size.label,
                "bytes": one.setup.size.bytes,
                "compute": one.setup.compute,
                "elements": one.setup.elements,
                "slots": one.setup.slots,
                "strategy": one.strategy,
                "seconds": one.seconds,
            }
            for one in told.sides
        ],
    }
