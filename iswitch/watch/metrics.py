"""Turns a snapshot into Prometheus' metrics, and serves both over HTTP to whoever may connect.

No label holds a round or a segment: jobs, members and ports bound the number of time series.
"""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from iswitch.core.format.counters import COUNTERS
from iswitch.outside import UsageError, extra, reason
from iswitch.system.logs import log

if TYPE_CHECKING:
    from prometheus_client.core import Metric

SLOW = 2.0  # seconds that a reader may take; the next one waits for it
LOCALHOST = "127.0.0.1"

Where = tuple[str, int]
OF_MEMBERS = {  # counts of a member: the name of the metric, and what it counts
    "packets": ("packets", "data packets that came from it"),
    "bytes": ("bytes", "bytes of their payloads"),
    "late": ("late_contributions", "contributions to segments that were complete already"),
    "resent": ("resent_aggregates", "aggregates sent to it again"),
    "asked": ("asked_contributions", "missing contributions for which Help asked it"),
    "rounds": ("rounds", "rounds that it began"),
    "last": ("last_rounds", "rounds that its contribution ended"),
    "behind": ("behind_seconds", "from the first contribution of a round to its own first"),
}
OF_JOBS = {  # states of a job
    "workers": ("workers", "live workers, of the whole tree"),
    "expected": ("expected_workers", "workers that must come before anything completes"),
    "threshold": ("threshold", "H in force: contributions that complete a segment"),
    "priority": ("priority", "of those that wait for memory or their turn, the highest goes first"),
}
OF_SHARES = {  # of jobs that pass on what finds no slot
    "added": ("contributions_added", "contributions added up here"),
    "passed_on": ("contributions_passed_on", "contributions that went on to the switch above"),
}
OF_LINKS = {
    "rx_packets": ("receive_packets", "packets that came, as the kernel counts them"),
    "tx_packets": ("transmit_packets", "packets that left, as the kernel counts them"),
    "rx_bytes": ("receive_bytes", "bytes that came"),
    "tx_bytes": ("transmit_bytes", "bytes that left"),
}
OF_PORTS = ("lost_in", "lost_out", "queue_in", "queue_out")  # drops that links count, too


def families(snapshot: dict[str, Any]) -> Iterator[Metric]:
    """Yield the metrics of a snapshot."""
    from prometheus_client.core import (
        CounterMetricFamily as Counter,
    )
    from prometheus_client.core import (
        GaugeMetricFamily as Gauge,
    )
    from prometheus_client.core import (
        InfoMetricFamily as Info,
    )

    yield Info("iswitch_build", "the program", {"version": snapshot["iswitch"]})
    yield Gauge("iswitch_uptime_seconds", "since the switch began to serve", snapshot["uptime"])
    for name, meaning in COUNTERS.items():
        yield Counter(f"iswitch_{name}", meaning, snapshot["counters"][name])
    dropped = Counter(
        "iswitch_packets_dropped", "packets dropped, by reason", labels=["reason", "port"]
    )
    for why, port, packets in drops(snapshot):
        dropped.add_metric([why, port], packets)
    yield dropped
    memory = snapshot["memory"]
    yield Gauge("iswitch_memory_limit_bytes", "most that all jobs may reserve", memory["limit"])
    yield Gauge("iswitch_waiting_jobs", "jobs that wait for memory", snapshot["waiting"])
    yield from _of_jobs(snapshot["jobs"])
    yield from _of_members(snapshot["jobs"])
    for name, (metric, meaning) in OF_LINKS.items():
        family = Counter(f"iswitch_link_{metric}", meaning, labels=["port", "peer"])
        for link in snapshot["links"]:
            family.add_metric([link["name"], link["peer"] or ""], link[name])
        yield family


def drops(snapshot: dict[str, Any]) -> Iterator[tuple[str, str, int]]:
    """Yield each reason with a port and a count; no port: the switch knows only the sum."""
    for why, packets in snapshot["drops"].items():
        links = snapshot["links"] if why in OF_PORTS else ()
        at_ports = [(link["name"], link[why]) for link in links]
        for port, some in at_ports:
            yield why, port, some
            packets -= some
        if packets or not at_ports:
            yield why, "", packets


