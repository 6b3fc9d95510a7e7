"""Several packets of a job in one burst."""

from __future__ import annotations

import numpy as np
import pytest

from iswitch.core.format.packets import Burst, Outgoing
from iswitch.core.format.wire import (
    FLAG_REPRODUCIBLE,
    TOS_CONTROL,
    TOS_DATA,
    Action,
    Control,
    DType,
    Mode,
    Segments,
    Shape,
)
from tests.support.parts import (
    JOB,
    Bench,
    packets_of,
    peer,
    rows_of,
    seg,
)
from tests.support.running_job import BASE, SHAPE, running_job

pytestmark = pytest.mark.unit


def burst_of(who: int, payloads: list[bytes]) -> Burst:
    return Burst(peer(who), TOS_DATA, rows_of(payloads), len(payloads[-1]))


def aggregates(sends: list[Outgoing]) -> list[bytes]:
    return [packet for out in sends for packet in packets_of(out)]


def int32(round_: int, value: int) -> bytes:
    return seg(round_, 0) + value.to_bytes(4, "little")


def test_a_burst_of_two_rounds() -> None:
    bench = Bench()
    shape = Shape.of(1, DType.INT32)
    bench.gather(shape, 1)
    sends = bench.switch.receive(burst_of(0, [int32(0, 10), int32(1, 20)]), 0.0)
    assert aggregates(sends) == [int32(0, 10), int32(1, 20)]


def test_late_and_the_set_taken_over_in_one_burst() -> None:
    """A delayed copy of round 0 right before round 2: nobody may be sent an incomplete sum."""
    bench = Bench()
    shape = Shape.of(1, DType.INT32)
    bench.gather(shape, 2)
    for round_ in (0, 1):
        for who in (0, 1):
            bench.contribute(who, shape, round_, np.array([10 + who], np.int32))
    sends = bench.switch.receive(burst_of(0, [int32(0, 10), int32(2, 10)]), 0.0)
    assert aggregates(sends) in ([int32(0, 21)], [])


def test_a_late_contribution_is_answered_with_the_aggregate() -> None:
    """Whoever sends it lacks the sum: it gets that, and nobody else does."""
    bench = Bench()
    bench.gather(SHAPE, 2)
    numbers = np.arange(SHAPE.numel, dtype=SHAPE.dtype.numpy)
    sums = [packet for who in (0, 1) for packet in bench.contribute(who, SHAPE, 0, numbers)]
    assert len(sums) == SHAPE.segments
    assert bench.contribute(0, SHAPE, 0, numbers) == {packet: {peer(0)} for packet in sums}
    assert bench.counters.drops() == {"late": SHAPE.segments}
    assert bench.counters["retransmitted"] == SHAPE.segments


def test_broadcasts_go_to_the_members_of_now() -> None:
    """Also of a vector that is always sent the same way, from the same buffer."""
    bench = Bench()
    shape = Shape.of(1, DType.INT32)
    bench.gather(shape, 2)
    one = np.ones(1, np.int32)
    for round_ in range(6):
        if round_ == 2:
            assert bench.join(2, shape)[1].round == 2
        if round_ == 4:
            bench.control(0, Action.LEAVE)
        there = [(0, 1), (0, 1, 2), (1, 2)][round_ // 2]
        sent = [bench.contribute(who, shape, round_, one) for who in there]
        assert sent[-1] == {int32(round_, len(there)): set(map(peer, there))}


def test_ten_versions_in_one_burst() -> None:
    bench = Bench()
    shape = Shape.of(1, DType.INT32, mode=Mode.ASYNCHRONOUS)
    bench.gather(shape, 1)
    numbers = range(1, 11)
    sends = bench.switch.receive(burst_of(0, [int32(n, 100 + n) for n in numbers]), 0.0)
    assert aggregates(sends) == [int32(n, 100 + n) for n in numbers]


def test_a_short_packet_after_one_that_is_too_short() -> None:
    """Of segments 1 and 2 of the last one's length, only the first is malformed."""
    bench = running_job()
    payloads = [seg(BASE + 1, index) + bytes(12) for index in (1, 2)]
    bench.switch.receive(burst_of(0, payloads), 0.0)
    assert bench.counters.drops() == {"malformed": 1}


def test_sums_that_a_lease_completes_overflow_quietly() -> None:
    bench = Bench()
    shape = Shape.of(1, DType.FLOAT32)
    bench.gather(shape, 3, FLAG_REPRODUCIBLE)
    for who in (0, 1):
        assert bench.contribute(who, shape, 0, np.array([3e38], np.float32)) == {}
    late = Control(Action.HELP, JOB, 9, Segments(0, 0, 1)).build()
    for who in (0, 1):
        bench.switch.receive(Burst.single(peer(who), TOS_CONTROL, late), 20.0)
    sends = bench.switch.handle_timer(30.5)
    assert seg(0, 0) + np.float32(np.inf).tobytes() in aggregates(sends)
