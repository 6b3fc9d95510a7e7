"""The ways in which strategies exchange vectors in a network, and how long they take."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from iswitch.lab.bench.plan import ASYNC
from iswitch.outside import UsageError
from iswitch.sim.model import bounds, plans, steps, versions
from iswitch.sim.model.aggregation import GROWN, Window, aggregate
from iswitch.sim.model.bounds import Loads
from iswitch.sim.model.fabric import Fabric, Floats, Ints
from iswitch.sim.model.lossy import Losses, aggregate_with_losses
from iswitch.sim.model.messages import Exchange, Stream, TooLong
from iswitch.sim.model.ring import go_round, is_apart
from iswitch.sim.model.steps import Group
from worker_lib.strategies.packing import packed

from .demand import Demand
from .scenario import Scenario, servers_of

MOST_FRAMES = 400_000  # of streams on common lines: some seconds
VERSIONS = 200  # of asynchronous workers
ALIKE = 13  # decimals of a second in which starts are equal


@dataclass(frozen=True)
class Round:
    """An exchange of vectors of one size.

    Attributes:
        exchange: tells when workers have the sum, if they begin at some times; (ranks,) seconds.
        loads: what links carry in it.
        exact: whether its times are worked out packet by packet.
    """

    exchange: Callable[[Floats], Floats]
    loads: Loads
    exact: bool = True


class Way:
    """A strategy in a network.

    Attributes:
        kind: its name, without options.
        exact: whether the times of all its rounds so far are worked out packet by packet.
        trees: those of `tree`.
        loads: what links have carried so far.
        carried: the order in which the last run's calls were carried.
    """

    def __init__(self, scenario: Scenario, strategy: str, trees: Any = None) -> None:
        self.kind = strategy.partition(":")[0]
        self.exact, self.trees = True, trees
        self._scenario, self._strategy = scenario, strategy
        self.loads = Loads(scenario.fabric)
        self.carried: list[steps.Carried] = []
        self._chance = np.random.default_rng(scenario.compute.seed)
        self._longest = 0  # elements of the vectors of a job
        self._rounds: dict[tuple[Group, int], Round] = {}
        self._parts: dict[Group, tuple[Fabric, Ints]] = {}

    def run(self, demand: Demand) -> list[float]:
        """Return the seconds of each step: from when all ended the last one, to the same.

        Raises:
            UsageError: the workers' calls do not match, or are too many to work out.
        """
        if self.kind == ASYNC:
            return self._versions(demand)
        self._longest = demand.longest
        try:
            played = steps.play(
                demand.programs, self._exchange, demand.schedule, self._lanes(demand).__getitem__
            )
        except steps.Mismatch as error:
            raise UsageError(
                f"{self._scenario.size.label}: {error}; write a record for each call of each rank"
            ) from None
        except TooLong:
            raise UsageError(
                f"--strategy {self.kind}: an exchange would take an hour or more, longer than the "
                "model counts; take faster links, fewer bytes, or less computing"
            ) from None
        self.carried = played.carried
        took: list[float] = np.diff(played.ends.max(axis=1), prepend=0.0).tolist()
        return took

    def _versions(self, demand: Demand) -> list[float]:
        """Return the mean time between two versions of asynchronous workers, as the only step."""
        scenario = self._scenario
        shape, workers = scenario.shape, scenario.workers
        threshold = scenario.threshold or workers
        computes = [[item.seconds for item in items] for items in demand.programs]
        first = VERSIONS // 4  # before, the workers are not yet spread over time
        found = versions.play(
            scenario.fabric, shape, computes, VERSIONS, threshold, scenario.staleness,
            scenario.hosts, scenario.latency,
        )  # fmt: skip
        took = float((found.came[-1] - found.came[first]).mean()) / (VERSIONS - 1 - first)
        loads = bounds.of_aggregation(scenario.fabric, shape)
        loads.up *= threshold / workers
        loads.frames = loads.frames * threshold // workers
        self.loads, self.exact = loads, False
        return [took]

    def _lanes(self, demand: Demand) -> dict[Group, int]:
        """Return the lanes of groups: those that share links have one."""
        lanes: dict[Group, int] = {}
        for number, group in enumerate(demand.groups()):
            links = {*self._part(group)[1][1:].tolist()}
            shared = {
                lane for other, lane in lanes.items() if links & {*self._part(other)[1].tolist()}
            }
            lanes = {other: number if lane in shared else lane for other, lane in lanes.items()}
            lanes[group] = number
        return lanes

    def _part(self, group: Group) -> tuple[Fabric, Ints]:
        """Return the network of a group, and the number in the whole of each of its nodes."""
        if group not in self._parts:
            self._parts[group] = self._scenario.fabric.part(group.ranks)
        return self._parts[group]

    def _exchange(self, group: Group, numel: int, starts: Floats) -> Floats:
        """Return when the ranks of a group have a sum, and count what links carry."""
        fabric, nodes = self._part(group)
        if (group, numel) not in self._rounds:
            self._rounds[group, numel] = self._round(fabric, numel)
        found = self._rounds[group, numel]
        self.loads.up[nodes] += found.loads.up
        self.loads.down[nodes] += found.loads.down
        self.loads.frames += found.loads.frames
        self.exact &= found.exact
        first = float(starts.min())
        return first + found.exchange(np.round(starts - first, ALIKE))

    def _round(self, fabric: Fabric, numel: int) -> Round:
        """Return the exchange of vectors of `numel` elements of all hosts of a tree."""
        scenario, workers = self._scenario, len(fabric.hosts)
        nodes = scenario.hosts, scenario.latency
        if self.kind == "iswitch":
            shape = scenario.shape_of(numel)
            if numel < self._longest:  # in its last packet there are zeros
                shape = scenario.shape_of(min(shape.segments * shape.elements, self._longest))
            window = Window.of(shape, workers, GROWN, scenario.room, scenario.slots)
            loads = bounds.of_aggregation(fabric, shape)
            if scenario.loss:
                part = np.full(len(fabric.parent), scenario.loss)

                def repaired(starts: Floats) -> Floats:
                    losses = Losses(fabric, part, self._chance.random)
                    return aggregate_with_losses(fabric, shape, starts, window, losses, *nodes)

                return Round(repaired, loads, exact=False)
            return Round(lambda starts: aggregate(fabric, shape, starts, window, *nodes), loads)
        if self.kind == "ring" and is_apart(fabric):
            pieces = plans.chunks(numel, workers)
            return Round(
                lambda starts: go_round(fabric, pieces, starts, *nodes),
                bounds.of_ring(fabric, pieces),
            )
        streams = self._streams(fabric, numel)
        loads = bounds.of_streams(fabric, streams)
        if loads.frames <= MOST_FRAMES:
            return Round(Exchange(fabric, streams, *nodes).play, loads)
        if self.kind == "ps":
            return Round(
                lambda starts: bounds.pushed_and_answered(fabric, streams, starts, *nodes),
                loads,
                exact=False,
            )
        raise UsageError(
            f"--strategy {self.kind}: {loads.frames:,} frames on lines that its streams share "
            f"are too many, {MOST_FRAMES:,} at most; take fewer workers or a smaller size"
        )

    def _streams(self, fabric: Fabric, numel: int) -> list[Stream]:
        """Return what workers send each other; they share lines."""
        workers = len(fabric.hosts)
        if self.kind == "ps":
            return plans.ps(numel, workers, servers_of(self._strategy, workers))
        if self.kind == "ring":
            return plans.ring(numel, workers)
        if self.trees is None:
            hosts = [fabric.names[node] for node in fabric.hosts.tolist()]
            try:
                self.trees = packed(self._scenario.topology.network_of(hosts))
            except ValueError as error:
                raise UsageError(f"--strategy tree: {error}") from None
        return plans.tree(numel, self.trees)
