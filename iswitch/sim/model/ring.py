"""A ring whose streams share no line: step by step, all workers side by side.

The window of a stream (`iswitch.sim.streams`) holds what fits on the way and SPARE frames more. So
the slowest line of a way is never idle for want of it, and where no other stream uses the way, it
does not change when frames arrive.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from iswitch.sim.handling import Handling

from .fabric import Fabric, Floats, Ints
from .messages import frames_of


def is_apart(fabric: Fabric) -> bool:
    """Return whether no two streams of a ring in order of rank use the same line."""
    hosts = fabric.hosts.tolist()
    seen: set[tuple[int, bool]] = set()
    for rank, host in enumerate(hosts):
        for line in fabric.path(hosts[rank - 1], host):
            if line in seen:
                return False
            seen.add(line)
    return True


class Chunks:
    """The frames of the chunks of a vector, with frames of no bytes where a chunk has fewer.

    Attributes:
        sizes: bytes of each frame, (chunks, k).
        real: 1 for each frame, 0 for what is none, (chunks, k).
        last: the last frame of the piece of each frame, (chunks, k).
    """

    def __init__(self, pieces: Sequence[Sequence[int]], mtu: int) -> None:
        each = [[frames_of(size, mtu) for size in some] for some in pieces]
        counts = [sum(map(len, some)) for some in each]
        shape = len(pieces), max(1, *counts)
        self.sizes, self.real = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
        self.last = np.broadcast_to(np.arange(shape[1]), shape).copy()
        for i, some in enumerate(each):
            if some:
                self.sizes[i, : counts[i]] = np.concatenate(some)
                self.real[i, : counts[i]] = 1
                ends = np.cumsum([len(one) for one in some]) - 1
                self.last[i, : counts[i]] = np.repeat(ends, [len(one) for one in some])


def go_round(
    fabric: Fabric,
    pieces: Sequence[Sequence[int]],
    starts: Floats,
    hosts: Handling,
    latency: float,
) -> Floats:
    """Return when each worker has the sum, (ranks,) seconds.

    Args:
        fabric: the network, in which the ring `is_apart`.
        pieces: bytes of the pieces of each worker's chunk.
        starts: when each worker begins, (ranks,) seconds.
        hosts: the time that hosts take for each frame.
        latency: seconds for which switches delay each frame.
    """
    workers = len(starts)
    if workers == 1:
        return starts.copy()
    chunks = Chunks(pieces, fabric.mtu)
    ways = _Ways(fabric, hosts, latency)
    ranks = np.arange(workers)
    ready = np.repeat(starts[:, None], chunks.sizes.shape[1], axis=1)
    ends = starts.copy()
    for step in range(2 * (workers - 1)):
        sent = (ranks - step) % workers
        came = ways.carry(ready, chunks.sizes[sent], chunks.real[sent])
        came = np.roll(came, 1, axis=0)  # to the next rank
        arrived = np.roll(sent, 1)
        came = np.take_along_axis(came, chunks.last[arrived], axis=1)
        came[~chunks.real[arrived].any(axis=1)] = -np.inf  # nothing is sent of an empty chunk
        ready = np.maximum(came, starts[:, None])
        np.maximum(ends, ready[:, -1], out=ends)
    return ends


class _Ways:
    """The ways from each worker to the next one."""

    def __init__(self, fabric: Fabric, hosts: Handling, latency: float) -> None:
        nodes = fabric.hosts.tolist()
        following = [*nodes[1:], nodes[0]]
        paths = [fabric.path(*ends) for ends in zip(nodes, following, strict=True)]
        self._hops = []
        if hosts:
            self._hops.append(_Hop(np.arange(len(nodes)), *map(np.array, hosts)))
        for at in range(max(map(len, paths))):
            rows: Ints = np.array([i for i, path in enumerate(paths) if len(path) > at])
            lines = np.array([paths[i][at][0] for i in rows])
            ends = np.array([len(paths[i]) == at + 1 for i in rows])
            delay = fabric.delay[lines] + np.where(ends, 0.0, latency)
            self._hops.append(_Hop(rows, np.zeros(1), 8 / fabric.rate[lines], delay))
        if hosts:
            self._hops.append(_Hop(np.arange(len(nodes)), *map(np.array, hosts)))

    def carry(self, ready: Floats, sizes: Ints, real: Ints) -> Floats:
        """Return when frames have come to the next worker, (ranks, k)."""
        at = ready.copy()
        for hop in self._hops:
            hop.carry(at, sizes, real)
        return at


class _Hop:
    """One line of each of some ways.

    Args:
        rows: the ways.
        each: seconds for a frame, (rows,) or a number.
        byte: seconds for a byte, (rows,) or a number.
        delay: seconds that pass until a frame has come, (rows,) or a number.
    """

    def __init__(self, rows: Ints, each: Floats, byte: Floats, delay: Floats) -> None:
        self._rows = rows
        self._each, self._byte, self._delay = (
            np.atleast_1d(x)[:, None] for x in (each, byte, delay)
        )
        self._busy = np.full((len(rows), 1), -np.inf)

    def carry(self, at: Floats, sizes: Ints, real: Ints) -> None:
        """Replace the times at which frames come by those at which they have passed."""
        rows = self._rows
        takes = self._byte * sizes[rows] + self._each * real[rows]
        total = takes.cumsum(axis=1)
        done = np.maximum.accumulate(at[rows] - total + takes, axis=1)
        done = np.maximum(done, self._busy) + total
        self._busy = done[:, -1:]
        at[rows] = done + self._delay
