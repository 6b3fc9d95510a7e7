"""Predicts iterations: when workers end them, what links carry, and what would shorten them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from statistics import mean, median
from typing import Any, NamedTuple

import numpy as np

from iswitch.core.sums.numpy_plane import memory_needed
from iswitch.sim.handling import Handling
from iswitch.sim.model.aggregation import GROWN, Window
from iswitch.sim.model.bounds import Loads
from iswitch.sim.model.fabric import Ints

from .demand import Demand
from .scenario import Scenario
from .ways import Way

TRIED = 3  # iterations in which changes are tried
FASTER = " links twice as fast"
HALF = "half as many bytes"
ALIKE = 0.9  # part of the use of the busiest links from which on others are as busy
LEAST = 0.02  # part of an iteration by which a change must shorten it to count


@dataclass(frozen=True)
class Class:
    """The links between nodes of two kinds.

    Attributes:
        name: the kinds.
        count: number of links.
        rate: bit/s, the lowest; None: they have none.
        up, down: part of the time in which the busiest of them sends, in each direction.
        mean: the same, the mean over all of them and both directions.
    """

    name: str
    count: int
    rate: float | None
    up: float
    down: float
    mean: float


@dataclass(frozen=True)
class Change:
    """Something that would make an iteration shorter or longer: what, and the seconds then."""

    what: str
    seconds: float


@dataclass(frozen=True)
class Prediction:
    """The iterations of one strategy.

    Attributes:
        strategy: its name and options.
        seconds: an iteration, the median.
        iterations: each of them.
        compute: seconds of computing in it: the mean of the workers, of iterations the median.
        aggregation: seconds of it that a mean worker does not compute, the median.
        exact: whether it is worked out packet by packet; if not, it is an estimate.
        loss: part of its packets that each link loses; those of connections are not lost.
        packets: frames that hosts send in an iteration.
        links: use of the links, class by class.
        memory: bytes that a switch needs, by kind of switch; empty: none adds.
        changes: what was tried; the one that helps most comes first.
    """

    strategy: str
    seconds: float
    iterations: tuple[float, ...]
    compute: float
    aggregation: float
    exact: bool
    loss: float
    packets: int
    links: tuple[Class, ...]
    memory: dict[str, int]
    changes: tuple[Change, ...]

    @property
    def bottleneck(self) -> str:
        """Say what limits the iteration: what shortens it most; "": nothing that was tried."""
        tried = [change for change in self.changes if change.what != HALF]
        if not tried or tried[0].seconds >= (1 - LEAST) * self.seconds:
            return ""
        best, near = tried[0], tried[0].seconds + LEAST * self.seconds
        if best.what == f"all{FASTER}":  # some of them may do as well
            best = next(
                (
                    change
                    for change in tried[1:]
                    if change.what.endswith(FASTER) and change.seconds < near
                ),
                best,
            )
        return best.what.rpartition(" twice ")[0]

    def as_json(self) -> dict[str, Any]:
        """Return all of it for JSON."""
        return {
            "strategy": self.strategy,
            "seconds": self.seconds,
            "iterations": list(self.iterations),
            "compute": self.compute,
            "aggregation": self.aggregation,
            "exact": self.exact,
            "loss": self.loss,
            "packets": self.packets,
            "links": [vars(one) for one in self.links],
            "memory": self.memory,
            "bottleneck": self.bottleneck,
            "changes": [vars(one) for one in self.changes],
        }


def predict(scenario: Scenario, strategy: str, changes: bool = True) -> Prediction:
    """Predict the iterations of a strategy; `changes`: also what would shorten them.

    Raises:
        UsageError: the strategy cannot be worked out in this network.
    """
    demand = Demand.of(scenario)
    way = Way(scenario, strategy)
    took = way.run(demand)
    is_played = scenario.world == "sim"
    if is_played:
        from .playing import play  # which is slow to load

        took = play(scenario, strategy, demand, way.carried)
    seconds = median(took)
    loads = way.loads.of_each(len(took))
    links = _classes(scenario, loads, seconds)
    tried: list[Change] = []
    if changes and not is_played:
        some = demand.first(TRIED)
        before = seconds if len(took) <= TRIED else median(took[:TRIED])
        for what, other, drawn in _changes(scenario, strategy, links, some):
            after = median(Way(other, strategy, way.trees).run(drawn))
            tried.append(Change(what, seconds * after / (before or 1)))
        tried.sort(key=lambda change: change.seconds)
    memory = _memory(scenario) if way.kind == "iswitch" else {}
    compute = demand.compute
    if len(took) < len(compute):  # asynchronous workers have one mean iteration
        compute = [mean(compute)]
    rest = [whole - part for whole, part in zip(took, compute, strict=True)]
    return Prediction(
        strategy,
        seconds,
        tuple(took),
        median(compute),
        max(0.0, median(rest)),
        (way.exact and not scenario.shares) or is_played,
        scenario.loss if way.kind == "iswitch" else 0.0,
        loads.frames,
        links,
        memory,
        tuple(tried),
    )


def _changes(
    scenario: Scenario, strategy: str, links: tuple[Class, ...], demand: Demand
) -> Iterator[tuple[str, Scenario, Demand]]:
    """Yield what could be changed: what, the scenario then, and what workers do."""
    fabric, hosts = scenario.fabric, scenario.hosts
    most = max(max(one.up, one.down) for one in links)
    busy = [one.name for one in links if most and max(one.up, one.down) > ALIKE * most]
    if busy:
        rate = np.where(np.isin(_kinds(scenario)[1], busy), 2 * fabric.rate, fabric.rate)
        faster = replace(scenario, fabric=fabric._replace(rate=rate))
        if len(busy) < len(links):
            yield f"{' and '.join(busy)}{FASTER}", faster, demand
        every = replace(scenario, fabric=fabric._replace(rate=2 * fabric.rate))
        yield f"all{FASTER}", every, demand
    if fabric.delay.any():
        delay = fabric._replace(delay=fabric.delay / 2)
        yield "delays of links twice as short", replace(scenario, fabric=delay), demand
    if hosts:
        half = Handling(*(value / 2 for value in hosts))
        yield "hosts twice as fast", replace(scenario, hosts=half), demand
    if scenario.latency:
        yield (
            "switches twice as fast",
            replace(scenario, latency=scenario.latency / 2),
            demand,
        )
    if strategy == "iswitch":
        shape, workers = scenario.shape, scenario.workers
        window = Window.of(shape, workers, GROWN, scenario.room, scenario.slots)
        if window != Window.of(shape, 1, GROWN):
            share = 2 * window.ceiling * shape.packet_size
            slots = 2 * scenario.slots if scenario.slots < shape.segments else 0
            twice = replace(scenario, room=max(scenario.room, share * workers), slots=slots)
            yield "windows of workers twice as large", twice, demand
    if any(demand.compute):
        yield "computing twice as fast", scenario, demand.faster()
        if (even := demand.evened()) is not None:
            yield "the slowest worker twice as near to the others", scenario, even
    if scenario.size.numel > 1:
        yield HALF, scenario, demand.halved()


def _kinds(scenario: Scenario) -> tuple[dict[str, Ints], np.ndarray[Any, Any]]:
    """Return the nodes of each class of links, and the class of the link above each node."""
    fabric, depths = scenario.fabric, scenario.fabric.depths()
    kinds = [name.rstrip("0123456789") for name in fabric.names]
    names = [""] + [f"{kinds[node]}-{kinds[fabric.parent[node]]}" for node in range(1, len(kinds))]
    levels: dict[str, set[int]] = {}
    for name, depth in zip(names, depths.tolist(), strict=True):
        levels.setdefault(name, set()).add(depth)
    told = np.array(
        [
            name if len(levels[name]) == 1 else f"{name} of level {depth}"
            for name, depth in zip(names, depths.tolist(), strict=True)
        ]
    )
    order = dict.fromkeys(told[1:].tolist())
    return {name: np.flatnonzero(told == name) for name in order}, told


def _classes(scenario: Scenario, loads: Loads, seconds: float) -> tuple[Class, ...]:
    """Return how busy the links are in an iteration, from the workers up."""
    fabric = scenario.fabric
    found = []
    for name, nodes in reversed(_kinds(scenario)[0].items()):
        up, down = (
            load[nodes] * 8 / fabric.rate[nodes] / (seconds or np.inf)
            for load in (loads.up, loads.down)
        )
        rate = float(fabric.rate[nodes].min())
        mean = float(up.mean() + down.mean()) / 2
        limit = rate if np.isfinite(rate) else None
        found.append(Class(name, len(nodes), limit, float(up.max()), float(down.max()), mean))
    return tuple(found)


def _memory(scenario: Scenario) -> dict[str, int]:
    """Return the bytes that the job reserves at a switch of each kind."""
    fabric, shape = scenario.fabric, scenario.shape
    slots = scenario.slots if scenario.slots < shape.segments else 0
    hosts = set(fabric.hosts.tolist())
    return {
        name.rstrip("0123456789"): memory_needed(shape, False, True, node != 0, slots)
        for node, name in reversed(list(enumerate(fabric.names)))
        if node not in hosts
    }


class Point(NamedTuple):
    """What was predicted for one choice of options.

    Attributes:
        options: the values of those that are swept, as text, by name.
        network: the topology, in words.
        workers: how many.
        size: the vector, in words; or the workload.
        bytes: of it; of a workload, all that a worker has summed in a step.
        predictions: of each strategy, as `Prediction.as_json` has them.
    """

    options: dict[str, str]
    network: str
    workers: int
    size: str
    bytes: int
    predictions: list[dict[str, Any]]

    def speedup(self, at: int) -> float | None:
        """Return how many times as fast the first strategy is as that number `at`; None: 0 s."""
        first: float = self.predictions[0]["seconds"]
        return self.predictions[at]["seconds"] / first if first else None


def point(scenario: Scenario, options: dict[str, str], changes: bool) -> Point:
    """Predict all strategies of a scenario."""
    found = [predict(scenario, name, changes).as_json() for name in scenario.strategies]
    size, network = scenario.size, scenario.topology.name
    summed = size.bytes if scenario.work is None else Demand.of(scenario).bytes
    return Point(options, network, scenario.workers, size.label, summed, found)
