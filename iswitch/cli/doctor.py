"""See what this machine can do, and what each missing or limited thing costs.

Tries all features of the kernel that the switch and its workers use, over the loopback device, and
changes nothing. Exit status: 0 the loopback world can run, 1 it cannot.
"""

from __future__ import annotations

import argparse
import os

from iswitch.outside import UsageError


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument(
        "--fidelity", action="store_true",
        help="measure instead how fast links may be before real time (--world netns) shows this "
        "machine's cores in place of a network: as root, about a minute",
    )  # fmt: skip


def run(args: argparse.Namespace) -> int:
    """Look and report."""
    if args.fidelity:
        from iswitch.lab.bench.fidelity import fidelity

        if os.geteuid() != 0:
            raise UsageError("--fidelity measures in network namespaces: run it as root (sudo)")
        return fidelity(args.json)
    from iswitch.lab.doctor.report import report

    return report(args.json)
