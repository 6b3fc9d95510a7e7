"""Prometheus' metrics of a worker: what it sent again, and how long its calls take.

    with Worker(switch, job, numel, 4) as worker, exposed(worker, port=9465):
        ...

Nothing is served unless a program asks for it. docs/watch.md lists the names.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import accumulate
from typing import TYPE_CHECKING

from iswitch.core.format.histogram import BOUNDS

if TYPE_CHECKING:
    from prometheus_client.core import Metric

    from .rounds import RoundWorker

COUNTS = {  # of `stats`: the name of the metric, and what it counts
    "sent": ("segments_sent", "segments sent, also those sent again"),
    "sent_again": ("segments_sent_again", "segments sent again, since a sum was late or lost"),
    "received": ("segments_received", "aggregates received"),
    "useless": ("segments_useless", "packets received that were of no use"),
    "helps": ("helps", "Help requests sent"),
    "helped": ("helped", "Help requests answered"),
    "rejoins": ("rejoins", "times that it joined again"),
    "rx_overflow": ("rx_overflow", "datagrams for which its socket had no room"),
    "tx_failed": ("tx_failed", "packets that the kernel did not take"),
}
STATES = {
    "round_trip": ("round_trip_seconds", "smoothed round-trip time"),
    "timer": ("timer_seconds", "time until a segment is sent again"),
    "window": ("window_segments", "segments that may be under way"),
}


class Collector:
    """Collects the metrics of a worker whenever somebody reads them."""

    def __init__(self, worker: RoundWorker) -> None:
        self._worker = worker

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics."""
        from prometheus_client.core import (
            CounterMetricFamily,
            GaugeMetricFamily,
            HistogramMetricFamily,
        )

        worker, stats = self._worker, self._worker.stats()
        labels = {"job": str(worker.job), "rank": str(stats["rank"])}
        for name, (metric, meaning) in COUNTS.items():
            counter = CounterMetricFamily(f"iswitch_worker_{metric}", meaning, labels=[*labels])
            counter.add_metric([*labels.values()], stats[name])
            yield counter
        for name, (metric, meaning) in STATES.items():
            gauge = GaugeMetricFamily(f"iswitch_worker_{metric}", meaning, labels=[*labels])
            gauge.add_metric([*labels.values()], stats[name])
            yield gauge
        took = HistogramMetricFamily(
            "iswitch_worker_allreduce_duration_seconds", "of calls", labels=[*labels]
        )
        bounds = [*(f"{bound:g}" for bound in BOUNDS), "+Inf"]
        buckets = list(zip(bounds, accumulate(worker.durations.counts), strict=True))
        took.add_metric([*labels.values()], buckets, worker.durations.seconds)
        yield took


@contextmanager
def exposed(worker: RoundWorker, host: str = "127.0.0.1", port: int = 0) -> Iterator[int]:
    """Serve a worker's metrics at /metrics during the `with` block; the value is the TCP port.

    Args:
        worker: the worker.
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
