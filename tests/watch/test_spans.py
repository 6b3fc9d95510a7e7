"""OpenTelemetry gets spans of the rounds that are asked for; those of a round are one trace."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable

import numpy as np
import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from iswitch.core.format.wire import Vector
from iswitch.outside import UsageError
from iswitch.watch import spans
from iswitch.watch.spans import Rounds, Sampled, Spans, sampled, traced
from tests.conftest import Where
from tests.support.parts import JOB, Bench
from tests.watch.test_snapshot import SHAPE, vector
from worker_lib import AsynchronousWorker, Worker

pytestmark = pytest.mark.unit


class Kept:
    """A provider, and the spans that it was given."""

    def __init__(self) -> None:
        self.exporter = InMemorySpanExporter()
        self.provider = TracerProvider(shutdown_on_exit=False)
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))

    def spans(self) -> list[ReadableSpan]:
        return list(self.exporter.get_finished_spans())

    def values(self, name: str) -> list[object]:
        return [(span.attributes or {})[f"iswitch.{name}"] for span in self.spans()]


class Engine:
    def call(self, function: Callable[[], None]) -> None:
        function()


def traces(kept: Kept) -> list[int]:
    return [span.context.trace_id for span in kept.spans() if span.context is not None]


def test_rounds_of_a_switch() -> None:
    bench, kept = Bench(), Kept()
    bench.gather(SHAPE, 2)
    rounds = Rounds(Engine(), bench.switch.record, "s1", Spans(Sampled(3, "run"), kept.provider))
    with traced(rounds):
        for round_ in range(10):
            bench.now = round_ + 100.0
            bench.contribute(0, SHAPE, round_, vector())
            bench.now = round_ + 100.25
            bench.contribute(1, SHAPE, round_, vector())
            rounds.look()
    assert kept.values("round") == [0, 3, 6, 9]
    assert set(kept.values("job")) == {JOB}
    assert set(kept.values("switch")) == {"s1"}
    assert set(kept.values("last_rank")) == {1}
    for span in kept.spans():
        assert span.name == "round"
        assert span.start_time is not None
        assert span.end_time is not None
        assert span.end_time - span.start_time == pytest.approx(250_000_000, abs=1000)
    assert len(set(traces(kept))) == 4


@pytest.mark.slow
def test_calls_of_workers(switch: Where, job: int, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = Kept()
    monkeypatch.setattr(spans, "provider", lambda _: kept.provider)
    monkeypatch.setenv(spans.VARIABLE, "2/run")
    with Worker(switch, job, 1000, 1) as worker:
        for _ in range(5):
            worker.allreduce(np.ones(1000, np.float32))
        assert worker.allreduces == 5
    rounds = kept.values("round")
    assert len(rounds) == 2 + (rounds[0] == 0)
    assert kept.values("job") == [job] * len(rounds)
    assert kept.values("rank") == [0] * len(rounds)
    # What another process makes of the same round is in the same trace.
    other = Kept()
    Spans(Sampled(1, "run"), other.provider).add("round", (job, int(str(rounds[0]))), (0.0, 1.0))
    assert traces(other) == traces(kept)[:1]
    assert other.spans()[0].parent == kept.spans()[0].parent


@pytest.mark.slow
def test_gradients_and_updates_of_an_asynchronous_worker(
    switch: Where, job: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = Kept()
    monkeypatch.setattr(spans, "provider", lambda _: kept.provider)
    monkeypatch.setenv(spans.VARIABLE, "2/run")
    made: list[int] = []

    def update(_: Vector, __: int, version: int) -> None:
        made.append(version)

    state = [np.zeros(1000, np.float32)]
    with AsynchronousWorker(switch, job, 1000, 1, update=update, state=state) as worker:
        sent = []
        for _ in range(5):
            sent.append(worker.version)
            worker.contribute(np.ones(1000, np.float32), sent[-1])
            worker.wait_for(sent[-1] + 1)
    found = sorted(zip([one.name for one in kept.spans()], kept.values("round"), strict=True))
    wanted = [("contribute", at) for at in sent] + [("update", at) for at in made]
    assert found == [one for one in wanted if one[1] % 2 == 0]
    assert {*kept.values("rank")} == {0}
    assert len({*traces(kept)}) == len({at for _, at in found})


def own_threads() -> int:
    """How many threads export spans in this process."""
    return sum("SpanRecord" in thread.name for thread in threading.enumerate())


def test_all_workers_of_a_process_share_a_provider() -> None:
    asked = {spans.VARIABLE: "1", spans.EXPORTER: "console"}
    before = own_threads()
    made = [spans.provider(asked) for _ in range(3)]
    assert own_threads() == before + 1
    assert made[0] is made[1] is made[2]
    assert isinstance(made[0], TracerProvider)
    made[0].shutdown()
    spans.own_provider.cache_clear()
    assert own_threads() == before


@pytest.mark.slow
def test_spans_are_exported_when_the_process_ends() -> None:
    program = (
        "from iswitch.watch.spans import spans\n"
        "for round_ in (1, 2): spans().add('call', (7, round_), (0.0, 1.0))"
    )
    asked = {spans.VARIABLE: "1", spans.EXPORTER: "console"}
    done = subprocess.run(
        [sys.executable, "-c", program], env={**os.environ, **asked}, capture_output=True, text=True
    )
    assert done.returncode == 0
    assert [f'"iswitch.round": {round_}' in done.stderr for round_ in (1, 2)] == [True, True]


def test_none_are_asked_for() -> None:
    assert sampled({}) is None
    assert sampled({spans.VARIABLE: ""}) is None
    assert sampled({spans.VARIABLE: "100"}) == (100, "")
    assert sampled({spans.VARIABLE: "7/a/b"}) == (7, "a/b")


@pytest.mark.parametrize("text", ["0", "-1", "x", "1.5", "/run", "9" * 5000])
def test_a_wrong_request_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="write N or N/NAME"):
        sampled({spans.VARIABLE: text})


def test_what_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = {spans.VARIABLE: "1", spans.EXPORTER: "carrier-pigeon"}
    with pytest.raises(UsageError, match="pip install opentelemetry-exporter-carrier-pigeon"):
        spans.spans(asked)
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    with pytest.raises(UsageError, match=r"pip install -e '\.\[trace\]'"):
        spans.spans({spans.VARIABLE: "1"})


def test_a_console_exporter_is_found(capsys: pytest.CaptureFixture[str]) -> None:
    made = spans.provider({spans.EXPORTER: "console"})
    assert isinstance(made, TracerProvider)
    Spans(Sampled(1, ""), made).add("round", (1, 2), (0.0, 1.0), switch="s1")
    made.shutdown()
    spans.own_provider.cache_clear()
    found = json.loads(capsys.readouterr().err)
    assert found["attributes"] == {"iswitch.job": 1, "iswitch.round": 2, "iswitch.switch": "s1"}
    assert found["resource"]["attributes"]["service.name"] == "iswitch"
