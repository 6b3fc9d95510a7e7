"""Train a policy on four processes whose gradients the switch adds up.

One switch process and N worker processes, each with CartPole environments and seeds of its own; the
gradients are averaged through the switch in every iteration. A process that dies is started again,
and catches up with the others. At the end: has it learned, are the
weights of all workers equal to the last bit, is the recorded round the sum of its contributions?
Exit status 0 if all three hold, 1 if not, as when the iterations were too few to learn.
"""

from __future__ import annotations

import argparse
import json
from importlib.util import find_spec
from typing import TYPE_CHECKING

from iswitch.lab.launch.processes import Fleet
from iswitch.lab.launch.switches import Switches, SwitchFailed
from iswitch.lab.launch.worlds import (
    WORLDS,
    add_capture,
    add_switch_kind,
    capture_folder,
    chosen_topology,
    make_world,
    p4_switches,
)
from iswitch.lab.options import PIP_DEMO
from iswitch.lab.training.demo_training import ITERATIONS, DemoFailed, Training
from iswitch.outside import UsageError, writing
from iswitch.system.files import check_writable, write

if TYPE_CHECKING:
    from topologies import Topology

PICTURES = (".png", ".svg", ".pdf")
MOST_ORDERS = 10_000  # in which a sum can have been added up


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
        type=int,
        default=ITERATIONS,
        metavar="N",
        help="updates of the policy (default: %(default)s)",
    )
    parser.add_argument(
        "--seed",
        type=int,
        default=1,
        metavar="N",
        help="of environments, actions and weights (default: 1)",
    )
    add_capture(parser)
    add_switch_kind(parser)
    parser.add_argument("--json", metavar="FILE", help="write all that was measured")
    parser.add_argument("--plot", metavar="FILE.png", help="draw learning curve and time split")


def run(args: argparse.Namespace) -> int:
    """Training the demo."""
    _check_arguments(args)
    from iswitch.lab.training.demo_crew import DemoCrew
    from iswitch.lab.training.demo_report import Screen, check, plot, summarise
    from iswitch.lab.training.demo_sums import any_orders

    topology = _topology(args)
    is_p4 = bool(p4_switches(args.world, topology, args.switch, args.capture))
    capture = capture_folder(args.capture)
    training = Training(len(topology.hosts), args.iterations, args.seed, topology=topology)
    screen = Screen(training)
    try:
        training.any_order = is_p4
        if training.any_order and any_orders(topology, topology.root.name) > MOST_ORDERS:
            raise UsageError(
                f"a P4 program adds in any order, and a sum of {training.workers} workers cannot "
                "be checked; take 7 at most at a switch, or racks of 3, such as rack:2x3"
            )
        built = make_world(args.world, topology, switches=args.switch)
        with built as world, Fleet() as fleet, screen:
            switches = Switches(fleet, world, capture, screen.say)
            switches.start()
            crew = DemoCrew(fleet, switches, training, screen.say)
            crew.start()
            crew.run(screen)
            training.counters = switches.stop()
            training.restarts = switches.restarted()
    except (DemoFailed, SwitchFailed) as error:
        screen.fail(str(error))
        return error.status if isinstance(error, SwitchFailed) else 1
    except KeyboardInterrupt:
        screen.fail("stopped; all processes have ended")
        return 130
    report = check(training)
    summarise(training, report, screen.console)
    status = switches.tell_incomplete()
    if args.json:
        write(args.json, json.dumps(report, indent=1))
    if args.plot:
        with writing(args.plot):
            plot(training, args.plot)
    return status if all(report["checks"].values()) else 1


def _topology(args: argparse.Namespace) -> Topology:
    from iswitch.core.format.wire import MAX_MEMBERS

    topology = chosen_topology(args.topology, args.workers, trees=False)
    if args.topology is None:
        return topology
    if len(topology.hosts) > MAX_MEMBERS:
        raise UsageError(
            f"--topology {args.topology}: the demo has {MAX_MEMBERS} workers at most; take fewer"
        )
    return topology


def _check_arguments(args: argparse.Namespace) -> None:
    if args.iterations < 1:
        raise UsageError(f"--iterations {args.iterations}: at least 1")
    if args.seed < 0:
        raise UsageError(f"--seed {args.seed}: 0 or more")
    if args.plot and not args.plot.endswith(PICTURES):
        raise UsageError(f"--plot {args.plot}: a name that ends in {' or '.join(PICTURES)}")
    needed = ["gymnasium", "matplotlib"] if args.plot else ["gymnasium"]
    missing = [name for name in needed if find_spec(name) is None]
    if missing:
        raise UsageError(f"needs {' and '.join(missing)}: {PIP_DEMO}")
    for path in (args.json, args.plot):
        check_writable(path, args.topology)
