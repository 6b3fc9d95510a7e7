"""Watch a switch or a whole network in the terminal: who is late, what is lost, what is dropped.

iswitch top                    the network that iswitch run, demo, train or bench started last
iswitch top /tmp/s1.sock       the switch of `iswitch switch --watch /tmp/s1.sock`

The first lines say what is wrong; docs/watch.md explains the figures. Keys: h Halt, r Reset,
f FBcast, t SetH for the chosen job, each after a question; j chooses the next job; q ends it.
"""

from __future__ import annotations

import argparse

from iswitch.faults.units import TIME
from iswitch.lab.options import quantity

from .ctl import add_place


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    add_place(parser)
    parser.add_argument(
        "--every",
        type=quantity(0.1, TIME),
        default=1.0,
        metavar="SECONDS",
        help="how often to look (default: %(default)s)",
    )
    parser.add_argument(
        "--once", action="store_true", help="print one view, of one interval; needs no terminal"
    )


def run(args: argparse.Namespace) -> int:
    """Show it; return the exit status."""
    from iswitch.lab.top.watching import show

    return show(args.place, args.every, args.once)
