"""Measures strategies in virtual time: each on a simulated network that it has to itself.

All workers of a strategy are threads of this process (see `topologies.virtual.notebook`). Nothing
else uses a processor's time in theirs; so there are no turns, and equal plans give equal results.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, NamedTuple

from iswitch.lab.launch.simulated import Virtual, simulated
from iswitch.lab.launch.worlds import read_topology
from iswitch.virtual.computing import Computing as Charges
from iswitch.virtual.computing import Plan as Computing
from topologies.simulated import Simulation
from topologies.virtual.hub import Stuck
from topologies.virtual.notebook import Floor, Seat
from worker_lib.errors import WorkerError
from worker_lib.strategies.ps_server import Server

from .group import TIMEOUT, BenchFailed, Done, Free, check_sums, round_of, rounds_of
from .measure import Progress
from .member import BenchWorker
from .network import with_hosts
from .plan import ALLREDUCE, ASYNC, BARRIER, WARM, Plan, Setting, Size, Way, described
from .result import Results, Series, hops_bound

JOB = 1
SERVING = 29600  # port of parameter servers
LOOK = 0.001  # seconds of virtual time between two looks whether all workers are there


class Step(NamedTuple):
    """One step of a measurement, which all workers begin at the same time.

    Attributes:
        rounds: calls in a row; of a free step, iterations without a common start.
        kind: "row", "free", or "check", a row whose last sum is checked.
        compute: seconds of emulated computing.
        update: whether it ends with an update.
    """

    rounds: int
    kind: str = "row"
    compute: float = 0.0
    update: bool = False


class Report(NamedTuple):
    """One worker's report: on each step when it began and what was done; wrong elements; counts."""

    steps: list[tuple[float, Any]]
    wrong: list[int]
    stats: dict[str, Any]


class Start:
    """Lets all workers begin a step at the same time."""

    def __init__(self, workers: int) -> None:
        self._workers = workers
        self._came = self._step = 0
        self._at = 0.0

    def __call__(self) -> float:
        """Wait until all workers are there; return when to begin."""
        step = self._step
        self._came += 1
        if self._came == self._workers:
            self._came, self._step, self._at = 0, step + 1, time.monotonic() + 2 * LOOK
        while self._step == step:
            time.sleep(LOOK)
        return self._at


def measure(
    plan: Plan, setting: Setting, virtual: Virtual, results: Results, progress: Progress
) -> None:
    """Measure all sizes on one network; `results` holds each series when it is complete.

    Args:
        plan: measurements to make.
        setting: the network.
        virtual: what hosts and switches take, and the grain.
        results: the measured series are added to it.
        progress: told of every strategy.

    Raises:
        WrongSum: a sum is not exact.
        BenchFailed: a worker has failed.
    """
    topology = read_topology(setting.text)
    workers = len(topology.hosts)
    ways = plan.ways_on(setting)
    for collective, size in plan.calls(workers):
        before = len(results.all_cells())
        label = described(collective, size, setting)
        begun = [Series(way, size, setting, workers, collective=collective) for way in ways]
        for i, one in enumerate(begun):
            if one.way.name == "iswitch" and collective == ALLREDUCE:
                one.hops = hops_bound(size, topology)
            progress(before + i / len(ways), f"{label}, {one.way.label}")
            _measure(plan, one, virtual)
        results.series += begun


def _measure(plan: Plan, one: Series, virtual: Virtual) -> None:
    way = one.way
    computing = plan.computing(one.collective, one.size)
    steps = list(steps_of(plan, way, computing))
    reports = run(way, one.collective, one.size, one.setting, virtual, steps)
    for i, step in enumerate(steps):
        at = reports[0].steps[i][0]
        done = [report.steps[i][1] for report in reports]
        if step.kind == "free":
            some = [round_of(done, step.rounds, step.compute, 0.0)]
        else:
            some = rounds_of(done, at, step.compute, step.update, 0.0)
        if plan.free and step.kind != "check":
            one.rounds += some
            one.iterations += some
        elif step.update:
            one.iterations += some
        elif step.kind == "row":
            one.rounds += some[WARM:] if plan.in_a_row > 1 else some
    if way.adds and one.collective != BARRIER:
        for wrong in zip(*(report.wrong for report in reports), strict=True):
            check_sums(way, wrong)
        one.exact = True
    one.stats = [report.stats for report in reports]


