"""Puts our values beside the published ones."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from iswitch.lab.bench.paper import RING, SERVER, SERVER_ASYNC, SWITCH, SWITCH_ASYNC
from iswitch.lab.bench.plan import PAPER

from .published import ATP, HEADLINES, ISWITCH, REASONS, SWITCHML, Headline
from .setups import MODEL, SIM, Setup, Times, line_seconds

WORLDS = (MODEL, SIM)
FIRST = "star:4"  # iSwitch's headlines are of four workers around a switch
NSDI = "star:8", "100Gbit"  # where SwitchML and ATP compare with others
Seconds = Mapping[str, float]  # of an iteration, by strategy


class Row(NamedTuple):
    """A published number and ours; None: that is not known."""

    headline: Headline
    ours: dict[str, float | None]  # by world

    def deviation(self, world: str) -> float | None:
        """Return by which part ours is above the published number."""
        value = self.ours[world]
        return None if value is None else value / self.headline.value - 1

    def as_json(self) -> dict[str, Any]:
        """Return it for JSON."""
        told = self.headline._asdict()
        told["reasons"] = list(self.headline.reasons)
        deviations = {world: self.deviation(world) for world in WORLDS}
        return {**told, **self.ours, "deviation": deviations}


def compare(papers: Sequence[str], times: Iterable[Times]) -> list[Row]:
    """Return a row for each headline of some papers, whether or not ours is known."""
    values: dict[str, dict[str, float]] = {world: {} for world in WORLDS}
    for one in times:
        setup, world = one.task
        for key, value in _values(setup, one.seconds):
            known = values[world]
            known[key] = max(value, known.get(key, value))
    return [
        Row(headline, {world: values[world].get(headline.key) for world in WORLDS})
        for headline in HEADLINES
        if headline.paper in papers
    ]


def _values(setup: Setup, seconds: Seconds) -> Iterable[tuple[str, float]]:
    """Yield what a set-up says of headlines, by their keys; of equal keys the largest counts."""
    if setup.paper == ISWITCH:
        if setup.network == FIRST:
            yield from _of_iswitch(setup, seconds)
    elif setup.elements:
        workers = setup.network.partition(":")[2]
        yield f"line {workers} {setup.rate}", line_seconds(setup) / seconds[SWITCH.label]
    elif (setup.network, setup.rate) == NSDI:
        ratio = seconds[RING.label] / seconds[SWITCH.label]
        names = {SWITCHML: ("over rdma", "over tcp"), ATP: ("throughput least", "throughput most")}
        yield from ((name, ratio) for name in names[setup.paper])


def _of_iswitch(setup: Setup, seconds: Seconds) -> Iterable[tuple[str, float]]:
    (name,) = [name for name, size in PAPER.items() if size.label == setup.size.label]
    over = [seconds[other.label] / seconds[SWITCH.label] for other in (SERVER, RING)]
    yield f"sync {name}", over[0]
    yield "sync", max(over)
    yield f"ring {name}", over[0] / over[1]
    slowest = max(seconds[SERVER.label], seconds[RING.label])
    yield "share", 1 - setup.compute / slowest
    if SERVER_ASYNC.label in seconds:
        fresh = seconds[SERVER_ASYNC.label] / seconds[SWITCH_ASYNC.label]
        yield f"async {name}", fresh
        yield "async", fresh


class Side(NamedTuple):
    """The seconds of a set-up's strategy, in both worlds; None: not known."""

    setup: Setup
    strategy: str
    seconds: dict[str, float | None]


def side_by_side(setups: Sequence[Setup], times: Sequence[Times]) -> list[Side]:
    """Return every strategy of every set-up, in both worlds."""
    known = {(one.task.setup, one.task.world): one.seconds for one in times}
    return [
        Side(setup, way.label, {w: known.get((setup, w), {}).get(way.label) for w in WORLDS})
        for setup in setups
        for way in setup.ways
    ]


def reasons_of(rows: Sequence[Row]) -> dict[str, str]:
    """Return the reasons that rows name, in order; their numbers are their places, from 1 on."""
    named = {name for row in rows for name in row.headline.reasons}
    return {name: text for name, text in REASONS.items() if name in named}
