"""A switch's snapshot says what happened, keeps to its schema, and is built in small pieces."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import iswitch.watch
from iswitch.core.format.wire import (
    FLAG_WHOLE,
    TOS_DATA,
    Action,
    DType,
    Mode,
    Segments,
    Shape,
    slots_flags,
)
from iswitch.core.jobs.limits import Limits
from iswitch.core.jobs.pace import RECENT
from iswitch.core.switch import Switch
from iswitch.watch.filling import PARTS
from iswitch.watch.places import Names, Network
from iswitch.watch.server import Snapshots, memoized
from iswitch.watch.snapshot import AT_ONCE, SEGMENTS, Building, Subject
from tests.support.parts import JOB, Bench, peer, segments_of

pytestmark = pytest.mark.unit

SHAPE = Shape.of(12, DType.INT32, elements=4)  # three segments
SCHEMA = json.loads(Path(iswitch.watch.__file__).with_name("schema.json").read_text())
LINK = {
    "name": "udp", "peer": None, "rate": None, "rx_packets": 0, "rx_bytes": 0, "tx_packets": 0,
    "tx_bytes": 0, "offered_in": 0, "offered_out": 0, "lost_in": 0, "lost_out": 0, "queue_in": 0,
    "queue_out": 0, "corrupted_in": 0, "corrupted_out": 0,
}  # fmt: skip


def building(bench: Bench, network: Network | None = None, parts: bool = False) -> Building:
    subject = Subject("s1", "10.0.0.9:26963", bench.switch.record, 0.0, lambda: [{**LINK}])
    return Building(subject, memoized(network or Network()), bench.now, 1.8e9, parts)


def snapshot(bench: Bench, network: Network | None = None, parts: bool = False) -> dict[str, Any]:
    under_way = building(bench, network, parts)
    for _ in under_way.pieces():
        pass
    found: dict[str, Any] = json.loads(under_way.text())
    valid(found)
    return found


def valid(found: dict[str, Any]) -> None:
    import jsonschema

    jsonschema.Draft202012Validator(SCHEMA).validate(found)


def vector(shape: Shape = SHAPE) -> np.ndarray[Any, Any]:
    return np.ones(shape.numel, np.int32)


def test_straggler_is_named() -> None:
    bench = Bench()
    bench.gather(SHAPE, 3)
    for round_ in range(4):
        for who, lag in ((0, 0.0), (2, 0.001), (1, 0.050)):
            bench.now = round_ + lag
            bench.contribute(who, SHAPE, round_, vector())
    (job,) = snapshot(bench, Network(hosts={"10.0.0.2": "h2"}))["jobs"]
    first, slow, other = job["members"]
    assert [one["rank"] for one in job["members"]] == [0, 1, 2]
    assert [one["name"] for one in job["members"]] == ["10.0.0.1:40000", "h2", "10.0.0.3:40002"]
    assert (first["last"], slow["last"], other["last"]) == (0, 4, 0)
    assert slow["behind"] == pytest.approx(4 * 0.050)
    assert other["behind"] == pytest.approx(4 * 0.001)
    rounds = job["rounds"]
    assert (rounds["measured"], rounds["longest"]) == (4, pytest.approx(0.05))
    assert rounds["seconds"] == pytest.approx(4 * 0.05)
    by_bound = dict(zip(rounds["bounds"], rounds["counts"], strict=False))
    assert by_bound[0.05] + by_bound[0.1] == 4  # either, by rounding
    assert [one["packets"] for one in job["members"]] == [12, 12, 12]
    assert slow["bytes"] == 4 * sum(map(len, segments_of(SHAPE, 0, vector())))


def test_missing_segments_are_counted_by_member() -> None:
    bench = Bench()
    bench.gather(SHAPE, 3)
    whole = segments_of(SHAPE, 0, vector())
    bench.contribute(0, SHAPE, 0, vector())
    bench.send(1, TOS_DATA, whole[1])
    (job,) = snapshot(bench)["jobs"]
    assert [one["missing"] for one in job["members"]] == [0, 2, 3]
    assert job["slots"] == {"open": 3, "limit": 6}
    bench.contribute(2, SHAPE, 0, vector())
    for at in (0, 2):
        bench.send(1, TOS_DATA, whole[at])
    (job,) = snapshot(bench)["jobs"]
    assert [one["missing"] for one in job["members"]] == [0, 0, 0]
    assert job["slots"]["open"] == 0


def test_lossy_way_is_named() -> None:
    bench = Bench()
    bench.gather(SHAPE, 2)
    bench.contribute(0, SHAPE, 0, vector())
    asked = Segments(0, 0, 3)
    bench.control(0, Action.HELP, asked)
    for _ in range(2):  # the second time all are late
        bench.contribute(1, SHAPE, 0, vector())
    found = snapshot(bench)
    well, ill = found["jobs"][0]["members"]
    assert (well["asked"], well["late"], well["resent"]) == (0, 0, 0)
    assert (ill["asked"], ill["late"], ill["resent"]) == (3, 3, 3)
    assert found["counters"]["retransmitted"] == found["links"][0]["resent"] == 3
    assert found["drops"]["late"] == 3


def test_reset_leaves_out_the_round_under_way() -> None:
    bench = Bench()
    bench.gather(SHAPE, 2)
    bench.contribute(0, SHAPE, 0, vector())
    _, ack, _ = bench.control(0, Action.RESET)
    bench.now = 5.0
    for who in (0, 1):
        bench.contribute(who, SHAPE, ack.round, vector())
    (job,) = snapshot(bench)["jobs"]
    assert (job["rounds"]["measured"], job["rounds"]["seconds"]) == (1, 0.0)


@pytest.mark.parametrize("segments", [3, PARTS, 3 * SEGMENTS + 5])
def test_parts_count_each_segment_that_has_come(segments: int) -> None:
    bench = Bench()
    shape = Shape.of(4 * segments, DType.INT32, elements=4)
    bench.gather(shape, 2)
    packets = segments_of(shape, 0, vector(shape))
    whole = segments // 2
    for who, count in ((0, segments), (1, whole)):
        for packet in packets[:count]:
            bench.send(who, TOS_DATA, packet)
    (job,) = snapshot(bench, parts=True)["jobs"]
    parts = min(PARTS, segments)
    part_of = [i * parts // segments for i in range(segments)]
    of_whole = [part_of[:whole].count(part) for part in range(parts)]
    assert job["parts"]["segments"] == [part_of.count(part) for part in range(parts)]
    assert job["parts"]["complete"] == of_whole
    assert [one["came"] for one in job["members"]] == [job["parts"]["segments"], of_whole]
    assert job["members"][1]["missing"] == segments - whole


def test_what_a_round_lacks_is_told_where_it_goes_through_slots() -> None:
    """What is gone from its slot has come, from everybody."""
    bench = Bench(Switch(Limits(slots=2)))
    shape = Shape.of(40, DType.INT32, elements=4)
    bench.gather(shape, 2, FLAG_WHOLE | slots_flags(2))
    for index, packet in enumerate(segments_of(shape, 0, vector(shape))[:6]):
        for who in range(1 if index == 5 else 2):
            bench.send(who, TOS_DATA, packet)
    (job,) = snapshot(bench, parts=True)["jobs"]
    assert job["parts"]["complete"] == [1] * 5 + [0] * 5
    assert [one["came"] for one in job["members"]] == [[1] * 6 + [0] * 4, [1] * 5 + [0] * 5]
    assert [one["missing"] for one in job["members"]] == [4, 5]
    assert job["slots"] == {"open": 2, "limit": 4}


def test_recent_rounds_name_who_was_last() -> None:
    bench = Bench()
    bench.gather(SHAPE, 3)
    for round_ in range(RECENT + 3):
        slow = round_ % 3
        bench.now = round_
        for who in sorted(range(3), key=lambda who: who == slow):
            bench.now += 0.01
            bench.contribute(who, SHAPE, round_, vector())
    recent = snapshot(bench, parts=True)["jobs"][0]["rounds"]["recent"]
    assert [one["round"] for one in recent] == list(range(3, RECENT + 3))
    assert [one["last"] for one in recent] == [round_ % 3 for round_ in range(3, RECENT + 3)]
    assert all(one["seconds"] == pytest.approx(0.02) for one in recent)
    bench.control(0, Action.LEAVE, request=1000)
    recent = snapshot(bench, parts=True)["jobs"][0]["rounds"]["recent"]
    assert {one["last"] for one in recent} == {None, 1, 2}


def test_parts_are_told_to_those_who_ask() -> None:
    bench = Bench()
    bench.gather(SHAPE, 2)
    (job,) = snapshot(bench)["jobs"]
    assert (job["parts"], job["rounds"]["recent"], job["members"][0]["came"]) == (None,) * 3


def test_dormant_halted_and_asynchronous_jobs_keep_to_the_schema() -> None:
    bench = Bench()
    assert snapshot(bench)["jobs"] == []
    bench.gather(SHAPE, 2)
    bench.join(5, Shape.of(12, DType.INT32, mode=Mode.ASYNCHRONOUS, elements=4), job=9)
    bench.control(0, Action.HALT)
    one, other = snapshot(bench)["jobs"]
    assert (one["state"], one["keyed"]) == ("halted", False)
    assert other["slots"] is None
    assert other["members"][0]["missing"] is None
    for who in (0, 1):
        bench.control(who, Action.LEAVE, request=1000)
    dormant = next(job for job in snapshot(bench)["jobs"] if job["job"] == JOB)
    assert (dormant["state"], dormant["shape"], dormant["members"]) == ("dormant", None, [])


def test_work_between_two_turns_is_bounded() -> None:
    bench = Bench(Switch(Limits(jobs=64)))
    large = Shape.of(4 * 4 * SEGMENTS, DType.INT32, elements=4)
    bench.gather(large, 3 * AT_ONCE)
    bench.send(0, TOS_DATA, segments_of(large, 0, vector(large))[0])
    under_way = building(bench)
    pieces = sum(1 for _ in under_way.pieces())
    assert pieces == 4 + 3
    valid(json.loads(under_way.text()))


def test_job_that_changes_meanwhile_is_told_or_left_out() -> None:
    bench = Bench()
    large = Shape.of(2 * 4 * SEGMENTS, DType.INT32, elements=4)
    bench.gather(large, 2)
    bench.send(0, TOS_DATA, segments_of(large, 0, vector(large))[0])
    under_way = building(bench)
    pieces = under_way.pieces()
    next(pieces)
    for who in (0, 1):
        bench.control(who, Action.LEAVE, request=1000)
    for _ in pieces:
        pass
    (job,) = json.loads(under_way.text())["jobs"]
    assert job["members"] == []
    assert peer(0) not in bench.switch.jobs[JOB].members.by_address


class Prompt:
    """An engine that makes every call at once."""

    def clock(self) -> float:
        return 0.0

    def call(self, function: Callable[[], None]) -> None:
        function()


def test_an_error_in_a_snapshot_ends_no_engine(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    broken: Any = None
    subject = Subject("s1", "10.0.0.9:26963", broken, 0.0, list)
    snapshots = Snapshots(Prompt(), subject, Names(tmp_path))  # type: ignore[arg-type]
    assert snapshots.take() is None
    assert "a snapshot failed: AttributeError" in caplog.text
