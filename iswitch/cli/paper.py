"""Compare with papers: their published numbers beside the model and virtual time.

iswitch paper            # iSwitch (ISCA 2019), SwitchML and ATP (NSDI 2021)
iswitch paper iswitch --workers 4,6,9,12 --html paper.html

Each headline stands beside ours with its deviation and the reasons, and each input says where it is
from (docs/paper.md). Ctrl-C ends it with what is done.
"""

from __future__ import annotations

import argparse
import os

from iswitch.lab.options import whole

from .run import add_handling


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.add_argument(
        "papers", nargs="*", metavar="PAPER", help="iswitch, switchml, atp (default: all)"
    )
    parser.add_argument(
        "--returns", action="store_true",
        help="measure the time to a return instead, synchronously and asynchronously; trains for "
        "half an hour",
    )  # fmt: skip
    parser.add_argument(
        "--workers", metavar="LIST",
        help="compare iSwitch also with these numbers of workers, in racks of three, such as "
        "6,9,12 (default: 4, the headlines')",
    )  # fmt: skip
    parser.add_argument(
        "--compute", metavar="HOW", default="gpu",
        help="a gradient of iSwitch's: gpu (GPUs of its time, the default), core (measured on one "
        "core here), or milliseconds",
    )  # fmt: skip
    parser.add_argument(
        "--world", choices=("model", "sim"), help="work out only one of the two (default: both)"
    )
    add_handling(parser, "each paper's own")
    parser.add_argument(
        "--processes", type=whole(1, 1024), default=len(os.sched_getaffinity(0)), metavar="N",
        help="that work out set-ups (default: one for each core)",
    )  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--html", metavar="FILE", help="write a page with plots")


def run(args: argparse.Namespace) -> int:
    """Compare and tell."""
    if args.returns:
        from iswitch.lab.paper.returns import returns

        return returns(args)
    from iswitch.lab.paper.command import show_papers

    return show_papers(args)
