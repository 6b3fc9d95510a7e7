"""Measure allreduce by several strategies on the same hosts and links, in turns (A B A B).

A turn is several rounds without a pause, as training takes them; sums are checked. `iswitch bench
paper` repeats the comparisons of the iSwitch paper. Ctrl-C ends it with what was measured so far.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import signal
import sys
from collections.abc import Sequence
from dataclasses import replace
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from iswitch.lab.launch.worlds import WORLDS, check_link, p4_switches, read_topology, refused
from iswitch.lab.options import PIP_DEMO, check_writable, command, foot, quantity
from iswitch.outside import UsageError, writing
from iswitch.system.files import write

from .train import whole

if TYPE_CHECKING:
    from iswitch.lab.bench.measure import Progress
    from iswitch.lab.bench.network import Build
    from iswitch.lab.bench.plan import Plan, Setting, Way
    from iswitch.lab.bench.result import Results
    from topologies import Topology

SIZES = "ppo,ddpg,a2c,dqn"
P4_SIZES = "ppo,ddpg"  # a bmv2 needs seconds for a round of the others
# Options of strategies that a benchmark sets itself, or that need an object, or make sums others.
NOT_HERE = ("bind", "dtype", "filter", "key", "network", "op", "rank")


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    from worker_lib.strategies import STRATEGIES

    known = ", ".join((*STRATEGIES, "forward"))
    parser.add_argument("what", nargs="?", choices=("paper",), help="the paper's comparisons")
    parser.add_argument(
        "--sizes", metavar="LIST",
        help="vectors, such as 40kB,1MiB; the paper's gradients are ppo (40.02 KB), ddpg "
        f"(157.52 KB), a2c (3.31 MB), dqn (6.41 MB) (default: {SIZES}; bmv2: {P4_SIZES})",
    )  # fmt: skip
    parser.add_argument(
        "--strategies", metavar="LIST",
        help=f"of {known}; the others are compared with the first; options follow colons, such as "
        "iswitch:offload=False (default: all that can be had here)",
    )  # fmt: skip
    parser.add_argument("--workers", metavar="LIST", help="how many (default: 4; paper: 4,6,9,12)")
    parser.add_argument(
        "--topologies", metavar="LIST",
        help="star or rack (three workers each), for every number of workers; or forms such as "
        "tree:2x2x3, or a .toml file (default: star; paper: star:4, else racks)",
    )  # fmt: skip
    parser.add_argument(
        "--world", choices=WORLDS, help="as of iswitch run (default: loopback; paper: netns)"
    )
    parser.add_argument(
        "--rate",
        metavar="LIST",
        help="of every link, such as 1Gbit,100Mbit (default: unlimited; paper: 100Mbit,1Gbit)",
    )
    parser.add_argument("--loss", metavar="LIST", help="of every link, such as 0,1%% (default: 0)")
    turns = parser.add_mutually_exclusive_group()
    turns.add_argument(
        "--seconds", type=quantity(), default=5.0, metavar="S",
        help="for each size and network, at least 20 rounds; paper: 3 (default: %(default)g)",
    )  # fmt: skip
    turns.add_argument("--rounds", type=whole(1), metavar="N", help="instead: so many rounds")
    parser.add_argument(
        "--in-a-row", type=whole(1), metavar="N",
        help="rounds in a turn, without a pause, after two that do not count; 1: single rounds "
        "from a common start (default: 10; paper: 1)",
    )  # fmt: skip
    parser.add_argument(
        "--iterations", type=whole(0), metavar="N",
        help="whole iterations more: compute (sleep), aggregate, update (default: 10; "
        "paper: all are)",
    )  # fmt: skip
    parser.add_argument(
        "--compute", type=quantity(0), metavar="MS",
        help="milliseconds in which a gradient is computed (the paper's sizes have their own)",
    )  # fmt: skip
    parser.add_argument(
        "--no-offload", action="store_true", help="frames as on a wire, as of iswitch run"
    )
    parser.add_argument(
        "--pin", action="store_true",
        help="keep each process on one core: switches and servers, then workers, in turns",
    )  # fmt: skip
    parser.add_argument(
        "--switch", metavar="OPTIONS", default="",
        help="more of iswitch switch, for all switches, such as --switch=--spin=0.001",
    )  # fmt: skip
    parser.add_argument("--json", metavar="FILE", help="write all rounds")
    parser.add_argument("--csv", metavar="FILE", help="write the table's numbers")
    parser.add_argument("--html", metavar="FILE", help="write a page with plots")


def run(args: argparse.Namespace) -> int:
    """Measure."""
    from iswitch.lab.bench import machine
    from iswitch.lab.bench.group import BenchFailed
    from iswitch.lab.bench.network import Build
    from iswitch.lab.bench.plan import split
    from iswitch.lab.bench.result import Results
    from iswitch.lab.bench.screen import Bar
    from iswitch.lab.launch.launch import Signals, Stopped
    from iswitch.lab.launch.switches import SwitchFailed

    plan = plan_of(args)
    offload = not args.no_offload and plan.world != "bmv2"  # else the others would be ahead by it
    build = Build(offload, switch_options(args.switch, args.pin, plan.world), args.pin)
    for path in (args.json, args.csv, args.html):
        check_writable(path, *split(args.topologies or ""))
    if args.html and find_spec("matplotlib") is None:
        raise UsageError(f"--html draws with matplotlib: {PIP_DEMO}")
    where = machine.describe()
    results = Results()
    status = 0
    with Signals() as signals:
        try:
            with Bar(plan.cells) as bar:
                _measure(plan, results, bar.show, build)
        except (BenchFailed, SwitchFailed) as error:
            print(f"iswitch bench: {error}", file=sys.stderr)
            status = error.status if isinstance(error, SwitchFailed) else 1
        except Stopped as stopped:
            name = signal.Signals(stopped.signum).name
            so_far = "what was measured until then:" if results.cells() else "nothing was measured"
            print(f"stopped by {name}; {so_far}", file=sys.stderr)
            status = 128 + stopped.signum
        signals.hold()
        _report(args, plan, results, where, command(), complete=not status)
    return status


def _measure(plan: Plan, results: Results, progress: Progress, build: Build) -> None:
    from iswitch.lab.bench.measure import measure
    from iswitch.lab.bench.network import opened

    for setting in plan.settings:
        with opened(plan, setting, build) as groups:
            measure(plan, setting, groups, results, progress)


def _report(
    args: argparse.Namespace,
    plan: Plan,
    results: Results,
    where: dict[str, str],
    command: str,
    complete: bool,
) -> None:
    from rich.console import Console

    from iswitch.lab.bench import machine, paper, report

    console = Console(highlight=False, width=None if sys.stdout.isatty() else 100)

    def say(text: str) -> None:
        console.print("", text, sep="\n", markup=False)

    console.print(command, markup=False, soft_wrap=True)
    console.print(", ".join(f"{k} {v}" for k, v in where.items()), markup=False, soft_wrap=True)
    if not results.cells():
        return
    found = paper.compare(results) if args.what == "paper" else []
    for name, lines in paper.tables(found):
        console.print("", report.rich_table(name, paper.HEAD, lines), sep="\n")
    for cell, table in (
        zip(results.cells(), report.tables(results), strict=True) if not found else ()
    ):
        console.print("", table, sep="\n")
        console.print(report.limits(cell, machine.cores()), markup=False)
    say(paper.NOTE if found else report.note(plan, results))
    if told := report.hint(plan):
        say(told)
    if found:
        say("\n".join(paper.headlines(found)))
        say(paper.emulated(plan.sizes, plan.compute))
    if args.json:
        found_all = report.as_json(plan, results, where, command, complete)
        write(args.json, json.dumps(found_all, indent=1))
    if args.csv:
        write(args.csv, report.as_csv(plan, results))
    if args.html:
        from iswitch.lab.bench.html import page

        with writing(args.html):
            names = [foot(args.csv, args.html, "csv"), foot(args.json, args.html, "json")]
            page(plan, results, where, command, complete, found, names).write(args.html)


def plan_of(args: argparse.Namespace) -> Plan:
    """What the options ask for.

    Raises:
        UsageError: that cannot be.
    """
    from iswitch.core.format.wire import MAX_MEMBERS
    from iswitch.faults.units import QuantityError
    from iswitch.lab.bench import paper
    from iswitch.lab.bench.plan import Plan, Size, Way, networks, split

    of_paper = args.what == "paper"
    world = args.world or ("netns" if of_paper else "loopback")
    if world == "bmv2" and of_paper:
        raise UsageError(
            "paper compares asynchronous jobs, too, and a P4 program has rounds only; leave paper "
            "out, or use --world netns"
        )
    of_world = P4_SIZES if world == "bmv2" else SIZES
    size_list = of_world if args.sizes is None else args.sizes
    if world != "loopback" and os.geteuid() != 0:
        raise UsageError(f"the world {world} is of network namespaces: run it as root (sudo)")
    workers = [number(text, "--workers") for text in split(args.workers or "")]
    rates = links_of("rate", args.rate)
    losses = links_of("loss", args.loss)
    more: dict[str, Any] = {"rounds": args.rounds, "seconds": args.seconds}
    more["compute"] = None if args.compute is None else args.compute / 1e3
    try:
        sizes = [Size.parse(text) for text in split(size_list)]
        if of_paper:
            for option in ("strategies", "topologies", "loss", "iterations", "in_a_row"):
                if getattr(args, option) is not None:
                    name = option.replace("_", "-")
                    raise UsageError(f"paper has its own --{name}; leave it out")
            plan = paper.plan(sizes, workers or paper.WORKERS, rates or paper.RATES, world, **more)
        else:
            forms = split(args.topologies or "star")
            if "star" in forms and (many := [n for n in workers if n > MAX_MEMBERS]):
                raise UsageError(
                    f"--workers {many[0]}: a switch takes 1 to {MAX_MEMBERS} workers a job; take "
                    f"{MAX_MEMBERS} or fewer, or racks: --topologies rack"
                )
            settings = [
                with_rate(setting)
                for setting in networks(forms, workers or [4], rates or ["none"], losses or ["0"])
            ]
            ways = [Way.parse(text) for text in split(args.strategies or "")] or everything()
            more["iterations"] = 10 if args.iterations is None else args.iterations
            more["in_a_row"] = args.in_a_row or 10
            plan = Plan(sizes, settings, ways, world, **more)
    except QuantityError as error:
        raise UsageError(refused("--sizes", "size", size_list, str(error))) from None
    except ValueError as error:
        raise UsageError(str(error)) from None
    if not sizes:
        raise UsageError("--sizes names none, such as ppo,1MiB")
    check_ways(plan.ways, of_paper)
    check_settings(plan)
    return plan


def check_settings(plan: Plan) -> None:
    """Whether there can be such networks.

    Raises:
        UsageError: one cannot be.
    """
    from iswitch.lab.bench.plan import FORWARD

    from .run import check_members

    for setting in plan.settings:
        topology = topology_of(setting)
        check_members(topology, 1)
        p4_switches(plan.world, topology, ())
        if len(topology.tree) > 1 and any(way.name == FORWARD for way in plan.ways):
            raise UsageError(f"forward is of one switch, and {setting.form} has more; leave it out")
        if plan.world == "loopback" and (setting.rate or setting.loss):
            raise UsageError("--rate, --loss: the loopback world has no links; use --world netns")


def topology_of(setting: Setting) -> Topology:
    """The network.

    Raises:
        UsageError: there is none such.
    """
    return read_topology(setting.text, "--topologies")


def links_of(name: str, text: str | None) -> list[str]:
    """The values that --rate or --loss gives links.

    Raises:
        UsageError: no link can have one.
    """
    from iswitch.lab.bench.plan import NO_LIMIT, split

    values = split(text or "")
    for value in values:
        if value not in NO_LIMIT:
            check_link(name, value)
    return values


def with_rate(setting: Setting) -> Setting:
    """The setting, with the rate of its slowest link."""
    topology = topology_of(setting)
    rates = [link.rate for link in topology.links if topology.active(link) and link.rate]
    return replace(setting, slowest=min(rates, default=None))


def number(text: str, option: str) -> int:
    """A number of 1 or more.

    Raises:
        UsageError: it is none.
    """
    if not text.isdecimal() or len(text) > 9 or not int(text):
        raise UsageError(f"{option} {text}: whole numbers of 1 or more, such as {option} 2,4,8")
    return int(text)


def switch_options(text: str, pin: bool, world: str) -> list[str]:
    """Options for `iswitch switch`.

    Raises:
        UsageError: it has no such options, or they are at odds with --pin.
    """
    from . import switch

    parser = argparse.ArgumentParser(exit_on_error=False)
    switch.configure(parser)
    options = shlex.split(text)
    try:
        found, unknown = parser.parse_known_args(options)
    except argparse.ArgumentError as error:
        raise UsageError(f"--switch: {error}") from None
    if unknown:
        raise UsageError(f"--switch: iswitch switch has no {unknown[0]}; see its --help")
    if pin and found.cpu is not None:
        raise UsageError("--switch: with --pin every switch has its core; leave out --cpu")
    if world == "bmv2":
        switch.check_p4(found)
    return options


def everything() -> list[Way]:
    """All strategies that can be had here, the switch's first."""
    from iswitch.lab.bench.plan import Way
    from worker_lib.strategies import STRATEGIES, lacks

    return [Way.parse(name) for name in STRATEGIES if not lacks(name)]


def check_ways(ways: Sequence[Way], of_paper: bool) -> None:
    """Whether there are such strategies here.

    Raises:
        UsageError: one is not, or does not take such options.
    """
    from iswitch.lab.bench.plan import ASYNC, FORWARD
    from worker_lib.strategies import STRATEGIES, lacks, options

    for way in ways:
        if way.name == ASYNC and of_paper:
            continue
        if way.name not in (*STRATEGIES, FORWARD):
            raise UsageError(
                f"no strategy {way.name!r}; there are {', '.join((*STRATEGIES, FORWARD))}"
            )
        joins = "iswitch" if way.name == FORWARD else way.name
        if lacking := lacks(joins):
            raise UsageError(f"{lacking}; or leave it out")
        known = [name for name in options(joins) if name not in NOT_HERE]
        for option in way.options:
            if option not in known:
                raise UsageError(f"{way.label}: {way.name} takes {', '.join(known)} here")
        try:
            _ = way.servers
        except ValueError as error:
            raise UsageError(str(error)) from None
    labels = [way.label for way in ways]
    if len(set(labels)) < len(labels):
        raise UsageError("--strategies names one twice; each is measured once")
