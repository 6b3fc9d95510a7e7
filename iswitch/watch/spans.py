"""Tells OpenTelemetry of some rounds: a span at each switch, and one at each worker.

ISWITCH_TRACE=N asks for the rounds whose number N divides; N/NAME names the run besides. Every
process chooses the same rounds, and makes the same trace id of NAME, job and round. So the spans of
a round are one trace, and no packet tells of it. Nothing is done for a packet: a switch looks at
the rounds that it remembers anyway, a few times a second.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from iswitch.outside import UsageError, extra
from iswitch.system.logs import log

if TYPE_CHECKING:
    from collections.abc import Callable

    from opentelemetry.sdk.trace import TracerProvider as OwnProvider
    from opentelemetry.trace import TracerProvider

    from iswitch.core.jobs.record import Record

VARIABLE = "ISWITCH_TRACE"
EXPORTER = "OTEL_TRACES_EXPORTER"
Where = tuple[int, int]  # a job and a round
Span = tuple[float, float]  # begin and end, in monotonic seconds

SECOND = 1_000_000_000  # nanoseconds
PAUSE = 0.25  # seconds between two looks at a switch's rounds, of which it remembers some
ENOUGH = 5.0  # seconds for the last look
MAKING = threading.Lock()


class Calls(Protocol):
    """An engine, which calls a function between two turns."""

    def call(self, function: Callable[[], None], /) -> None:
        """Call a function once."""


class Sampled(NamedTuple):
    """Which rounds have spans: those whose number `every` divides. `name`: of the run."""

    every: int
    name: str


def sampled(environ: Mapping[str, str]) -> Sampled | None:
    """Return which rounds the environment asks spans for; None: for none.

    Raises:
        UsageError: the variable is not N or N/NAME.
    """
    text = environ.get(VARIABLE, "")
    if not text:
        return None
    every, _, name = text.partition("/")
    if not (every.isascii() and every.isdecimal() and len(every) < 10 and int(every) > 0):
        raise UsageError(
            f"{VARIABLE}={text}: write N or N/NAME, such as 100 for a span of each 100th round; or "
            "leave it out"
        )
    return Sampled(int(every), name)


class Spans:
    """Makes spans of rounds.

    Args:
        rounds: which rounds have spans.
        provider: gives them to OpenTelemetry.
    """

    def __init__(self, rounds: Sampled, provider: TracerProvider) -> None:
        self._every, self._name = rounds
        self._tracer = provider.get_tracer("iswitch")
        self._epoch = time.time() - time.monotonic()

    def wants(self, round_: int) -> bool:
        """Return whether a round has spans."""
        return round_ % self._every == 0

    def end(self, name: str, where: Where, began: float, **more: Any) -> None:
        """Make a span that ends now, if its round has spans; the arguments are those of `add`."""
        if self.wants(where[1]):
            self.add(name, where, (began, time.monotonic()), **more)

    def add(self, name: str, where: Where, span: Span, **more: Any) -> None:
        """Make a span.

        Args:
            name: what took the time.
            where: the job and the round.
            span: begin and end, in monotonic seconds.
            more: further attributes.
        """
        from opentelemetry import trace

        job, round_ = where
        digest = blake2b(f"{self._name}/{job}/{round_}".encode(), digest_size=24).digest()
        parent = trace.SpanContext(
            int.from_bytes(digest[:16]) | 1,
            int.from_bytes(digest[16:]) | 1,
            is_remote=True,
            trace_flags=trace.TraceFlags(trace.TraceFlags.SAMPLED),
        )
        begin, end = (round((at + self._epoch) * SECOND) for at in span)
        attributes = {"job": job, "round": round_, **more}
        self._tracer.start_span(
            name,
            trace.set_span_in_context(trace.NonRecordingSpan(parent)),
            start_time=begin,
            attributes={f"iswitch.{key}": value for key, value in attributes.items()},
        ).end(end)


def spans(environ: Mapping[str, str] = os.environ) -> Spans | None:
    """Return what makes the spans that the environment asks for; None: it asks for none.

    Raises:
        UsageError: it asks wrongly, or for an exporter that is not installed.
    """
    rounds = sampled(environ)
    return None if rounds is None else Spans(rounds, provider(environ))


def provider(environ: Mapping[str, str]) -> TracerProvider:
    """Return the program's tracer provider, or one that exports as OpenTelemetry's variables say.

    Raises:
        UsageError: OpenTelemetry or the exporter is not installed.
    """
    try:
        from opentelemetry import trace
        from opentelemetry.sdk.trace import TracerProvider  # noqa: F401  (`own_provider` needs it)
    except ImportError:
        raise UsageError(
            f"{VARIABLE} needs OpenTelemetry: {extra('trace')}, or leave it out"
        ) from None
    if not isinstance(present := trace.get_tracer_provider(), trace.ProxyTracerProvider):
        return present
    with MAKING:
        return own_provider(environ.get(EXPORTER, "otlp"), "OTEL_SERVICE_NAME" in environ)


@cache  # a provider has a thread and a connection of its own: one serves the whole process
def own_provider(kind: str, is_named: bool) -> OwnProvider:
    """Make a provider, which exports what it still has when the process exits.

    Args:
        kind: of its exporter.
        is_named: the environment names the service.

    Raises:
        UsageError: the exporter is not installed.
    """
    from importlib.metadata import entry_points

    from opentelemetry.sdk.resources import SERVICE_NAME, Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    found = entry_points(group="opentelemetry_traces_exporter", name=kind)
    if not found:
        raise UsageError(
            f"{VARIABLE} needs an exporter {kind!r}: pip install opentelemetry-exporter-{kind}, or "
            f"choose another one by {EXPORTER}, such as console"
        )
    made = TracerProvider(resource=Resource.create({} if is_named else {SERVICE_NAME: "iswitch"}))
    exporter = found[kind].load()
    more = {"out": sys.stderr} if kind == "console" else {}  # stdout is for counters
    made.add_span_processor(BatchSpanProcessor(exporter(**more)))
    return made


class Rounds:
    """Makes spans of the rounds of a switch.

    Args:
        engine: runs the switch.
        record: its jobs.
        name: its name; "": it has none.
        spans: makes them.
    """

    def __init__(self, engine: Calls, record: Record, name: str, spans: Spans) -> None:
        self._engine = engine
        self._record = record
        self._name = name
        self._spans = spans
        self._until: dict[int, float] = {}  # by job: when the last round ended that was noted
        self._noted: deque[tuple[Where, Span, int | None]] = deque()

    def look(self) -> None:
        """Make spans of what was noted, and have the engine note the rounds since."""
        while self._noted:
            where, span, rank = self._noted.popleft()
            more = {} if rank is None else {"last_rank": rank}
            self._spans.add("round", where, span, switch=self._name, **more)
        self._engine.call(self.note)

    def note(self) -> None:
        """Note rounds that ended since the last time; in the engine's thread."""
        for number, job in self._record.jobs.items():
            until = self._until.get(number, 0.0)
            fresh = [one for one in job.rounds.pace.recent if one.ended > until]
            if not fresh:
                continue
            self._until[number] = fresh[-1].ended
            ranks = {id(member.tally): member.rank for member in job.members}
            for one in fresh:
                if self._spans.wants(one.round):
                    span = one.ended - one.seconds, one.ended
                    self._noted.append(((number, one.round), span, ranks.get(id(one.last))))


@contextmanager
def traced(rounds: Rounds) -> Iterator[None]:
    """Make spans of the rounds of a switch during the `with` block."""
    ended = threading.Event()

    def look() -> None:
        while not ended.wait(PAUSE):
            try:
                rounds.look()
            except Exception as error:  # one of ours: look again
                log.error("spans were not made: %r; please report it", error)

    thread = threading.Thread(target=look, name="spans", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(ENOUGH)
        rounds.note()  # the engine has ended
        rounds.look()
