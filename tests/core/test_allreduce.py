"""Sums over the product of workers, elements, dtypes and ops: exact, and equal for all."""

from __future__ import annotations

import numpy as np
import pytest

from iswitch.core.format.counters import DATA_DROPS
from iswitch.core.format.wire import DType, Op, Shape
from iswitch.core.switch import Switch
from tests.support.combining import COMBINATIONS, combine, drawn
from tests.support.world import Faults, World

pytestmark = pytest.mark.unit


def vectors_for(shape: Shape, workers: int, seed: int = 0) -> list[np.ndarray]:
    """Small integers, whose sums every element type holds exactly; of new operations, anything."""
    rng = np.random.default_rng(seed)
    if shape.dtype > DType.INT32 or shape.op not in COMMON:
        return [drawn(shape.dtype, shape.numel, rng) for _ in range(workers)]
    return [rng.integers(-9, 10, shape.numel).astype(shape.dtype.numpy) for _ in range(workers)]


def expected(shape: Shape, vectors: list[np.ndarray]) -> np.ndarray:
    total = vectors[0].copy()
    for vector in vectors[1:]:
        total = combine(shape.dtype, shape.op, total, vector)
    return total


COMMON = (Op.SUM, Op.MAX, Op.MIN)
WIDE = [c for c in COMBINATIONS if c[0] <= DType.INT32 and c[1] in COMMON]
SIZES = [0, 1, 365, 366, 367]


@pytest.mark.parametrize(
    ("workers", "elements", "dtype", "op"),
    [(w, n, *c) for w in (1, 2, 3, 8) for n in (*SIZES, 100_000) for c in WIDE]
    + [(3, n, *c) for n in (*SIZES, 3000) for c in COMBINATIONS if c not in WIDE],
)
def test_product(workers: int, elements: int, dtype: DType, op: Op) -> None:
    world = World()
    shape = Shape.of(elements, dtype, op)
    sessions = [world.join(i, shape, expected=workers) for i in range(workers)]
    world.gather(sessions)
    for round_ in range(3):
        vectors = vectors_for(shape, workers, round_)
        total = expected(shape, vectors)
        for out in world.allreduce(sessions, vectors):
            assert out.dtype == shape.dtype.numpy
            assert out.tobytes() == total.tobytes()
    counters = world.switch.counters
    assert counters["accumulated"] == 3 * workers * shape.segments
    assert counters["aggregates"] == 3 * shape.segments
    assert counters.drops() == {}


@pytest.mark.slow
@pytest.mark.parametrize("segments", [1, 2, 44, 300])
@pytest.mark.parametrize("seed", range(6))
def test_loss_duplication_and_reordering(seed: int, segments: int) -> None:
    faults = Faults(loss=0.1, duplicate=0.1, jitter=300e-6)
    world = World(Switch(), faults, seed)
    shape = Shape.of(segments * 5 - 2, DType.INT32, elements=5)
    sessions = [world.join(i, shape, expected=3) for i in range(3)]
    world.gather(sessions)
    for round_ in range(5):
        vectors = vectors_for(shape, 3, round_)
        for out in world.allreduce(sessions, vectors):
            assert (out == expected(shape, vectors)).all()
    counters = world.switch.counters
    assert counters["accumulated"] == 5 * 3 * shape.segments
    assert counters["aggregates"] == 5 * shape.segments
    received = counters["accumulated"] + sum(counters[name] for name in DATA_DROPS)
    assert counters["data"] == received
    outside = counters["ordinary"] + counters["short"]
    assert counters["rx_packets"] == counters["control"] + counters["data"] + outside


@pytest.mark.parametrize("seed", range(4))
def test_shorter_vectors_under_loss(seed: int) -> None:
    """Vectors of any size, one after the other in one job; the switch need not know."""
    world = World(Switch(), Faults(loss=0.1, duplicate=0.1, jitter=300e-6), seed)
    shape = Shape.of(300 * 5, DType.INT32, elements=5)
    sessions = [world.join(i, shape, expected=3) for i in range(3)]
    world.gather(sessions)
    sizes = [1, 1500, 4, 5, 6, 1499, 700, 1, 1500]
    for round_, numel in enumerate(sizes):
        part = shape.shortened(numel)
        vectors = vectors_for(part, 3, round_)
        for out in world.allreduce(sessions, vectors):
            assert (out == expected(part, vectors)).all()
    counters = world.switch.counters
    assert counters["accumulated"] == 3 * sum(shape.shortened(n).segments for n in sizes)


