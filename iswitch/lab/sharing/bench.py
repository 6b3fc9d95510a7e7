"""`iswitch bench sharing`, from its options to its reports."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import NamedTuple

from rich.console import Console

from iswitch.core.jobs.policies import POLICIES
from iswitch.core.jobs.policy import Static
from iswitch.lab.bench import machine
from iswitch.lab.bench.belonging import OF_FEDERATED, OF_NETWORKS, read
from iswitch.lab.bench.ending import say_stopped
from iswitch.lab.launch.switches import SwitchFailed
from iswitch.lab.options import command, foot, refuse
from iswitch.lab.progress import Bar
from iswitch.lab.reports.page import check_drawing
from iswitch.outside import UsageError
from iswitch.system.files import check_writable, whole, write
from iswitch.system.interrupts import Signals, Stopped
from iswitch.tables import Table, width

from . import emulated, report, simulated
from .plan import EXPERIMENTS, Experiment, Kind, Sharing, kinds, search
from .played import Failed, Played, Tell
from .report import Report

WORLDS = "sim", "netns", "loopback"
OTHERS: dict[str, object] = {
    **{name: value for name, value in OF_NETWORKS.items() if name != "world"}, **OF_FEDERATED,
    "rate": None, "sizes": None, "rounds": None, "compute": None,
}  # fmt: skip


class Step(NamedTuple):
    """A thing to play; without a sharing, to learn how long a job takes alone."""

    experiment: Experiment
    sharing: Sharing | None


MOST_TRIALS = 32  # of two workers, each on a host of its own


def chosen(args: argparse.Namespace) -> tuple[list[Experiment], list[str], str]:
    """Read what is to be played: experiments, policies and the world.

    Raises:
        UsageError: an option is wrong, or does not go with the others.
    """
    refuse(args, OTHERS, "is not of iswitch bench sharing")
    world = args.world or "sim"
    if world not in WORLDS:
        raise UsageError(f"--world {world}: jobs share memory in {', '.join(WORLDS)}; take one")
    names = read("experiments", args.experiments or ",".join(EXPERIMENTS), _one_of(EXPERIMENTS))
    policies = read("policies", args.policies or ",".join(POLICIES), _one_of(POLICIES))
    if args.trials is not None and "search" not in names:
        raise UsageError("--trials is of the experiment search; add that, or leave it out")
    small = world != "sim"
    if small and (args.trials or 0) > MOST_TRIALS:
        raise UsageError(
            f"--trials {args.trials}: {MOST_TRIALS} at most have hosts at one switch; take fewer, "
            "or --world sim"
        )
    made = [
        search(small, args.trials) if name == "search" else EXPERIMENTS[name](small)
        for name in names
    ]
    return made, policies, world


def _one_of(known: Iterable[str]) -> Callable[[str], str]:
    """Make what reads one of some words."""

    def parse(text: str) -> str:
        if text not in known:
            raise argparse.ArgumentTypeError(f"{text!r} is none of {', '.join(known)}")
        return text

    return parse


def bench(args: argparse.Namespace) -> int:
    """Play, compare, and report; return the exit status.

    Raises:
        OutsideError: an option is wrong, a network cannot be built, or a report cannot be written.
    """
    experiments, policies, world = chosen(args)
    for path in (args.json, args.html):
        check_writable(path)
    if args.html:
        check_drawing()
    told = Report({}, {}, world, command(), machine.describe())
    status = 0
    with Signals() as signals:
        try:
            _run(experiments, policies, told)
        except (Failed, SwitchFailed) as error:
            print(f"iswitch bench: {error}", file=sys.stderr)
            status = 1
        except Stopped as stopped:
            status = say_stopped(stopped, bool(told.played))
        signals.hold()
        told.complete = not status
        show(told)
        if told.played:
            keep(args, told)
    return status


def _run(experiments: Sequence[Experiment], policies: Sequence[str], told: Report) -> None:
    """Play everything; what is complete is added to `told`."""
    steps = [Step(one, way) for one in experiments for way in one.ways(policies)]
    before = [Step(alone, None) for one in experiments for alone in kinds(one)]
    total = sum(step.experiment.rounds for step in (*before, *steps))
    done = 0
    alone: dict[tuple[str, Kind], float] = {}
    with Bar(total, "starting") as bar:
        for experiment, sharing in (*before, *steps):
            name, label = experiment.name, sharing.label if sharing else "alone"
            if not sys.stderr.isatty() and sharing:
                print(f"{name}: {label}", file=sys.stderr, flush=True)
            tell = partial(_tell, bar, done, f"{name}: {label}")
            way = sharing or Sharing(label, Static.name, experiment.memory)
            tell(0)
            played = _play(experiment, way, tell, told.world)
            done += experiment.rounds
            if sharing is None:
                (task,) = experiment.tasks
                alone[name, task.kind] = played.jobs[task.number].seconds
            else:
                told.played.setdefault(name, []).append(played)
                told.alone[name] = {one.number: alone[name, one.kind] for one in experiment.tasks}


def _tell(bar: Bar, before: int, what: str, done: int) -> None:
    bar.show(before + done, what)


def _play(experiment: Experiment, sharing: Sharing, tell: Tell, world: str) -> Played:
    if world == "sim":
        return simulated.play(experiment, sharing, tell)
    return emulated.play(experiment, sharing, tell, world)


def show(told: Report) -> None:
    """Print the tables."""
    console = Console(highlight=False, width=width())
    console.print(told.command, markup=False, soft_wrap=True)
    for name, played in told.played.items():
        lines = [tuple(line) for line in report.table(told, name)]
        console.print("", Table(report.HEAD, lines, played[0].experiment.title))
        console.print(report.conditions(played[0], told.world), markup=False)
        if name == "search" and (lines := [tuple(line) for line in report.ratios(played)]):
            console.print(Table(report.RATIO_HEAD, lines, "beside the published ratios"))
    if told.played:
        console.print("", report.READING, markup=False)


def keep(args: argparse.Namespace, told: Report) -> None:
    """Write the files that the options name.

    Raises:
        OutsideError: a file cannot be written.
    """
    if args.json:
        write(args.json, json.dumps(report.as_json(told), indent=1))
    if args.html:
        made = report.page(told, foot(args.json, args.html, "json"))
        with whole(args.html):
            made.write(args.html)
