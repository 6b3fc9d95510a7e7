"""Makes a plan of the options of `iswitch bench`."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from iswitch.core.format.wire import MAX_MEMBERS
from iswitch.faults.units import QuantityError
from iswitch.lab.launch.cables import CABLES, check_shm
from iswitch.lab.launch.simulated import Virtual, nodes_of, refuse, with_stragglers
from iswitch.lab.launch.world import check_policy
from iswitch.lab.launch.worlds import check_link, p4_switches, read_topology, refused
from iswitch.outside import UsageError
from iswitch.virtual.computing import Plan as Computing
from topologies import Topology
from worker_lib.strategies import STRATEGIES, lacks, options
from worker_lib.strategies.collectives import NEEDS, OFFERING

from . import paper
from .memory import check_memory
from .plan import (
    ALLREDUCE,
    ASYNC,
    FORWARD,
    NO_LIMIT,
    P4_SIZES,
    PAPER,
    SIZES,
    STREAMS,
    Plan,
    Setting,
    Size,
    Way,
    fits,
    in_words,
    networks,
    split,
)

OF_PAPER = (
    "cable",
    "collective",
    "strategies",
    "topologies",
    "loss",
    "iterations",
    "in_a_row",
)  # what it sets
MPI_SHM = "mpi:btl=shm"
WITH_RACKS = "take racks, whose switches have one above: --topologies rack:2x2"
SECONDS = 5.0  # to measure each size and network for
FEW = 5, 3  # rounds and iterations in virtual time: they are equal, or nearly so
IN_SIM = ("iswitch", *STREAMS, ASYNC)
# Options of strategies that a benchmark sets itself, that need an object, or that change the sums.

NOT_HERE = ("bind", "dtype", "filter", "key", "network", "op", "rank")


def plan_of(args: argparse.Namespace) -> Plan:
    """Make the plan that the options describe.

    Raises:
        UsageError: an option has an impossible value, or two contradict each other.
    """
    of_paper = args.what == "paper"
    world = args.world or ("netns" if of_paper else "loopback")
    if world == "bmv2" and of_paper:
        raise UsageError(
            "paper compares asynchronous jobs, too, and a P4 program has rounds only; leave paper "
            "out, or use --world netns"
        )
    of_world = P4_SIZES if world == "bmv2" else SIZES
    if world == "sim" and of_paper:
        raise UsageError("iswitch paper repeats the paper's comparisons in virtual time; use that")
    size_list = of_world if args.sizes is None else args.sizes
    if world not in ("loopback", "sim") and os.geteuid() != 0:
        raise UsageError(f"the world {world} is of network namespaces: run it as root (sudo)")
    workers = [number(text, "--workers") for text in split(args.workers or "")]
    rates = links_of("rate", args.rate)
    losses = links_of("loss", args.loss)
    more: dict[str, Any] = {"rounds": args.rounds, "seconds": args.seconds or SECONDS}
    if world == "sim":
        check_virtual(args)
        more["rounds"] = args.rounds or FEW[0]
    more["compute"] = None if args.compute is None else args.compute / 1e3
    try:
        sizes = [Size.parse(text) for text in split(size_list)]
        if of_paper:
            for option in OF_PAPER:
                if getattr(args, option) is not None:
                    name = option.replace("_", "-")
                    raise UsageError(f"paper has its own --{name}; leave it out")
            plan = paper.plan(sizes, workers or paper.WORKERS, rates or paper.RATES, world, **more)
        else:
            plan = _side_by_side(args, sizes, workers, (rates, losses), world, more)
        check_ways(plan.ways, of_paper)
    except QuantityError as error:
        raise UsageError(refused("--sizes", "size", size_list, str(error))) from None
    except ValueError as error:
        raise UsageError(str(error)) from None
    if not sizes:
        raise UsageError("--sizes names none, such as ppo,1MiB")
    _check(plan)
    return plan


def _check(plan: Plan) -> None:
    """Refuse a plan that cannot be carried out here.

    Raises:
        UsageError: the message says why.
    """
    check_collectives(plan)
    check_settings(plan)
    if plan.world == "sim":
        check_ways_of_sim(plan)
    check_memory(plan, [len(topology_of(setting).hosts) for setting in plan.settings])


def virtual_of(args: argparse.Namespace, plan: Plan) -> Virtual | None:
    """Read the options of virtual time; None: the world is another one.

    Raises:
        UsageError: an option has a wrong value, or is none of that world's.
    """
    nodes = nodes_of(args, plan.world)
    if nodes is None:
        refuse({"--slow": args.slow or None, "--jitter": args.jitter})
        return None
    networks = [topology_of(setting) for setting in plan.settings]
    ranks = min(len(topology.hosts) for topology in networks)
    computing = with_stragglers(Computing("zero"), args, ranks)
    for setting, topology in zip(plan.settings, networks, strict=True):
        links = any(link.rate or link.delay for link in topology.links)
        if not links and not any(any(handling) for handling in nodes[1:]):
            raise UsageError(
                f"{setting.text} takes no time in virtual time, so nothing can be compared; "
                "say how fast links are, such as --rate 10Gbit"
            )
    return Virtual(computing, False, *nodes)


def check_virtual(args: argparse.Namespace) -> None:
    """Refuse options that have no meaning in virtual time.

    Raises:
        UsageError: the message names the option.
    """
    given = {
        "--seconds": args.seconds,
        "--pin": args.pin or None,
        "--switch": args.switch or None,
        "--cable": args.cable,
        "--no-offload": args.no_offload or None,
    }
    for option, value in given.items():
        if value is not None:
            raise UsageError(f"{option} is of real time; leave it out, or use another world")


def check_ways_of_sim(plan: Plan) -> None:
    """Refuse strategies that virtual time does not have, and loss where it would flatter.

    Raises:
        UsageError: the message names the strategy and the reason.
    """
    for way in plan.ways:
        if way.name == FORWARD:
            raise UsageError(
                "forward shows what adding costs the cores, and virtual time has none; leave it out"
            )
        if way.name not in IN_SIM:
            raise UsageError(
                f"{way.name} has sockets of its own, which know no virtual time; leave it out, or "
                "use --world netns"
            )
        for setting in plan.settings:
            links = topology_of(setting).links
            if way.name in STREAMS and any(replace(one.impairment, delay=0.0) for one in links):
                raise UsageError(
                    f"{way.name} would lose nothing: its transport is ideal in virtual time; leave "
                    f"out the faults of links ({setting.text}), or use --world netns"
                )


def _side_by_side(
    args: argparse.Namespace,
    sizes: Sequence[Size],
    workers: Sequence[int],
    links: tuple[Sequence[str], Sequence[str]],
    world: str,
    more: dict[str, Any],
) -> Plan:
    """Make the plan of a measurement that is not the paper's.

    Args:
        args: the options.
        sizes: sizes of vectors.
        workers: numbers of workers; none: 4.
        links: rates and losses; none: no limit, no loss.
        world: world to measure in.
        more: fields of the plan.

    Raises:
        UsageError, ValueError: an option has an impossible value.
    """
    rates, losses = links
    forms = split(args.topologies or "star")
    if "star" in forms and (many := [n for n in workers if n > MAX_MEMBERS]):
        raise UsageError(
            f"--workers {many[0]}: a switch takes 1 to {MAX_MEMBERS} workers a job; take "
            f"{MAX_MEMBERS} or fewer, or racks: --topologies rack"
        )
    settings = [
        replace(with_rate(setting), cable=cable)
        for cable in split(args.cable or "veth")
        for setting in networks(forms, workers or [4], rates or ["none"], losses or ["0"])
    ]
    more["collectives"] = called = collectives_of(args.collective)
    named = split(args.strategies or "")
    ways = [Way.parse(text) for text in named] or everything(called, world)
    known = [size for size in sizes if size.compute]
    if args.iterations and args.compute is None and sizes and not known:
        raise UsageError(
            f"--iterations: how long computing takes is known of {', '.join(PAPER)} only; say it "
            "with --compute MS"
        )
    of_world = FEW[1] if world == "sim" else 10
    iterations = of_world if args.iterations is None else args.iterations
    more |= {"iterations": iterations, "in_a_row": args.in_a_row or 10}
    return Plan(sizes, settings, ways, world, **more)


def check_settings(plan: Plan) -> None:
    """Refuse networks that the world or a strategy does not allow.

    Raises:
        UsageError: the message names the network and the reason.
    """
    for setting in plan.settings:
        topology = topology_of(setting)
        p4_switches(plan.world, topology, ())
        if len(topology.tree) > 1 and any(way.name == FORWARD for way in plan.ways):
            raise UsageError(f"forward is of one switch, and {setting.form} has more; leave it out")
        if setting.cable not in CABLES:
            raise UsageError(f"--cable {setting.cable}: there are {', '.join(CABLES)}")
        if setting.cable == "shm":
            check_shm(plan.world, p4_switches(plan.world, topology, ()))
        if plan.world == "loopback" and (setting.rate or setting.loss):
            raise UsageError(
                "--rate, --loss: the loopback world has no links; use --world netns or sim"
            )


def check_policies(plan: Plan, options: Sequence[str]) -> None:
    """Refuse a policy that passes segments on in networks where there is nowhere to.

    Args:
        plan: has the networks.
        options: those of all switches, each apart from its value.

    Raises:
        UsageError: the message names the network.
    """
    for setting in plan.settings:
        check_policy(options, topology_of(setting), WITH_RACKS)


def topology_of(setting: Setting) -> Topology:
    """Read the network of a setting.

    Raises:
        UsageError: no such network can be built.
    """
    return read_topology(setting.text, "--topologies")


def links_of(name: str, text: str | None) -> list[str]:
    """Split --rate or --loss into values that links can have.

    Raises:
        UsageError: no link can have one of them.
    """
    values = split(text or "")
    for value in values:
        if value not in NO_LIMIT:
            check_link(name, value)
    return values


def with_rate(setting: Setting) -> Setting:
    """Add the rate of the slowest link to a setting."""
    topology = topology_of(setting)
    rates = [link.rate for link in topology.links if topology.active(link) and link.rate]
    return replace(setting, slowest=min(rates, default=None))


def number(text: str, option: str) -> int:
    """Read a number of 1 or more.

    Raises:
        UsageError: the text is no such number.
    """
    if not text.isdecimal() or len(text) > 9 or not int(text):
        raise UsageError(f"{option} {text}: whole numbers of 1 or more, such as {option} 2,4,8")
    return int(text)


def everything(collectives: Sequence[str] = (ALLREDUCE,), world: str = "") -> list[Way]:
    """List the strategies that can run here and have these collectives, the switch's first.

    In the loopback world, where all share memory, Open MPI is there twice: over TCP and over that.
    """
    some = STRATEGIES if {*collectives} <= {ALLREDUCE} else OFFERING
    names = [name for name in some if not lacks(name) and (world != "sim" or name in IN_SIM)]
    if world == "loopback" and "mpi" in names:
        names.insert(names.index("mpi") + 1, MPI_SHM)
    return [Way.parse(name) for name in names]


def collectives_of(text: str | None) -> list[str]:
    """Read --collective.

    Raises:
        UsageError: there is no such collective, or it is named twice.
    """
    found = split(text or ALLREDUCE)
    known = (ALLREDUCE, *NEEDS)
    for name in found:
        if name not in known:
            raise UsageError(f"--collective {name}: there are {', '.join(known)}")
    if len({*found}) < len(found) or not found:
        raise UsageError(f"--collective {text}: name one or more, each once")
    return found


def check_collectives(plan: Plan) -> None:
    """Refuse collectives that a strategy or the world does not have.

    Raises:
        UsageError: the message names the strategy or the world.
    """
    others = [name for name in plan.collectives if name != ALLREDUCE]
    if not others:
        return
    if plan.world == "bmv2":
        raise UsageError(f"the P4 program has no {others[0]}: use --world netns")
    for way in plan.ways:
        if way.name not in OFFERING:
            have = ", ".join(OFFERING)
            raise UsageError(
                f"{way.name} has allreduce only; leave it out: {have} have {others[0]}"
            )


def check_ways(ways: Sequence[Way], of_paper: bool) -> None:
    """Refuse strategies or options that do not exist here.

    Raises:
        UsageError: a strategy is unknown, lacks a library, or does not take an option or its value.
        ValueError: a number of servers is impossible.
    """
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
        known = {name: kind for name, kind in options(joins).items() if name not in NOT_HERE}
        _ = way.servers
        for option, value in way.options.items():
            if option not in known:
                raise UsageError(f"{way.label}: {way.name} takes {', '.join(known)} here")
            if not fits(value, known[option]):
                raise UsageError(f"{way.label}: {option} is {in_words(known[option])}")
    labels = [way.label for way in ways]
    if len(set(labels)) < len(labels):
        raise UsageError("--strategies names one twice; each is measured once")
