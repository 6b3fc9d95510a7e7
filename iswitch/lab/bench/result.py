"""Keeps what was measured, and computes medians, spread, ratios of pairs, and CPU per GB."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from iswitch.core.format.wire import SEG_SIZE, Shape
from iswitch.ethernet.frame import HEADERS
from iswitch.faults.units import RATE
from worker_lib.strategies.iswitch import carried

from .plan import ALLREDUCE

if TYPE_CHECKING:
    from topologies import Topology

    from .group import Round
    from .plan import Setting, Size, Way

BUSY = 0.75  # of the cores or the wire; above that they are the limit


class Quartiles(NamedTuple):
    """25th, 50th and 75th percentile."""

    low: float
    middle: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Quartiles:
        """Compute the quartiles of at least one value."""
        return cls(*np.percentile(values, [25, 50, 75]).tolist())


@dataclass
class Series:
    """The rounds of one way, collective, size and network, in the order of measuring.

    Attributes:
        hops: seconds of a round of the switch by the links alone, all of its way; None: not known.
    """

    way: Way
    size: Size
    setting: Setting
    workers: int
    rounds: list[Round] = field(default_factory=list)
    iterations: list[Round] = field(default_factory=list)
    exact: bool | None = None  # None: it does not add
    stats: list[dict[str, Any]] = field(default_factory=list)  # of each rank
    collective: str = ALLREDUCE
    hops: float | None = None

    @property
    def seconds(self) -> list[float]:
        """Return the seconds of each call."""
        return [one.aggregate for one in self.rounds]

    @property
    def quartiles(self) -> Quartiles:
        """Return the quartiles of the seconds of an allreduce."""
        return Quartiles.of(self.seconds)

    @property
    def p99(self) -> float:
        """Return the 99th percentile of the seconds."""
        return float(np.percentile(self.seconds, 99))

    def ratio(self, other: Series) -> Quartiles:
        """Compute quartiles of the ratios to another series, in pairs of rounds of one turn."""
        pairs = zip(self.seconds, other.seconds, strict=False)
        return Quartiles.of([mine / its for mine, its in pairs])

    def cpu_per_gb(self) -> tuple[float, float]:
        """Compute CPU seconds of switches or servers, and of workers, per 1e9 bytes contributed."""
        gigabytes = len(self.rounds) * self.workers * self.size.bytes / 1e9
        if not gigabytes:
            return 0.0, 0.0
        return (
            sum(one.switch_cpu for one in self.rounds) / gigabytes,
            sum(one.workers_cpu for one in self.rounds) / gigabytes,
        )

    def link(self) -> tuple[float, float]:
        """Compute the mean bit/s on a worker's link in an allreduce: to the worker, from it."""
        seconds = sum(self.seconds)
        if not seconds:  # asynchronous workers that wait for nothing
            return 0.0, 0.0
        return (
            sum(one.received for one in self.rounds) * 8 / seconds,
            sum(one.sent for one in self.rounds) * 8 / seconds,
        )

    def link_bytes(self) -> tuple[float, float]:
        """Compute the mean bytes on a worker's link in a call: to the worker, from it."""
        return (
            float(np.mean([one.received for one in self.rounds])),
            float(np.mean([one.sent for one in self.rounds])),
        )

    def predicted_bytes(self) -> tuple[float, float] | None:
        """Return what `link_bytes` is without packet loss, in frames on a wire.

        None: no formula; it is one of collectives of the switch, other than allreduce.
        """
        if self.collective == ALLREDUCE or self.way.name != "iswitch":
            return None
        up = down = 0
        for rank in range(self.workers):
            sent, received = carried(self.collective, self.size.numel, self.workers, (rank,))
            up += sum(sent) + len(sent) * HEADERS
            down += sum(received) + len(received) * HEADERS
        return down / self.workers, up / self.workers

    def cores_busy(self, cores: int) -> float:
        """Estimate how many of the machine's cores the processes of this strategy keep busy.

        It is a ratio of medians. In rounds of some microseconds, the CPU time includes waking and
        sleeping, which take longer than the round itself: so the estimate is capped.
        """
        spent = np.median([one.switch_cpu + one.workers_cpu for one in self.rounds])
        middle = np.median(self.seconds)
        return min(float(spent / middle), float(cores)) if middle else 0.0

    def wire_busy(self) -> float | None:
        """Compute the share of its rate that the busiest link carries in an allreduce.

        It is a ratio of medians; None: links have no rate. The link of a parameter server carries
        the traffic of all workers. Of packets in shared memory no interface counts the bytes: it is
        then the share of a round in which a link carries the vector once.
        """
        if self.rate is None:
            return None
        if self.setting.cable == "shm" and self.way.name == "iswitch":
            return self.bound and self.bound / float(np.median(self.seconds))
        servers = self.way.servers
        carried = [8 * max(one.received, one.sent) for one in self.rounds]
        middle = np.median(self.seconds)
        busy = float(np.median(carried) / middle) / self.rate if middle else 0.0
        return busy * (self.workers / servers if servers else 1)

    def limit(self, cores: int) -> str:
        """Find what limits the series: "wire", "cores", or "" where neither is busy."""
        if (self.wire_busy() or 0.0) >= BUSY:
            return "wire"
        return "cores" if self.cores_busy(cores) >= BUSY * cores else ""

    def split(self) -> dict[str, float] | None:
        """Compute the median seconds of the parts of an iteration; None: there were none."""
        if not self.iterations:
            return None
        return {
            part: float(np.median([getattr(one, part) for one in self.iterations]))
            for part in ("compute", "aggregate", "update", "iteration")
        }

    @property
    def bound(self) -> float | None:
        """Return the seconds in which the slowest links carry the vector once, with headers.

        Up and down overlap. None: there is no rate.
        """
        return (
            None if self.rate is None or not self.size.numel else wire_bound(self.size, self.rate)
        )

    @property
    def rate(self) -> float | None:
        """Return the bit/s of the slowest links; None: they have no rate."""
        setting = self.setting
        return setting.slowest if setting.rate is None else float(RATE.parse(setting.rate))


