"""Keeps the history of every round: who sent when, when segments completed, who was last.

Times are seconds since the first packet of the trace.
"""

from __future__ import annotations

from array import array
from collections.abc import Collection
from dataclasses import dataclass, field
from statistics import median
from typing import Any, NamedTuple

import numpy as np

from iswitch.core.format.packets import Indices
from iswitch.core.format.wire import round_distance
from iswitch.core.sums.runs import Run

OPEN = 4  # rounds of a job that may go on at a time; packets of older ones begin them anew
MOST_ROUNDS = 10_000  # of a job, that are told one by one
CONTRIBUTION, AGGREGATE, RESENT = "contribution", "aggregate", "resent"


class RoundEvent(NamedTuple):
    """Segments start..stop-1 that arrived or were completed between times `begin` and `end`."""

    what: str
    rank: int  # of the contributor; -1: none
    begin: float
    end: float
    start: int
    stop: int


@dataclass
class RankShare:
    """One member's part in a round, from its first packet to its last new one."""

    first: float
    last: float
    packets: int = 0
    furthest: int = -1  # the last segment so far
    before: int = -1  # the last before this window
    window: int | None = None
    resent: int = 0  # packets behind that: they were lost, or thought to be
    duplicates: int = 0
    late: int = 0


@dataclass
class RoundTold:
    """A round under way."""

    number: int
    shares: dict[int, RankShare] = field(default_factory=dict)
    completed: int = 0
    done: float | None = None  # when the last segment that is complete became so, at this switch
    returned: float | None = None  # when the last aggregate came from the switch above
    helps: int = 0
    events: list[RoundEvent] = field(default_factory=list)


class RoundFigures(NamedTuple):
    """A round that is over.

    Attributes:
        start: when the first contribution came.
        seconds: time from `start` to the last aggregate; None: there was no aggregate.
        above: the part of `seconds` spent waiting for the switch above, after the sums of the
            members here were complete; 0 without a switch above.
        straggler: the rank whose last segment came last, repeats aside; None: all came together.
        behind: seconds from the median of the others' last segments to the straggler's.
        spans: arrival of the first and the last segment of each rank, repeats aside.
    """

    number: int
    start: float
    seconds: float | None
    above: float
    segments: int
    packets: int
    resent: int
    duplicates: int
    late: int
    helps: int
    straggler: int | None
    behind: float
    spans: dict[int, tuple[float, float]]


@dataclass
class Totals:
    """The totals of all rounds, listed or not."""

    rounds: int = 0
    incomplete: int = 0  # without any aggregate
    resent: int = 0
    duplicates: int = 0
    late: int = 0
    helps: int = 0
    seconds: array[float] = field(default_factory=lambda: array("d"))

    def add(self, round_: RoundTold) -> None:
        """Add a finished round."""
        self.helps += round_.helps
        for share in round_.shares.values():
            self.resent += share.resent
            self.duplicates += share.duplicates
            self.late += share.late

    def completion(self) -> dict[str, float]:
        """Return statistics of the seconds that rounds took; empty if none was completed."""
        if not self.seconds:
            return {}
        found = np.percentile(np.array(self.seconds), [50, 99, 100]).tolist()
        return {name: _r(each) for name, each in zip(("p50", "p99", "max"), found, strict=True)}


