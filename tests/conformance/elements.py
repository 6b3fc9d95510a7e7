"""Sections 3 and 4: every element format, every operation, and how sums are rounded."""

import itertools

import numpy as np

from tests.conformance.case import Bench, case, first_round, play, vectors
from tests.conformance.expectations import expect_sum
from tests.conformance.wire import DType, Op, Shape


def aggregate_in_order(bench: Bench, shape: Shape, inputs: list[np.ndarray]) -> None:
    """Workers contribute one after the other; the aggregate is rounded in that order."""
    bench.new_job()
    workers = bench.workers(len(inputs), shape)
    start = first_round(workers[0])
    for worker, vector in zip(workers, inputs, strict=True):
        worker.contribute(start, vector)
    expect_sum(workers, start, shape.fold(*inputs))


def every_op(bench: Bench, dtype: DType) -> None:
    """Sum, maximum and minimum of three workers, over vectors of one to a few segments."""
    for op, (segments, last) in itertools.product(Op, ((1, 1), (3, 5))):
        shape = Shape(segments=segments, per_segment=7, last=last, dtype=dtype, op=op)
        aggregate_in_order(bench, shape, vectors(3, shape, seed=segments))


def rounding_in_arrival_order(bench: Bench, dtype: DType, limit: int) -> None:
    """`limit + 1` rounds back to `limit` in this format, while 1 + 1 + `limit` is exact."""
    shape = Shape(dtype=dtype)
    parts = [np.full(shape.size, part).astype(shape.numpy) for part in (limit, 1, 1)]
    for order in sorted(set(itertools.permutations(range(3)))):
        aggregate_in_order(bench, shape, [parts[which] for which in order])


def random_sums(bench: Bench, dtype: DType, scale: float) -> None:
    """Sums of five workers with elements of very different size, bit for bit."""
    shape = Shape(segments=2, per_segment=300, last=211, dtype=dtype)
    rng = np.random.default_rng(26_963)
    size = (5, shape.size)
    drawn = rng.standard_normal(size) * np.exp(rng.uniform(-scale, scale, size))
    aggregate_in_order(bench, shape, [row.astype(shape.numpy) for row in drawn])


@case("3")
def every_op_float32(bench: Bench) -> None:
    """float32: sum, max and min."""
    every_op(bench, DType.FLOAT32)


@case("3")
def every_op_float16(bench: Bench) -> None:
    """float16: sum, max and min."""
    every_op(bench, DType.FLOAT16)


@case("3")
def every_op_bfloat16(bench: Bench) -> None:
    """bfloat16: sum, max and min."""
    every_op(bench, DType.BFLOAT16)


@case("3")
def every_op_int32(bench: Bench) -> None:
    """int32: sum, max and min."""
    every_op(bench, DType.INT32)


@case("4")
def float32_rounds_in_arrival_order(bench: Bench) -> None:
    """float32 sums are rounded after every addition, in arrival order."""
    rounding_in_arrival_order(bench, DType.FLOAT32, 1 << 24)
    random_sums(bench, DType.FLOAT32, 12.0)


@case("4")
def float16_rounds_in_its_own_format(bench: Bench) -> None:
    """float16 sums are rounded to float16 after every addition, in arrival order."""
    rounding_in_arrival_order(bench, DType.FLOAT16, 1 << 11)
    random_sums(bench, DType.FLOAT16, 4.0)


@case("4")
def bfloat16_rounds_in_its_own_format(bench: Bench) -> None:
    """bfloat16 sums are rounded to bfloat16 after every addition, in arrival order."""
    rounding_in_arrival_order(bench, DType.BFLOAT16, 1 << 8)
    random_sums(bench, DType.BFLOAT16, 6.0)


@case("4")
def float32_subnormals_kept(bench: Bench) -> None:
    """IEEE-754 sums reach down to the smallest subnormal: nothing is flushed to zero."""
    shape = Shape(per_segment=3, last=3)
    tiny = np.array([1e-45, 3e-40, 1.2e-38], "<f4")
    aggregate_in_order(bench, shape, [tiny, tiny, np.array([1e-45, -2e-40, -1.1e-38], "<f4")])


@case("1, 4")
def int32_wraps(bench: Bench) -> None:
    """int32 sums are two's complement and wrap."""
    shape = Shape(dtype=DType.INT32)
    low, high = -(1 << 31), (1 << 31) - 1
    inputs = [np.array(row, "<i4") for row in ([high, low, high, 5], [1, -1, high, low])]
    aggregate_in_order(bench, shape, inputs)


@case("1, 4")
def nan_and_infinity_sum(bench: Bench) -> None:
    """Sums follow IEEE-754: NaN stays NaN, opposite infinities make one, overflow is infinite."""
    for dtype in (DType.FLOAT32, DType.FLOAT16, DType.BFLOAT16):
        shape = Shape(per_segment=6, last=6, dtype=dtype)
        largest = {DType.FLOAT16: 60_000.0}.get(dtype, 3e38)
        a = np.array([np.nan, np.inf, np.inf, -np.inf, largest, 1.0]).astype(shape.numpy)
        b = np.array([1.0, 1.0, -np.inf, -np.inf, largest, 2.0]).astype(shape.numpy)
        aggregate_in_order(bench, shape, [a, b])


@case("4")
def nan_does_not_stay(bench: Bench) -> None:
    """Sets are emptied between rounds: a NaN of one round is in no later sum."""
    shape = Shape(segments=2)
    workers = bench.workers(2, shape)
    start = first_round(workers[0])
    poison = np.full(shape.size, np.nan, "<f4")
    for round_ in (start, start + 1):
        for worker in workers:
            worker.contribute(round_, poison)
        expect_sum(workers, round_, poison)
    for round_ in range(start + 2, start + 5):
        play(workers, round_)
