"""`iswitch generate`: a trace of a job that ran in a simulated network only."""

from __future__ import annotations

import argparse
import json

from iswitch.core.format.wire import DType, Op, Shape, WireError
from iswitch.faults.units import count
from iswitch.lab.launch.worlds import check_link, chosen_topology, read_topology
from iswitch.outside import UsageError
from iswitch.system.files import check_writable, whole
from iswitch.system.keyfiles import read_key
from topologies import Topology
from topologies.synthetic import SyntheticJob, synthesize

LINKS = ("loss", "delay", "jitter", "duplicate", "reorder", "rate")


def generate(args: argparse.Namespace) -> int:
    """Write the trace that the options describe; return the exit status.

    Raises:
        OutsideError: there can be no such job, or the file cannot be written.
    """
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
    dtype, op = elements(args)
    check_writable(args.trace, args.key_file, args.topology)
    key = read_key(args.key_file) if args.key_file else None
    job = SyntheticJob(
        args.numel,
        args.rounds,
        dtype,
        op,
        args.job,
        args.compute / 1000,
        slow=tuple(args.slow),
        key=key,
        reproducible=args.reproducible,
    )
    switch = args.switch or network.root.name
    with whole(args.trace):
        frames = synthesize(args.trace, network, job, switch)
    found = {"trace": args.trace, "frames": frames, "workers": hosts, "rounds": args.rounds}
    print(
        json.dumps(found)
        if args.json
        else f"{args.trace}: {count(frames, 'frame')}, {count(hosts, 'worker')}"
    )
    return 0


def elements(args: argparse.Namespace) -> tuple[DType, Op]:
    """Read the element type of the vectors, and the operation that combines them.

    Raises:
        UsageError: there is no such type or operation, or the type lacks the operation.
    """
    ops = {op.label: op for op in Op}
    if args.op not in ops:
        raise UsageError(f"--op {args.op}: use {', '.join(ops)}")
    try:
        dtype = DType[args.dtype.upper()]
    except KeyError:
        raise UsageError(f"--dtype {args.dtype}: use {', '.join(DType.labels())}") from None
    try:
        Shape.of(args.numel, dtype, ops[args.op]).check()
    except WireError as error:
        raise UsageError(f"--dtype {args.dtype} --op {args.op}: {error}") from None
    return dtype, ops[args.op]


def topology(args: argparse.Namespace) -> Topology:
    """Make the network, with the links that the options describe."""
    for name in LINKS:
        if value := getattr(args, name):
            beside = {"jitter": {"delay": value}, "reorder": {"delay": "1ms"}}.get(name, {})
            check_link(name, value, **beside)
    settings = [f"{name}={value}" for name in LINKS if (value := getattr(args, name))]
    form = args.topology or chosen_topology(None, args.workers).name
    if settings and form.endswith(".toml"):
        raise UsageError(f"{form} says of itself how its links are; leave out --{settings[0]}")
    seed = [] if form.endswith(".toml") or "seed=" in form else [f"seed={args.seed}"]
    network = read_topology(",".join([form, *seed]))
    if not settings:
        return network
    given = ", ".join(f"--{name}" for name in LINKS if getattr(args, name))
    return read_topology(",".join([form, *settings, *seed]), given)
