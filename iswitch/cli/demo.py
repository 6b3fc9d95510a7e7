"""Train a policy on four processes whose gradients the switch adds up.

Starts a switch process and N worker processes, each with CartPole environments and seeds of its
own; the switch sums their gradients in every iteration. A process that dies is started again, and
catches up with the others. At the end three checks are made: the policy has learned, the weights of
all workers are equal to the last bit, and a recorded round is the sum of its contributions. Exit
status: 0 all three hold, 1 one does not, for example because the iterations were too few to learn.
"""

from __future__ import annotations

import argparse

from iswitch.lab.options import whole
from iswitch.lab.training import ITERATIONS

from .run import add_capture, add_slow, add_training
from .switches import check_switches


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    add_training(parser)
    add_slow(parser, " (--world sim)")
    parser.add_argument(
        "--iterations",
        type=whole(1),
        default=ITERATIONS,
        metavar="N",
        help="updates of the policy (default: %(default)s)",
    )
    parser.add_argument(
        "--seed",
        type=whole(),
        default=1,
        metavar="N",
        help="of environments, actions and weights (default: 1)",
    )
    add_capture(parser)
    parser.add_argument("--json", metavar="FILE", help="write all that was measured")
    parser.add_argument("--plot", metavar="FILE.png", help="draw learning curve and time split")


def run(args: argparse.Namespace) -> int:
    """Train the demo."""
    from iswitch.lab.training.command import demo

    check_switches(args.switch)
    return demo(args)
