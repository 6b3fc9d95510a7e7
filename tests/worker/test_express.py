"""Small vectors that go out at once and come back in order, and what is done when they do not."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import ml_dtypes
import numpy as np
import pytest

from iswitch.core.format.packets import Address, Burst, Cutter
from iswitch.core.format.wire import TOS_DATA, Ack, Action, Control, DType, Shape, Status
from tests.commands.test_switch_command import PATIENCE, end, switch
from worker_lib import Worker
from worker_lib.protocol.express import Express
from worker_lib.protocol.expressing import BURSTS_IN_EXPRESS
from worker_lib.protocol.session import Session
from worker_lib.protocol.terms import RoundTerms
from worker_lib.protocol.transfer import Contribution

pytestmark = pytest.mark.unit

SWITCH = Address("127.0.0.1", 26963)
ROUND = 5
NUMBERS = [1, 2, 7, 8, 9, 30]


def aggregates(shape: Shape, vector: np.ndarray, round_: int = ROUND) -> tuple[np.ndarray, int]:
    contribution = Contribution(shape)
    contribution.begin(round_)
    contribution.fill(vector, shape.segments)
    return contribution.rows(0, shape.segments)


def express(shape: Shape, vector: np.ndarray, out: np.ndarray) -> Express:
    contribution = Contribution(shape)
    contribution.begin(ROUND)
    under_way = Express(contribution, shape.shortened(len(vector)), vector, out, 1.0)
    under_way.send_all(1.0)
    return under_way


@pytest.mark.parametrize("numel", NUMBERS)
@pytest.mark.parametrize("longest", [0, 1, 5])
@pytest.mark.parametrize("at_once", [1, 2, 30])
@pytest.mark.parametrize("dtype", [np.float32, np.int32, np.float16, ml_dtypes.bfloat16])
def test_in_order_it_is_put_in_its_place(
    numel: int, longest: int, at_once: int, dtype: type
) -> None:
    """Four elements a segment, `at_once` segments a burst; the job's vectors may be longer."""
    shape = Shape.of(numel + longest, DType.of(np.dtype(dtype)), elements=4)
    vector: np.ndarray = np.arange(numel).astype(dtype)
    segments = shape.shortened(numel).segments
    rows, _ = aggregates(shape, vector)
    out = np.zeros_like(vector)
    under_way = express(shape, out, out)  # in place
    for start in range(0, segments, at_once):
        assert not under_way.done
        stop = min(start + at_once, segments)
        some = rows[start:stop]
        if stop - start == 1:  # a single packet is as long as it is
            some = some[:, : shape.tail(stop)]
        assert under_way.take(some, shape.tail(stop))
    assert under_way.done
    assert np.array_equal(out, vector)
    assert not under_way.take(rows[:segments], shape.tail(segments))  # twice


def test_anything_else_is_not_taken() -> None:
    shape = Shape.of(30, elements=4)  # eight segments, the last with two elements
    vector, out = np.arange(30, dtype=np.float32), np.zeros(30, np.float32)
    rows, tail = aggregates(shape, vector)
    full = shape.packet_size
    under_way = express(shape, vector, out)
    swapped = rows[[0, 2, 1]]
    for some, last in [
        (rows[1:], tail),  # the first lacks
        (swapped, full),
        (rows, full),  # the last too long
        (rows[:3], tail),  # one that is not last too short
        (rows[:3, :-4], full - 4),
        (aggregates(shape, vector, ROUND + 1)[0], tail),
    ]:
        assert not under_way.take(some, last)
    assert not out.any()
    assert under_way.take(rows[:3], full)
    assert not under_way.take(rows[:3], full)
    assert out[:12].tolist() == vector[:12].tolist()


def test_it_goes_on_as_a_transfer() -> None:
    shape = Shape.of(30, elements=4)
    vector, out = np.arange(30, dtype=np.float32), np.zeros(30, np.float32)
    rows, tail = aggregates(shape, vector)
    under_way = express(shape, vector, out)
    assert under_way.take(rows[:3], shape.packet_size)
    under_way.note(1.0)
    transfer = under_way.transfer()
    assert transfer.missing() == [(3, 8)]
    assert transfer.in_flight == 5
    assert transfer.next_run(44, 1, 1.5, again=False) is None  # all is sent
    assert transfer.take(rows[4:], tail, Cutter(shape), 2.0) == (4, 0)
    first, again_at = transfer.lose(2.0)
    assert (first.tolist(), again_at is None) == ([], False)
    first, _ = transfer.lose(9.0)  # by what came later
    assert first.tolist() == [3]
    assert transfer.take(rows[3:4], shape.packet_size, Cutter(shape), 9.5) == (1, 0)
    assert transfer.done
    assert np.array_equal(out, vector)


