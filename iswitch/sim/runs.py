"""Runs: packets of one burst that are one event, though each has a time of its own.

A run arrives when its last packet does. Its earlier packets are then known to have arrived before,
each at its own time. What a machine sends in response to one of them is ready at that time, not at
the run's: so a run that passes several links and switches is delayed no more than its packets.
"""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import numpy as np

from iswitch.core.format.packets import Burst, Outgoing
from iswitch.core.format.wire import SEG_SIZE, TOS_DATA
from iswitch.faults import line
from iswitch.faults.line import Ints

Times = line.Times | float  # in seconds: one for each packet, (n,), never falling; or one for all


class Run(NamedTuple):
    """Packets with the times at which they arrive."""

    burst: Burst
    times: Times

    @property
    def due(self) -> float:
        """Return the time of the last packet, which is that of the run, in seconds."""
        return last(self.times)

    def cut(self, grain: int) -> list[Run]:
        """Cut a run into runs of at most `grain` packets; packets of one time stay together.

        Data is cut where the number of a segment is divisible by `grain`, so that the runs of all
        workers hold the same segments.
        """
        burst, times = self
        n = len(burst.rows)
        if isinstance(times, float) or n == 1 or times[0] == times[-1]:
            return [Run(burst, self.due)]
        if grain == 1:
            bounds = [0, *(np.flatnonzero(times[1:] != times[:-1]) + 1).tolist(), n]
        else:
            behind = int(segments(burst.rows[:1])[0]) % grain if burst.tos == TOS_DATA else 0
            cuts = range(grain - behind, n, grain)
            if not cuts:
                return [self]
            bounds = [0, *(at for at in cuts if times[at - 1] < times[at]), n]
        size = burst.rows.shape[1]
        return [
            Run(
                burst._replace(rows=burst.rows[a:b], tail=burst.tail if b == n else size),
                float(times[a]) if times[a] == times[b - 1] else times[a:b],
            )
            for a, b in pairwise(bounds)
        ]

    def ready(self, out: Outgoing, now: float) -> Times:
        """Return when packets can be sent that a machine sends in response to this run.

        A data packet is ready when the packet of its segment came; any other is at `now`.
        """
        burst, times = self
        if isinstance(times, float) or out.tos != burst.tos or out.tos != TOS_DATA:
            return now
        if min(burst.rows.shape[1], out.rows.shape[1]) < SEG_SIZE:
            return now
        came, wanted = segments(burst.rows), segments(out.rows)
        if len(came) == len(wanted) and (came == wanted).all():
            return times
        order = np.argsort(came, kind="stable")
        at = np.searchsorted(came[order], wanted, "right") - 1
        found = order[at]
        answers = (at >= 0) & (came[found] == wanted)
        return np.maximum.accumulate(np.where(answers, times[found], now))


def segments(rows: np.ndarray[tuple[int, int], np.dtype[np.uint8]]) -> Ints:
    """Return the segment number of each data packet, (n,)."""
    numbers: Ints = rows[:, SEG_SIZE // 2 : SEG_SIZE].copy().view(">u4")[:, 0].astype(np.int64)
    return numbers


def last(times: Times) -> float:
    """Return the last of some times."""
    return times if isinstance(times, float) else float(times[-1])


def time_of(times: Times, i: int) -> float:
    """Return the time of packet `i`."""
    return times if isinstance(times, float) else float(times[i])
