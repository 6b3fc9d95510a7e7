"""Runs: packets of one burst that are one event, though each has a time of its own.

A run arrives when its last packet does. Its earlier packets are then known to have arrived before,
each at its own time. What a machine sends in response to one of them is ready at that time, not at
the run's: so a run that passes several links and switches is delayed no more than its packets.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from iswitch.core.format.packets import Address, Burst, Outgoing
from iswitch.core.format.wire import SEG_SIZE, TOS_CONTROL, TOS_DATA, Action
from iswitch.faults import fifo
from iswitch.faults.line import Ints

from .grain import Grain

FINE = 4  # packets that come together to a machine whose line is idle; divides a worker's burst
INDEX = 0xFFFFFFFF  # of a segment, in a header

Times = fifo.Times | float  # in seconds: one for each packet, (n,), never falling; or one for all


class Run(NamedTuple):
    """Packets with the times at which they arrive."""

    burst: Burst
    times: Times

    @property
    def due(self) -> float:
        """Return the time of the last packet, which is that of the run, in seconds."""
        return last(self.times)

    @property
    def first(self) -> float:
        """Return the time of the first packet, in seconds."""
        return self.times if isinstance(self.times, float) else float(self.times[0])

    def cut(self, grain: Grain) -> list[Run]:
        """Cut a run into runs that hold no more than the grain; packets of one time stay together.

        Data is cut at multiples of a number of segments, so that the runs of all workers hold the
        same segments.
        """
        burst, times = self
        n = len(burst.rows)
        if isinstance(times, float) or n == 1 or times[0] == times[-1]:
            return [Run(burst, self.due)]
        most = grain.fitting(n, self.due - self.first)
        if most == 1:
            bounds = [0, *(np.flatnonzero(times[1:] != times[:-1]) + 1).tolist(), n]
        else:
            cuts = range(most - first_segment(burst) % most, n, most)
            if not cuts:
                return [self]
            bounds = [0, *(at for at in cuts if times[at - 1] < times[at]), n]
        return [self.part(a, b) for a, b in pairwise(bounds)]

    def cut_after(self, idle: float) -> list[Run]:
        """Cut into small parts what comes after a time, in seconds."""
        if isinstance(self.times, float) or self.burst.tos != TOS_DATA or self.due <= idle:
            return [self]
        n = len(self.times)
        first = int(np.searchsorted(self.times, idle))
        bounds = [0, *range(max(FINE, first), n, FINE), n]
        return [self.part(a, b) for a, b in pairwise(bounds)]

    def part(self, start: int, stop: int) -> Run:
        """Return packets start..stop-1 as a run."""
        burst, times = self
        n, size = burst.rows.shape
        tail = burst.tail if stop == n else size
        some = burst._replace(rows=burst.rows[start:stop], tail=tail)
        if isinstance(times, float):
            return Run(some, times)
        one_time = times[start] == times[stop - 1]
        return Run(some, float(times[start]) if one_time else times[start:stop])

    def without(self, lost: Sequence[bool]) -> Run | None:
        """Return the run without those packets that are lost; None: none is left."""
        if not any(lost):
            return self
        kept = [i for i, gone in enumerate(lost) if not gone]
        if not kept:
            return None
        burst, times = self
        tail = burst.rows.shape[1] if lost[-1] else burst.tail
        some = burst._replace(rows=burst.rows[kept], tail=tail)
        return Run(some, times if isinstance(times, float) else times[kept])


class Lately:
    """The data that came to a node lately: an answer may have waited for several runs.

    A sum is sent in response to the run that comes last. But the runs of workers overlap in time,
    and the last packet of a segment need not be in the last run: it comes on the slowest link.
    """

    def __init__(self) -> None:
        self._runs: deque[Came] = deque()
        self._span = 0.0  # the longest time between the first and the last packet of a run

    def note(self, run: Run) -> None:
        """Note that a run has come."""
        if run.burst.tos != TOS_DATA or run.burst.rows.shape[1] < SEG_SIZE:
            return
        first, due = run.first, run.due
        self._span = max(self._span, due - first)
        while self._runs and self._runs[0].due < due - self._span:
            self._runs.popleft()
        self._runs.append(Came(run.burst.peer, due, segments(run.burst.rows), run.times))

    def ready(self, out: Outgoing, run: Run, now: float) -> Times:
        """Return when packets can be sent that a machine sends in response to a run.

        A data packet is ready when the last packet of its segment has come; any other is at `now`.
        """
        if out.tos != TOS_DATA or out.rows.shape[1] < SEG_SIZE or not self._runs:
            return now
        wanted = segments(out.rows)
        last = self._runs[-1]  # is this run; its versions may be counted in another way than rounds
        ready = last.times_of(wanted & INDEX, last.segments & INDEX, now)
        if ready is None:
            return now
        first = run.first
        members = set(out.peers) if last.peer in out.peers else None  # of the run's job
        for came in self._runs:
            if came.due > first and came is not last and (not members or came.peer in members):
                times = came.times_of(wanted, came.segments, -np.inf)
                if times is not None:
                    ready = np.maximum(ready, times)
        return ready if isinstance(ready, float) else np.maximum.accumulate(ready)


class Came(NamedTuple):
    """Data that came: from where, when the last packet did, the segments, (n,), and all times."""

    peer: Address
    due: float
    segments: Ints
    times: Times

    def times_of(self, wanted: Ints, held: Ints, otherwise: float) -> Times | None:
        """Return when packets of some segments came, (n,); `otherwise` for those that did not.

        None: not one of them did.
        """
        if len(wanted) == len(held) and (wanted == held).all():
            return self.times
        if wanted[-1] < held[0] or wanted[0] > held[-1]:
            return None
        order = np.argsort(held, kind="stable")
        found = order[np.searchsorted(held[order], wanted, "right") - 1]
        times = np.full(len(held), self.times)[found]
        return np.where(held[found] == wanted, times, otherwise)


def segments(rows: np.ndarray[tuple[int, int], np.dtype[np.uint8]]) -> Ints:
    """Return round and segment of each data packet, as one number, (n,)."""
    numbers: Ints = rows[:, :SEG_SIZE].copy().view(">i8")[:, 0].astype(np.int64)
    return numbers


def first_segment(burst: Burst) -> int:
    """Return the segment of the first of some data packets; of others, 0."""
    if burst.tos != TOS_DATA:
        return 0
    return int.from_bytes(burst.rows[0, SEG_SIZE // 2 : SEG_SIZE].tobytes(), "big")


def announced(burst: Burst) -> int | None:
    """Return how many segments the vectors of a job have at least; 0 for a Join; None: no idea."""
    if burst.tos == TOS_DATA and burst.tail >= SEG_SIZE:
        return int.from_bytes(burst.rows[-1, SEG_SIZE // 2 : SEG_SIZE].tobytes(), "big") + 1
    return 0 if burst.tos == TOS_CONTROL and burst.rows[0, 0] == Action.JOIN else None


def last(times: Times) -> float:
    """Return the last of some times."""
    return times if isinstance(times, float) else float(times[-1])


def time_of(times: Times, i: int) -> float:
    """Return the time of packet `i`."""
    return times if isinstance(times, float) else float(times[i])