def test_same_seed_same_trace() -> None:
    def history() -> list[str]:
        world = World(Switch(), Faults(0.1, 0.1, 300e-6), seed=3)
        shape = Shape.of(500, elements=7)
        sessions = [world.join(i, shape, expected=4) for i in range(4)]
        world.gather(sessions)
        for round_ in range(3):
            world.allreduce(sessions, vectors_for(shape, 4, round_))
        return world.trace

    first = history()
    assert len(first) > 1000
    assert all(history() == first for _ in range(9))


def test_in_place() -> None:
    world = World()
    shape = Shape.of(10_000)
    sessions = [world.join(i, shape, expected=2) for i in range(2)]
    world.gather(sessions)
    vectors = vectors_for(shape, 2)
    total = expected(shape, vectors)
    for session, vector in zip(sessions, vectors, strict=True):
        session.begin(vector, vector, world.now)
    world.run(lambda: all(s.transfer is not None and s.transfer.done for s in sessions))
    assert all((vector == total).all() for vector in vectors)


def test_nan_and_infinity_go_through() -> None:
    world = World()
    shape = Shape.of(6)
    sessions = [world.join(i, shape, expected=2) for i in range(2)]
    world.gather(sessions)
    inf, nan, big = np.inf, np.nan, np.finfo(np.float32).max
    a = np.array([inf, inf, nan, 1.0, big, -0.0], np.float32)
    b = np.array([1.0, -inf, 1.0, nan, big, -0.0], np.float32)
    out, again = world.allreduce(sessions, [a, b])
    want = np.array([inf, nan, nan, nan, inf, -0.0], np.float32)
    assert np.array_equal(out, want, equal_nan=True)
    assert np.signbit(out[5])
    assert out.tobytes() == again.tobytes()


@pytest.mark.parametrize("asked", [[0, 1, 2, 3, 4], [3, 0, 4, 1, 2], None])
@pytest.mark.parametrize("dtype", [DType.FLOAT32, DType.FLOAT16, DType.BFLOAT16])
def test_reproducible_sums_in_rank_order(dtype: DType, asked: list[int] | None) -> None:
    """Whatever the order of joining is; who asks for no rank gets the next free one."""
    shape = Shape.of(5000, dtype)
    rng = np.random.default_rng(1)
    vectors = [(rng.standard_normal(5000) * 10.0**k).astype(dtype.numpy) for k in range(5)]
    total = vectors[0].copy()
    for vector in vectors[1:]:
        total += vector
    results = set()
    for seed in range(4):
        world = World(Switch(), Faults(loss=0.05, jitter=1e-3), seed)
        sessions = []
        for i in range(5):  # one after the other, so that the order of joining is theirs
            asks = {} if asked is None else {"rank": asked[i]}
            session = world.join(i, shape, expected=5, reproducible=True, **asks)
            sessions.append(session)
            world.gather(sessions)
        world.give_ranks(sessions)
        ranks = asked or list(range(5))
        outs = world.allreduce(sessions, [vectors[rank] for rank in ranks])
        assert [s.rank for s in sessions] == ranks
        results |= {out.tobytes() for out in outs}
    assert results == {total.tobytes()}


def sum_in_order(values: list[float], order: tuple[int, ...]) -> float:
    """The float32 sum of one element from each worker, which arrive in this order."""
    world = World()
    shape = Shape.of(1)
    sessions = [world.join(i, shape, expected=len(values)) for i in range(len(values))]
    world.gather(sessions)
    out = np.empty(1, np.float32)
    for i in order:
        world.now += 1e-3
        sessions[i].begin(np.array([values[i]], np.float32), out, world.now)
        world.pump()
    world.run(lambda: all(s.transfer is not None and s.transfer.done for s in sessions))
    return float(out[0])


def test_otherwise_in_order_of_arrival() -> None:
    values = [1e8, -1e8, 1.5]
    assert sum_in_order(values, (0, 1, 2)) == 1.5
    lost = np.float32(-1e8) + np.float32(1.5)
    assert sum_in_order(values, (1, 2, 0)) == float(lost + np.float32(1e8)) == 0.0


def test_several_jobs_at_once() -> None:
    world = World()
    jobs = {
        1: Shape.of(1000, DType.FLOAT32),
        2: Shape.of(10, DType.INT32, Op.MAX),
        3: Shape.of(0),
        4: Shape.of(3000, DType.BFLOAT16, elements=100),
    }
    members = {
        job: [world.join(10 * job + i, shape, job=job, expected=3) for i in range(3)]
        for job, shape in jobs.items()
    }
    world.gather([s for sessions in members.values() for s in sessions])
    for round_ in range(3):
        for job, shape in jobs.items():
            vectors = vectors_for(shape, 3, round_ + job)
            outs = world.allreduce(members[job], vectors)
            assert all((out == expected(shape, vectors)).all() for out in outs)
