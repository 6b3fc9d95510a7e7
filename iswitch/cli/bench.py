"""Measure allreduce by several strategies on the same hosts and links, in turns (A B A B).

Of every size, network and strategy the rounds are from a common start to the last worker's end;
sums are checked. `iswitch bench paper` repeats the comparisons of the iSwitch paper. Ctrl-C ends it
with what was measured so far.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
from importlib.util import find_spec
from typing import TYPE_CHECKING

from . import UsageError, check_writable, quantity
from .worlds import WORLDS, read_topology

if TYPE_CHECKING:
    from ..bench.measure import Progress
    from ..bench.plan import Plan, Way
    from ..bench.result import Results

NEEDS = {"gloo": ("torch", "pip install -e '.[torch]'"), "mpi": ("mpi4py", "pip install mpi4py")}


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    from worker_lib.strategies import STRATEGIES

    known = ", ".join((*STRATEGIES, "forward"))
    parser.add_argument("what", nargs="?", choices=("paper",), help="the paper's comparisons")
    parser.add_argument(
        "--sizes", metavar="LIST", default="ppo,ddpg,a2c,dqn",
        help="vectors, such as 40kB,1MiB; the paper's gradients are ppo (40.02 KB), ddpg "
        "(157.52 KB), a2c (3.31 MB), dqn (6.41 MB) (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--strategies", metavar="LIST",
        help=f"of {known}; the others are compared with the first; options follow colons, such as "
        "iswitch:offload=False (default: all that can be had here)",
    )  # fmt: skip
    parser.add_argument(
        "--workers", metavar="LIST", default="4", help="how many (default: %(default)s)"
    )
    parser.add_argument(
        "--topologies", metavar="LIST", default="star",
        help="star or rack (three workers each), for every number of workers; or forms such as "
        "tree:2x2x3, or a .toml file (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--world", choices=WORLDS, default="loopback", help="as of iswitch run (%(default)s)"
    )
    parser.add_argument(
        "--rate", metavar="LIST", default="unlimited", help="of every link, such as 1Gbit,100Mbit"
    )
    parser.add_argument("--loss", metavar="LIST", default="0", help="of every link, such as 0,1%%")
    parser.add_argument(
        "--seconds", type=quantity(), default=5.0, metavar="S",
        help="for each size and network, at least 20 turns (default: %(default)g)",
    )  # fmt: skip
    parser.add_argument("--rounds", type=_count, metavar="N", help="instead: so many turns")
    parser.add_argument(
        "--iterations", type=_whole, default=10, metavar="N",
        help="turns more of whole iterations: compute (sleep), aggregate, update (%(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--compute", type=quantity(0), metavar="MS",
        help="milliseconds in which a gradient is computed (the paper's sizes have their own)",
    )  # fmt: skip
    parser.add_argument(
        "--no-offload", action="store_true", help="frames as on a wire, as of iswitch run"
    )
    parser.add_argument("--json", metavar="FILE", help="write all rounds")
    parser.add_argument("--csv", metavar="FILE", help="write the table's numbers")
    parser.add_argument("--html", metavar="FILE", help="write a page with plots")


def _whole(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of 0 or more")
    return int(text)


def _count(text: str) -> int:
    if not _whole(text):
        raise argparse.ArgumentTypeError("there has to be one at least")
    return int(text)


def run(args: argparse.Namespace) -> int:
    """Measure."""
    from ..bench import machine
    from ..bench.group import BenchFailed
    from ..bench.result import Results
    from .bench_screen import Bar
    from .launch import Signals, Stopped

    plan = plan_of(args)
    for path in (args.json, args.csv, args.html):
        check_writable(path)
    if args.html and find_spec("matplotlib") is None:
        raise UsageError("--html draws with matplotlib: pip install -e '.[demo]'")
    where = machine.describe()
    results = Results()
    status = 0
    with Signals() as signals:
        try:
            with Bar(plan.cells) as bar:
                _measure(plan, results, bar.show, not args.no_offload)
        except BenchFailed as error:
            print(f"iswitch bench: {error}", file=sys.stderr)
            status = 1
        except Stopped as stopped:
            name = signal.Signals(stopped.signum).name
            print(f"stopped by {name}; what was measured until then:", file=sys.stderr)
            status = 128 + stopped.signum
        signals.hold()
        _report(args, plan, results, where, machine.command(), complete=not status)
    return status


def _measure(plan: Plan, results: Results, progress: Progress, offload: bool) -> None:
    from ..bench.group import BenchFailed
    from ..bench.measure import measure
    from .bench_network import opened
    from .switches import SwitchFailed

    for setting in plan.settings:
        try:
            with opened(plan, setting, offload) as groups:
                measure(plan, setting, groups, results, progress)
        except SwitchFailed as error:
            raise BenchFailed(str(error)) from None


def _report(
    args: argparse.Namespace,
    plan: Plan,
    results: Results,
    where: dict[str, str],
    command: str,
    complete: bool,
) -> None:
    from rich.console import Console

    from ..bench import report

    console = Console(highlight=False, width=None if sys.stdout.isatty() else 100)
    console.print(command, markup=False, soft_wrap=True)
    console.print(
        ", ".join(f"{name} {value}" for name, value in where.items()), markup=False, soft_wrap=True
    )
    if not results.cells():
        return
    for table in report.tables(results):
        console.print("", table, sep="\n")
    console.print("", report.NOTE, sep="\n", markup=False)
    if args.json:
        with open(args.json, "w") as file:
            json.dump(report.as_json(plan, results, where, command, complete), file, indent=1)
    if args.csv:
        with open(args.csv, "w") as file:
            file.write(report.as_csv(plan, results))
    if args.html:
        from ..bench.html import page

        page(plan, results, where, command, complete).write(args.html)


def plan_of(args: argparse.Namespace) -> Plan:
    """What the options ask for.

    Raises:
        UsageError: that cannot be.
    """
    from ..bench.plan import FORWARD, Plan, Size, Way, networks, split
    from ..units import QuantityError

    if args.world != "loopback" and os.geteuid() != 0:
        raise UsageError(f"--world {args.world} makes network namespaces: run it as root (sudo)")
    try:
        sizes = [Size.parse(text) for text in split(args.sizes)]
        workers = [whole(text, "--workers") for text in split(args.workers)]
        settings = networks(
            split(args.topologies), workers, args.rate.split(","), args.loss.split(",")
        )
        ways = [Way.parse(text) for text in split(args.strategies or "")] or everything()
    except QuantityError as error:
        raise UsageError(f"--sizes: {error}") from None
    except ValueError as error:
        raise UsageError(str(error)) from None
    check_ways(ways)
    for setting in settings:
        topology = read_topology(setting.text)
        if len(topology.tree) > 1 and any(way.name == FORWARD for way in ways):
            raise UsageError(f"forward is of one switch, and {setting.form} has more; leave it out")
        if args.world == "loopback" and (setting.rate or setting.loss):
            raise UsageError("--rate, --loss: the loopback world has no links; use --world netns")
    if not sizes:
        raise UsageError("--sizes names none, such as ppo,1MiB")
    compute = None if args.compute is None else args.compute / 1e3
    return Plan(
        sizes,
        settings,
        ways,
        args.world,
        rounds=args.rounds,
        seconds=args.seconds,
        iterations=args.iterations,
        compute=compute,
    )


def whole(text: str, option: str) -> int:
    """A number of 1 or more.

    Raises:
        UsageError: it is none.
    """
    if not text.isdecimal() or not int(text):
        raise UsageError(f"{option} {text}: whole numbers of 1 or more, such as {option} 2,4,8")
    return int(text)


def everything() -> list[Way]:
    """All strategies that can be had here, the switch's first."""
    from worker_lib.strategies import STRATEGIES

    from ..bench.plan import Way

    names = [n for n in STRATEGIES if n not in NEEDS or find_spec(NEEDS[n][0]) is not None]
    return [Way.parse(name) for name in names]


def check_ways(ways: list[Way]) -> None:
    """Whether there are such strategies here.

    Raises:
        UsageError: one is not.
    """
    from worker_lib.strategies import STRATEGIES

    from ..bench.plan import FORWARD

    for way in ways:
        if way.name not in (*STRATEGIES, FORWARD):
            raise UsageError(
                f"no strategy {way.name!r}; there are {', '.join((*STRATEGIES, FORWARD))}"
            )
        package, mend = NEEDS.get(way.name, ("", ""))
        if package and find_spec(package) is None:
            raise UsageError(f"{way.name} needs {package}: {mend}; or leave it out")
    labels = [way.label for way in ways]
    if len(set(labels)) < len(labels):
        raise UsageError("--strategies names one twice; each is measured once")
