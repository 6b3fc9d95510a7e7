"""Makes settings and networks of the options of `iswitch train fedavg|fedprox`."""

from __future__ import annotations

import argparse

from iswitch.core.format.wire import MAX_MEMBERS
from iswitch.lab.launch.worlds import p4_switches
from iswitch.lab.options import refuse
from iswitch.outside import UsageError
from topologies import Topology
from worker_lib.fedprox.model import Steps
from worker_lib.fedprox.process import Plan
from worker_lib.fedprox.rounds import Setting

from .places import is_implied, network, tree

OF_GAMES: dict[str, object] = {  # options of `iswitch train`, with what they are without
    "env": None, "workers": None, "strategy": "iswitch", "mode": "sync", "staleness": None,
    "threshold": None, "iterations": None, "target_return": None, "settings": [], "slow": [],
    "out": None, "checkpoint_every": 1000, "resume": False, "compute": None, "host_speed": None,
    "jitter": None, "real_clock": False, "record_workload": None,
}  # fmt: skip
OF_FEDERATED: dict[str, object] = {
    "data": None, "model": None, "devices": None, "picked": None, "rounds": None, "epochs": None,
    "batch": None, "learning_rate": None, "mu": None, "stragglers": None, "speeds": None,
    "round_time": None, "spread": None, "deadline": None, "check": False, "max_restarts": 0,
}  # fmt: skip
INSTEAD = {"workers": "say --devices", "iterations": "say --rounds"}


def devices_of(args: argparse.Namespace) -> tuple[int, int]:
    """Read how many devices there are, and how many of them are picked.

    Raises:
        UsageError: there are fewer than are to be picked.
    """
    base = Setting()
    devices = base.devices if args.devices is None else args.devices
    picked = min(base.picked, devices) if args.picked is None else args.picked
    if picked > devices:
        raise UsageError(f"--picked {picked}: there are {devices} devices; pick as many or fewer")
    return devices, picked


def check_steps(steps: Steps) -> None:
    """Refuse steps that leave the global model by as much as they approach it, or by more.

    Raises:
        UsageError: the learning rate times mu is 2 or more.
    """
    if steps.rate * steps.mu >= 2:
        raise UsageError(
            f"--mu {steps.mu:g}: with a learning rate of {steps.rate:g} every step goes past the "
            f"global model, and models diverge; take less than {2 / steps.rate:g}"
        )


def setting_of(args: argparse.Namespace) -> Setting:
    """Read a setting; what no option names is as in the paper.

    Raises:
        UsageError: options contradict each other.
    """
    base = Setting()
    devices, picked = devices_of(args)
    epochs = base.epochs if args.epochs is None else args.epochs
    share = (args.stragglers or 0.0) / 100
    if share > 1:
        raise UsageError(f"--stragglers {args.stragglers:g}: write per cent, 0 to 100")
    if args.algorithm == "fedavg" and args.mu:
        raise UsageError("--mu is of fedprox; leave it out")
    if args.speeds and not share:
        raise UsageError("--speeds say who is a straggler: say how many, such as --stragglers 50")
    if args.speeds and round(share * devices) == devices:
        raise UsageError(
            f"--stragglers {args.stragglers:g}: with --speeds a device must finish; say fewer"
        )
    steps = Steps(
        base.steps.rate if args.learning_rate is None else args.learning_rate,
        args.mu or 0.0,
        args.batch or base.steps.batch,
    )
    check_steps(steps)
    return Setting(
        algorithm=args.algorithm,
        data=args.data or base.data,
        devices=devices,
        model=args.model or base.model,
        seed=args.seed,
        rounds=args.rounds or base.rounds,
        picked=picked,
        epochs=epochs,
        stragglers=share,
        steps=steps,
        speeds=args.speeds or 0.0,
        seconds=args.round_time or 0.0,
    )


def plan_of(args: argparse.Namespace) -> tuple[Plan, Topology]:
    """Read a plan and its network from the options of `iswitch train`.

    Raises:
        UsageError: there can be no such training.
    """
    refuse(args, OF_GAMES, "is not of fedavg and fedprox", INSTEAD)
    setting = setting_of(args)
    if args.spread and args.world == "loopback":
        raise UsageError(
            f"--spread {args.spread:g}: on loopback no link has a rate; add --world sim or --world "
            "netns, and a rate where there is none, such as --topology ,rate=10Mbit"
        )
    topology = network(args.topology, setting.devices, args.spread or 0.0, setting.seed)
    if p4_switches(args.world, topology, args.switch):
        raise UsageError("a P4 program takes no H for its rounds; use --world netns or loopback")
    if len(topology.tree) > 1 and args.world != "sim" and is_implied(args.topology):
        raise UsageError(
            f"--devices {setting.devices}: a switch takes {MAX_MEMBERS - 1}; name racks, such as "
            f"--topology {tree(setting.devices)} ({setting.devices} processes), or add --world sim"
        )
    if args.check and not args.reproducible:
        raise UsageError("--check compares bits, which need sums in rank order: add --reproducible")
    if args.deadline is not None and args.world == "sim":
        raise UsageError("--deadline: nobody is late in virtual time; leave it out")
    if args.deadline is not None and args.deadline <= setting.seconds:
        raise UsageError(
            f"--deadline {args.deadline:g}: devices compute for {setting.seconds:g} s; take more"
        )
    if args.max_restarts and args.deadline is None:
        raise UsageError(
            "--max-restarts: a round waits for a device that is restarted; add --deadline SECONDS"
        )
    return Plan(setting, args.reproducible, args.deadline), topology
