"""Rounds that switches aggregate, alone or in a tree, as `Session` and `Switch` play them.

A worker sends its segments in order, a super-datagram at a time, as far as its window allows. The
window grows with each aggregate that comes, so how many must have come before a segment may leave
is known in advance (`gates`). That makes blocks of segments: those whose gates the blocks before
have opened. A block goes up all levels and down again at once.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from iswitch.core.format.packets import super_packets
from iswitch.core.format.wire import Shape
from iswitch.sim.handling import Handling
from worker_lib.protocol.expressing import BURSTS_IN_EXPRESS
from worker_lib.protocol.member import BURSTS_IN_REACH
from worker_lib.protocol.window import CEILING, TOGETHER, SendWindow

from .fabric import Fabric, Floats, Ints, fold
from .lines import Lines, frame_sizes

NO_TIME = Handling()
GROWN = 1 << 20  # rounds after which no window grows any more
AT_ONCE = 1 << 20  # packets of a block and a level: arrays that a cache holds


class Window(NamedTuple):
    """A worker's window when a round begins, in segments."""

    size: int
    ceiling: int
    burst: int

    @classmethod
    def of(
        cls, shape: Shape, workers: int, rounds: int = 0, room: int = TOGETHER, slots: int = 0
    ) -> Window:
        """Return the window of one of the workers of a job.

        Args:
            shape: the layout of the vectors.
            workers: how many the job has, who share the room.
            rounds: how many rounds they have had, in which their windows have grown.
            room: bytes that all of them may have under way together.
            slots: as `iswitch switch --slots`; 0: each segment has one.
        """
        size = shape.packet_size
        burst = super_packets(size)
        most = max(burst, CEILING // size)
        fair = max(1, room // workers // size)
        window = SendWindow(burst, most)
        if 0 < slots < shape.segments:  # no segment is further ahead of the first that has not come
            fair = min(fair, (1 << slots.bit_length() - 1) // 2)
            burst = min(burst, max(1, fair // BURSTS_IN_REACH))
        window.limit(min(most, fair), min(burst, fair))
        came = min(rounds * shape.segments, window.ceiling)
        return cls(min(int(window.size) + came, window.ceiling), window.ceiling, window.burst)

    def gates(self, segments: int) -> Ints:
        """Return how many aggregates must have come before each segment may leave, (segments,)."""
        if segments <= min(BURSTS_IN_EXPRESS * self.burst, self.size):
            return np.zeros(segments, np.int64)
        before = np.arange(segments) // self.burst * self.burst
        room = before + self.burst
        # After k aggregates the window is min(size + k, ceiling), and `before - k` are under way.
        k = np.maximum(-(-(room - self.size) // 2), room - self.ceiling)
        return np.clip(k, 0, before)


def aggregate(
    fabric: Fabric,
    shape: Shape,
    starts: Floats,
    window: Window,
    hosts: Handling = NO_TIME,
    latency: float = 0.0,
) -> Floats:
    """Return when each worker has the sum, (ranks,) seconds.

    Args:
        fabric: the network.
        shape: the layout of the vectors.
        starts: when each worker begins, (ranks,) seconds.
        window: that of each worker, when it begins.
        hosts: the time that hosts take for each packet, when they send and when they receive it.
        latency: seconds for which switches delay each packet.
    """
    folded = fold(fabric, starts)
    round_ = _Round(folded.fabric, shape, folded.starts, window, hosts, latency)
    return round_.play()[folded.of]


class _Round:
    """One round of all workers."""

    def __init__(
        self,
        fabric: Fabric,
        shape: Shape,
        starts: Floats,
        window: Window,
        hosts: Handling,
        latency: float,
    ) -> None:
        self._starts = starts[:, None]
        self._latency = latency
        self._sizes = frame_sizes(shape)
        self._gates = window.gates(shape.segments)
        self._most = max(1, AT_ONCE // len(starts))
        self._keep = int((np.arange(shape.segments) - self._gates).max()) + 1
        self._levels = [_Level(fabric, *level) for level in fabric.levels()[1:]]
        self._out, self._in = Lines.of_nodes(hosts), Lines.of_nodes(hosts)
        self._busy_hosts = bool(hosts)

    def play(self) -> Floats:
        """Return when each worker has the last aggregate, (ranks,) seconds."""
        n, at = len(self._sizes), 0
        came = np.empty((len(self._starts), 0))  # the latest aggregates, up to segment `at`
        while at < n:
            stop = min(int(np.searchsorted(self._gates, at, "right")), at + self._most)
            block = self._block(at, stop, came)
            came = np.concatenate([came[:, -self._keep :], block], axis=1)[:, -self._keep :]
            at = stop
        return came[:, -1]

    def _block(self, at: int, stop: int, came: Floats) -> Floats:
        """Return when the aggregates of segments at..stop-1 come to the workers, (ranks, k)."""
        sizes = self._sizes[at:stop]
        ready = self._ready(at, stop, came)
        if self._busy_hosts:
            ready = self._out.carry(ready, sizes)
        below: Floats | None = None
        for level in reversed(self._levels):
            below = level.up.carry(level.gathered(ready, below), sizes)
            below += self._latency
            below = np.maximum.reduceat(below, level.first, axis=0)
        assert below is not None
        found = np.empty_like(ready)
        for level in self._levels:
            came_down = level.down.carry(np.repeat(below, level.counts, axis=0), sizes)
            found[level.ranks] = came_down[level.hosts]
            below = came_down[level.switches] + self._latency
        return self._in.carry(found, sizes) if self._busy_hosts else found

    def _ready(self, at: int, stop: int, came: Floats) -> Floats:
        """Return when the workers can send segments at..stop-1, (ranks, k)."""
        gates = self._gates[at:stop]
        ready = np.repeat(self._starts, stop - at, axis=1)
        waits = int(np.searchsorted(gates, 0, "right"))  # from this segment on
        if waits < stop - at:
            first = at - came.shape[1]  # the segment of the first column
            opened = came[:, gates[waits:] - 1 - first]
            np.maximum(ready[:, waits:], opened, out=ready[:, waits:])
        return ready


class _Level:
    """The nodes of one level and the links above them."""

    def __init__(self, fabric: Fabric, start: int, stop: int) -> None:
        rate, delay = fabric.rate[start:stop], fabric.delay[start:stop]
        self.up, self.down = Lines.of_links(rate, delay), Lines.of_links(rate, delay)
        _, self.first, self.counts = np.unique(
            fabric.parent[start:stop], return_index=True, return_counts=True
        )
        here = (fabric.hosts >= start) & (fabric.hosts < stop)
        self.ranks = np.flatnonzero(here)
        self.hosts = fabric.hosts[here] - start
        is_switch = np.ones(stop - start, bool)
        is_switch[self.hosts] = False
        self.switches = np.flatnonzero(is_switch)

    def gathered(self, ready: Floats, below: Floats | None) -> Floats:
        """Return when the nodes can send, (nodes, k).

        Args:
            ready: when the workers can, (ranks, k).
            below: when the switches of this level can, (switches, k); None: there are none.
        """
        if below is None:
            assert not len(self.switches)
            return ready[self.ranks[np.argsort(self.hosts)]]
        found = np.empty((len(self.hosts) + len(self.switches), ready.shape[1]))
        found[self.hosts] = ready[self.ranks]
        found[self.switches] = below
        return found