def _of_jobs(jobs: Iterable[dict[str, Any]]) -> Iterator[Metric]:
    from prometheus_client.core import (
        CounterMetricFamily as Counter,
    )
    from prometheus_client.core import (
        GaugeMetricFamily as Gauge,
    )
    from prometheus_client.core import (
        HistogramMetricFamily as Histogram,
    )

    reserved = Gauge("iswitch_memory_reserved_bytes", "bytes of buffers, by job", labels=["job"])
    halted = Gauge("iswitch_job_halted", "1 while a Halt holds", labels=["job"])
    turn = Gauge("iswitch_job_turn", "1 while it has its turn in its lane", labels=["job", "lane"])
    shares = {
        name: Counter(f"iswitch_job_{metric}", meaning, labels=["job"])
        for name, (metric, meaning) in OF_SHARES.items()
    }
    took = Histogram(
        "iswitch_round_duration_seconds",
        "from the first contribution of a round to the last",
        labels=["job"],
    )
    states = {
        name: Gauge(f"iswitch_job_{metric}", meaning, labels=["job"])
        for name, (metric, meaning) in OF_JOBS.items()
    }
    for job in jobs:
        label = [str(job["job"])]
        reserved.add_metric(label, job["reserved"])
        halted.add_metric(label, job["state"] == "halted")
        if job["lane"] is not None:
            turn.add_metric([*label, str(job["lane"])], job["turn"] == "has")
        for name, counter in shares.items():
            if job[name] is not None:
                counter.add_metric(label, job[name])
        for name, gauge in states.items():
            gauge.add_metric(label, job[name])
        rounds = job["rounds"]
        bounds = [f"{bound:g}" for bound in rounds["bounds"]] + ["+Inf"]
        buckets = list(zip(bounds, accumulate(rounds["counts"]), strict=True))
        took.add_metric(label, buckets, rounds["seconds"])
    yield from (reserved, halted, turn, took, *states.values(), *shares.values())


def _of_members(jobs: Iterable[dict[str, Any]]) -> Iterator[Metric]:
    """Yield the metrics of workers and switches; a controller is too short-lived for a series."""
    from prometheus_client.core import (
        CounterMetricFamily as Counter,
    )
    from prometheus_client.core import (
        GaugeMetricFamily as Gauge,
    )

    labels = ["job", "member", "rank"]
    silent = Gauge("iswitch_member_silent_seconds", "since anything came from it", labels=labels)
    missing = Gauge(
        "iswitch_member_missing_segments", "that the present round lacks of it", labels=labels
    )
    counts = {
        name: Counter(f"iswitch_member_{metric}", meaning, labels=labels)
        for name, (metric, meaning) in OF_MEMBERS.items()
    }
    for job in jobs:
        for member in job["members"]:
            if member["type"] == "controller":
                continue
            rank = "" if member["rank"] is None else str(member["rank"])
            of = [str(job["job"]), member["name"], rank]
            silent.add_metric(of, member["silent"])
            if member["missing"] is not None:
                missing.add_metric(of, member["missing"])
            for name, counter in counts.items():
                counter.add_metric(of, member[name])
    yield from (silent, missing, *counts.values())


class Collector:
    """Collects the metrics of a switch whenever somebody reads them."""

    def __init__(self, snapshots: Callable[[], str | None]) -> None:
        self._snapshots = snapshots

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics; none if the switch has no time."""
        text = self._snapshots()
        if text is not None:
            yield from families(json.loads(text))


def exposition(collector: Any) -> bytes:
    """Return the metrics of a collector in Prometheus' text format."""
    from prometheus_client import CollectorRegistry, generate_latest

    registry = CollectorRegistry(auto_describe=False)
    registry.register(collector)
    return generate_latest(registry)


@contextmanager
def exposed(where: Where, pages: dict[str, tuple[str, Callable[[], bytes]]]) -> Iterator[int]:
    """Serve pages over HTTP during the `with` block; the value is the TCP port.

    Args:
        where: host and port to listen at.
        pages: by path: the content type, and what makes the page.

    Raises:
        UsageError: prometheus_client is missing, or the address cannot be had.
    """
    try:
        import prometheus_client  # noqa: F401
    except ImportError:
        raise UsageError(
            f"metrics need prometheus_client: {extra('metrics')}, or leave them out"
        ) from None

    class Handler(BaseHTTPRequestHandler):
        timeout = SLOW

        def do_GET(self) -> None:
            """Answer with a page."""
            found = pages.get(self.path.partition("?")[0])
            if found is None:
                self.send_error(404, f"there are {', '.join(pages)}")
                return
            kind, make = found
            body = make()
            self.send_response(200 if body else 503)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Say nothing: readers must not fill a log."""

    class Server(HTTPServer):
        def handle_error(self, *_: object) -> None:
            """Say nothing of readers that end early, but of errors of ours."""
            error = sys.exception()
            if not isinstance(error, OSError):
                log.error("a page of metrics was not sent: %r; please report it", error)

    try:
        server = Server(where, Handler)
    except OSError as error:
        at = "{}:{}".format(*where)
        raise UsageError(f"cannot listen at {at}: {reason(error)}; name another port") from None
    thread = threading.Thread(target=server.serve_forever, name="metrics", daemon=True)
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        server.server_close()
        thread.join(SLOW)


TEXT = "text/plain; version=0.0.4; charset=utf-8"


def pages_of(snapshots: Callable[[], str | None]) -> dict[str, tuple[str, Callable[[], bytes]]]:
    """Return the pages of a switch: /metrics, and /snapshot as JSON."""
    return {
        "/metrics": (TEXT, lambda: exposition(Collector(snapshots))),
        "/snapshot": ("application/json", lambda: (snapshots() or "").encode()),
    }
