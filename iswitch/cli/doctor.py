"""See what this machine can do, and what each missing or limited thing costs.

Tries all features of the kernel that the switch and its workers use, over the loopback device, and
changes nothing. Exit status: 0 the loopback world can run, 1 it cannot.
"""

from __future__ import annotations

import argparse


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(args: argparse.Namespace) -> int:
    """Look and report."""
    from iswitch.lab.doctor.report import report

    return report(args.json)
