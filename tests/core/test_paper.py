"""`--counting paper`: a bare counter per segment, as in the patent, and what loss makes of it."""

from __future__ import annotations

import numpy as np
import pytest

from iswitch.core.format.packets import Burst
from iswitch.core.format.wire import (
    FLAG_REPRODUCIBLE,
    TOS_DATA,
    Action,
    DType,
    Op,
    Segments,
    Shape,
    Status,
    Threshold,
)
from iswitch.core.sums.paper import Counting
from iswitch.core.switch import Switch
from tests.conftest import StartSwitch
from tests.support.combining import COMBINATIONS, drawn
from tests.support.parts import Bench, assert_accounted, packets_of, peer, seg, segments_of
from tests.support.world import Faults, World
from worker_lib import Worker

pytestmark = pytest.mark.unit

ONE = Shape.of(3, DType.FLOAT32, elements=3)  # a single segment
A, B = np.array([1, 2, 3], "<f4"), np.array([10, 20, 30], "<f4")
BOTH = [Counting.EXACT, Counting.PAPER]


def sums(bench: Bench, who: int, vector: np.ndarray) -> list[list[float]]:
    """Send a worker's contribution; the aggregates that are broadcast for it."""
    outs = bench.send(who, TOS_DATA, seg(0, 0) + vector.tobytes())
    wide = [out for out in outs if len(out.peers) == 2]
    return [np.frombuffer(packets_of(out)[0][8:], "<f4").tolist() for out in wide]


def two_workers(counting: Counting) -> Bench:
    bench = Bench(Switch(counting=counting))
    bench.gather(ONE, 2)
    return bench


@pytest.mark.parametrize("counting", BOTH)
def test_nothing_lost(counting: Counting) -> None:
    bench = two_workers(counting)
    assert sums(bench, 0, A) == []
    assert sums(bench, 1, B) == [[11, 22, 33]]
    assert_accounted(bench.counters)


def test_the_hazard() -> None:
    """A's contribution comes twice: the paper's counter is at H before B has said anything."""
    paper = two_workers(Counting.PAPER)
    assert sums(paper, 0, A) == []
    assert sums(paper, 0, A) == [[2, 4, 6]]  # early, wrong, and without B
    assert sums(paper, 1, B) == []
    assert paper.counters["late"] == 1
    assert_accounted(paper.counters)

    exact = two_workers(Counting.EXACT)
    assert sums(exact, 0, A) == []
    assert sums(exact, 0, A) == []
    assert exact.counters["duplicate"] == 1
    assert sums(exact, 1, B) == [[11, 22, 33]]
    assert_accounted(exact.counters)


def history(counting: Counting, seed: int, faults: Faults) -> tuple[int, int]:
    """Twenty rounds of three workers in a simulated network: sums in all, and wrong ones."""
    shape = Shape.of(40, DType.INT32, elements=4)
    world = World(Switch(counting=counting), faults, seed)
    sessions = [world.join(i, shape, expected=3, resends=False) for i in range(3)]
    world.gather(sessions)
    vectors = [np.full(40, 100**i, np.int32) for i in range(3)]
    right = np.sum(vectors, 0)
    wrong = 0
    for _ in range(20):
        for out in world.allreduce(sessions, vectors):
            wrong += int((out != right).any())
    return 60, wrong


LOSS = Faults(loss=0.05)
DOUBLES = Faults(duplicate=0.05)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("faults", [LOSS, DOUBLES], ids=["loss", "duplicates"])
def test_sums_over_bad_links(faults: Faults, seed: int) -> None:
    """The same workers, which send again only what they are asked for, as the paper's do."""
    assert history(Counting.EXACT, seed, faults) == (60, 0)
    assert history(Counting.PAPER, seed, faults)[1] > 5


def test_the_same_bits_over_good_links() -> None:
    assert history(Counting.PAPER, 0, Faults()) == (60, 0)


@pytest.mark.parametrize(("dtype", "op"), COMBINATIONS)
def test_other_operations(dtype: DType, op: Op) -> None:
    shape = Shape.of(10, dtype, op, elements=4)
    sent = []
    for counting in BOTH:
        bench = Bench(Switch(counting=counting))
        bench.gather(shape, 3)
        vectors = [drawn(dtype, 10, np.random.default_rng(i)) for i in range(3)]
        sent.append([bench.contribute(i, shape, 0, vectors[i]) for i in range(3)])
    assert sent[0] == sent[1]


def test_threshold_counts_packets() -> None:
    bench = two_workers(Counting.PAPER)
    bench.control(0, Action.SETH, Threshold(3))
    assert [sums(bench, who, A) for who in (0, 1, 0)] == [[], [], [[3, 6, 9]]]


def test_help_asks_everybody_since_nobody_knows_who_is_missing() -> None:
    bench = two_workers(Counting.PAPER)
    sums(bench, 0, A)
    _, ack, sends = bench.control(0, Action.HELP, Segments(0, 0, 1))
    assert ack.missing == 0b11
    assert [out.peers for out in sends] == [(peer(0),), (peer(1),)]


def test_forced_sums_tell_how_many_packets_they_hold() -> None:
    bench = two_workers(Counting.PAPER)
    bench.control(0, Action.SETH, Threshold(5))
    for _ in range(3):
        sums(bench, 0, A)
    _, ack, (out,) = bench.control(1, Action.FBCAST, Segments(0, 0, 1))
    assert ack.contributors == 3
    assert packets_of(out)[0][8:] == (3 * A).tobytes()


def test_bursts_with_gaps() -> None:
    """Packets of one burst, some of them missing, and of segments in several states."""
    shape = Shape.of(64, DType.INT32, elements=2)
    bench = Bench(Switch(counting=Counting.PAPER))
    bench.gather(shape, 2)
    packets = segments_of(shape, 0, np.ones(64, "<i4"))
    for who, kept in ((0, range(0, 32, 2)), (1, range(0, 32, 3)), (1, range(32))):
        rows = np.frombuffer(b"".join(packets[i] for i in kept), np.uint8).reshape(len(kept), -1)
        bench.switch.receive(Burst(peer(who), TOS_DATA, rows, rows.shape[1]), 0.0)
    counts = {i: (i % 2 == 0) + (i % 3 == 0) for i in range(32)}
    late = sum(count == 2 for count in counts.values())
    assert bench.counters["late"] == late
    assert bench.counters["aggregates"] == sum(count >= 1 for count in counts.values())
    assert_accounted(bench.counters)


def test_no_sums_in_rank_order() -> None:
    bench = Bench(Switch(counting=Counting.PAPER))
    status, *_ = bench.join(0, ONE, flags=FLAG_REPRODUCIBLE)
    assert status is Status.BAD_REQUEST
    assert not bench.switch.jobs
    with pytest.raises(ValueError, match="leave out reproducible"):
        Switch(reproducible=True, counting=Counting.PAPER)


@pytest.mark.slow
def test_real_workers_of_a_switch_that_counts_like_this(start_switch: StartSwitch) -> None:
    _, address = start_switch("127.0.0.1:0", "--counting", "paper")
    with Worker(address, 1, 1000, 1) as worker:
        for _ in range(5):
            assert (worker.allreduce(np.ones(1000, np.float32)) == 1).all()
