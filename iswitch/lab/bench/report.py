"""Reports what was measured: as JSON, as CSV, and as tables on a terminal."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from iswitch.faults.units import count

from .machine import cores
from .plan import ALLREDUCE, STREAMS, WARM

if TYPE_CHECKING:
    from rich.table import Table

    from .plan import Plan
    from .result import Results, Series

HEAD = (
    "strategy", "p50, ms", "quartiles, ms", "p99, ms", "rounds", "ratio", "wire", "hops",
    "sent", "received", "switch, s/GB", "workers, s/GB",
)  # fmt: skip
COLUMNS = {  # by the names in HEAD, without units
    "ratio": "to the first strategy, of the rounds of one turn: median (quartiles)",
    "wire": "p50 over the time in which a link carries the vector once",
    "hops": "p50 over that and the time for the other links of its way, to the root and back",
    "sent": "bytes that a worker sends on its link, headers included, over those of the vector",
    "received": "those that it receives; both are means over all workers",
    "switch": "CPU seconds of the processes of switches or servers, for each GB contributed",
    "workers": "CPU seconds of the processes of workers, for each GB contributed",
}
NO_WIRE = (
    "Loopback has no wire to save: it shows what adding costs the cores. A network shows what a "
    "switch saves; as root: iswitch bench --world netns --rate 100Mbit"
)


INTERPRETED = (
    "iswitch is the P4 program in a bmv2 here: an interpreter of some 2,000 full packets a second. "
    "Its sums are a P4 switch's; its times are neither a chip's nor those of the userspace switch, "
    "which is tens of times as fast: iswitch bench --world netns --no-offload"
)
IDEAL = (
    "ring, ps and tree have an ideal transport here: no slow start, no loss, no acknowledgements, "
    "and adding takes no time. That flatters them: docs/worlds.md"
)


class Report(NamedTuple):
    """The results of a benchmark, and what is needed to repeat it.

    Attributes:
        plan: measurements to make.
        results: measurements made so far.
        machine: properties of the machine, by name.
        command: the command line.
        complete: whether all of the plan was measured.
    """

    plan: Plan
    results: Results
    machine: Mapping[str, str]
    command: str
    complete: bool

    @property
    def cores(self) -> int | None:
        """Return how many cores the processes share; None: in virtual time they share none."""
        return None if self.plan.world == "sim" else cores()


def note(plan: Plan, results: Results) -> str:
    """Explain the tables' columns."""
    rounds = "single rounds from a common start"
    if plan.in_a_row > 1:
        rounds = f"rounds, up to {plan.in_a_row} in a row after {WARM} that do not count"
    heads = {name for cell in results.cells() for name in table_of(cell)[0]}
    shown = {head.partition(",")[0] for head in heads}
    told = [f"{name}: {meaning}." for name, meaning in COLUMNS.items() if name in shown]
    times = "Times are virtual" if plan.world == "sim" else "Times are"
    return " ".join([f"{times}{', and' * (plan.world == 'sim')} of {rounds}.", *told])


def limits(cell: Sequence[Series], cores: int | None) -> str:
    """Say in a line what limits the strategies of a table: cores or the wire.

    Args:
        cell: the series of the table.
        cores: how many the machine has; None: none count, in virtual time.
    """
    found: dict[str, list[str]] = {}
    for one in cell:
        busy = [] if cores is None else [f"{one.cores_busy(cores):.1f} of {count(cores, 'core')}"]
        if (wire := one.wire_busy()) is not None:
            busy.insert(0, f"{100 * wire:.0f} % of the rate")
        limit = one.limit(cores or 1)
        shown = busy[:1] if limit == "wire" else busy[-1:] if limit else busy
        found.setdefault(limit, []).append(" ".join([one.way.label, ", ".join(shown)]).strip())
    names = {"wire": "the wire", "cores": "cores", "": "neither, but the wait for others"}
    said = [f"{name} ({', '.join(found[k])})" for k, name in names.items() if k in found]
    return f"Limit: {'; '.join(said)}"


def iterations(cell: Sequence[Series]) -> str:
    """Say in a line how long iterations of each strategy took; "": none were measured."""
    parts = {one.way.label: split for one in cell if (split := one.split())}
    if not parts:
        return ""
    said = ", ".join(f"{label} {ms(split['iteration'])}" for label, split in parts.items())
    computing = ms(next(iter(parts.values()))["compute"])
    return f"Iterations, p50 in ms: {said}; {computing} of that is computing"


def hint(plan: Plan) -> str:
    """Say what the plan's world cannot show, and how to see it; "": it shows everything."""
    if plan.world == "sim" and not any(way.name in STREAMS for way in plan.ways):
        return ""
    return {"loopback": NO_WIRE, "bmv2": INTERPRETED, "sim": IDEAL}.get(plan.world, "")


