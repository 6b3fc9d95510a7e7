"""`iswitch paper`: works out the set-ups of papers, and tells how ours compare."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence

from rich.console import Console

from iswitch.faults.units import QuantityError
from iswitch.lab.bench import paper
from iswitch.lab.bench.choosing import number
from iswitch.lab.bench.plan import PAPER, split
from iswitch.lab.gathering import gather
from iswitch.lab.options import command, foot, quantity
from iswitch.lab.reports.page import check_drawing
from iswitch.lab.spread import spread
from iswitch.outside import UsageError
from iswitch.sim.published import host_handling, switch_handling
from iswitch.system.files import check_writable, whole
from iswitch.tables import Table, width

from . import telling
from .comparing import WORLDS, compare, side_by_side
from .gpus import GPUS
from .published import TITLES
from .setups import Nodes, Task, inputs, setups, work_out
from .telling import Told

FIRST = 4  # workers of the headlines


def show_papers(args: argparse.Namespace) -> int:
    """Work out the set-ups, tell, and write the page; return the exit status.

    Raises:
        OutsideError: options make no sense, or the page cannot be written.
    """
    papers = _papers(args.papers)
    computing, kind = _computing(args.compute)
    chosen = setups(papers, _workers(args.workers), computing, _nodes(args))
    check_writable(args.html)
    if args.html:
        check_drawing()
    worlds = WORLDS if args.world is None else (args.world,)
    # The model takes two seconds, and is kept if virtual time is stopped. Of its set-ups those that
    # take longest come first, so that no core is idle at the end.
    tasks = [Task(one, world) for world in worlds for one in reversed(chosen)]
    found, status = gather(
        spread(work_out, tasks, args.processes), len(tasks), "set-ups", "iswitch paper"
    )
    if not found:
        return status
    told = Told(
        command(),
        not status,
        worlds,
        inputs(papers, chosen, kind),
        compare(papers, found),
        side_by_side(chosen, found),
    )
    if args.json:
        print(json.dumps(telling.as_json(told), indent=1))
    else:
        show(told)
    if args.html:
        from .page import page

        with whole(args.html):
            page(told, foot(None, args.html, "json")).write(args.html)
    return status


def _papers(names: Sequence[str]) -> list[str]:
    """Read which papers are compared.

    Raises:
        UsageError: one of them is not known.
    """
    for name in names:
        if name not in TITLES:
            raise UsageError(f"{name!r}: choose of {', '.join(TITLES)}")
    return [name for name in TITLES if name in names or not names]


def _workers(text: str | None) -> list[int]:
    """Read how many workers iSwitch's comparisons have; four are always among them.

    Raises:
        UsageError: these are no such numbers.
    """
    workers = [number(word, "--workers") for word in split(text or "")]
    try:
        paper.settings(workers, ["10Gbit"])
    except ValueError as error:
        raise UsageError(f"--workers: {error}") from None
    return list(dict.fromkeys([FIRST, *workers]))


def _computing(text: str) -> tuple[dict[str, float], str]:
    """Read how long gradients are computed, in seconds; and the kind of that.

    Raises:
        UsageError: the text says no time.
    """
    if text == "gpu":
        return {name: gpu.seconds for name, gpu in GPUS.items()}, text
    if text == "core":
        return {name: size.compute or 0.0 for name, size in PAPER.items()}, text
    try:
        seconds = quantity(0)(text) / 1e3
    except argparse.ArgumentTypeError:
        raise UsageError(f"--compute {text}: write gpu, core, or milliseconds") from None
    return dict.fromkeys(PAPER, seconds), "chosen"


def _nodes(args: argparse.Namespace) -> Nodes:
    """Read what packets cost hosts and switches; "": each paper's own.

    Raises:
        UsageError: a text says no time.
    """
    given = Nodes(args.host_overhead or "", args.switch_latency or "")
    option = "--host-overhead"
    try:
        if given.host:
            host_handling(given.host)
        option = "--switch-latency"
        if given.switch:
            switch_handling(given.switch)
    except QuantityError as error:
        raise UsageError(f"{option}: {error}") from None
    return given


def show(told: Told) -> None:
    """Print the comparison."""
    console = Console(highlight=False, markup=False, width=width())
    for name in told.papers:
        console.print("", TITLES[name], sep="\n")
        console.print(
            Table(telling.headline_head(told), telling.headline_rows(told, name), "headlines")
        )
        for what, value, mark, source in telling.input_rows(told, name):
            console.print(f"{what}: {value} ({mark}: {source})")
        console.print(Table(telling.side_head(told), telling.side_rows(told, name), "an iteration"))
    console.print("", telling.NOTE, "", *telling.reason_lines(told), sep="\n")
