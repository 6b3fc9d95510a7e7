"""Writes the comparison with papers as one page."""

from __future__ import annotations

import json

from iswitch.lab.bench.figures import Picture, axes_of
from iswitch.lab.reports.page import COLOURS, INK, Page

from . import telling
from .comparing import WORLDS
from .published import TITLES
from .telling import Told

HEIGHT = 0.3  # inches of a headline


def page(told: Told, json_name: str) -> Page:
    """Make the page of `iswitch paper --html`; `json_name` is that of its download."""
    found = Page("Published, and here", "What papers say, beside the model and virtual time")
    if not told.complete:
        found.text("It was stopped: this is what there was until then.")
    for paper in told.papers:
        found.section(TITLES[paper])
        found.figure(*_picture(told, paper))
        found.table(telling.headline_head(told), telling.headline_rows(told, paper), "Headlines")
        found.table(telling.INPUTS, telling.input_rows(told, paper), "Inputs")
        sides = telling.side_rows(told, paper)
        found.table(telling.side_head(told), sides, "Time of an iteration")
    found.section("Why ours differ")
    found.text(telling.NOTE)
    for line in telling.reason_lines(told):
        found.text(line)
    found.section("Command")
    found.code(told.command)
    text = json.dumps(telling.as_json(told))
    found.download(json_name, "application/json", text)
    return found


def _picture(told: Told, paper: str) -> Picture:
    """Draw ours over the published number, a line for each headline."""
    rows = [row for row in told.rows if row.headline.paper == paper]
    hints = {}
    with axes_of(figsize=(7.5, 0.9 + HEIGHT * len(rows))) as (figure, axes):
        for k, world in enumerate(WORLDS):
            if all(row.ours[world] is None for row in rows):
                continue
            for i, row in enumerate(rows):
                off = row.deviation(world)
                if off is None:
                    continue
                gid = f"{paper}-{world}-{i}"
                axes.plot(
                    [100 * off], [i], marker="os"[k], markersize=8 - 3 * k, color=COLOURS[k],
                    linestyle="", gid=gid,
                )  # fmt: skip
                hints[gid] = (
                    f"{row.headline.what}: {telling.ours(row, world)}, {telling.NAMES[world]}"
                )
            axes.plot(
                [], [], marker="os"[k], linestyle="", color=COLOURS[k], label=telling.NAMES[world]
            )
        axes.axvline(0, color=INK, linewidth=0.8)
        labels = [f"{row.headline.what} ({row.headline.mark})" for row in rows]
        axes.set_yticks(range(len(rows)), labels)
        axes.set_ylim(len(rows) - 0.5, -0.5)
        axes.set(xlabel="ours above the published number, %")
        axes.margins(x=0.1)
        axes.legend(ncols=2, loc="lower center", bbox_to_anchor=(0.5, 1))
    return Picture(figure, "How far ours are from the published numbers.", hints)
