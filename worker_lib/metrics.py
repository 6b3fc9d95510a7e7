"""Prometheus' metrics of a worker of any kind: what it sent again, how long its calls take.

    with Worker(switch, job, numel, 4) as worker, exposed(worker, port=9465):
        ...

Nothing is served unless a program asks for it. docs/watch.md lists the names.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Protocol

from iswitch.core.format.histogram import BOUNDS

from .collective import CollectiveWorker
from .rounds import RoundWorker

if TYPE_CHECKING:
    from prometheus_client.core import Metric

COUNTS = {  # of `stats`, if it has it: the name of the metric, and what it counts
    "sent": ("segments_sent", "segments sent, also those sent again"),
    "sent_again": ("segments_sent_again", "segments sent again, since a sum was late or lost"),
    "received": ("segments_received", "aggregates received"),
    "useless": ("segments_useless", "packets received that were of no use"),
    "helps": ("helps", "Help requests sent"),
    "helped": ("helped", "Help requests answered"),
    "rejoins": ("rejoins", "times that it joined again"),
    "rx_overflow": ("rx_overflow", "datagrams for which its socket had no room"),
    "tx_failed": ("tx_failed", "packets that the kernel did not take"),
    "contributed": ("gradients_contributed", "gradients sent"),
    "stale": ("gradients_stale", "gradients that were too old to be sent"),
    "applied": ("versions_applied", "versions that changed the weights"),
    "contributions": ("gradients_applied", "gradients of all workers in these versions"),
    "behind": ("behind", "times that it was too far behind, and took another's state"),
    "resets": ("resets", "resets of the job"),
    "snapshots_taken": ("states_taken", "states taken from other workers"),
    "snapshots_given": ("states_given", "states given to other workers"),
    "snapshots_dropped": ("states_dropped", "workers cut off while they took a state"),
}
STATES = {
    "round_trip": ("round_trip_seconds", "smoothed round-trip time"),
    "timer": ("timer_seconds", "time until a segment is sent again"),
    "window": ("window_segments", "segments that may be under way"),
    "version": ("version", "version of its weights"),
}
STALENESS = 0, 1, 2, 4, 8, 16, 32  # bounds of a histogram, in versions


class Counted(Protocol):
    """A worker of any kind."""

    job: int

    def stats(self) -> dict[str, Any]:
        """Return what it has counted."""


class Collector:
    """Collects the metrics of a worker whenever somebody reads them."""

    def __init__(self, worker: Counted) -> None:
        self._worker = worker

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        worker, stats = self._worker, self._worker.stats()
        labels = {"job": str(worker.job), "rank": str(stats["rank"])}
        for name, (metric, meaning) in COUNTS.items():
            if name not in stats:
                continue
            counter = CounterMetricFamily(f"iswitch_worker_{metric}", meaning, labels=[*labels])
            counter.add_metric([*labels.values()], stats[name])
            yield counter
        for name, (metric, meaning) in STATES.items():
            if name not in stats:
                continue
            gauge = GaugeMetricFamily(f"iswitch_worker_{metric}", meaning, labels=[*labels])
            gauge.add_metric([*labels.values()], stats[name])
            yield gauge
        if "staleness" in stats:
            late: dict[int, int] = stats["staleness"]
            counts = [sum(n for by, n in late.items() if by <= most) for most in STALENESS]
            buckets = {str(most): n for most, n in zip(STALENESS, counts, strict=True)}
            buckets["+Inf"] = sum(late.values())
            yield _histogram(
                "gradient_staleness_versions",
                "by how many versions gradients were late that it sent",
                labels,
                buckets,
                sum(by * n for by, n in late.items()),
            )
        if isinstance(worker, RoundWorker):
            call = "allreduce"
            if isinstance(worker, CollectiveWorker):
                call, labels["collective"] = "collective", worker.collective
            names = [*(f"{bound:g}" for bound in BOUNDS), "+Inf"]
            took = dict(zip(names, accumulate(worker.durations.counts), strict=True))
            seconds = worker.durations.seconds
            yield _histogram(f"{call}_duration_seconds", "of calls", labels, took, seconds)


def _histogram(
    name: str, meaning: str, labels: dict[str, str], buckets: dict[str, int], total: float
) -> Metric:
    """Return a histogram of a worker, of sums of buckets by their upper bounds."""
    from prometheus_client.core import HistogramMetricFamily

    found = HistogramMetricFamily(f"iswitch_worker_{name}", meaning, labels=[*labels])
    found.add_metric([*labels.values()], [*buckets.items()], total)
    return found


@contextmanager
def exposed(worker: Counted, host: str = "127.0.0.1", port: int = 0) -> Iterator[int]:
    """Serve a worker's metrics at /metrics during the `with` block; the value is the TCP port.

    Args:
        worker: a Worker, CollectiveWorker or AsynchronousWorker.
        host: address to listen at.
        port: TCP port; 0: any.

    Raises:
        UsageError: prometheus_client is missing, or the address cannot be had.
    """
    from iswitch.watch import metrics

    collector = Collector(worker)
    page = metrics.TEXT, lambda: metrics.exposition(collector)
    with metrics.exposed((host, port), {"/metrics": page}) as at:
        yield at
