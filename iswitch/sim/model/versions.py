"""Asynchronous jobs at one switch, contribution by contribution.

A worker reads the newest version that it has, computes, and contributes, unless the version has
become too old meanwhile. H contributions, in the order in which their last packets arrive, make the
next version, which the switch sends to all while its packets complete. Lines carry one vector after
the other. Contributions and versions are followed as wholes, by their last packets.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Iterator, Sequence
from heapq import heappop, heappush
from itertools import cycle
from typing import NamedTuple

import numpy as np

from iswitch.core.format.wire import Shape
from iswitch.sim.handling import Handling
from worker_lib.protocol.pacing import IN_FLIGHT

from .aggregation import NO_TIME
from .fabric import Fabric, Floats
from .lines import frame_sizes


class Versions(NamedTuple):
    """What came of an asynchronous job.

    Attributes:
        came: when each version was at each worker, (versions, ranks) seconds.
        staleness: how many contributions were so many versions old, from 0 on.
        stale: how many were too old, and not sent.
    """

    came: Floats
    staleness: list[int]
    stale: int


class _Link:
    """The way of one worker to the switch and back."""

    def __init__(self, vector: float, frame: float, delay: float, computes: Sequence[float]):
        self.vector, self.frame, self.delay = vector, frame, delay
        self.computes: Iterator[float] = cycle(computes)
        self.up = self.down = -np.inf  # when each direction is free
        self.came: list[float] = []  # versions
        self.taken: deque[float] = deque([-np.inf] * IN_FLIGHT, IN_FLIGHT)  # contributions
        self.read = 0  # the version on which the worker computes

    def sends(self, now: float) -> tuple[float, float]:
        """Send a vector; return when the program goes on, and when the switch has it."""
        goes_on = max(now, self.taken[0])  # so many may be under way
        self.up = max(goes_on, self.up) + self.vector
        arrives = self.up + self.delay
        self.taken.append(arrives + self.delay)
        return goes_on, arrives

    def receives(self, complete: float) -> None:
        """Receive a version whose last packet is complete at a time."""
        self.down = max(complete + self.frame, self.down + self.vector)
        self.came.append(self.down + self.delay)


def play(  # noqa: PLR0913 (the network, the job, and what its workers do)
    fabric: Fabric,
    shape: Shape,
    computes: Sequence[Sequence[float]],
    versions: int,
    threshold: int,
    staleness: int,
    hosts: Handling = NO_TIME,
    latency: float = 0.0,
) -> Versions:
    """Play an asynchronous job from its first contribution on.

    Args:
        fabric: the network, of one switch.
        shape: the layout of the vectors.
        computes: seconds of computing of each worker, which are repeated from the beginning.
        versions: how many to make.
        threshold: contributions of a version.
        staleness: how many versions old a contribution may be.
        hosts: the time that hosts take for each packet.
        latency: seconds for which the switch delays each packet.
    """
    sizes = frame_sizes(shape)
    host = hosts.per_packet + hosts.per_byte * sizes
    links = []
    for node, own in zip(fabric.hosts.tolist(), computes, strict=True):
        wire = sizes * 8 / fabric.rate[node]
        slower = np.maximum(wire, host)
        delay = float(fabric.delay[node]) + latency / 2 + hosts.latency + float(host[-1])
        links.append(_Link(float(slower.sum()), float(wire[-1]), delay, own))
    events: list[tuple[float, int, int]] = []  # when, 0: it is at the switch, or 1: computed; rank
    for rank, link in enumerate(links):
        heappush(events, (next(link.computes), 1, rank))
    counted, made, stale = 0, 0, 0
    ages: list[int] = [0] * (min(staleness, versions) + 1)
    while made < versions:
        now, computed, rank = heappop(events)
        link = links[rank]
        if computed:
            age = bisect_right(link.came, now) - link.read
            if age <= staleness:
                ages[age] += 1
                now, arrives = link.sends(now)
                heappush(events, (arrives, 0, rank))
            else:
                stale += 1
            link.read = bisect_right(link.came, now)
            heappush(events, (now + next(link.computes), 1, rank))
            continue
        counted += 1
        if counted == threshold:
            counted, made = 0, made + 1
            for one in links:
                one.receives(now)
    return Versions(np.array([link.came for link in links]).T, ages, stale)
