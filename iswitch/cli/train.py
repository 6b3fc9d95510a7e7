"""Train with reinforcement learning on several workers, whose gradients the switch adds up.

iswitch train ppo --env Hopper-v5 --workers 4

Builds the network, starts its switches and a worker on each host, and shows how they learn. The
algorithms and their environments: dqn on ALE/Pong-v5, a2c on ALE/Qbert-v5, ppo on Hopper-v5 or
CartPole-v1, ddpg on HalfCheetah-v5 or Pendulum-v1. At the end the weights of all workers must be
equal to the last bit; then the exit status is 0.
"""

from __future__ import annotations

import argparse

from iswitch.lab.options import MOST, quantity, whole
from iswitch.lab.training import STALENESS

from .run import add_slow, add_training


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    from worker_lib.rl.workloads import ALGORITHMS
    from worker_lib.strategies import STRATEGIES

    parser.add_argument("algorithm", choices=ALGORITHMS, help="what learns")
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


def run(args: argparse.Namespace) -> int:
    """Train."""
    from iswitch.lab.training.command import train

    return train(args)
