"""Show where the time of a packet trace went: rounds, stragglers, losses.

iswitch analyze s1.pcapng --html page.html

Prints a summary, and one round in detail: the longest, or --round. The page shows the timeline of
that round (who sent when, when each segment was complete) and charts of stragglers and losses, and
opens from disk without a network. TRACE is as for `iswitch replay`. docs/traces.md.
"""

from __future__ import annotations

import argparse

from iswitch.lab.options import integer

from .replay import add_trace


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    add_trace(parser)
    parser.add_argument("--html", metavar="PAGE", help="write a page, which opens from disk")
    parser.add_argument("--job", type=integer, metavar="N", help="job of the round in detail")
    parser.add_argument("--round", type=integer, metavar="N", help="round in detail (the longest)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(args: argparse.Namespace) -> int:
    """Analyze the trace."""
    from iswitch.lab.tracing.analyzing import analyze

    return analyze(args)
