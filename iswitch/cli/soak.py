"""Try random histories of faults in a simulated network; sums must be exact in all of them.

A seed determines a network, its jobs and the events that befall them. With --seed or --scenario one
history is played and its timeline is printed. Ctrl-C ends the command with the findings so far.
Exit status: 0 all promises held, 1 one was broken.
"""

from __future__ import annotations

import argparse
import os

from iswitch.lab.options import whole
from iswitch.outside import UsageError


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    which = parser.add_mutually_exclusive_group()
    which.add_argument(
        "--seeds", type=whole(1), default=200, metavar="N", help="seeds 0..N-1 (200)"
    )
    which.add_argument("--seed", type=whole(), metavar="N", help="one seed, with its timeline")
    which.add_argument(
        "--scenario",
        metavar="JSON|FILE",
        help="one history as a failure prints it, or a file of it, with its timeline",
    )
    parser.add_argument(
        "--first", type=whole(), default=0, metavar="N", help="the first of the seeds (0)"
    )
    parser.add_argument(
        "--processes", type=whole(1), default=os.cpu_count() or 1, metavar="N", help="all cores"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument(
        "--pcapng", metavar="FILE", help="write what one history sent, to be opened in Wireshark"
    )


def run(args: argparse.Namespace) -> int:
    """Play and report."""
    from iswitch.lab.soak.command import play_many, play_one, scenario_of
    from iswitch.lab.soak.generate import generate

    if args.seed is not None:
        return play_one(args, generate(args.seed))
    if args.scenario is not None:
        return play_one(args, scenario_of(args.scenario))
    if args.pcapng:
        raise UsageError("--pcapng holds one history; name it with --seed or --scenario")
    return play_many(args)
