"""Builds the networks of a measurement, with switches and workers on them."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from iswitch.lab.launch.launch import free_addresses
from iswitch.lab.launch.processes import Fleet
from iswitch.lab.launch.switches import START_TIMEOUT, Switches
from iswitch.lab.launch.world import World
from iswitch.lab.launch.worlds import Namespaces, group_variables, make_world, read_topology

from .group import BenchFailed, Group, Lobby
from .plan import ASYNC, FORWARD, Plan, Setting, Way

if TYPE_CHECKING:
    from iswitch.lab.launch.processes import Child
    from topologies import Host, Topology

COUNTING_NONE = ("--counting", "none")
LOOK = 0.1  # seconds


class Build(NamedTuple):
    """Options of the networks and their processes."""

    offload: bool = True
    switch_options: Sequence[str] = ()  # more of `iswitch switch`
    pin: bool = False  # keep each process on one core
    say: Callable[[str], None] = lambda _: None  # tells the user what switches log


class Site(NamedTuple):
    """A network: its world, the hosts of workers, and its switches or the hosts of its servers."""

    world: World
    workers: Sequence[Host]
    switches: Switches | None = None  # None: the kernel's bridges, or none at all
    spare: Sequence[Host] = ()  # hosts for parameter servers


@contextmanager
def opened(plan: Plan, setting: Setting, build: Build) -> Iterator[list[Group]]:
    """Start a group of workers for each strategy on a network, for a `with` block.

    The strategies of the switch have a network of their own, and so has the switch that only
    forwards. All other strategies share a third network of equal topology. Its switches are the
    kernel's bridges, or iSwitches if links are impaired, since iSwitches impair them. Parameter
    servers have hosts of their own at its root.

    Raises:
        UsageError: the network cannot be built.
        SwitchFailed: a switch does not start.
        BenchFailed: a worker does not start.
    """
    with ExitStack() as stack:
        fleet = stack.enter_context(Fleet())
        lobby = stack.enter_context(Lobby(partial(check_alive, fleet)))
        sites: dict[str, Site] = {}
        ways = plan.ways_on(setting)
        for way in ways:
            kind = fabric(way)
            if kind not in sites:
                sites[kind] = stack.enter_context(site(kind, plan, setting, build, fleet))
        where = [sites[fabric(way)] for way in ways]
        meetings = [(one.world, one.workers[0].name) for one in where]
        found = free_addresses(meetings, socket.SOCK_STREAM)
        groups = []
        for i, (way, (_, port)) in enumerate(zip(ways, found, strict=True)):
            groups.append(start(i, way, where[i], port, lobby, fleet, build.pin))
        lobby.gather(groups)
        yield groups


def fabric(way: Way) -> str:
    """Name the kind of network that a strategy needs."""
    return {"iswitch": "iswitch", ASYNC: "iswitch", FORWARD: FORWARD}.get(way.name, "ordinary")


@contextmanager
def site(kind: str, plan: Plan, setting: Setting, build: Build, fleet: Fleet) -> Iterator[Site]:
    """Build a network and start its switches, for a `with` block.

    Args:
        kind: kind of the network, a result of `fabric`.
        plan: plan that names the world.
        setting: setting that names the topology.
        build: options of links and switches.
        fleet: fleet to which the switches' processes are added.
    """
    plain = read_topology(setting.text)
    servers = max(way.servers for way in plan.ways_on(setting)) if kind == "ordinary" else 0
    topology = with_hosts(plain, servers)
    # The P4 program is the strategy iswitch; what it is compared with is as in namespaces.
    form = "netns" if plan.world == "bmv2" and kind != "iswitch" else plan.world
    cable = setting.cable if kind != "ordinary" else "veth"
    with make_world(form, topology, offload=build.offload, cable=cable) as world:
        spare = topology.hosts[len(plain.hosts) :]
        if kind == "ordinary" and not any(link.impairment for link in topology.links):
            if isinstance(world, Namespaces):
                from topologies.bridges import build_bridges

                build_bridges(world.network)
            yield Site(world, plain.hosts, None, spare)
            return
        counting = COUNTING_NONE if kind == FORWARD else ()
        options = (*build.switch_options, *counting)
        with world.watched(f"iswitch bench: {kind}, {world.title}") as watch:
            switches = Switches(fleet, world, say=build.say, options=options, watch=watch)
            switches.start()
            if watch is not None:
                build.say(f"to watch: iswitch top {watch.folder}")
            yield Site(world, plain.hosts, switches, spare)
            switches.tell_news()


def with_hosts(topology: Topology, count: int) -> Topology:
    """Add hosts to a topology's root, linked as the first host is."""
    from topologies import Host

    (port,) = topology.ports(topology.hosts[0].name)
    hosts = [Host(f"server{i + 1}") for i in range(count)]
    links = [replace(port.link, a=host.name, b=topology.root.name) for host in hosts]
    return replace(topology, hosts=(*topology.hosts, *hosts), links=(*topology.links, *links))


