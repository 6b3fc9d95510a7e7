"""What lines carry, and how long an exchange takes that has too many frames to be worked out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from iswitch.core.format.wire import Shape
from iswitch.ethernet.frame import ETH_HEADER
from iswitch.sim.handling import Handling

from .fabric import Fabric, Floats
from .lines import frame_sizes
from .messages import Stream, frames_of
from .ring import Chunks


class Loads:
    """What links carry.

    Attributes:
        up, down: bytes of all frames on the link above each node, (n,).
        frames: how many frames hosts send.
    """

    def __init__(self, fabric: Fabric) -> None:
        self._fabric = fabric
        self.up, self.down = np.zeros(len(fabric.parent)), np.zeros(len(fabric.parent))
        self.frames = 0

    def add(self, source: int, target: int, size: int, frames: int) -> None:
        """Let frames of `size` bytes together go from the host of one rank to that of another."""
        hosts = self._fabric.hosts
        path = self._fabric.path(int(hosts[source]), int(hosts[target]))
        for node, up in path:
            (self.up if up else self.down)[node] += size
        self.frames += frames * bool(path)

    def of_each(self, rounds: int) -> Loads:
        """Return what links carry in each of some rounds, the mean."""
        each = Loads(self._fabric)
        each.up, each.down, each.frames = (
            self.up / rounds,
            self.down / rounds,
            self.frames // rounds,
        )
        return each

    @property
    def seconds(self) -> float:
        """Return how long the busiest line sends."""
        return float((np.maximum(self.up, self.down) * 8 / self._fabric.rate).max())


def of_aggregation(fabric: Fabric, shape: Shape) -> Loads:
    """Return what a round that switches aggregate puts on links: a vector in each direction."""
    loads = Loads(fabric)
    loads.up[1:] = loads.down[1:] = frame_sizes(shape).sum()
    loads.frames = shape.segments * len(fabric.hosts)
    return loads


def of_streams(fabric: Fabric, streams: Iterable[Stream]) -> Loads:
    """Return what streams put on links."""
    loads = Loads(fabric)
    for stream in streams:
        each = [frames_of(one.size, fabric.mtu) for one in stream.messages]
        size, frames = sum(int(some.sum()) for some in each), sum(map(len, each))
        loads.add(stream.source, stream.target, size, frames)
    return loads


def of_ring(fabric: Fabric, pieces: Sequence[Sequence[int]]) -> Loads:
    """Return what a ring puts on links: each worker sends all chunks twice, but for two of them."""
    workers = len(pieces)
    chunks = Chunks(pieces, fabric.mtu)
    sizes, frames = chunks.sizes.sum(axis=1), chunks.real.sum(axis=1)
    loads = Loads(fabric)
    for rank in range(workers if workers > 1 else 0):
        less = [(rank + 1) % workers, (rank + 2) % workers]
        size, count = (int(2 * all_.sum() - all_[less].sum()) for all_ in (sizes, frames))
        loads.add(rank, (rank + 1) % workers, size, count)
    return loads


def pushed_and_answered(
    fabric: Fabric, streams: Sequence[Stream], starts: Floats, hosts: Handling, latency: float
) -> Floats:
    """Estimate when workers end a round of parameter servers, (ranks,) seconds.

    Pushes share lines fairly, so that blocks are complete one after the other, evenly spread over
    the time in which the busiest line carries all pushes. The answers of a block take their time in
    the other direction, after those of the blocks before. No line carries more than its rate.
    """
    pushes = [one for one in streams if one.messages[0].of_worker]
    answers = [one for one in streams if not one.messages[0].of_worker]
    pushed = _seconds(fabric, pushes, hosts)
    blocks = max(len(one.messages) for one in answers)
    each = np.array(
        [
            _seconds(
                fabric,
                [one._replace(messages=one.messages[i : i + 1]) for one in answers],
                hosts,
            )
            for i in range(blocks)
        ]
    )
    complete = pushed * each.cumsum() / each.sum()
    ends = float((complete + each[::-1].cumsum()[::-1]).max())
    both = _seconds(fabric, streams, hosts)
    frame = int(frames_of(max(m.size for m in pushes[0].messages), fabric.mtu)[0])
    nodes = fabric.hosts.tolist()
    ways = [fabric.path(nodes[one.source], nodes[one.target]) for one in pushes]
    once = max(_first(fabric, way, frame, hosts, latency) for way in ways)
    return np.full(len(starts), float(starts.max()) + 2 * once + max(ends, both))


def _seconds(fabric: Fabric, streams: Sequence[Stream], hosts: Handling) -> float:
    """Return how long the busiest line, or the busiest host, needs for some streams."""
    loads = of_streams(fabric, streams)
    if not hosts:
        return loads.seconds
    size = fabric.mtu + ETH_HEADER
    frames = max(loads.up[fabric.hosts].max(), loads.down[fabric.hosts].max()) / size
    return max(loads.seconds, float(frames) * (hosts.per_packet + size * hosts.per_byte))


def _first(
    fabric: Fabric, way: Sequence[tuple[int, bool]], size: int, hosts: Handling, latency: float
) -> float:
    """Return the seconds in which a frame passes a way on which no other is."""
    at = [node for node, _ in way]
    wire = float((size * 8 / fabric.rate[at] + fabric.delay[at]).sum())
    node = hosts.per_packet + size * hosts.per_byte + hosts.latency
    return wire + 2 * node + latency * max(0, len(at) - 1)
