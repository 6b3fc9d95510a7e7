"""What a job has of the memory is told by Show, snapshots, `top` and metrics, under each policy."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from iswitch.core.format.wire import (
    FLAG_WHOLE,
    MILLION,
    Action,
    Shape,
    Show,
    Shown,
    Status,
    Turn,
    kib,
    slots_flags,
)
from iswitch.core.jobs.limits import Limits
from iswitch.core.sums.passing import PassingAccelerator
from iswitch.core.sums.turns import TurnAccelerator
from iswitch.core.switch import Switch
from iswitch.watch.change import Change
from iswitch.watch.judging import Scene
from iswitch.watch.metrics import Collector, exposition
from iswitch.watch.places import Network
from tests.support.parts import JOB, PARENT, Below, Bench
from tests.watch.test_snapshot import snapshot
from tests.watch.test_top import drawn

pytestmark = pytest.mark.unit

SHAPE = Shape.of(8 * 364)  # eight segments
VECTOR = np.ones(SHAPE.numel, np.float32)
STRANGER = 50


def told(bench: Bench, job: int = JOB) -> tuple[int, int, int, int, int]:
    """Lane, Turn, KiB, slots and contributions of a million that were added, as Show tells them."""
    _, ack, _ = bench.control(STRANGER, Action.SHOW, Show(Shown.MEMORY, job))
    return ack.rank, ack.known, ack.threshold, ack.round, ack.contributors


def line(bench: Bench, job: int) -> str:
    """The line of a job in `top`."""
    scene = Scene(Network(), {"s1": Change.of(snapshot(bench), None)})
    (found,) = [one for one in drawn(scene) if one.startswith(f"{job} ")]
    return found.rstrip()


def metrics(bench: Bench) -> str:
    """What Prometheus reads."""
    return exposition(Collector(lambda: json.dumps(snapshot(bench)))).decode()


def fields(bench: Bench, job: int) -> dict[str, Any]:
    (found,) = [one for one in snapshot(bench)["jobs"] if one["job"] == job]
    return {name: found[name] for name in ("reserved", "slots", "lane", "turn", "added")}


def test_static_and_slots() -> None:
    bench = Bench()
    bench.gather(SHAPE, 2)
    assert told(bench) == (0, Turn.NONE, kib(bench.switch.record.reserved), 0, MILLION)
    assert "  has" not in "".join(line(bench, JOB))
    bench = Bench(Switch(Limits(slots=4)))
    bench.gather(SHAPE, 2, FLAG_WHOLE | slots_flags(4))
    assert told(bench)[3:] == (4, MILLION)
    assert line(bench, JOB).endswith("  4 slots")


def test_lanes() -> None:
    """Two jobs of one lane: one has its turn, the other waits for it; a third waits for memory."""
    parts = TurnAccelerator.persistent(SHAPE), TurnAccelerator.ephemeral(SHAPE)
    memory = 2 * parts[0] + parts[1]
    bench = Bench(Switch(Limits(policy="lanes:fifo", memory=memory)))
    for job in (1, 2):
        bench.join(job, SHAPE, expected=1, flags=FLAG_WHOLE, job=job)
    bench.join(3, SHAPE, expected=1, flags=FLAG_WHOLE, job=3)
    bench.contribute(1, SHAPE, 0, VECTOR)  # the first packet asks for the turn, the others have it
    bench.contribute(2, SHAPE, 0, VECTOR)
    each = kib(sum(parts))
    assert told(bench, 1) == (1, Turn.HAS, each, 0, MILLION)
    assert told(bench, 2) == (1, Turn.WAITS, each, 0, MILLION)
    assert (fields(bench, 1)["lane"], fields(bench, 1)["turn"]) == (1, "has")
    assert line(bench, 1).endswith("  lane 1, its turn")
    assert line(bench, 2).endswith("  lane 1, waits")
    assert 'iswitch_job_turn{job="1",lane="1"} 1.0' in metrics(bench)
    assert 'iswitch_job_turn{job="2",lane="1"} 0.0' in metrics(bench)
    assert "iswitch_waiting_jobs 1.0" in metrics(bench)
    found = snapshot(bench)
    assert (found["policy"], found["waiting"]) == ("lanes:fifo", 1)
    assert found["queue"] == [{"job": 3, "needs": sum(parts), "priority": 0}]


def test_pool() -> None:
    """A job alone has all that it can use."""
    bench = Bench(Switch(Limits(policy="pool", slots=2)))
    bench.join(0, SHAPE, expected=1, flags=FLAG_WHOLE | slots_flags(2), job=1)
    assert told(bench, 1) == (0, Turn.NONE, kib(bench.switch.record.reserved), 8, MILLION)
    assert fields(bench, 1)["slots"] == {"open": 0, "limit": 16}


def test_where_segments_go_on() -> None:
    """Two slots for eight segments of three workers: two of them are added, the others go on."""
    limits = Limits(policy="besteffort", slots=2)
    bench = Below(Switch(limits, parent=PARENT, incarnation=1000))
    (up,) = bench.comes(0, SHAPE)
    bench.answers(up)
    for who in (1, 2):
        bench.comes(who, SHAPE)
    assert told(bench)[3:] == (0, MILLION)
    assert line(bench, JOB).endswith("  no sums yet")
    sums = bench.switch.jobs[JOB].sums
    assert isinstance(sums, PassingAccelerator)
    bench.contribute(0, SHAPE, 0, VECTOR)
    assert told(bench)[3:] == (2, MILLION // 4)
    assert fields(bench, JOB)["slots"] == {"open": 2, "limit": 2}
    assert fields(bench, JOB)["added"] == 2
    assert line(bench, JOB).endswith("  25% added")
    assert f'iswitch_job_contributions_added_total{{job="{JOB}"}} 2.0' in metrics(bench)
    assert f'iswitch_job_contributions_passed_on_total{{job="{JOB}"}} 6.0' in metrics(bench)
    assert snapshot(bench)["slots"] == {"taken": 2, "limit": 2}


def test_a_key_hides_it() -> None:
    """As it hides the job."""
    switch = Switch(keys={7: b"one key"})
    switch.record.jobs[7] = switch.record.new_job(7)
    status, *_ = Bench(switch).control(STRANGER, Action.SHOW, Show(Shown.MEMORY, 7), job=8)
    assert status is Status.NOT_MEMBER