def start(
    i: int, way: Way, site: Site, port: int, lobby: Lobby, fleet: Fleet, pinned: bool
) -> Group:
    """Start the workers of a strategy, and its servers.

    Args:
        i: the number of the strategy in the plan.
        way: the strategy.
        site: site at which its workers run.
        port: the TCP port at which they meet.
        lobby: where they report.
        fleet: the processes are added to it.
        pinned: whether to keep each process on one core.
    """
    world, switches = site.world, site.switches
    serving = with_children(switches.processes()) if switches is not None else []
    shared = group_variables(world, [host.name for host in site.workers], 0, port)
    shared |= {"OMP_NUM_THREADS": "1", "LOCAL_RANK": "0"}
    options: dict[str, Any] = {}
    if way.servers:
        options["servers"], processes = start_servers(way, site, fleet)
        serving += processes
    workers = []
    for rank, host in enumerate(site.workers):
        own = {"RANK": str(rank), **world.environment(host.name)}
        if switches is not None:
            own["ISWITCH_SWITCH"] = switches.at(host.name)
        links = "links" if isinstance(world, Namespaces) else "none"
        command = ["-m", "iswitch.lab.bench.member", lobby.path, str(i), links]
        place = world.place(host.name)
        child = fleet.start(f"worker {rank} of {way.label}", command, shared | own, place)
        workers.append(child.process.pid)
    if pinned:
        pin([*serving, *workers])
    return Group(way, len(site.workers), serving, **options)


def with_children(processes: Sequence[int]) -> list[int]:
    """Return these processes and all that they have started, such as a switch's bmv2."""
    found = list(processes)
    for process in found:
        for children in Path(f"/proc/{process}/task").glob("*/children"):
            with suppress(FileNotFoundError, ProcessLookupError):
                found += map(int, children.read_text().split())
    return found


def pin(processes: Sequence[int]) -> None:
    """Keep each process, with all of its threads, on one core; go through the cores in turn."""
    cores = sorted(os.sched_getaffinity(0))
    for process, core in zip(processes, cycle(cores), strict=False):
        with suppress(FileNotFoundError, ProcessLookupError):  # its end is reported elsewhere
            for thread in os.listdir(f"/proc/{process}/task"):
                os.sched_setaffinity(int(thread), {core})


def start_servers(way: Way, site: Site, fleet: Fleet) -> tuple[list[str], list[int]]:
    """Start the parameter servers of a strategy; return their addresses and process numbers."""
    addresses, processes = [], []
    for host in site.spare[: way.servers]:
        listen = f"{site.world.address(host.name)}:0"
        command = ["-m", "worker_lib.strategies.ps_server", "--listen", listen]
        child = fleet.start(f"server of {way.label}", command, None, site.world.place(host.name))
        processes.append(child.process.pid)
        addresses.append(listening(fleet, child))
    return addresses, processes


def listening(fleet: Fleet, server: Child) -> str:
    """Read a server's address from the line that it prints.

    Raises:
        BenchFailed: the server ends, or prints no such line in time.
    """
    limit = time.monotonic() + START_TIMEOUT
    while time.monotonic() < limit:
        for child, line in fleet.listen(LOOK):
            if child is server:
                if line is None:
                    raise BenchFailed(f"the {server.name} {server.ending()}")
                return line.split()[-1]
    raise BenchFailed(f"the {server.name} did not listen within {START_TIMEOUT:.0f} s")


def check_alive(fleet: Fleet) -> None:
    """Check that no process has ended.

    Raises:
        BenchFailed: a process has ended.
    """
    for child in fleet.children:
        if child.status() is not None:
            raise BenchFailed(f"the {child.name} {child.ending()}")
