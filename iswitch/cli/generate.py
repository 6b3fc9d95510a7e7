"""Write the packet trace of a simulated job.

iswitch generate job.pcapng --workers 4 --numel 1000000 --rounds 10 --loss 1% --seed 7

Workers and switches run in a simulated network, under a virtual clock. The trace has all packets at
the ports of one switch. Equal options make equal files. docs/traces.md.
"""

from __future__ import annotations

import argparse

from iswitch.faults.units import MILLISECONDS
from iswitch.lab.options import integer, quantity

LINKS = ("loss", "delay", "jitter", "duplicate", "reorder", "rate")  # settings of every link


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.add_argument("trace", metavar="TRACE.pcapng", help="the file to be written")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--workers", type=integer, metavar="N", help="workers at one switch (4)")
    which.add_argument("--topology", metavar="FORM", help="a network instead, such as rack:2x3")
    parser.add_argument(
        "--switch", metavar="NAME", help="the switch whose ports are recorded (the root)"
    )
    parser.add_argument(
        "--numel", type=integer, default=100_000, metavar="N", help="elements (100000)"
    )
    parser.add_argument("--rounds", type=integer, default=10, metavar="N", help="allreduces (10)")
    parser.add_argument(
        "--dtype", default="float32", metavar="TYPE", help="type of the elements (float32)"
    )
    parser.add_argument(
        "--op", default="sum", metavar="OP", help="how a switch combines elements (sum)"
    )
    parser.add_argument("--job", type=integer, default=1, metavar="N", help="its number (1)")
    parser.add_argument(
        "--compute",
        type=quantity(0, MILLISECONDS),
        default=2.0,
        metavar="MS",
        help="milliseconds between an aggregate and the next vector, give or take half (2)",
    )
    parser.add_argument(
        "--slow",
        type=integer,
        action="append",
        default=[],
        metavar="N",
        help="the N-th host, from 0, takes three times as long; may be repeated",
    )
    for name in LINKS:
        parser.add_argument(
            f"--{name}", metavar="X", help=f"{name} of every link, as in docs/links.md"
        )
    parser.add_argument(
        "--seed", type=integer, default=0, metavar="N", help="seed of all chances (0)"
    )
    parser.add_argument(
        "--key-file", metavar="FILE", help="a key, by which control packets have MACs"
    )
    parser.add_argument("--reproducible", action="store_true", help="the switch sums in rank order")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(args: argparse.Namespace) -> int:
    """Write the trace."""
    from iswitch.lab.tracing.generating import generate

    return generate(args)
