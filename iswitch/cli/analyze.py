"""Show where the time of a packet trace went: rounds, stragglers, losses.

iswitch analyze s1.pcapng --html page.html

Prints a summary, and one round in detail: the one that took longest, or --round. The page has its
timeline (who sent when, when each segment was complete), charts of stragglers and losses, and opens
from disk without a network. TRACE is as for `iswitch replay`. docs/traces.md.
"""

from __future__ import annotations

import argparse
import json
from typing import Any

from iswitch.lab.options import PIP_DEMO, check_writable, command, foot
from iswitch.outside import UsageError, writing

from .replay import add_trace, files_read, opened, options


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    add_trace(parser)
    parser.add_argument("--html", metavar="PAGE", help="write a page, which opens from disk")
    parser.add_argument("--job", type=int, metavar="N", help="of the round in detail")
    parser.add_argument("--round", type=int, metavar="N", help="in detail (default: the longest)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(args: argparse.Namespace) -> int:
    """Go through the trace to choose a round, and again to look at that one."""
    from iswitch.traces import timeline
    from iswitch.traces.observed import Watch
    from iswitch.traces.report import is_clean, is_whole, lines, replay, replayed
    from iswitch.traces.survey import NothingToReplay

    check_writable(args.html, *files_read(args))
    reader, setting = opened(args)
    with reader:
        watch = Watch()
        try:
            report = replay(reader, setting, options(args), watch)
        except NothingToReplay as error:
            raise UsageError(str(error)) from None
        found = timeline.chosen(watch, args.job, args.round)
        if found is None and (args.round is not None or args.job is not None):
            raise UsageError(
                f"{args.trace} has no such round; leave out --round and --job, or choose: "
                f"{timeline.available(watch)}"
            )
        if found is not None:
            job, told = found
            watch = Watch({(job.number, told.number)})
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
    """Write the page."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise UsageError(f"--html draws with matplotlib: {PIP_DEMO}") from None
    from iswitch.lab.reports.charts import page

    with writing(args.html):
        page(report, found, command(), foot(None, args.html, "json")).write(args.html)