def wire_bound(size: Size, rate: float) -> float:
    """Compute the seconds that a vector's frames, of 366 elements each, take at a rate in bit/s."""
    shape = Shape.of(size.numel)
    return (size.bytes + shape.segments * (HEADERS + SEG_SIZE)) * 8 / rate


def hops_bound(size: Size, topology: Topology) -> float | None:
    """Compute the seconds of a round of the switch by the links alone, up to the root and down.

    All frames of the vector pass a worker's link. Then a full one, after which only the rest of the
    vector comes, passes the other links of its way. None: links differ, or have no rate.
    """
    (first, *others) = topology.links
    rate, delay = first.rate, first.delay
    if not size.numel or not rate or any((x.rate, x.delay) != (rate, delay) for x in others):
        return None
    levels = 0  # links from the farthest worker to the root
    switches = {topology.switch_of(host.name) for host in topology.hosts}
    while switches:
        levels += 1
        switches = {above for name in switches if (above := topology.parents[name]) is not None}
    bound = wire_bound(size, rate)
    frame = min(bound, (Shape.of(size.numel).packet_size + HEADERS) * 8 / rate)
    return bound + (2 * levels - 1) * frame + 2 * levels * delay


@dataclass
class Results:
    """All series that were begun."""

    series: list[Series] = field(default_factory=list)

    def all_cells(self) -> list[list[Series]]:
        """Group the series by collective, size and network, in the order of the strategies."""
        found: dict[tuple[str, Size, Setting], list[Series]] = {}
        for one in self.series:
            found.setdefault((one.collective, one.size, one.setting), []).append(one)
        return list(found.values())

    def cells(self) -> list[list[Series]]:
        """Group those series of which something was measured, as `all_cells` does."""
        return Results([one for one in self.series if one.rounds]).all_cells()

    def of(self, collective: str) -> Results:
        """Choose the series of a collective."""
        return Results([one for one in self.series if one.collective == collective])