def member(numel: int = 1000, **kwargs: object) -> Session:
    terms = RoundTerms(SWITCH, 7, Shape.of(numel), **kwargs)  # type: ignore[arg-type]
    session = Session(terms, 1000)
    session.join(0.0)
    ack = Ack(Action.JOIN, round=ROUND, contributors=1)
    (join,) = session.transmissions(0.0)
    request = Control.parse(join.rows[0].tobytes()).request
    answer = Control(Action.ACK, 7, request, ack, Status.OK).build()
    session.receive(Burst.single(SWITCH, 0x0C, answer), 0.1)
    assert session.member
    return session


def test_a_session_takes_it_if_nothing_stands_in_the_way() -> None:
    vector, out = np.ones(1000, np.float32), np.zeros(1000, np.float32)
    session = member()
    assert session.begin_express(vector, out, 1.0)
    (sent,) = session.transmissions(1.0)
    assert len(sent.rows) == session.shape.segments
    assert session.transmissions(1.0) == []
    session.receive(Burst(SWITCH, TOS_DATA, *aggregates(session.shape, 3 * vector)), 1.25)
    assert session.express is not None
    assert session.express.done
    assert session.round_trip.smoothed == 0.25
    session.receive(Burst(SWITCH, TOS_DATA, *aggregates(session.shape, vector)), 1.3)  # again
    assert out.tolist() == [3.0] * 1000
    session.finish()
    assert session.round == ROUND + 1
    assert session.express is None
    assert session.stats["useless"] == session.shape.segments == session.stats["received"]


def test_silence_or_a_gap_has_it_go_slow() -> None:
    vector, out = np.ones(1000, np.float32), np.zeros(1000, np.float32)
    session = member()
    assert session.begin_express(vector, out, 1.0)
    rows, tail = aggregates(session.shape, vector)
    session.receive(Burst(SWITCH, TOS_DATA, rows[1:], tail), 1.1)
    assert session.express is None
    assert session.transfer is not None
    assert session.transfer.missing() == [(0, 1)]
    session.receive(Burst(SWITCH, TOS_DATA, rows[:1], session.shape.packet_size), 1.2)
    assert session.transfer.done
    session.finish()
    assert session.begin_express(vector, out, 2.0)
    due = session.deadline()
    assert due == 2.0 + session.round_trip.timeout
    session.handle_timer(due)
    assert session.transfer.missing() == [(0, session.shape.segments)]


def test_a_rest_that_does_not_come_is_soon_sent_again() -> None:
    """After two round trips, as in any other round, rather than by the timer."""
    vector, out = np.ones(1000, np.float32), np.zeros(1000, np.float32)
    session = member()
    assert session.begin_express(vector, out, 1.0)
    session.transmissions(1.0)
    rows, _ = aggregates(session.shape, vector)
    session.receive(Burst(SWITCH, TOS_DATA, rows[:1], session.shape.packet_size), 1.001)
    due = session.deadline()
    assert due is not None
    assert due == pytest.approx(1.003)
    session.handle_timer(due)
    (again,) = session.transmissions(due)
    assert len(again.rows) == session.shape.segments - 1
    assert session.stats["probes"] == 1


def test_what_takes_the_slow_way_from_the_start() -> None:
    vector = np.ones(1000, np.float32)
    large = np.ones(366 * 44 * BURSTS_IN_EXPRESS + 1, np.float32)
    assert not member(large.size).begin_express(large, large, 1.0)
    assert not member(resends=False).begin_express(vector, vector, 1.0)
    halted = member()
    halted.halted = True
    assert not halted.begin_express(vector, vector, 1.0)
    lost = member()
    lost.member = False
    assert not lost.begin_express(vector, vector, 1.0)
    speaks = member()
    speaks.join(0.5)  # a heartbeat is to be sent
    assert not speaks.begin_express(vector, vector, 1.0)


@pytest.mark.slow
@pytest.mark.parametrize("numel", [1, 3000, 40_327])
def test_sums_are_exact_where_packets_are_lost(numel: int) -> None:
    with switch("--impair", "loss=5%,duplicate=2%,seed=1") as (process, where):

        def work(i: int) -> None:
            with Worker(where, 7, numel, 3, timeout=PATIENCE) as worker:
                for round_ in range(5):
                    vector = np.arange(numel, dtype=np.float32) % 97 + 1000 * i + round_
                    total = 3 * (np.arange(numel) % 97 + round_) + 3000
                    assert np.array_equal(worker.allreduce(vector, vector), total)

        with ThreadPoolExecutor(3) as pool:
            list(pool.map(work, range(3)))
        end(process)