def steps_of(plan: Plan, way: Way, computing: float | None) -> Iterator[Step]:
    """Yield the steps in which a strategy is measured.

    Args:
        plan: measurements to make.
        way: the strategy.
        computing: seconds of emulated computing in an iteration; None: none.
    """
    assert plan.rounds is not None
    if way.name != ASYNC:
        yield Step(1, "check")
    compute = computing or 0.0
    if plan.free:
        for _ in range(plan.rounds):
            if way.adds:
                yield Step(1, compute=compute, update=True)
            else:
                yield Step(plan.free, "free", compute)
        return
    left = plan.rounds
    while left:
        count = min(plan.in_a_row, left)
        left -= count
        yield Step(count + (WARM if plan.in_a_row > 1 else 0))
    if computing is not None:
        for _ in range(plan.iterations):
            yield Step(1, compute=compute, update=True)
    yield Step(1, "check")


def run(
    way: Way, collective: str, size: Size, setting: Setting, virtual: Virtual, steps: list[Step]
) -> list[Report]:
    """Run the steps of one strategy on a network of its own; return the reports by rank.

    Raises:
        BenchFailed: a worker has failed.
    """
    plain = read_topology(setting.text)
    topology = with_hosts(plain, way.servers)
    simulation = simulated(topology, virtual)
    workers = len(plain.hosts)
    options: dict[str, Any] = {"timeout": TIMEOUT, **way.options}
    if way.servers:
        servers = [host.name for host in topology.hosts[workers:]]
        options["servers"] = [f"{topology.address(name)}:{SERVING}" for name in servers]
    start = Start(workers)

    def work(seat: Seat) -> Report | None:
        if seat.rank >= workers:
            with socket.create_server(("", SERVING), backlog=64) as door:
                Server(door, once=True).serve()
            return None
        member = BenchWorker(seat.rank, workers, counting(simulation, seat.host), lambda: 0.0)
        member.pace = pace_of(virtual.plan, seat.rank)
        if collective == ALLREDUCE:
            member.join(way.name, size.numel, JOB, options)
        else:
            member.join_exchange(way.name, collective, size.numel, JOB, options)
        done: list[tuple[float, Any]] = []
        wrong: list[int] = []
        for step in steps:
            member.prepare()
            at = start()
            if step.kind == "free":
                found: Free | Done = member.run(at, step.rounds, step.compute)
            else:
                found = member.go(at, step.compute, step.update, step.rounds)
            done.append((at, found))
            if step.kind == "check":
                wrong.append(member.check())
        start()  # nobody leaves before all are done
        return Report(done, wrong, member.leave())

    try:
        reports = Floor[Report | None](simulation, virtual.plan, workers).run(work)
    except (Stuck, WorkerError) as error:
        note = "; ".join(getattr(error, "__notes__", ()))
        raise BenchFailed(f"{way.label}: {error}{f' ({note})' * bool(note)}") from None
    return [report for report in reports if report is not None]


def pace_of(plan: Computing, rank: int) -> Callable[[], float]:
    """Make a function that draws a worker's next computing time, where an even one needs 1."""
    drawn = Charges(replace(plan, kind="fixed", seconds=1.0), rank)

    def pace() -> float:
        drawn.mark()
        return drawn.charge()

    return pace


def counting(simulation: Simulation, host: str) -> Callable[[], tuple[int, int]]:
    """Make a function that returns the bytes to and from a host on its link so far."""
    own, switch = simulation.address(host), simulation.switch_of(host)
    links = simulation.network.links
    return lambda: (links[switch, own].bytes, links[own, switch].bytes)
