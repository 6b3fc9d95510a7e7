"""Train a policy on four processes whose gradients the switch adds up.

One switch process and N worker processes, each with CartPole environments and seeds of its own; the
gradients are averaged through the switch in every iteration. A process that dies is started again,
and catches up with the others. At the end: has it learned, are the
weights of all workers equal to the last bit, is the recorded round the sum of its contributions?
Exit status 0 if all three hold, 1 if not, as when the iterations were too few to learn.
"""

from __future__ import annotations

import argparse

from iswitch.lab.launch.worlds import WORLDS, add_capture, add_switch_kind
from iswitch.lab.options import whole
from iswitch.lab.training import ITERATIONS


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.add_argument("--workers", type=int, metavar="N", help="worker processes (default: 4)")
    parser.add_argument(
        "--topology",
        metavar="FORM",
        help="instead of --workers: a network with a worker on each host, such as star:4, rack:2x3",
    )
    parser.add_argument(
        "--world", choices=WORLDS, default="loopback", help="as of iswitch run (%(default)s)"
    )
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
    add_switch_kind(parser)
    parser.add_argument("--json", metavar="FILE", help="write all that was measured")
    parser.add_argument("--plot", metavar="FILE.png", help="draw learning curve and time split")


def run(args: argparse.Namespace) -> int:
    """Train the demo."""
    from iswitch.lab.training.command import demo

    return demo(args)
