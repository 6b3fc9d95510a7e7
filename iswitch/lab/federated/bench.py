"""`iswitch bench federated`, from its options to its reports."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace

from rich.console import Console

from iswitch.core.format.wire import MAX_MEMBERS
from iswitch.faults.units import RATE
from iswitch.lab.bench import machine
from iswitch.lab.bench.belonging import OF_NETWORKS, read
from iswitch.lab.bench.ending import say_stopped
from iswitch.lab.bench.plan import Size
from iswitch.lab.options import command, quantity, refuse
from iswitch.lab.progress import Bar
from iswitch.lab.reports.page import check_drawing
from iswitch.outside import UsageError
from iswitch.system.files import check_writable, json_text, whole, write
from iswitch.system.interrupts import Signals, Stopped
from iswitch.tables import Table, width
from topologies.virtual.hub import Stuck
from worker_lib.errors import WorkerError
from worker_lib.fedprox.data import CLASSES, DATASETS, FEATURES, Federation, title
from worker_lib.fedprox.models import MODELS
from worker_lib.fedprox.rounds import Setting

from . import report as reports
from .choosing import INSTEAD, check_steps, devices_of
from .report import Report
from .runs import Found, Way, run, settings_of
from .timing import NETWORKS, Course, Timed, measure

DATA = "iid,synthetic_0_0,synthetic_0.5_0.5,synthetic_1_1"  # the paper's
STRAGGLERS = "0,50,90"  # per cent
MU = "1"
RATE_ = "10Mbit"
COMPUTE = 1000.0  # ms that devices compute in a round
TARGET = 0.7
OF_TIMES = dict.fromkeys(("rate", "sizes", "compute", "spread"))


def _share(text: str) -> float:
    share = quantity(0)(text.removesuffix("%")) / 100
    if share > 1:
        raise argparse.ArgumentTypeError(f"{text!r} is more than 100 per cent")
    return share


def _data(text: str) -> str:
    if text not in DATASETS:
        raise argparse.ArgumentTypeError(f"{text!r} is none of {', '.join(DATASETS)}")
    return text


def chosen(args: argparse.Namespace) -> tuple[list[Setting], Course | None]:
    """Read what is to be trained, and what is to be timed; None: nothing is.

    Raises:
        UsageError: an option is wrong, or does not go with the others.
    """
    refuse(args, OF_NETWORKS, "is not of iswitch bench federated", INSTEAD)
    plain = Setting()
    devices, picked = devices_of(args)
    base = replace(
        plain,
        devices=devices,
        picked=picked,
        rounds=args.rounds or plain.rounds,
        epochs=args.epochs or plain.epochs,
        model=args.model or plain.model,
    )
    data = read("data", args.data or DATA, _data)
    shares = read("stragglers", args.stragglers or STRAGGLERS, _share)
    ways = reports.ways_of(read("mu", args.mu or MU, quantity(0)))
    for way in ways:
        check_steps(way.of(base).steps)
    settings = settings_of(base, data, shares, ways, range(1, (args.seeds or 1) + 1))
    for name in data:  # a library that is missing is named now, not after hours
        DATASETS[name](1, devices)
    MODELS[base.model](FEATURES, CLASSES)
    if args.accuracy == 0:
        refuse(args, OF_TIMES, "is of times, and --accuracy 0 measures none")
        return settings, None
    if args.accuracy is not None and args.accuracy > 1:
        raise UsageError(f"--accuracy {args.accuracy:g}: an accuracy is a share, 0 to 1")
    if not 1 < devices < MAX_MEMBERS:
        raise UsageError(
            f"--devices {devices}: times are measured at one switch, and in racks, of 2 to "
            f"{MAX_MEMBERS - 1} devices; take such a number, or measure no times: --accuracy 0"
        )
    rate = args.rate or RATE_
    if len(read("rate", rate, RATE.parse)) > 1:
        raise UsageError(f"--rate {rate}: all links have one rate here; name one")
    sizes = (
        [0]
        if args.sizes is None
        else read("sizes", args.sizes, lambda word: Size.parse(word).numel)
    )
    timed = replace(
        base, data=data[-1], stragglers=max(shares),
        seconds=(COMPUTE if args.compute is None else args.compute) / 1000,
    )  # fmt: skip
    both = [ways[0], ways[-1]]
    course = Course(timed, both, sizes, rate, args.accuracy or TARGET, args.spread or 0.0)
    for name in NETWORKS:
        course.network(name)  # one that cannot be is refused now
    return settings, course


def bench(args: argparse.Namespace) -> int:
    """Train, time, and report; return the exit status.

    Raises:
        OutsideError: an option is wrong, or a report cannot be written.
    """
    settings, course = chosen(args)
    for path in (args.json, args.html):
        check_writable(path)
    if args.html:
        check_drawing()
    found = Found()
    timed: list[Timed] = []
    where, status = machine.describe(), 0
    with Signals() as signals:
        try:
            _run(settings, course, found, timed)
        except (Stuck, WorkerError) as error:
            print(f"iswitch bench: {error}", file=sys.stderr)
            status = 1
        except Stopped as stopped:
            status = say_stopped(stopped, bool(found.runs))
        signals.hold()
        told = Report(found, timed, command(), course.target if course else 0.0, where, not status)
        show(told)
        if found.runs or timed:
            keep(args, told)
    return status


def _run(
    settings: Sequence[Setting], course: Course | None, found: Found, timed: list[Timed]
) -> None:
    """Do all that is to be done; what is complete is added to `found` and `timed`."""
    jobs = list(course.jobs()) if course else []
    total = sum(one.rounds for one in settings)
    total += len(jobs) * (course.setting.rounds if course else 0)
    done = 0
    made: tuple[tuple[str, int, int], Federation] | None = None

    def federation(setting: Setting) -> Federation:
        nonlocal made
        key = setting.data, setting.seed, setting.devices
        if made is None or made[0] != key:
            made = key, setting.federation()
        return made[1]

    with Bar(total, "starting") as bar:

        def teller(what: str) -> Callable[[int], None]:
            if not sys.stderr.isatty():
                print(what, file=sys.stderr, flush=True)
            return lambda rounds: bar.show(done + rounds, what)

        for setting in settings:
            way = Way(setting.algorithm, setting.steps.mu)
            what = (
                f"{title(setting.data)}, {100 * setting.stragglers:g} %, seed {setting.seed}: "
                f"{way.label}"
            )
            found.runs.append(run(setting, federation(setting), teller(what)))
            done += setting.rounds
        for job in jobs:
            assert course is not None
            tell = teller(f"time to {course.target:g}: {job[0]}, {job[1].label}")
            timed.append(measure(course, job, federation(course.setting), tell))
            done += course.setting.rounds


def show(told: Report) -> None:
    """Print the tables."""
    console = Console(highlight=False, width=width())
    console.print(told.command, markup=False, soft_wrap=True)
    if told.found.runs:
        caption = "test accuracy, %"
        lines = reports.table(told.found)
        console.print("", Table(tuple(reports.HEAD), [tuple(line) for line in lines], caption))
        console.print(reports.headline(told.found), reports.READING, sep="\n", markup=False)
    if told.timed:
        lines = reports.timed_table(told.timed, told.target)
        console.print("", Table(tuple(reports.TIMED_HEAD), [tuple(line) for line in lines], ""))
        console.print(reports.conditions(told.timed, told.target), markup=False)


def keep(args: argparse.Namespace, told: Report) -> None:
    """Write the files that the options name.

    Raises:
        OutsideError: a file cannot be written.
    """
    if args.json:
        write(args.json, json_text(reports.as_json(told)))
    if args.html:
        made = reports.page(told, reports.saved_as(args.json, args.html))
        with whole(args.html):
            made.write(args.html)