def summary(one: Series, first: Series, plan: Plan) -> dict[str, Any]:
    """Summarise a series: seconds, bytes, bits per second."""
    seconds = one.seconds
    ratio = one.ratio(first)
    switch, workers = one.cpu_per_gb()
    received, sent = one.link()
    predicted = one.predicted_bytes() or (None, None)
    split = one.split() or dict.fromkeys(("compute", "aggregate", "update", "iteration"))
    return {
        "world": plan.world,
        "topology": one.setting.form,
        "rate": one.setting.rate,
        "loss": one.setting.loss,
        "workers": one.workers,
        "collective": one.collective,
        "size": one.size.label,
        "bytes": one.size.bytes,
        "strategy": one.way.label,
        "rounds": len(seconds),
        "in_a_row": plan.in_a_row,
        "exact": one.exact,
        "min": min(seconds),
        **dict(zip(("p25", "p50", "p75"), one.quartiles, strict=True)),
        "p99": one.p99,
        "max": max(seconds),
        **dict(zip(("ratio_p25", "ratio_p50", "ratio_p75"), ratio, strict=True)),
        "wire_bound": one.bound,
        "hops_bound": one.hops,
        "limit": one.limit(cores()),
        "cores_busy": one.cores_busy(cores()),
        "wire_busy": one.wire_busy(),
        "switch_cpu_per_gb": switch,
        "workers_cpu_per_gb": workers,
        "link_received_bits_per_s": received,
        "link_sent_bits_per_s": sent,
        **dict(zip(("link_received_bytes", "link_sent_bytes"), one.link_bytes(), strict=True)),
        **dict(zip(("predicted_received_bytes", "predicted_sent_bytes"), predicted, strict=True)),
        **split,
    }


def as_json(report: Report) -> dict[str, Any]:
    """Collect all results, with every round's seconds."""
    return {
        "command": report.command,
        "machine": dict(report.machine),
        "complete": report.complete,
        "world": report.plan.world,
        "results": [
            {
                **summary(one, cell[0], report.plan),
                "seconds": one.seconds,
                "iterations": [r._asdict() for r in one.iterations],
                "stats": one.stats,
            }
            for cell in report.results.cells()
            for one in cell
        ],
    }


def as_csv(plan: Plan, results: Results) -> str:
    """Write a row for each series, below the names of the columns."""
    rows = [summary(one, cell[0], plan) for cell in results.cells() for one in cell]
    file = io.StringIO()
    writer = csv.DictWriter(file, rows[0], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return file.getvalue()


def line(one: Series, first: Series) -> list[str]:
    """Make a line of the table, below HEAD."""
    switch, workers = one.cpu_per_gb()
    quartiles, bound = one.quartiles, one.bound
    return [
        one.way.label + ("" if one.exact is not False else " (not checked)"),
        ms(quartiles.middle),
        f"{ms(quartiles.low)}..{ms(quartiles.high)}",
        ms(one.p99),
        str(len(one.seconds)),
        "1" if one is first else "{1:.2f} ({0:.2f}..{2:.2f})".format(*one.ratio(first)),
        "" if bound is None else f"{quartiles.middle / bound:.2f}",
        "" if one.hops is None else f"{quartiles.middle / one.hops:.2f}",
        *link_vectors(one),
        f"{switch:.2f}" if switch else "",
        f"{workers:.2f}" if workers else "",
    ]


def link_vectors(one: Series) -> tuple[str, str]:
    """Write what a link carries from and to a worker, in vectors; empty for an allreduce."""
    received, sent = one.link_bytes()
    if one.collective == ALLREDUCE or not one.size.bytes or not sent:
        return "", ""
    return f"{sent / one.size.bytes:.3f}", f"{received / one.size.bytes:.3f}"


def filled(head: Sequence[str], lines: Sequence[Sequence[str]]) -> list[list[str]]:
    """Drop the columns of a table that are empty."""
    shown = [i for i in range(len(head)) if any(one[i] for one in lines)]
    return [[one[i] for i in shown] for one in (head, *lines)]


def table_of(cell: Sequence[Series]) -> list[list[str]]:
    """Make the head and a line for each series, of a collective, size and network."""
    return filled(HEAD, [line(one, cell[0]) for one in cell])


def title(cell: Sequence[Series], plan: Plan) -> str:
    """Name a cell's size, workers, network, and time if it is virtual."""
    time = ", virtual time" if plan.world == "sim" else ""
    one = cell[0]
    size = one.size.label
    if one.size.numel:
        size += f" ({count(one.size.numel, 'element')})"
    what = "" if one.collective == ALLREDUCE else f"{one.collective}, "
    return f"{what}{size}, {count(one.workers, 'worker')}, {one.setting.said}{time}"


def rich_tables(
    name: str, head: Sequence[str], lines: Sequence[Sequence[str]], width: int
) -> list[Table]:
    """Make a named table without empty columns, cut into parts that fit the width.

    Every part begins with the first column.

    Args:
        name: stands above the first part.
        head: the names of the columns.
        lines: the lines below.
        width: width of the terminal, in columns.
    """
    from rich.table import Table
    from rich.text import Text

    rows = filled(head, lines)
    first, *others = (max(map(len, column)) + 1 for column in zip(*rows, strict=True))
    parts: list[list[int]] = [[]]
    room = space = width - 1 - first
    for i, wide in enumerate(others, 1):
        if parts[-1] and wide > room:
            parts.append([])
            room = space
        parts[-1].append(i)
        room -= wide
    found = []
    for part in parts:
        named = (
            Text(name, style="bold", no_wrap=True, overflow="ignore") if part is parts[0] else None
        )
        made = Table(title=named, title_justify="left", box=None, collapse_padding=True)
        for i in (0, *part):
            made.add_column(rows[0][i], justify="right" if i else "left", no_wrap=True)
        for texts in rows[1:]:
            made.add_row(*(Text(texts[i]) for i in (0, *part)))
        found.append(made)
    return found


def ms(seconds: float) -> str:
    """Write milliseconds, from 10 on with three significant digits, or without a fraction."""
    value = seconds * 1e3
    digits = 3 if value < 1 else 2 if value < 10 else 1 if value < 100 else 0
    return f"{value:.{digits}f}"
