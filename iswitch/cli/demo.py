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
from collections import Counter
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from ..files import write
from ..outside import writing
from . import PIP_DEMO, UsageError, check_writable
from .processes import Child, Fleet
from .restarts import Restarts
from .switches import Switches, SwitchFailed
from .worlds import (
    WORLDS,
    add_capture,
    add_switch_kind,
    capture_folder,
    chosen_topology,
    make_world,
    p4_switches,
)

if TYPE_CHECKING:
    from topologies import Topology

JOB = 1
PICTURES = (".png", ".svg", ".pdf")
WINDOW = 20  # episodes in a mean return
LEARNED = 195.0  # the return at which CartPole used to count as solved
ITERATIONS = 300  # enough to learn
MOST_ORDERS = 10_000  # in which a sum can have been added up
RATE_AFTER = 0.2  # seconds that must be timed before they tell a rate


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


class DemoFailed(Exception):
    """Something died or was refused; the message names it."""


@dataclass
class WorkerProcess:
    """What is known of one worker process."""

    child: Child
    host: str = ""
    rank: int | None = None
    returns: list[tuple[int, float]] = field(default_factory=list)  # iteration, return
    seconds: dict[str, list[float]] = field(
        default_factory=lambda: {"compute": [], "aggregate": [], "update": []}
    )
    recorded: dict[int, dict[str, Any]] = field(default_factory=dict)  # by iteration
    done: dict[str, Any] | None = None
    restarts: Restarts = field(default_factory=lambda: Restarts(0))

    @property
    def iterations(self) -> int:
        """Iterations completed."""
        return len(self.seconds["update"])

    @property
    def called(self) -> str:
        """What it is called."""
        rank = "that has not joined yet" if self.rank is None else f"of rank {self.rank}"
        return f"{rank} (process {self.child.process.pid})"

    def recent_return(self) -> float:
        """Mean return of its last episodes; NaN before the first has ended."""
        last = [value for _, value in self.returns[-WINDOW:]]
        return sum(last) / len(last) if last else float("nan")


@dataclass
class Training:
    """A training run as the parent sees it."""

    workers: int
    iterations: int
    seed: int
    members: list[WorkerProcess] = field(default_factory=list)
    counters: dict[str, dict[str, int]] = field(default_factory=dict)  # by switch
    restarts: dict[str, int] = field(default_factory=dict)  # by switch
    spent: Counter[str] = field(default_factory=Counter)  # all workers' seconds, by part
    topology: Topology | None = None
    any_order: bool = False  # sums are made as contributions come, not in rank order
    started: float | None = None  # when all workers had done their first iteration
    untimed: int = 0  # iterations they had done by then
    timed: int = 0  # the newest iteration they all have done
    seconds: float = 0.0  # from the start until then

    def hear(self, member: WorkerProcess, message: dict[str, Any]) -> None:
        """Take what a worker says."""
        match message["event"]:
            case "joined":
                member.rank = message["rank"]
                self.members.sort(key=lambda m: self.workers if m.rank is None else m.rank)
            case "iteration":
                member.returns += [(message["iteration"], r) for r in message["returns"]]
                for name, values in member.seconds.items():
                    # One that caught up skips some, or does again what nobody knows of.
                    at = message["iteration"]
                    values[at:] = [0.0] * (at - len(values))
                    values.append(message[name])
                    self.spent[name] += message[name]
            case "round":
                member.recorded[message["iteration"]] = message
            case "done":
                member.done = message
            case "error":
                raise DemoFailed(f"worker {member.called}: {message['message']}")

    @property
    def done(self) -> bool:
        """Whether all workers are."""
        return all(member.done is not None for member in self.members)

    @property
    def iteration(self) -> int:
        """Iterations that all workers have completed."""
        return min((member.iterations for member in self.members), default=0)

    def keep_time(self, now: float) -> None:
        """Take the time when there is a new iteration that all workers have completed."""
        if self.iteration > self.timed:
            self.timed = self.iteration
            if self.started is None:
                self.started, self.untimed = now, self.timed
            self.seconds = now - self.started

    @property
    def rate(self) -> float | None:
        """Iterations per second; None while too little was timed to tell."""
        if self.seconds < RATE_AFTER:
            return None
        return (self.timed - self.untimed) / self.seconds

    def episodes(self, last: int | None = None) -> list[float]:
        """Returns of all workers' episodes, by the iteration they ended in; the `last` of them."""
        first = 0 if last is None else -last  # none but a worker's last can be among all's last
        ended = [(i, k, r) for k, m in enumerate(self.members) for i, r in m.returns[first:]]
        return [value for _, _, value in sorted(ended, key=lambda entry: entry[:2])][first:]


def run(args: argparse.Namespace) -> int:
    """Training the demo."""
    _check_arguments(args)
    from .demo_crew import DemoCrew
    from .demo_report import Screen, check, plot, summarise
    from .demo_sums import any_orders

    topology = _topology(args)
    capture = capture_folder(args.capture)
    training = Training(len(topology.hosts), args.iterations, args.seed, topology=topology)
    screen = Screen(training)
    try:
        training.any_order = bool(p4_switches(args.world, topology, args.switch))
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
    from ..wire import MAX_MEMBERS

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
