"""Plays what workers do in the simulated world: real workers and switches, in virtual time.

The model has said in which order the calls go; how long each takes is what the network says.
"""

from __future__ import annotations

import time
from contextlib import ExitStack
from dataclasses import replace

import numpy as np

from iswitch.core.jobs.limits import Limits
from iswitch.lab.bench.simulated import Start
from iswitch.outside import UsageError
from iswitch.sim.grain import SINGLE
from iswitch.sim.handling import Handling
from iswitch.sim.model.steps import Call, Carried, Group, Posted, Rank
from iswitch.virtual.computing import read_plan
from topologies import Topology
from topologies.simulated import Simulation
from topologies.virtual.hub import Stuck
from topologies.virtual.notebook import Floor, Seat
from worker_lib.errors import WorkerError
from worker_lib.strategies import make
from worker_lib.strategies.base import Strategy
from worker_lib.worker import Worker

from .demand import Demand
from .scenario import Scenario, servers_of

WARM = 3  # rounds before, in which windows grow
TIMEOUT = 600.0  # seconds of virtual time


def play(scenario: Scenario, strategy: str, demand: Demand, carried: list[Carried]) -> list[float]:
    """Return the seconds of each step, as `Way.run` does.

    Args:
        scenario: the network.
        strategy: name and options.
        demand: what the workers do.
        carried: the order in which their calls are carried.

    Raises:
        UsageError: the strategy does not serve groups, or a worker has failed.
    """
    limits = Limits(slots=scenario.slots)
    simulation = Simulation(
        _topology(scenario),
        limits,
        latency=0.0,
        grain=SINGLE,
        hosts=scenario.hosts,
        switches=Handling(latency=scenario.latency),
        below=limits,
    )
    workers = scenario.workers
    start = Start(workers)

    def work(seat: Seat) -> list[float] | None:
        if seat.rank >= workers:
            return None
        with ExitStack() as stack:
            actor = _Actor(seat, demand, [one for one in carried if seat.rank in one.group.place])
            actor.join(strategy, stack)
            actor.play(start())
            start()  # nobody leaves before all are done
        return actor.rank.ends

    try:
        ends = Floor[list[float] | None](simulation, read_plan("zero"), workers).run(work)
    except (Stuck, WorkerError) as error:
        raise UsageError(f"--world sim, {strategy}: {error}") from None
    steps = np.array([some for some in ends if some is not None]).T
    took: list[float] = np.diff(steps.max(axis=1), prepend=0.0).tolist()
    return took


def _topology(scenario: Scenario) -> Topology:
    """Return the network with the rates and delays of the scenario."""
    fabric = scenario.fabric
    above = {
        (name, fabric.names[parent]): (rate, delay)
        for name, parent, rate, delay in zip(
            fabric.names[1:],
            fabric.parent[1:].tolist(),
            fabric.rate[1:].tolist(),
            fabric.delay[1:].tolist(),
            strict=True,
        )
    }
    links = []
    for link in scenario.topology.links:
        found = above.get((link.a, link.b)) or above.get((link.b, link.a))
        if found is not None:
            rate, delay = found
            known = None if rate == np.inf else int(rate)
            link = replace(link, rate=known, delay=delay, loss=scenario.loss)
        links.append(link)
    return replace(scenario.topology, links=tuple(links), seed=scenario.compute.seed)


class _Actor:
    """A worker that follows its program.

    Attributes:
        rank: where it is in the program.
    """

    def __init__(self, seat: Seat, demand: Demand, carried: list[Carried]) -> None:
        self.rank = Rank(seat.rank, demand.programs[seat.rank])
        self._seat, self._carried = seat, carried
        self._calls: dict[tuple[Group, int], Posted] = {}
        self._workers: dict[Group, Worker] = {}
        self._others: dict[int, Strategy] = {}  # by elements
        self._vector = np.ones(max((one.numel for one in carried), default=1), np.float32)

    def join(self, strategy: str, stack: ExitStack) -> None:
        """Join the others, and let windows grow."""
        seat = self._seat
        for number, group in enumerate(dict.fromkeys(one.group for one in self._carried)):
            if strategy == "iswitch":
                # Groups are numbered by their first ranks: no two of a rank are alike.
                job = 1 + number * seat.num_workers + group.ranks[0]
                worker = Worker(
                    seat.switch, job, self._vector.size, len(group.ranks),
                    rank=group.place[seat.rank], shorter=True, timeout=TIMEOUT,
                )  # fmt: skip
                self._workers[group] = stack.enter_context(worker)
                for _ in range(WARM):
                    worker.allreduce(self._vector, out=self._vector.copy())
            elif len(group.ranks) < seat.num_workers:
                raise UsageError(f"--world sim: {strategy} has no groups; take --strategy iswitch")
        if strategy != "iswitch":
            name, _, rest = strategy.partition(":")
            options = {"servers": servers_of(strategy, seat.num_workers)} if rest else {}
            for numel in sorted({one.numel for one in self._carried}):
                one = make(name, numel, timeout=TIMEOUT, **options)
                self._others[numel] = stack.enter_context(one)
                one.allreduce(np.ones(numel, np.float32))

    def play(self, begin: float) -> None:
        """Follow the program from a time on."""
        seat = self._seat
        self.rank.go(self._post)
        for piece in self._carried:
            posted = self._calls[piece.group, piece.number]
            called = begin + float(posted.came[piece.group.place[seat.rank]])
            time.sleep(max(0.0, called - time.monotonic()))
            self._sum(piece)
            posted.left -= piece.numel
            if not posted.left:
                posted.ends = {seat.rank: time.monotonic() - begin}
                self.rank.go(self._post)

    def _post(self, rank: int, call: Call, now: float) -> Posted:
        mine = [number for group, number in self._calls if group is call.group]
        posted = Posted(call, len(mine))
        posted.came[call.group.place[rank]] = now
        self._calls[call.group, len(mine)] = posted
        return posted

    def _sum(self, piece: Carried) -> None:
        if self._workers:
            part = self._vector[: piece.numel]
            self._workers[piece.group].allreduce(part, out=part)
            part[:] = 1
        else:
            self._others[piece.numel].allreduce(np.ones(piece.numel, np.float32))
