"""A server that takes one packet after the other: a line with a rate, a pipeline, a processor.

d_i = max(ready_i, d_(i-1)) + service_i: packet i is done when it is ready and the one before it is
done, plus its own service. For a run of packets that is a cumulative maximum.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Times = npt.NDArray[np.float64]


class Served(NamedTuple):
    """A run of packets: when each was ready and how long it took, (n,); when the last was done."""

    ready: Times
    service: Times
    done: float


class Fifo:
    """Serves packets in the order in which they are ready, and those of one time as they are given.

    A run may be given after another though some of its packets are ready before some of the
    other's. Its packets are then served between those. The other's packets keep the times that
    they were given, without the service of those put before them: so their error is at most the
    service of the packets that overlap them.
    """

    def __init__(self) -> None:
        self.busy = -np.inf  # when all packets so far are done
        self._came = -np.inf  # when the last of them was ready
        self._span = 0.0  # the longest time between the first and the last packet of a run
        self._recent: deque[Served] = deque()  # runs that another one may overlap
        self._before = -np.inf  # when the packets before those are done

    def serve(self, ready: Times | float, service: Times, total: Times | None = None) -> Times:
        """Return when each packet is done, (n,) seconds.

        Args:
            ready: when each is ready, in seconds, (n,), never falling; or one time for all.
            service: seconds that each takes, (n,).
            total: its cumulative sum, if it is known.
        """
        if not len(service):
            return service
        if not isinstance(ready, np.ndarray):
            if ready >= self._came and not self._span:  # as always where no run has a span
                self._came = ready
                done = departures(ready, service, self.busy)
                self.busy = float(done[-1])
                return done
            ready = np.full(len(service), ready)
        first, last = float(ready[0]), float(ready[-1])
        self._span = max(self._span, last - first)
        while self._recent and self._recent[0].ready[-1] < first - self._span:
            self._before = max(self._before, self._recent.popleft().done)
        if first >= self._came:
            if not self._recent:
                self._before = self.busy
            done = departures(ready, service, self.busy, total)
        else:
            done = self._between(ready, service)
        self.busy, self._came = max(self.busy, float(done[-1])), max(self._came, last)
        self._recent.append(Served(ready, service, float(done[-1])))
        return done

    def _between(self, ready: Times, service: Times) -> Times:
        """Serve packets between those of recent runs."""
        readies = np.concatenate([*(run.ready for run in self._recent), ready])
        services = np.concatenate([*(run.service for run in self._recent), service])
        order = np.argsort(readies, kind="stable")
        done = np.empty(len(order))
        done[order] = departures(readies[order], services[order], self._before)
        self.busy = max(self.busy, float(done.max()))
        new: Times = done[-len(ready) :]
        return new


def departures(
    ready: Times | float, service: Times, busy: float, total: Times | None = None
) -> Times:
    """Return when packets are done that a server takes one after the other, (n,) seconds.

    Args:
        ready: when each is ready, (n,); or one time for all.
        service: how long each takes, (n,).
        busy: when the packet before them is done.
        total: the cumulative sum of `service`, if it is known.
    """
    if not isinstance(ready, np.ndarray):
        done = service.copy()
        done[:1] += max(ready, busy)
        return done.cumsum()
    if total is None:
        total = service.cumsum()
    begins: Times = ready - total + service  # if these are served without a pause
    np.maximum.accumulate(begins, out=begins)
    np.maximum(begins, busy, out=begins)
    begins += total
    return begins


def last_departure(ready: float, busy: float, packets: int, each: float, last: float) -> float:
    """Return when the last of some packets is done, in seconds: as `departures`, to the bit.

    Kernels compile it.

    Args:
        ready: when all are ready.
        busy: when the packet before them is done.
        packets: their number.
        each: seconds that each takes but the last.
        last: seconds that the last takes.
    """
    if packets == 1:
        return last + max(ready, busy)
    done = each + max(ready, busy)
    for _ in range(packets - 2):
        done += each
    return done + last
