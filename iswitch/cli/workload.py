"""Make a workload for iswitch simulate of what a profiler has seen of a program.

iswitch workload rank0.json rank1.json --out ddp.jsonl
iswitch workload chakra.0.et chakra.1.et --out chakra.jsonl

The traces are those that torch.profiler exports, or Chakra execution traces, one of each rank, or
of one rank that stands for all. What runs between collectives is taken over; how long they took is
not (docs/workloads.md).
"""

from __future__ import annotations

import argparse


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.add_argument(
        "traces",
        nargs="+",
        metavar="TRACE",
        help="trace of torch.profiler (.json, .json.gz), or of Chakra (.et, .et.gz)",
    )
    parser.add_argument("--out", required=True, metavar="FILE", help="write the workload there")


def run(args: argparse.Namespace) -> int:
    """Import and tell."""
    from iswitch.lab.simulate.importing import imported

    return imported(args)
