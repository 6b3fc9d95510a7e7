"""The whole switch: whatever comes has an effect or is a counted drop, and sums stay right."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from iswitch.core.format.packets import Address, Burst, Outgoing
from iswitch.core.format.wire import (
    FLAG_REPRODUCIBLE,
    TOS_CONTROL,
    TOS_DATA,
    TOS_MASK,
    Action,
    Control,
    DType,
    Join,
    MemberType,
    Mode,
    Op,
    Segments,
    Shape,
    Threshold,
    WireError,
)
from iswitch.core.jobs.answers import PER_MEMBER, REMEMBERED
from iswitch.core.sums.accelerator import NumPyAccelerator
from tests.support.parts import (
    JOB,
    Bench,
    assert_accounted,
    packets_of,
    peer,
    seg,
)
from tests.support.running_job import BASE, LIMITS, SHAPE, WORKERS, running_job, sums_are_right

pytestmark = pytest.mark.unit


# Junk


sizes = st.one_of(st.sampled_from([1, 5, 7, 8, 9, 12, 20, 24, 28]), st.integers(1, 60))
shapes = st.sampled_from(
    [
        SHAPE,
        Shape.of(0, elements=1),
        Shape(DType.INT32, Op.SUM, Mode.SYNCHRONOUS, 0, 0, 1),
        Shape.of(9, DType.BFLOAT16, Op.MAX, Mode.ASYNCHRONOUS, 3),
        Shape.of(9, DType.FLOAT16, Op.SUM, Mode.SYNCHRONOUS, 2),
        Shape.of(10**9),
    ]
)
near = st.integers(0, 4)  # rounds, indices, counts
others = st.integers(8, 13)  # jobs that are not the honest workers'


@st.composite
def requests(draw: st.DrawFn) -> bytes:
    """Sound packets of anybody: joins to other jobs, and any other request to any job."""
    number = draw(st.integers(0, 6))
    if draw(st.booleans()):
        flags, type_ = draw(st.integers(0, 31)), draw(st.integers(0, 3))
        shape = draw(shapes)
        join = Join(
            type_,
            shape.dtype,
            shape.op,
            shape.mode,
            shape.elements,
            shape.last,
            shape.segments,
            draw(st.integers(0, 3)),
            flags,
            draw(near),
        )
        return Control(Action.JOIN, draw(others), number, join).build()
    job = draw(st.one_of(st.just(JOB), others))
    action = draw(st.sampled_from([a for a in Action if a not in (Action.JOIN, Action.ACK)]))
    values: dict[Action, Threshold | Segments] = {
        Action.SETH: Threshold(draw(near)),
        Action.HELP: Segments(draw(near), draw(near), draw(near)),
        Action.FBCAST: Segments(draw(near), draw(near), draw(near)),
    }
    return Control(action, job, number, values.get(action)).build()


@st.composite
def junk(draw: st.DrawFn) -> tuple[int, bytes, int, int]:
    """ToS, bytes of all rows, size of a row, tail."""
    kind = draw(st.sampled_from(["bytes", "request", "data"]))
    if kind == "request":
        payload = draw(requests())
        return TOS_CONTROL, payload, len(payload), len(payload)
    if kind == "data":
        size = draw(st.sampled_from([8, 10, 12, 14, 20, 24]))
        segs = draw(st.lists(st.tuples(near, near), min_size=1, max_size=5))
        fill = draw(st.sampled_from([b"\0", b"\xff", b"\x7f"]))
        payloads = [seg(round_, index) + fill * (size - 8) for round_, index in segs]
        return TOS_DATA, b"".join(payloads), size, draw(st.integers(max(1, size - 8), size))
    tos = draw(st.one_of(st.sampled_from([TOS_CONTROL, TOS_DATA]), st.integers(0, 255)))
    size, n = draw(sizes), draw(st.integers(1, 4))
    payload = draw(st.binary(min_size=n * size, max_size=n * size))
    return tos, payload, size, draw(st.integers(1, size))


senders = st.one_of(
    st.integers(2, 6).map(peer),
    st.sampled_from([Address("10.0.0.1", 40000, 1), Address("10.0.0.1", 40009)]),
)


def is_harmless(payload: bytes) -> bool:
    """Whether a request of a member itself leaves its job as it is."""
    try:
        return Control.parse(payload).action in (Action.ACK, Action.HELP)
    except WireError:
        return True


def feed(bench: Bench, source: Address, tos: int, payload: bytes, size: int, tail: int) -> None:
    """Every packet has an effect or is a counted drop, and what goes out is counted."""
    rows = np.frombuffer(payload, np.uint8).reshape(-1, size)
    before = dict(bench.counters)
    sends = bench.switch.receive(Burst(source, tos, rows, tail), bench.now)
    more = {name: bench.counters[name] - before[name] for name in before}
    assert more["rx_packets"] == len(rows)
    assert more["rx_bytes"] == (len(rows) - 1) * size + tail
    assert_accounted(bench.counters)
    told(sends, more)
    if more["control"]:
        answers = [out for out in sends if out.peers == (source,) and out.tos == TOS_CONTROL]
        acks = sum(Control.parse(packets_of(out)[0]).action is Action.ACK for out in answers)
        assert more["control"] == acks + more["unmatched_ack"]


def told(sends: list[Outgoing], more: dict[str, int]) -> None:
    packets = [(out.peers, packet) for out in sends for packet in packets_of(out)]
    assert more["tx_packets"] == sum(len(peers) for peers, _ in packets)
    assert more["tx_bytes"] == sum(len(peers) * len(packet) for peers, packet in packets)
    assert all(peers for peers, _ in packets)


def is_bounded(bench: Bench) -> None:
    record = bench.switch.record
    assert record.reserved == sum(sum(j.reserved.values()) for j in record.jobs.values())
    assert record.reserved <= LIMITS.memory
    assert len(bench.switch.jobs) <= LIMITS.jobs
    assert len(record.former) <= REMEMBERED
    kept = [former.answers for former in record.former]
    assert all(len(answers) <= PER_MEMBER for answers in kept)
    buffers = 0
    for job in bench.switch.jobs.values():
        assert (job.accelerator is None) == (not job.members.contributors())
        assert bool(job.reserved) == (job.accelerator is not None)
        if job.accelerator is not None:
            assert isinstance(job.accelerator, NumPyAccelerator)
            buffers += job.accelerator.packets.nbytes
    assert buffers <= record.reserved


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(st.lists(st.tuples(senders, junk(), st.floats(0, 0.5)), max_size=25))
def test_anything_from_others(
    history: list[tuple[Address, tuple[int, bytes, int, int], float]],
) -> None:
    """Joins to other jobs, their data and their mischief leave this job's sums alone."""
    bench = running_job()
    for source, burst, pause in history:
        feed(bench, source, *burst)
        bench.now += pause
        for who in WORKERS:
            bench.heartbeat(who, SHAPE)
        deadline = bench.switch.deadline()
        if deadline is not None and deadline <= bench.now:
            before = dict(bench.counters)
            sends = bench.switch.handle_timer(bench.now)
            told(sends, {name: bench.counters[name] - before[name] for name in before})
        is_bounded(bench)
    sums_are_right(bench, BASE + 1)
    sums_are_right(bench, BASE + 2)
    assert_accounted(bench.counters)


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(WORKERS), junk()), max_size=20))
def test_anything_from_the_members_themselves(
    history: list[tuple[int, tuple[int, bytes, int, int]]],
) -> None:
    """What is no contribution to a round in the window, and no command, leaves the sums alone."""
    bench = running_job()
    for who, (tos, payload, size, tail) in history:
        rows = [payload[i : i + size] for i in range(0, len(payload), size)]
        rows[-1] = rows[-1][:tail]
        if tos & TOS_MASK != TOS_CONTROL or all(map(is_harmless, rows)):
            feed(bench, peer(who), tos, payload, size, tail)
    assert bench.counters["accumulated"] == 2 * SHAPE.segments
    sums_are_right(bench, BASE + 1)
    sums_are_right(bench, BASE + 2)


