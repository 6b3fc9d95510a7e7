"""Makes networks and plans of the options of `iswitch demo` and `iswitch train`."""

from __future__ import annotations

import argparse
from collections import Counter
from importlib.util import find_spec
from pathlib import Path

from iswitch.core.format.wire import MAX_MEMBERS
from iswitch.lab.launch.simulated import stragglers
from iswitch.lab.launch.worlds import chosen_topology, made_folder, p4_switches
from iswitch.lab.options import PIP_DEMO, check_picture, workers
from iswitch.outside import UsageError, extra
from iswitch.system.files import check_writable
from topologies import Topology
from worker_lib.rl.checkpoint import updates_in
from worker_lib.rl.plan import Plan
from worker_lib.rl.workloads import ALGORITHMS, PAIRS, missing

from . import STALENESS

OUTSIDE = ("gloo", "mpi")  # strategies whose libraries have sockets of their own
CHECKPOINT = "checkpoint.npz"


def check_demo(args: argparse.Namespace) -> None:
    """Refuse a demo that cannot run here, or whose files cannot be written.

    Raises:
        OutsideError: the demo cannot run here, or a file cannot be written.
    """
    check_picture(args.plot)
    needed = ["gymnasium", "matplotlib"] if args.plot else ["gymnasium"]
    absent = [name for name in needed if find_spec(name) is None]
    if absent:
        raise UsageError(f"needs {' and '.join(absent)}: {PIP_DEMO}")
    for path in (args.json, args.plot):
        check_writable(path, args.topology)


def demo_topology(args: argparse.Namespace) -> Topology:
    """Find the network of a demo.

    Raises:
        UsageError: there is no such network, or it has more workers than ranks of one switch.
    """
    topology = chosen_topology(args.topology, args.workers, trees=False)
    if len(topology.hosts) > MAX_MEMBERS:
        raise UsageError(
            f"--topology {args.topology}: the demo has {MAX_MEMBERS} workers at most; take fewer"
        )
    return topology


def plan_of(args: argparse.Namespace, topology: Topology) -> Plan:
    """Make the plan that the options of `iswitch train` describe.

    Raises:
        UsageError: there can be no such training.
    """
    env = args.env or ALGORITHMS[args.algorithm]
    if lacking := missing(env):
        raise UsageError(f"{env} needs {', '.join(lacking)}: {extra('rl')}")
    _check_mode(args, topology)
    _check_p4(args, topology)
    slow = stragglers(args.slow, len(topology.hosts), least=1.0)
    for text in args.settings:
        if "=" not in text:
            raise UsageError(f"--set {text}: write NAME=VALUE, such as learning_rate=1e-4")
    settings = dict(text.split("=", 1) for text in args.settings)
    if settings or (args.algorithm, env) not in PAIRS:
        _check_workload(args.algorithm, env, settings)
    return Plan(
        algorithm=args.algorithm,
        env=env,
        seed=args.seed,
        iterations=args.iterations,
        target_return=args.target_return,
        settings=settings,
        mode=args.mode,
        strategy=args.strategy,
        reproducible=args.reproducible,
        staleness=STALENESS if args.staleness is None else args.staleness,
        threshold=args.threshold,
        checkpoint=_checkpoint(args, env),
        checkpoint_every=args.checkpoint_every,
        resume=args.resume,
        record=args.record_workload is not None,
        slow={} if args.world == "sim" else slow,  # there the world slows its computing
    )


def _check_workload(algorithm: str, env: str, settings: dict[str, str]) -> None:
    """Make the workload in this process, in a second or two, so that mistakes show at once."""
    from worker_lib.rl.setup import Workload

    Workload(algorithm, env, settings).updater(seed=0)


def _check_mode(args: argparse.Namespace, topology: Topology) -> None:
    if args.world == "sim" and args.strategy in OUTSIDE:
        raise UsageError(
            f"--strategy {args.strategy} has sockets of its own, which know no virtual time; take "
            "--world loopback, or --world netns (as root)"
        )
    if args.mode == "async":
        if args.record_workload is not None:
            raise UsageError("--record-workload records allreduces; leave --mode async out")
        if args.strategy != "iswitch":
            raise UsageError(f"--strategy {args.strategy} is synchronous; leave --mode async out")
        at_switches = Counter(topology.switch_of(host.name) for host in topology.hosts)
        fewest = min(at_switches.values())
        if args.threshold is not None and args.threshold > fewest:
            there = "there are" if len(at_switches) == 1 else "it counts at each rack, and one has"
            raise UsageError(
                f"--threshold {args.threshold}: {there} {workers(fewest)}; take as many or fewer"
            )
        if args.reproducible:
            raise UsageError("--reproducible: asynchronous sums have no order; use --mode sync")
    elif args.threshold is not None:
        raise UsageError("--threshold: in --mode sync all contribute; use --mode async")
    elif args.staleness is not None:
        raise UsageError("--staleness: in --mode sync no gradient is late; use --mode async")
    if args.reproducible and args.strategy != "iswitch":
        raise UsageError("--reproducible is the switch's; use --strategy iswitch")


def _check_p4(args: argparse.Namespace, topology: Topology) -> None:
    """Refuse what a P4 program lacks (docs/p4.md)."""
    if not p4_switches(args.world, topology, args.switch):
        return
    if args.mode == "async":
        raise UsageError("--mode async: a P4 program has rounds only; use --mode sync")
    if args.reproducible:
        raise UsageError("--reproducible: a P4 program adds in any order; leave that out")


def _checkpoint(args: argparse.Namespace, env: str) -> str | None:
    if args.out is None:
        if args.resume:
            raise UsageError("--resume: name the folder of the checkpoint with --out")
        return None
    path = Path(args.out) / CHECKPOINT
    if args.resume and not path.exists():
        raise UsageError(f"--resume: there is no {path}; leave it out to begin")
    made_folder(args.out, "--out")
    if not args.resume and path.exists():
        raise UsageError(f"--out {args.out} has a training; add --resume, or name another folder")
    if args.resume:
        done = updates_in(str(path), {"algorithm": args.algorithm, "env": env})
        if args.iterations is not None and done >= args.iterations:
            raise UsageError(
                f"--iterations {args.iterations}: {path} has {done} already, and they count from "
                "the start of the training; give more"
            )
    return str(path.absolute())
