"""Reports the findings of `iswitch doctor` as a table and a verdict."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict

from iswitch.tables import WIDTH, is_width_named

from .checks import CHECKS, Result
from .host import Host

STYLES = {"ok": "green", "limited": "yellow", "missing": "bold red"}


def report(as_json: bool) -> int:
    """Run all checks and print what they found; return the exit status."""
    results = examine(Host())
    runs = loopback_runs(results)
    if as_json:
        print(json.dumps({"loopback": runs, "checks": [asdict(r) for r in results]}, indent=1))
    else:
        show(results)
        print(verdict(results))
    return 0 if runs else 1


def examine(host: Host) -> list[Result]:
    """Run every check."""
    return [check.run(host) for check in CHECKS]


def loopback_runs(results: Sequence[Result]) -> bool:
    """Tell whether nothing vital is missing."""
    return not any(r.vital and r.state == "missing" for r in results)


def show(results: Sequence[Result]) -> None:
    """Print what was found, then its costs; states are words, colour only repeats them."""
    try:
        from rich import box
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text
    except ImportError:
        for r in results:
            print(f"{r.name:20} {r.state:8} {r.found}", *filter(None, (r.cost, r.mend)), sep="; ")
        return
    console = Console(markup=False, highlight=False, emoji=False)
    if console.is_terminal:
        console.width = min(WIDTH, console.width)
    elif not is_width_named():
        console.width = WIDTH
    found = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for title in ("check", "state", "found"):
        found.add_column(title)
    costs = Table.grid(padding=(0, 2, 0, 0))
    for r in results:
        state = Text(r.state, STYLES[r.state])
        found.add_row(r.name, state, r.found)
        if r.state != "ok":
            costs.add_row(Text(r.name, STYLES[r.state]), "cost", r.cost or "unknown")
            if r.mend:
                costs.add_row("", "mend", r.mend)
    with console.capture() as printed:
        console.print(found)
        if costs.row_count:
            console.print(costs)
            console.print()
    for line in printed.get().splitlines():
        print(line.rstrip())  # cells are padded with spaces


def verdict(results: Sequence[Result]) -> str:
    """Write the last line: the verdict."""
    missing = [r.name for r in results if r.vital and r.state == "missing"]
    if missing:
        return f"The loopback world cannot run here; mend first: {', '.join(missing)}."
    counts: Counter[str] = Counter(r.state for r in results)
    found = ", ".join(f"{counts[state]} {state}" for state in STYLES if state in counts)
    return f"The loopback world runs here; {len(results)} checks: {found}."