# By hand


@pytest.mark.parametrize("tos", [TOS_DATA, TOS_CONTROL])
@pytest.mark.parametrize(
    ("n", "size", "tail", "short"),
    [(1, 7, 7, 1), (3, 5, 5, 3), (3, 5, 2, 3), (2, 7, 6, 2), (3, 8, 7, 1), (3, 8, 8, 0)],
)
def test_short(tos: int, n: int, size: int, tail: int, short: int) -> None:
    """Every packet below eight bytes is short, wherever in a burst it is."""
    bench = running_job()
    feed(bench, peer(0), tos, bytes(n * size), size, tail)
    assert bench.counters["short"] == short
    assert bench.counters["rx_packets"] == 2 + 2 * SHAPE.segments + n


def test_empty_datagram_is_short() -> None:
    bench = Bench()
    for tos in (TOS_DATA, TOS_CONTROL):
        assert bench.send(0, tos, b"") == []
    assert bench.counters["short"] == bench.counters["rx_packets"] == 2


@pytest.mark.parametrize("tos", range(256))
def test_only_two_tos_values(tos: int) -> None:
    bench = Bench()
    sends = bench.send(0, tos, Control(Action.LEAVE, 7, 1).build())
    kind = {TOS_CONTROL: "control", TOS_DATA: "stranger"}.get(tos & 0xFC, "ordinary")
    assert bench.counters[kind] == 1
    assert len(sends) == (kind == "control")
    assert_accounted(bench.counters)


