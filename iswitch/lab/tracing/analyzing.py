"""`iswitch analyze`: where the time of a trace went, on the terminal and on a page."""

from __future__ import annotations

import argparse
import json
from typing import Any

from iswitch.lab.options import command, foot
from iswitch.lab.reports.page import check_drawing
from iswitch.outside import UsageError
from iswitch.system.files import check_writable, whole
from iswitch.traces import timeline
from iswitch.traces.observed import Watch
from iswitch.traces.report import is_clean, is_whole, lines, replay, replayed

from .opening import files_read, opened, options, switch_names


def analyze(args: argparse.Namespace) -> int:
    """Read the trace to choose a round, and again to look at that one; return the exit status.

    Raises:
        OutsideError: the trace cannot be read, or nothing in it can be replayed.
    """
    check_writable(args.html, *files_read(args))
    reader, setting = opened(args)
    with reader:
        names = switch_names(args)
        watch = Watch(names=names)
        report = replay(reader, setting, options(args), watch)
        found = timeline.chosen(watch, args.job, args.round)
        if found is None and (args.round is not None or args.job is not None):
            lacking = "round" if args.job in (None, *watch.jobs) else "job"
            raise UsageError(
                f"{args.trace} has no such {lacking}; leave out --round and --job, or choose: "
                f"{timeline.available(watch)}"
            )
        if found is not None:
            job, told = found
            watch = Watch({(job.number, told.number)}, names)
            replayed(reader, setting, options(args), watch)
            found = watch.jobs[job.number], told
    if found is not None:
        report["timeline"] = timeline.as_json(*found)
    if args.html:
        write_page(args, report, found)
    if args.json:
        print(json.dumps(report, indent=1))
    else:
        more = ["", *timeline.lines(*found)] if found else []
        print("\n".join([*lines(report), *more]))
    return 0 if is_clean(report) and is_whole(report) else 1


def write_page(args: argparse.Namespace, report: dict[str, Any], found: Any) -> None:
    """Write the page.

    Raises:
        OutsideError: matplotlib is missing, or the file cannot be written.
    """
    check_drawing()
    from .charts import page

    with whole(args.html):
        page(report, found, command(), foot(None, args.html, "json")).write(args.html)
