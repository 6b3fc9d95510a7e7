"""Choose hosts of a network for several jobs, and predict their rounds.

iswitch place --topology rack:4x4,rate=10Gbit --jobs jobs.toml --policy fastest

Each worker gets a host. The table tells the hosts of each job, the switches that add for it, and
how long one of its rounds takes if all jobs send at once, and alone. docs/place.md.
"""

from __future__ import annotations

import argparse

from iswitch.core.jobs.policies import POLICIES as SHARING
from iswitch.faults.units import MEMORY, TIME
from iswitch.lab.launch.placing import POLICIES, SECONDS
from iswitch.lab.options import quantity

from .switch import slots


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.add_argument(
        "--topology", required=True, metavar="FORM", help="network, as for iswitch run"
    )
    parser.add_argument("--jobs", required=True, metavar="FILE", help="the jobs, as TOML")
    add_policy(parser, "pack", "")
    parser.add_argument(
        "--memory", type=quantity(unit=MEMORY), default=1024, metavar="MIB",
        help="what each switch has for sums, as for iswitch switch (%(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--slots", type=slots, default=0, metavar="N",
        help="slots of jobs at each switch, as for iswitch switch (whole vectors)",
    )  # fmt: skip
    parser.add_argument(
        "--seconds", type=quantity(unit=TIME), default=SECONDS, metavar="S",
        help="how long --policy fastest may search (%(default)g)",
    )  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument(
        "--plot", metavar="FILE", help="draw the tree with the hosts of each job (.png, .svg, .pdf)"
    )


def add_policy(parser: argparse.ArgumentParser, default: str | None, where: str) -> None:
    """Add the option that says how jobs are placed; `where` says with what it goes."""
    kinds = "; ".join(f"{name}: {meaning}" for name, meaning in POLICIES.items())
    parser.add_argument(
        "--policy", type=placing, choices=POLICIES, default=default,
        help=f"{kinds} (default: pack{where})",
    )  # fmt: skip


def placing(text: str) -> str:
    """Refuse the policies by which switches share memory, and say where they are given."""
    if text in SHARING:
        raise argparse.ArgumentTypeError(
            f"{text} is of switches, which share memory by it, not of places; iswitch run "
            f"--switch=--policy={text} gives it to all switches"
        )
    return text


def run(args: argparse.Namespace) -> int:
    """Place and tell."""
    from iswitch.lab.launch.placing import place

    return place(args)
