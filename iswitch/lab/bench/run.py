"""Runs a benchmark, from its plan to its reports."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from functools import cache
from typing import Any

from rich.console import Console

from iswitch.lab.launch.simulated import Virtual
from iswitch.lab.launch.switches import SwitchFailed
from iswitch.lab.options import command, foot
from iswitch.lab.progress import Bar
from iswitch.lab.reports.page import check_drawing
from iswitch.system.files import check_writable, whole, write, write_each
from iswitch.system.interrupts import Signals, Stopped
from iswitch.tables import width

from . import machine, paper, report
from .ending import say_stopped
from .group import BenchFailed
from .html import page
from .measure import measure
from .network import Build, opened
from .paper import Comparison
from .plan import Plan, split
from .report import Report
from .result import Results

VIRTUAL = {"time": "virtual"}  # in place of a machine's properties: none matters


def bench(
    args: argparse.Namespace,
    plan: Plan,
    switch_options: Sequence[str],
    virtual: Virtual | None = None,
) -> int:
    """Measure what a plan says, and report it; return the exit status.

    Args:
        args: name the files of the report, and how networks are built.
        plan: measurements to make.
        switch_options: more options of `iswitch switch`, for all switches.
        virtual: what is special in virtual time; None: this is real time.

    Raises:
        OutsideError: the networks cannot be built here, or a report cannot be written.
    """
    offload = not args.no_offload and plan.world != "bmv2"  # else the others would be ahead by it
    for path in (args.json, args.csv, args.html):
        check_writable(path, *split(args.topologies or ""))
    if args.html:
        check_drawing()
    where = machine.describe() if virtual is None else VIRTUAL
    results = Results()
    status = 0
    with Signals() as signals:
        try:
            with Bar(plan.cells, "starting") as bar:
                say = cache(lambda line: bar.say(f"iswitch bench: {line}"))  # each line once
                build = Build(offload, switch_options, args.pin, say)
                _measure(plan, results, bar, build, virtual)
        except (BenchFailed, SwitchFailed) as error:
            print(f"iswitch bench: {error}", file=sys.stderr)
            status = error.status if isinstance(error, SwitchFailed) else 1
        except Stopped as stopped:
            status = say_stopped(stopped, bool(results.cells()))
        signals.hold()
        found = paper.compare(results) if args.what == "paper" else []
        told = Report(plan, results, where, command(), not status)
        show(told, found)
        if results.cells():
            keep(args, told, found)
    return status


def _measure(plan: Plan, results: Results, bar: Bar, build: Build, virtual: Virtual | None) -> None:
    said = ""

    def show(done: float, what: str) -> None:
        nonlocal said
        bar.show(done, what)
        if what != said and not sys.stderr.isatty():
            print(what, file=sys.stderr, flush=True)
        said = what

    for setting in plan.settings:
        if virtual is not None:
            from . import simulated

            simulated.measure(plan, setting, virtual, results, show)
            continue
        with opened(plan, setting, build) as groups:
            measure(plan, setting, groups, results, show)


def show(told: Report, found: Sequence[Comparison]) -> None:
    """Print the tables, of the paper's comparisons if there are any."""
    plan, results = told.plan, told.results
    machine_line = ", ".join(f"{k} {v}" for k, v in told.machine.items())
    console = Console(highlight=False, width=width())

    def draw(name: str, head: Sequence[str], lines: Sequence[Sequence[str]]) -> None:
        for part in report.rich_tables(name, head, lines, console.width):
            console.print("", part, sep="\n")

    def say(text: str) -> None:
        console.print("", text, sep="\n", markup=False)

    console.print(told.command, machine_line, sep="\n", markup=False, soft_wrap=True)
    if not results.cells():
        return
    for name, lines in paper.tables(found):
        draw(name, paper.HEAD, lines)
    for cell in results.cells() if not found else ():
        head, *lines = report.table_of(cell)
        draw(report.title(cell, plan), head, lines)
        console.print(report.limits(cell, told.cores), markup=False)
        if of_iterations := report.iterations(cell):
            console.print(of_iterations, markup=False)
    say(paper.NOTE if found else report.note(plan, results))
    if hint := report.hint(plan):
        say(hint)
    if found:
        say("\n".join(paper.headlines(found)))
        say(paper.conditions(plan))


def as_object(told: Report, found: Sequence[Comparison]) -> dict[str, Any]:
    """Return all results for JSON, with the paper's comparisons if there are any."""
    of_paper = {"paper": paper.as_json(told.plan, found)} if found else {}
    return {**report.as_json(told), **of_paper}


def keep(args: argparse.Namespace, told: Report, found: Sequence[Comparison]) -> None:
    """Write the files that the options name.

    Args:
        args: the options.
        told: the measurement to write.
        found: the comparisons of the paper, for the page.

    Raises:
        OutsideError: some files cannot be written; it names them. All others are complete.
    """

    def draw(path: str) -> None:
        names = [foot(args.csv, path, "csv"), foot(args.json, path, "json")]
        with whole(path):
            page(told, found, names).write(path)

    write_each([
        (args.json, lambda path: write(path, json.dumps(as_object(told, found), indent=1))),
        (args.csv, lambda path: write(path, report.as_csv(told.plan, told.results))),
        (args.html, draw),
    ])  # fmt: skip
