"""Writes a measurement as one page: the plots, the table, the machine and the command."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

from iswitch.lab.reports.page import Page

from . import paper
from .report import Report, as_csv, as_json, filled, hint, limits, note, table_of, title

if TYPE_CHECKING:
    from .paper import Comparison
    from .plan import Plan
    from .result import Results


def page(report: Report, comparisons: Sequence[Comparison], names: Sequence[str]) -> Page:
    """Make the page of `iswitch bench --html`.

    Args:
        report: measurements that the page shows.
        comparisons: comparisons with the paper, of `iswitch bench paper`; may be empty.
        names: file names of the page's CSV and JSON downloads.
    """
    plan, results = report.plan, report.results
    what = ", ".join(plan.collectives).capitalize()
    found = Page("iSwitch benchmark", f"{what} side by side, world {plan.world}")
    if not report.complete:
        found.text("The measurement was not finished: this is what there was until then.")
    if comparisons:
        add_comparisons(found, plan, comparisons)
    add_pictures(found, results, plan)
    add_table(found, report)
    found.section("Machine and command")
    found.table(["property", "value"], list(report.machine.items()))
    found.code(report.command)
    found.download(names[0], "text/csv", as_csv(plan, results))
    found.download(names[1], "application/json", json.dumps(as_json(report)))
    return found


def add_comparisons(page: Page, plan: Plan, comparisons: Sequence[Comparison]) -> None:
    """Add the paper's comparisons, measured here."""
    from .figures import speedups

    page.section("The paper's comparisons")
    for text in (*paper.headlines(comparisons), paper.conditions(plan)):
        page.text(text)
    for picture in speedups(comparisons):
        page.figure(*picture)
    page.text(paper.NOTE)
    for name, lines in paper.tables(comparisons):
        head, *rows = filled(paper.HEAD, lines)
        page.table(head, rows, name)


def add_pictures(page: Page, results: Results, plan: Plan) -> None:
    """Add a section for each kind of plot."""
    from .figures import Pictures

    sections = {
        "Time against size": Pictures.against_size,
        "Time against workers": Pictures.against_workers,
        "Split of an iteration": Pictures.split,
        "Latencies": Pictures.ecdf,
        "Link utilisation": Pictures.utilisation,
    }
    if plan.free:  # of the paper's comparisons: a few long turns of each
        del sections["Latencies"]
    each = [Pictures(results, collective) for collective in plan.collectives]
    for name, make in sections.items():
        for i, picture in enumerate(picture for pictures in each for picture in make(pictures)):
            if not i:
                page.section(name)
            page.figure(*picture)


def add_table(page: Page, told: Report) -> None:
    """Add a table for each size and network."""
    plan, results = told.plan, told.results
    page.section("Table")
    page.text(note(plan, results))
    if without := hint(plan):
        page.text(without)
    for cell in results.cells():
        head, *rows = table_of(cell)
        page.table(head, rows, title(cell, told.plan))
        page.text(limits(cell, told.cores))
