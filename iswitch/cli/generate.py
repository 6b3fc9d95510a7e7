"""Write a packet trace of a job that never ran, for those who have none.

iswitch generate job.pcapng --workers 4 --numel 1000000 --rounds 10 --loss 1% --seed 7

Workers and switches run in a simulated network, under a virtual clock; what passes the ports of
one switch is written. The same options make the same file. docs/traces.md.
"""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING

from iswitch.lab.options import check_writable, quantity
from iswitch.outside import UsageError, writing

if TYPE_CHECKING:
    from topologies import Topology

LINKS = ("loss", "delay", "jitter", "duplicate", "reorder", "rate")


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.add_argument("trace", metavar="TRACE.pcapng", help="the file to be written")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--workers", type=int, metavar="N", help="workers at one switch (4)")
    which.add_argument("--topology", metavar="FORM", help="a network instead, such as rack:2x3")
    parser.add_argument(
        "--switch", metavar="NAME", help="of --topology, whose ports are recorded (the root)"
    )
    parser.add_argument("--numel", type=int, default=100_000, metavar="N", help="elements (100000)")
    parser.add_argument("--rounds", type=int, default=10, metavar="N", help="allreduces (10)")
    parser.add_argument(
        "--dtype", choices=("float32", "float16", "bfloat16", "int32"), default="float32"
    )
    parser.add_argument("--op", choices=("sum", "max", "min"), default="sum")
    parser.add_argument("--job", type=int, default=1, metavar="N", help="its number (1)")
    parser.add_argument(
        "--compute",
        type=quantity(0),
        default=2.0,
        metavar="MS",
        help="milliseconds between an aggregate and the next vector, give or take half (2)",
    )
    parser.add_argument(
        "--slow",
        type=int,
        action="append",
        default=[],
        metavar="N",
        help="the N-th host, from 0, takes three times as long; may be repeated",
    )
    for name in LINKS:
        parser.add_argument(
            f"--{name}", metavar="X", help=f"{name} of every link, as in docs/links.md"
        )
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of all chances (0)")
    parser.add_argument("--key-file", metavar="FILE", help="a key: control packets have MACs then")
    parser.add_argument("--reproducible", action="store_true", help="the switch sums in rank order")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(args: argparse.Namespace) -> int:
    """Make it."""
    from iswitch.core.format.wire import DType, Op
    from iswitch.faults.units import count
    from iswitch.system.keyfiles import read_key
    from topologies.synthetic import SyntheticJob, synthesize

    for name, least, most in (("numel", 0, 1 << 28), ("rounds", 1, 1 << 20), ("seed", 0, 1 << 64)):
        if not least <= getattr(args, name) <= most:
            raise UsageError(f"--{name} {getattr(args, name)}: {least} to {most}")
    if not 0 <= args.job <= 0xFFFF:
        raise UsageError(f"--job {args.job}: a job number is 0..65535")
    network = topology(args)
    hosts = len(network.hosts)
    for rank in args.slow:
        if not 0 <= rank < hosts:
            raise UsageError(f"--slow {rank}: the workers are number 0 to {hosts - 1}")
    check_writable(args.trace, args.key_file, args.topology)
    key = read_key(args.key_file) if args.key_file else None
    job = SyntheticJob(
        args.numel,
        args.rounds,
        DType[args.dtype.upper()],
        Op[args.op.upper()],
        args.job,
        args.compute / 1000,
        slow=tuple(args.slow),
        key=key,
        reproducible=args.reproducible,
    )
    switch = args.switch or network.root.name
    with writing(args.trace):
        frames = synthesize(args.trace, network, job, switch)
    found = {"trace": args.trace, "frames": frames, "workers": hosts, "rounds": args.rounds}
    print(
        json.dumps(found)
        if args.json
        else f"{args.trace}: {count(frames, 'frame')}, {count(hosts, 'worker')}"
    )
    return 0


def topology(args: argparse.Namespace) -> Topology:
    """The network, with the links that the options say."""
    from iswitch.lab.launch.worlds import check_link, chosen_topology, read_topology

    for name in LINKS:
        if value := getattr(args, name):
            beside = {"jitter": {"delay": value}, "reorder": {"delay": "1ms"}}.get(name, {})
            check_link(name, value, **beside)
    if args.jitter and not args.delay:
        args.delay = args.jitter  # a packet cannot come before it was sent
    settings = [f"{name}={value}" for name in LINKS if (value := getattr(args, name))]
    form = args.topology or f"star:{4 if args.workers is None else args.workers}"
    if args.topology is None:
        chosen_topology(None, args.workers)  # says what a number of workers can be
    elif settings and form.endswith(".toml"):
        raise UsageError(f"{form} says of itself how its links are; leave out --{settings[0]}")
    seed = [] if form.endswith(".toml") or "seed=" in form else [f"seed={args.seed}"]
    network = read_topology(",".join([form, *seed]))
    if not settings:
        return network
    given = ", ".join(f"--{name}" for name in LINKS if getattr(args, name))
    return read_topology(",".join([form, *settings, *seed]), given)
