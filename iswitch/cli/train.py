"""Train by reinforcement or federated learning on several workers, for which the switch adds.

iswitch train ppo --env Hopper-v5 --workers 4
iswitch train fedprox --data synthetic_1_1 --stragglers 90 --mu 1

Builds the network, starts its switches and a worker on each host, and shows how they learn. The
algorithms and their environments: dqn on ALE/Pong-v5, a2c on ALE/Qbert-v5, ppo on Hopper-v5 or
CartPole-v1, ddpg on HalfCheetah-v5 or Pendulum-v1. At the end the weights of all workers must be
equal to the last bit; then the exit status is 0. fedavg and fedprox are federated: in each round
some of many devices train on data of their own, and the switch adds what comes in time.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable

from iswitch.faults.units import TIME
from iswitch.lab.options import MOST, quantity, refuse, whole
from iswitch.lab.training import STALENESS

from .run import add_slow, add_training
from .switches import check_switches

FEDERATED = ("fedavg", "fedprox")


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    from worker_lib.rl.workloads import ALGORITHMS
    from worker_lib.strategies import STRATEGIES

    algorithms = (*ALGORITHMS, *FEDERATED)
    parser.add_argument("algorithm", choices=algorithms, help="what learns")
    parser.add_argument("--env", metavar="ID", help="environment (default: the first above)")
    add_training(parser)
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
        help="async: H contributions make an update (default: one of every worker)",
    )  # fmt: skip
    parser.add_argument(
        "--reproducible", action="store_true",
        help="sync: add in rank order, so that a run can be repeated bit for bit",
    )  # fmt: skip
    parser.add_argument(
        "--iterations",
        type=whole(1),
        metavar="N",
        help="end after N updates, counted from the first start (the workload's)",
    )
    parser.add_argument(
        "--target-return", type=quantity(-MOST), metavar="R",
        help="end when the mean return of the last 20 episodes, equally many of each worker, is R",
    )  # fmt: skip
    parser.add_argument(
        "--seed", type=whole(0), default=1, metavar="S", help="of weights and environments (1)"
    )
    parser.add_argument(
        "--set", action="append", default=[], metavar="NAME=VALUE", dest="settings",
        help="a setting of the algorithm other than the default, such as learning_rate=1e-4",
    )  # fmt: skip
    add_slow(parser)
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
    parser.add_argument(
        "--record-workload", metavar="FILE",
        help="write what each worker computed before each allreduce, for iswitch simulate",
    )  # fmt: skip
    add_federated(parser)


def add_federated(parser: argparse.ArgumentParser) -> None:
    """Add the options of federated learning."""
    options = parser.add_argument_group("federated learning (fedavg, fedprox; docs/fedprox.md)")
    add_devices(options)
    options.add_argument("--data", choices=_datasets(), help="what devices have (synthetic_1_1)")
    options.add_argument("--rounds", type=whole(1), metavar="N", help="end after N rounds (200)")
    options.add_argument("--batch", type=whole(1), metavar="N", help="samples in a step (10)")
    options.add_argument("--learning-rate", type=quantity(), metavar="R", help="of a step (0.01)")
    options.add_argument(
        "--mu", type=quantity(0), metavar="MU",
        help="fedprox: hold local models near the global one by MU/2 |w - w_global|^2 (0)",
    )  # fmt: skip
    options.add_argument(
        "--stragglers", type=quantity(0), metavar="PERCENT",
        help="picked devices that do only a part of their epochs; fedavg drops them (0)",
    )  # fmt: skip
    options.add_argument(
        "--speeds", type=quantity(0), metavar="S",
        help="draw devices' speeds once, with this deviation of their logarithm; the slowest are "
        "the stragglers (stragglers are drawn for each round)",
    )  # fmt: skip
    options.add_argument(
        "--round-time", type=quantity(0, TIME), metavar="SECONDS",
        help="how long devices compute in a round, by waiting (as long as it takes)",
    )  # fmt: skip
    options.add_argument(
        "--deadline", type=quantity(unit=TIME), metavar="SECONDS",
        help="close a round without the devices that have not come (wait for them)",
    )  # fmt: skip
    options.add_argument(
        "--max-restarts", type=whole(0), default=0, metavar="N",
        help="restart a device that dies up to N times in a row; with --deadline (0)",
    )  # fmt: skip
    options.add_argument(
        "--check", action="store_true",
        help="train in one process, too: all models must be equal to the last bit",
    )  # fmt: skip


def add_devices(options: argparse._ActionsContainer) -> None:
    """Add the options of devices that `iswitch bench federated` has, too."""
    from worker_lib.fedprox.models import MODELS

    options.add_argument(
        "--model", choices=MODELS, help="logistic regression, or a small network (logistic)"
    )
    options.add_argument("--devices", type=whole(1), metavar="N", help="how many there are (30)")
    options.add_argument(
        "--picked", type=whole(1), metavar="K", help="devices that train in a round (10)"
    )
    options.add_argument("--epochs", type=whole(2), metavar="N", help="of a device in a round (20)")
    options.add_argument(
        "--spread", type=quantity(0), metavar="S",
        help="multiply the rate of each device's link by a random factor with this deviation of "
        "its logarithm (all are equal)",
    )  # fmt: skip


def _datasets() -> Iterable[str]:
    from worker_lib.fedprox.data import DATASETS

    return DATASETS


def run(args: argparse.Namespace) -> int:
    """Train."""
    from iswitch.lab.federated.choosing import OF_FEDERATED

    check_switches(args.switch)
    if args.algorithm in FEDERATED:
        from iswitch.lab.federated.train import train as federated

        return federated(args)
    refuse(args, OF_FEDERATED, "is of fedavg and fedprox")
    from iswitch.lab.training.command import train

    return train(args)
