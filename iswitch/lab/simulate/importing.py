"""`iswitch workload`: makes a workload of traces, and tells what is in it."""

from __future__ import annotations

import argparse

from rich.console import Console

from iswitch.faults.units import count
from iswitch.lab.bench.report import ms
from iswitch.system.files import check_writable, write
from iswitch.tables import Table, width
from iswitch.workload import chakra, profiler
from iswitch.workload.records import Workload

HEAD = ("step", "calls", "bytes", "computing, ms")


def imported(args: argparse.Namespace) -> int:
    """Import traces, write the workload, and tell; return the exit status.

    Raises:
        OutsideError: a trace cannot be read, or the workload not be written.
    """
    check_writable(args.out, *args.traces)
    importer = chakra if chakra.is_named(args.traces) else profiler
    workload, left_out = importer.load(args.traces)
    write(args.out, workload.text())
    console = Console(highlight=False, markup=False, width=width())
    title = f"{args.out}: {count(workload.ranks, 'rank')}"
    console.print(Table(HEAD, rows(workload), title))
    for name, many in left_out.items():
        console.print(f"left out: {count(many, 'call')} of {name}, which is not played")
    return 0


def rows(workload: Workload) -> list[tuple[str, ...]]:
    """Return a row for each step: the calls of its first rank, and the mean computing of all."""
    table: list[tuple[str, ...]] = []
    whose = list(dict.fromkeys(record.rank for record in workload.records))
    for step in dict.fromkeys(record.step for record in workload.records):
        mine = [record for record in workload.records if record.step == step]
        first = [record for record in mine if record.rank in (None, whose[0])]
        compute = sum(record.compute for record in mine) / len(whose)
        calls = sum(record.collective is not None for record in first)
        summed = sum(record.bytes for record in first)
        table.append((str(step), str(calls), f"{summed:,}", ms(compute)))
    return table