def test_data_of_strangers_even_if_malformed() -> None:
    bench = running_job()
    at_other_port = Burst.single(Address("10.0.0.1", 40000, 2), TOS_DATA, seg(BASE, 0))
    assert bench.switch.receive(at_other_port, 0.0) == []
    assert bench.counters.drops() == {"stranger": 1}


@pytest.mark.parametrize("dtype", [DType.FLOAT32, DType.FLOAT16, DType.BFLOAT16])
@pytest.mark.parametrize("how", ["contribution", "leave", "threshold", "force"])
def test_infinities_warn_nobody(dtype: DType, how: str) -> None:
    """Inf minus inf, summed in rank order at whatever completes the segment: NaN, no warning."""
    bench = Bench()
    shape = Shape.of(1, dtype)
    workers = 3 if how == "leave" else 2 if how == "contribution" else 4
    bench.gather(shape, workers, FLAG_REPRODUCIBLE)
    for who, value in enumerate([np.inf, -np.inf]):
        data = np.array([value]).astype(dtype.numpy).tobytes()
        sends = bench.send(who, TOS_DATA, seg(0, 0) + data)
    if how == "leave":
        sends = bench.control(2, Action.LEAVE)[2]
    elif how == "threshold":
        sends = bench.control(2, Action.SETH, Threshold(2))[2]
    elif how == "force":
        sends = bench.control(2, Action.FBCAST, Segments(0, 0, 1))[2]
    (packet,) = packets_of(sends[0])
    assert np.isnan(np.frombuffer(packet[8:], dtype.numpy).astype(float)).all()


def test_two_jobs_side_by_side() -> None:
    bench = Bench()
    shapes_by_job = {1: Shape.of(3, DType.INT32), 2: Shape.of(3, DType.INT32, Op.MAX)}
    for job, first in ((1, 0), (2, 2)):
        for who in (first, first + 1):
            bench.join(who, shapes_by_job[job], expected=2, job=job)
    values = [np.array([who, -who, 5 * who], np.int32) for who in range(4)]
    results = {}
    for who in (0, 2, 1, 3):
        shape = shapes_by_job[1 if who < 2 else 2]
        results[who] = bench.contribute(who, shape, 0, values[who])
    assert results[0] == results[2] == {}
    assert results[1] == {seg(0, 0) + (values[0] + values[1]).tobytes(): {peer(0), peer(1)}}
    largest = np.array([3, -2, 15], np.int32)
    assert results[3] == {seg(0, 0) + largest.tobytes(): {peer(2), peer(3)}}


def test_controllers_get_no_aggregates() -> None:
    bench = Bench()
    bench.join(5, None, MemberType.CONTROLLER)
    shape = Shape.of(1, DType.INT32)
    bench.gather(shape, 2)
    bench.contribute(0, shape, 0, np.ones(1, np.int32))
    sent = bench.contribute(1, shape, 0, np.ones(1, np.int32))
    assert sent == {seg(0, 0) + b"\2\0\0\0": {peer(0), peer(1)}}
