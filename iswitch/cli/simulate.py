"""Predict iterations of any number of workers, on any network, by any strategy.

iswitch simulate --topology fattree:k=32 --size 6.41MB --strategy iswitch,ring,ps --rate 10Gbit

Nothing is sent: the times of all packets are worked out, as in virtual time (docs/simulate.md). The
tables tell how long an iteration takes, how busy links are, what memory switches need, and what
would make iterations shorter. Ctrl-C ends a sweep with what is done.
"""

from __future__ import annotations

import argparse
import os

from iswitch.lab.options import whole

from .run import add_handling, add_jitter, add_slow


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.add_argument(
        "workload", nargs="?", metavar="WORKLOAD",
        help="file of what each rank computes and calls (docs/workloads.md); without it all "
        "compute, and have one vector summed",
    )  # fmt: skip
    parser.add_argument(
        "--topology", metavar="FORM", help="network, as for iswitch run (needed, or swept)"
    )
    parser.add_argument(
        "--workers", type=whole(1), metavar="N", help="on its first N hosts (default: on all)"
    )
    parser.add_argument(
        "--size", metavar="SIZE",
        help="of the vector: 40kB, 6.41MB, or ppo, ddpg, a2c, dqn (default: dqn)",
    )  # fmt: skip
    parser.add_argument(
        "--strategy", default="iswitch,ring,ps", metavar="LIST",
        help="of iswitch, ring, ps, ps:servers=N, tree, async; the others are compared with the "
        "first (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--rate", metavar="RATE", help="of all links, such as 10Gbit (default: the topology's)"
    )
    parser.add_argument(
        "--delay", metavar="TIME", help="of all links, one way, such as 1us (the topology's)"
    )
    parser.add_argument(
        "--loss", metavar="PART",
        help="of the packets between workers and switch that each link loses, such as 0.1%% (none)",
    )  # fmt: skip
    parser.add_argument(
        "--background", metavar="RATE",
        help="what others send on each link, in each direction, such as 2Gbit (nothing)",
    )  # fmt: skip
    parser.add_argument(
        "--threshold", type=whole(1), metavar="H",
        help="of --strategy async: contributions of a version (one of each worker)",
    )  # fmt: skip
    parser.add_argument(
        "--staleness", type=whole(), metavar="S",
        help="of --strategy async: a contribution may be S versions old (3)",
    )  # fmt: skip
    compute = parser.add_argument_group("computing before each allreduce")
    compute.add_argument(
        "--compute", metavar="HOW",
        help="zero (default), fixed:3ms, or file:TIMES, as for iswitch run --world sim",
    )  # fmt: skip
    add_jitter(compute)
    add_slow(compute)
    compute.add_argument("--seed", type=whole(), metavar="N", help="of random factors (0)")
    compute.add_argument(
        "--iterations", type=whole(1), metavar="N",
        help="how many; their median is told (1, or 10 if computing times differ)",
    )  # fmt: skip
    parser.add_argument(
        "--schedule", metavar="HOW",
        help="carry the calls of a WORKLOAD as made (default), fused, split:SIZE, or by "
        "priority:SIZE, what computing waits for first",
    )  # fmt: skip
    parser.add_argument(
        "--world", choices=("model", "sim"), default="model",
        help="model: work the times out (default); sim: let real workers and switches play in "
        "virtual time",
    )  # fmt: skip
    add_hosts(parser)
    nodes = parser.add_argument_group("nodes (docs/worlds.md)")
    add_handling(nodes)
    nodes.add_argument(
        "--room", metavar="SIZE",
        help="what all workers may have under way together; each has a share (16MiB)",
    )  # fmt: skip
    nodes.add_argument(
        "--slots", type=whole(), metavar="N",
        help="of the job at each switch, as for iswitch switch (whole vectors)",
    )  # fmt: skip
    parser.add_argument(
        "--no-changes", action="store_true", help="do not try what would shorten iterations"
    )
    sweep = parser.add_argument_group("sweeps")
    sweep.add_argument(
        "--sweep", action="append", default=[], metavar="OPTION=LIST",
        help="predict with each value of an option, such as workers=4,16,64; may be repeated, and "
        "then all combinations are predicted",
    )  # fmt: skip
    sweep.add_argument(
        "--processes", type=whole(1, 1024), default=len(os.sched_getaffinity(0)), metavar="N",
        help="that work on a sweep (default: one for each core)",
    )  # fmt: skip
    sweep.add_argument(
        "--scheduler", metavar="ADDRESS",
        help="let the workers of this Dask scheduler work on a sweep, instead of processes here",
    )  # fmt: skip
    sweep.add_argument("--save", metavar="FILE", help="keep each point in FILE when it is done")
    sweep.add_argument(
        "--resume", action="store_true", help="take the points that --save FILE has already"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--csv", metavar="FILE", help="write a line for each point and strategy")
    parser.add_argument("--html", metavar="FILE", help="write a page with plots")


def add_hosts(parser: argparse.ArgumentParser) -> None:
    """Add the options of hosts, jobs and elements."""
    shape = parser.add_argument_group("hosts and jobs (docs/simulate.md)")
    shape.add_argument(
        "--accelerators", type=whole(1, 64), metavar="N",
        help="of each host: they are the workers, and their host adds and passes on",
    )  # fmt: skip
    shape.add_argument(
        "--local-rate", metavar="RATE",
        help="of an accelerator's link in its host: pcie3, pcie4, nvlink2 (default), or a rate",
    )  # fmt: skip
    shape.add_argument("--local-delay", metavar="TIME", help="of the same (0s)")
    shape.add_argument(
        "--trunk-rate", metavar="RATE", help="of links between switches (as all links)"
    )
    shape.add_argument(
        "--jobs", type=whole(1), metavar="N",
        help="that do the same at the same time; workers belong to them in turn (1)",
    )  # fmt: skip
    shape.add_argument(
        "--dtype", metavar="TYPE",
        help="of elements: float32 (default), or float16, which halves --size",
    )  # fmt: skip


def run(args: argparse.Namespace) -> int:
    """Predict and tell."""
    from iswitch.lab.simulate.command import simulate

    return simulate(args)
