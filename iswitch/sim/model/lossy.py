"""Rounds at one switch whose links lose packets, repaired as `worker_lib.protocol.recovery` does.

All is worked out pass by pass. A pass takes what each worker sends again, and when; it lets lines
serve that among the rest, finds when segments are complete and come back, and from that what
each worker calls lost, and when. What happens first is right after the first pass, so after few
passes nothing changes any more. A worker looks for losses only now and then (`Losses.slack`), and
each look is a few array operations.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from iswitch.core.format.wire import Shape
from iswitch.faults.fifo import departures
from iswitch.sim.handling import Handling
from worker_lib.protocol.recovery import AGAIN, AGAIN_FLOOR, SLACK, SLACK_FLOOR
from worker_lib.protocol.repairing import FEW
from worker_lib.protocol.window import RoundTrip, probe_pause

from .aggregation import NO_TIME, Window
from .fabric import Fabric, Floats, Ints
from .lines import frame_sizes

PASSES = 200  # at most; a handful is the rule
EXACT = 1e-10  # seconds by which times may differ from those of the pass before
HELP = RoundTrip.floor  # seconds of silence after which a worker asks for Help, at least

Bools = npt.NDArray[np.bool_]


class Again(NamedTuple):
    """A segment that is sent again: when, which, and how often before."""

    at: float
    segment: int
    copy: int


class Losses:
    """Says which packets are lost: of each worker, direction, segment and copy, the same always.

    Args:
        fabric: the network, of one switch.
        part: of the packets of each node's link that are lost in each direction, (n,).
        draw: returns chances from 0 to 1, of a shape, as `numpy.random.Generator.random` does.
    """

    def __init__(
        self, fabric: Fabric, part: Floats, draw: Callable[[tuple[int, int]], Floats]
    ) -> None:
        self._part = part[fabric.hosts][:, None]
        self._draw = draw
        self._drawn: dict[tuple[bool, int], Bools] = {}

    def of(self, up: bool, copy: int, segments: int) -> Bools:
        """Return which packets of one copy are lost, (ranks, segments)."""
        found = self._drawn.get((up, copy))
        if found is None:
            shape = len(self._part), segments
            found = self._drawn[up, copy] = self._draw(shape) < self._part
        return found


def aggregate_with_losses(
    fabric: Fabric,
    shape: Shape,
    starts: Floats,
    window: Window,
    losses: Losses,
    hosts: Handling = NO_TIME,
    latency: float = 0.0,
) -> Floats:
    """Return when each worker has the sum, (ranks,) seconds.

    Args:
        fabric: the network, of one switch.
        shape: the layout of the vectors.
        starts: when each worker begins, (ranks,) seconds.
        window: that of each worker, when it begins.
        losses: says which packets are lost.
        hosts: the time that hosts take for each packet, when they send and when they receive it.
        latency: seconds for which the switch delays each packet.
    """
    return _Round(fabric, shape, starts, window, losses, hosts, latency).play()


class _Round:
    """One round of all workers."""

    def __init__(
        self,
        fabric: Fabric,
        shape: Shape,
        starts: Floats,
        window: Window,
        losses: Losses,
        hosts: Handling,
        latency: float,
    ) -> None:
        self._starts, self._losses = starts, losses
        self._hosts, self._latency = hosts, latency
        self._n = shape.segments
        self._sizes = frame_sizes(shape)
        self._gates = window.gates(self._n)
        self._few = min(FEW, window.ceiling // FEW)
        self._byte = 8 / fabric.rate[fabric.hosts]
        self._delay = fabric.delay[fabric.hosts]

    def play(self) -> Floats:
        """Return when each worker has the last aggregate, (ranks,) seconds."""
        ranks = range(len(self._starts))
        again: list[list[Again]] = [[] for _ in ranks]
        came = np.full((len(ranks), self._n), -np.inf)
        for _ in range(PASSES):
            ready = self._ready(came)
            before, came = came, self._pass(ready, again)
            sent, again = (
                again,
                [
                    _Worker(ready[rank], came[rank], again[rank], self._few).repair()
                    for rank in ranks
                ],
            )
            done = np.isfinite(came).all() and _alike(sent, again)
            if done and np.abs(came - before).max() < EXACT:
                break
        ends: Floats = came.max(axis=1)
        return ends

    def _ready(self, came: Floats) -> Floats:
        """Return when windows let segments go for the first time, (ranks, segments)."""
        ready = np.repeat(self._starts[:, None], self._n, axis=1)
        waits = self._gates > 0
        opened = np.sort(came, axis=1)[:, self._gates[waits] - 1]
        ready[:, waits] = np.maximum(ready[:, waits], opened)
        ready[~np.isfinite(ready)] = ready[np.isfinite(ready)].max() + HELP
        np.maximum.accumulate(ready, axis=1, out=ready)
        return ready

    def _pass(self, ready: Floats, again: list[list[Again]]) -> Floats:
        """Return when aggregates come to the workers, (ranks, segments); inf: never."""
        taken = np.empty_like(ready)  # when the switch has each contribution
        repeats: list[Floats] = []  # when what was sent again comes to the switch
        for rank, own in enumerate(again):
            at = np.concatenate([ready[rank], [one.at for one in own]])
            which = np.concatenate([np.arange(self._n), [one.segment for one in own]]).astype(int)
            at = self._carry(at, which, rank, True)
            lost = self._losses.of(True, 0, self._n)[rank]
            taken[rank] = np.where(lost, np.inf, at[: self._n])
            repeats.append(at[self._n :])
            for one, arrives in zip(own, at[self._n :].tolist(), strict=True):
                if not self._losses.of(True, one.copy, self._n)[rank, one.segment]:
                    taken[rank, one.segment] = min(taken[rank, one.segment], arrives)
        complete = taken.max(axis=0)
        found = np.full_like(ready, np.inf)
        for rank, own in enumerate(again):
            answered = [
                (arrives, one)
                for one, arrives in zip(own, repeats[rank].tolist(), strict=True)
                if arrives > complete[one.segment]
                and not self._losses.of(True, one.copy, self._n)[rank, one.segment]
            ]
            there = np.flatnonzero(np.isfinite(complete))
            at = np.concatenate([complete[there], [at for at, _ in answered]]) + self._latency
            which = np.concatenate([there, [one.segment for _, one in answered]]).astype(int)
            at = self._carry(at, which, rank, False)
            lost = self._losses.of(False, 0, self._n)[rank]
            found[rank, there] = np.where(lost[there], np.inf, at[: len(there)])
            for (_, one), arrives in zip(answered, at[len(there) :].tolist(), strict=True):
                if not self._losses.of(False, one.copy, self._n)[rank, one.segment]:
                    found[rank, one.segment] = min(found[rank, one.segment], arrives)
        return found

    def _carry(self, at: Floats, which: Ints, rank: int, up: bool) -> Floats:
        """Return when packets have passed a host and its link, in the order in which they come."""
        order = np.argsort(at, kind="stable")
        sizes, times = self._sizes[which[order]].astype(np.float64), at[order]
        each, byte, latency = self._hosts
        steps = [(each + byte * sizes, latency)] if self._hosts else []
        steps.insert(len(steps) if up else 0, (self._byte[rank] * sizes, self._delay[rank]))
        for takes, delay in steps:
            times = departures(times, takes, -np.inf) + delay
        found = np.empty_like(at)
        found[order] = times
        return found


def _alike(some: list[list[Again]], others: list[list[Again]]) -> bool:
    """Return whether the same is sent again at the same times."""
    return all(
        len(mine) == len(theirs)
        and all(
            (a.segment, a.copy) == (b.segment, b.copy) and abs(a.at - b.at) < EXACT
            for a, b in zip(mine, theirs, strict=True)
        )
        for mine, theirs in zip(some, others, strict=True)
    )


class _Worker:
    """A worker that finds out what is lost, as `Losses` and `Repairing` of `worker_lib` do.

    Args:
        ready: when it sends each segment for the first time, (segments,), never falling.
        came: when each aggregate comes, (segments,); inf: not yet known.
        again: what it sent again in the pass before.
        few: how many segments it sends again after a silence.
    """

    def __init__(self, ready: Floats, came: Floats, again: list[Again], few: int) -> None:
        self._ready, self._came, self._few = ready, came, few
        self._sent_at = ready.copy()
        self._copies = np.zeros(len(ready), np.int64)
        known = np.zeros(len(ready), np.int64)
        for one in again:
            known[one.segment] = max(known[one.segment], one.copy)
        self._most_copies = np.where(np.isfinite(came), 1 << 30, known + 1)
        self._by = np.argsort(came, kind="stable")
        self._times = came[self._by]
        # When something happened: it began, or an aggregate came.
        self._moves = np.concatenate([ready[:1], self._times[np.isfinite(self._times)]])
        newest = np.maximum.accumulate(self._by)
        self._is_new = self._by == newest
        self._newest = newest
        took = np.where(self._is_new, self._times - ready[self._by], np.inf)
        self._shortest = np.minimum.accumulate(took)
        later = np.minimum.accumulate(came[::-1])[::-1]
        self._doubted_at = np.append(later[1:], np.inf)  # when a later one has come
        flying = np.arange(1, len(ready) + 1) - np.searchsorted(self._times, ready, "right")
        self._most = np.maximum.accumulate(flying)
        self._lossy = False

    def repair(self) -> list[Again]:
        """Return what it sends again."""
        found: list[Again] = []
        doubts = np.sort(self._doubted_at[self._came > self._doubted_at])
        doubts = doubts[np.isfinite(doubts)]
        now, look, silence = -np.inf, np.inf, self._silence(-np.inf)
        while True:
            if look == np.inf:
                following = int(np.searchsorted(doubts, now, "right"))
                if following < len(doubts):
                    look = float(doubts[following]) + self._slack(float(doubts[following]))
            now = min(look, silence)
            if now == np.inf:
                return found
            if look <= silence:
                lost, look = self._overdue(now)
            else:
                lost, silence = self._waiting(now)
                silence = silence if len(lost) else self._silence(now)
            lost = lost[self._copies[lost] < self._most_copies[lost]]
            self._copies[lost] += 1
            self._sent_at[lost] = now
            self._lossy |= bool(len(lost))
            found += [Again(now, int(one), int(self._copies[one])) for one in lost]
            if len(lost):
                look = min(look, now + self._patience(now))

    def _last(self, now: float) -> int:
        return int(np.searchsorted(self._times, now, "right"))

    def _round_trip(self, now: float) -> float:
        """Return the last round trip that can be told; 0: none."""
        for at in range(self._last(now) - 1, -1, -1):
            segment = self._by[at]
            if self._is_new[at] and not self._copies[segment]:
                return float(self._times[at] - self._ready[segment])
            took = self._times[at] - self._sent_at[segment]
            if self._copies[segment] and took >= self._shortest[at]:
                return float(took)
        return 0.0

    def _expected(self, now: float) -> float:
        came, sent = self._last(now), int(np.searchsorted(self._ready, now, "right"))
        if not came or not sent:
            return 0.0
        trip = self._round_trip(now)
        least = 0.0 if self._lossy else min(float(self._shortest[came - 1]), trip)
        return least + (trip - least) * (sent - came) / float(self._most[sent - 1])

    def _slack(self, now: float) -> float:
        return max(SLACK * self._expected(now), SLACK_FLOOR)

    def _patience(self, now: float) -> float:
        return max(AGAIN * self._expected(now), AGAIN_FLOOR)

    def _overdue(self, now: float) -> tuple[Ints, float]:
        """Return the segments lost by now, and when to look again."""
        last = self._last(now)
        newest = int(self._newest[last - 1]) if last else -1
        waits = (self._came > now) & (self._ready <= now)
        again = self._copies > 0
        doubtful = np.flatnonzero(waits & (again | (np.arange(len(waits)) < newest)))
        doubtful = doubtful[self._copies[doubtful] < self._most_copies[doubtful]]
        if not len(doubtful):
            return doubtful, np.inf
        copies = self._copies[doubtful]
        pause = self._patience(now) * 2.0 ** (copies - 1.0)
        slack = self._slack(now)
        due = self._sent_at[doubtful] + np.where(copies > 0, pause, self._round_trip(now) + slack)
        lost = due <= now
        rest = due[~lost]
        return doubtful[lost], max(float(rest.min()), now + slack) if len(rest) else np.inf

    def _silence(self, now: float) -> float:
        """Return when nothing has come for so long after `now` that it sends something again."""
        last = self._last(now)
        moves = self._moves[last:]
        for i in np.flatnonzero(np.append(moves[1:], np.inf) - moves >= probe_pause(0.0)).tolist():
            moved = float(moves[i])
            if not (self._came > moved).any():
                break
            first = not last and not i  # nothing has come yet, so no round trip is known
            pause = HELP if first else min(HELP, probe_pause(self._expected(moved)))
            due = moved + pause
            if now < due and (i + 1 == len(moves) or due < moves[i + 1]):
                return due
        return np.inf

    def _waiting(self, now: float) -> tuple[Ints, float]:
        """Return what is sent again after a silence, and when the next one ends."""
        moved = float(self._moves[self._last(now)])
        waiting = np.flatnonzero((self._came > now) & (self._ready <= now))
        waiting = waiting[self._copies[waiting] < self._most_copies[waiting]]
        if len(waiting) > self._few:
            waiting = waiting[: self._few]
        following = now + 2 * (now - moved)
        nothing = self._last(following) == self._last(now)
        return waiting, following if nothing and len(waiting) else self._silence(now)