class RoundsSeen:
    """The rounds of one job.

    Args:
        detailed: numbers of the rounds whose events are all kept.
    """

    def __init__(self, detailed: Collection[int] = ()) -> None:
        self.told: list[RoundFigures] = []
        self.totals = Totals()
        self.last: dict[int, int] = {}  # by rank, how often it was the straggler
        self.behind: dict[int, float] = {}  # and by how much in all
        self.events: dict[int, list[RoundEvent]] = {}
        self._detailed = detailed
        self._open: dict[int, RoundTold] = {}

    def contributed(
        self,
        rank: int,
        number: int,
        indices: Indices,
        span: tuple[float, float],
        window: int | None = None,
    ) -> RankShare:
        """Note that a member sent segments.

        Args:
            rank: rank of the member.
            number: number of the round.
            indices: indices of the segments, (n,).
            span: when the first and the last of them came.
            window: number of a window, whose packets are reported with each member's segments
                ascending; None: packets are reported in the order of the trace.
        """
        found = self._round(number)
        begin, end = span
        start, stop = int(indices[0]), int(indices.max()) + 1
        share = found.shares.get(rank)
        if share is None:
            share = found.shares[rank] = RankShare(begin, end)
        if window is None or window != share.window:
            share.before, share.window = share.furthest, window
        share.packets += len(indices)
        reached = np.maximum.accumulate(np.append(share.before, indices[:-1]))
        resent = int(np.count_nonzero(indices <= reached))
        share.resent += resent
        share.first = min(share.first, begin)
        if resent < len(indices):
            share.last = max(share.last, end)
        share.furthest = max(share.furthest, stop - 1)
        if number in self._detailed:
            what = RESENT if resent else CONTRIBUTION
            found.events.append(RoundEvent(what, rank, begin, end, start, stop))
        return share

    def completed(self, number: int, runs: Collection[Run], at: float) -> None:
        """Note that these segments are complete."""
        found = self._round(number)
        for run in runs:
            found.completed += run.segments
            if number in self._detailed:
                found.events.append(RoundEvent(AGGREGATE, -1, at, at, run.start, run.stop))
        found.done = at if found.done is None else max(found.done, at)

    def returned(self, number: int, at: float) -> None:
        """Note that new aggregates came from the switch above."""
        found = self._round(number)
        found.returned = at if found.returned is None else max(found.returned, at)

    def helped(self, number: int) -> None:
        """Note that a member asked for aggregates."""
        self._round(number).helps += 1

    def close(self) -> None:
        """End the record."""
        for number in list(self._open):
            self._tell(self._open.pop(number))

    def _round(self, number: int) -> RoundTold:
        found = self._open.get(number)
        if found is None:
            while len(self._open) >= OPEN:
                self._tell(self._open.pop(next(iter(self._open))))
            found = self._open[number] = RoundTold(number)
        return found

    def _tell(self, round_: RoundTold) -> None:
        shares = round_.shares
        if round_.events:
            self.events.setdefault(round_.number, []).extend(round_.events)
        self.totals.add(round_)
        if not shares and not round_.completed:
            return
        self.totals.rounds += 1
        start = min((s.first for s in shares.values()), default=round_.done or 0.0)
        straggler, behind = None, 0.0
        if len({share.last for share in shares.values()}) > 1:
            straggler = max(shares, key=lambda rank: (shares[rank].last, rank))
            others = median(s.last for rank, s in shares.items() if rank != straggler)
            behind = shares[straggler].last - others
            self.last[straggler] = self.last.get(straggler, 0) + 1
            self.behind[straggler] = self.behind.get(straggler, 0.0) + behind
        seconds, above = None, 0.0
        if round_.done is not None:
            done = max(round_.done, round_.returned or round_.done)
            seconds, above = max(0.0, done - start), done - round_.done
        if seconds is None:
            self.totals.incomplete += 1
        else:
            self.totals.seconds.append(seconds)
        if len(self.told) >= MOST_ROUNDS:
            return
        self.told.append(
            RoundFigures(
                round_.number,
                start,
                seconds,
                above,
                round_.completed,
                sum(s.packets for s in shares.values()),
                sum(s.resent for s in shares.values()),
                sum(s.duplicates for s in shares.values()),
                sum(s.late for s in shares.values()),
                round_.helps,
                straggler,
                behind,
                {rank: (s.first, s.last) for rank, s in sorted(shares.items())},
            )
        )


class VersionsSeen(RoundsSeen):
    """The record of an asynchronous job, which counts versions, and vectors of each member.

    No member waits for another one: there are no stragglers, and no times of completion.
    """

    def __init__(self) -> None:
        super().__init__()
        self.numbers: dict[int, int] = {}  # by rank, how many vectors it sent
        self.versions = 0
        self._shares: dict[int, RankShare] = {}
        self._newest: dict[int, int] = {}  # by rank, the number of its last vector
        self._version: int | None = None

    def contributed(
        self,
        rank: int,
        number: int,
        indices: Indices,
        span: tuple[float, float],
        window: int | None = None,  # noqa: ARG002
    ) -> RankShare:
        """Note that a member sent these segments."""
        share = self._shares.setdefault(rank, RankShare(*span))
        newest = self._newest.get(rank)
        if newest is None or round_distance(number, newest) > 0:
            self._newest[rank] = number
            self.numbers[rank] = self.numbers.get(rank, 0) + 1
        share.packets += len(indices)
        return share

    def completed(self, number: int, runs: Collection[Run], at: float) -> None:  # noqa: ARG002
        """Note that these segments are complete."""
        if self._version is None:
            self._version, self.versions = number, 1
        ahead = round_distance(number, self._version)
        if ahead > 0:
            self._version = number
            self.versions += ahead

    def helped(self, number: int) -> None:  # noqa: ARG002
        """Note that a member asked for aggregates."""
        self.totals.helps += 1

    def close(self) -> None:
        """End the record."""
        for share in self._shares.values():
            self.totals.duplicates += share.duplicates
            self.totals.late += share.late
        self._shares.clear()


def as_json(told: RoundFigures) -> dict[str, Any]:
    """Return a round's figures for JSON, with times in seconds, rounded to nanoseconds."""
    found = told._asdict()
    found["spans"] = {str(rank): [_r(a), _r(b)] for rank, (a, b) in told.spans.items()}
    for name in ("start", "seconds", "above", "behind"):
        found[name] = None if found[name] is None else _r(found[name])
    return found


def _r(seconds: float) -> float:
    return round(seconds, 9)
