"""Train with reinforcement learning on several workers, whose gradients the switch adds up.

iswitch train ppo --env Hopper-v5 --workers 4

Builds the network, starts its switches and a worker on each host, and shows how they learn. The
algorithms and their environments: dqn on ALE/Pong-v5, a2c on ALE/Qbert-v5, ppo on Hopper-v5 or
CartPole-v1, ddpg on HalfCheetah-v5 or Pendulum-v1. At the end the weights of all workers must be
equal to the last bit; then the exit status is 0.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from iswitch.lab.launch.worlds import (
    WORLDS,
    add_switch_kind,
    check_members,
    chosen_topology,
    made_folder,
    p4_switches,
)
from iswitch.lab.options import MOST, quantity, whole, workers
from iswitch.outside import UsageError
from iswitch.system.boundary import OUTSIDE
from iswitch.system.files import check_writable, write
from iswitch.system.interrupts import end_at_once, heed

if TYPE_CHECKING:
    from iswitch.lab.training.train_record import Training
    from iswitch.lab.training.train_screen import Screen
    from iswitch.system.interrupts import Signals
    from topologies import Topology
    from worker_lib.rl.plan import Plan

JOB = 1
CHECKPOINT = "checkpoint.npz"
STALENESS = 3  # updates


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    from worker_lib.rl.workloads import ALGORITHMS
    from worker_lib.strategies import STRATEGIES

    parser.add_argument("algorithm", choices=ALGORITHMS, help="what learns")
    parser.add_argument("--env", metavar="ID", help="where; default: the first named above")
    parser.add_argument("--workers", type=int, help="worker processes (default: 4)")
    parser.add_argument(
        "--topology", metavar="FORM", help="instead of --workers: a network, such as rack:2x2"
    )
    parser.add_argument(
        "--world", choices=WORLDS, default="loopback", help="as of iswitch run (%(default)s)"
    )
    add_switch_kind(parser)
    ways = "; ".join(f"{name}: {meaning}" for name, meaning in STRATEGIES.items())
    parser.add_argument(
        "--strategy", choices=STRATEGIES, default="iswitch", help=f"{ways} (default: %(default)s)"
    )
    parser.add_argument(
        "--mode",
        choices=("sync", "async"),
        default="sync",
        help="sync: all update together; async: compute on while the switch adds (%(default)s)",
    )
    parser.add_argument(
        "--staleness", type=whole(0), metavar="S",
        help=f"async: a gradient may be S updates late, else it is not sent (default: {STALENESS})",
    )  # fmt: skip
    parser.add_argument(
        "--threshold", type=whole(1), metavar="H",
        help="async: so many contributions make an update (default: as many as workers)",
    )  # fmt: skip
    parser.add_argument(
        "--reproducible", action="store_true",
        help="sync: add in rank order, so that a run can be repeated bit for bit",
    )  # fmt: skip
    parser.add_argument(
        "--iterations",
        type=whole(1),
        metavar="N",
        help="updates, from the very beginning, until the end (the workload's)",
    )
    parser.add_argument(
        "--target-return", type=quantity(-MOST), metavar="R",
        help="end when the mean return of the last 20 episodes (as many of each worker) is R",
    )  # fmt: skip
    parser.add_argument(
        "--seed", type=whole(0), default=1, metavar="S", help="of weights and environments (1)"
    )
    parser.add_argument(
        "--set", action="append", default=[], metavar="NAME=VALUE", dest="settings",
        help="a setting of the algorithm other than the default, such as learning_rate=1e-4",
    )  # fmt: skip
    parser.add_argument(
        "--slow", action="append", default=[], metavar="RANK=FACTOR",
        help="make a worker's computing take FACTOR times as long",
    )  # fmt: skip
    parser.add_argument(
        "--out", metavar="DIR", help="write checkpoints, TensorBoard event files and CSV there"
    )
    parser.add_argument(
        "--checkpoint-every", type=whole(1), default=1000, metavar="N",
        help="updates between two checkpoints (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--resume", action="store_true", help="go on from the checkpoint in the folder of --out"
    )
    parser.add_argument("--json", metavar="FILE", help="write all that was measured")


def run(args: argparse.Namespace) -> int:
    """Train."""
    from iswitch.lab.training.train_record import Training
    from iswitch.lab.training.train_screen import Screen
    from iswitch.system.interrupts import Signals, Stopped

    end_at_once()  # loading torch cannot be interrupted otherwise
    topology = chosen_topology(args.topology, args.workers)
    plan = plan_of(args, topology)
    check_writable(args.json, args.topology)
    training = Training(plan, len(topology.hosts), args.out)
    screen = Screen(training, args.world)
    heed()
    with Signals() as signals, training:
        try:
            status = _run(args, topology, plan, training, screen, signals)
        except Stopped as stopped:
            screen.fail(f"stopped by {signal.Signals(stopped.signum).name}{training.go_on()}")
            status = 128 + stopped.signum
        if status == 0:
            status = screen.summarise()
    if args.json:
        write(args.json, json.dumps(training.report() | {"status": status}, indent=1))
    return status


def _run(
    args: argparse.Namespace,
    topology: Topology,
    plan: Plan,
    training: Training,
    screen: Screen,
    signals: Signals,
) -> int:
    from iswitch.lab.launch.launch import Crew, how
    from iswitch.lab.launch.processes import Fleet
    from iswitch.lab.launch.switches import Switches, SwitchFailed
    from iswitch.lab.launch.worlds import make_world
    from iswitch.system.interrupts import Stopped

    def over() -> bool:
        screen.refresh()
        return training.over

    command = [sys.executable, "-P", "-m", "worker_lib.rl.worker_process", plan.to_json()]
    built = make_world(args.world, topology, switches=args.switch)
    with built as world, Fleet() as fleet, screen:
        switches = Switches(fleet, world, say=screen.say)
        crew = Crew(fleet, world, switches, 1, say=screen.say, hear=training.hear)
        try:
            switches.start()
            crew.start(command, JOB)
            training.prepare()
            crew.run(over)
            signals.hold()
            crew.end()
            if training.failure is None and crew.failed is not None and not training.done:
                failed = crew.failed
                training.fail(f"{failed.called} {how(failed)}{training.complaint(failed)}")
            training.counters = switches.stop()
        except SwitchFailed as error:
            signals.hold()
            training.fail(str(error), error.status == OUTSIDE)
        except Stopped:
            crew.end()
            raise
    if training.failure is not None:
        screen.fail(training.failure + training.go_on())
        return training.status
    return 0


def plan_of(args: argparse.Namespace, topology: Topology) -> Plan:
    """What the options ask for.

    Raises:
        UsageError: that cannot be.
    """
    from worker_lib.rl.plan import Plan
    from worker_lib.rl.workloads import ALGORITHMS, PAIRS, missing

    env = args.env or ALGORITHMS[args.algorithm]
    if lacking := missing(env):
        mend = "pip install -e '.[rl]' (in a checkout of iswitch)"
        raise UsageError(f"{env} needs {', '.join(lacking)}: {mend}")
    check_members(topology, 1)
    _check_mode(args, topology)
    _check_p4(args, topology)
    slow = {}
    for text in args.slow:
        rank, _, factor = text.partition("=")
        if not rank.isdecimal() or len(rank) > 5 or int(rank) >= len(topology.hosts):
            last = len(topology.hosts) - 1
            raise UsageError(f"--slow {text}: write RANK=FACTOR, with a RANK of 0..{last}")
        try:
            slow[rank] = quantity(1.0)(factor)
        except argparse.ArgumentTypeError as error:
            raise UsageError(f"--slow {text}: {error}") from None
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
        slow=slow,
    )


def _check_workload(algorithm: str, env: str, settings: dict[str, str]) -> None:
    """Make one here, which takes torch a second or two, for mistakes to be told at once."""
    from worker_lib.rl.setup import Workload

    Workload(algorithm, env, settings).updater(seed=0)


def _check_mode(args: argparse.Namespace, topology: Topology) -> None:
    if args.mode == "async":
        if args.strategy != "iswitch":
            raise UsageError(f"--strategy {args.strategy} is synchronous; leave --mode async out")
        if len(topology.tree) > 1:
            raise UsageError(
                "--mode async: an asynchronous job is of one switch; take --topology star:N"
            )
        if args.threshold is not None and args.threshold > len(topology.hosts):
            raise UsageError(
                f"--threshold {args.threshold}: there are {workers(len(topology.hosts))}; take as "
                "many or fewer"
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
    """What a P4 program lacks (docs/p4.md)."""
    if not p4_switches(args.world, topology, args.switch):
        return
    if args.mode == "async":
        raise UsageError("--mode async: a P4 program has rounds only; use --mode sync")
    if args.reproducible:
        raise UsageError("--reproducible: a P4 program adds in any order; leave that out")


def _checkpoint(args: argparse.Namespace, env: str) -> str | None:
    from worker_lib.rl.checkpoint import updates_in

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
