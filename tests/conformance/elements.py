"""Sections 3 and 4: every element format, every operation, and how sums are rounded."""

import itertools

import numpy as np

from tests.conformance import wire
from tests.conformance.case import Bench, case, first_round, play, vectors
from tests.conformance.expectations import expect_sum
from tests.conformance.packets import expect_equal, expect_status
from tests.conformance.wire import Action, DType, MemberType, Op, Shape, Status


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
    ops = (Op.SUM, Op.MAX, Op.MIN)
    for op, (segments, last) in itertools.product(ops, ((1, 1), (3, 5))):
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


FLOATS = (DType.FLOAT32, DType.FLOAT16, DType.BFLOAT16, DType.FLOAT64)
INTEGERS = (DType.INT32, DType.INT64, DType.UINT8, DType.BOOL)
PAIRS = tuple(dtype for dtype in DType if dtype >= DType.FLOAT32_INT32)
OF_PAIRS = (Op.MAXLOC, Op.MINLOC)
OF_BITS = tuple(op for op in Op if Op.LAND <= op <= Op.BXOR)
COMMON = (Op.SUM, Op.MAX, Op.MIN, Op.PROD)


def varied(shape: Shape) -> list[np.ndarray]:
    """Three vectors: pairs often have equal values, whole numbers all bits, many of them are 0."""
    rng = np.random.default_rng([shape.dtype, shape.op])
    size = (3, shape.size)
    if shape.dtype in PAIRS:
        drawn = np.empty(size, shape.numpy)
        drawn["value"], drawn["index"] = rng.integers(-2, 3, size), rng.integers(0, 9, size)
        return list(drawn)
    wide = rng.integers(-(1 << 31), 1 << 31, size) * rng.integers(0, 2, size)
    if shape.dtype in FLOATS:
        wide = np.round(wide / (1 << 28))
    return list(wide.astype(shape.numpy))


def ops_of(bench: Bench, dtypes: tuple[DType, ...], ops: tuple[Op, ...]) -> None:
    """All of these operations on all of these types, over a vector of three segments."""
    for dtype, op in itertools.product(dtypes, ops):
        shape = Shape(segments=3, per_segment=7, last=5, dtype=dtype, op=op)
        aggregate_in_order(bench, shape, varied(shape))


@case("3")
def every_op_float64(bench: Bench) -> None:
    """float64: sum, max and min."""
    every_op(bench, DType.FLOAT64)


@case("3")
def every_op_of_bytes_and_long_integers(bench: Bench) -> None:
    """int64, uint8 and bool: sum, max and min."""
    ops_of(bench, (DType.INT64, DType.UINT8, DType.BOOL), (Op.SUM, Op.MAX, Op.MIN))


@case("3")
def products(bench: Bench) -> None:
    """The product of every type of number, of bool the logical and."""
    ops_of(bench, FLOATS + INTEGERS, (Op.PROD,))


@case("3")
def logical_and_bitwise(bench: Bench) -> None:
    """And, or, exclusive or of integers and bool, logical and bit by bit."""
    ops_of(bench, INTEGERS, OF_BITS)


@case("3")
def largest_and_its_place(bench: Bench) -> None:
    """maxloc and minloc of pairs; of equal values the smaller index."""
    ops_of(bench, PAIRS, OF_PAIRS)


@case("3")
def nan_is_the_largest_and_the_smallest(bench: Bench) -> None:
    """A pair whose value is NaN stays; of two the one of the smaller index."""
    for op in OF_PAIRS:
        shape = Shape(dtype=DType.FLOAT32_INT32, op=op, per_segment=3, last=3)
        rows = ([(np.nan, 4), (1, 4), (np.nan, 9)], [(7, 1), (np.nan, 5), (np.nan, 3)])
        a, b = (np.array(row, shape.numpy) for row in rows)
        workers = bench.workers(2, shape)
        start = first_round(workers[0])
        for worker, vector in zip(workers, (a, b), strict=True):
            worker.contribute(start, vector)
        for worker in workers:
            got = worker.aggregate(start)
            expect_equal(got["index"].tolist(), [4, 5, 3], f"indices of {op.name}")
            expect_equal(bool(np.isnan(got["value"]).all()), True, f"NaN in {op.name}")
        bench.new_job()


@case("3")
def operations_that_a_type_lacks(bench: Bench) -> None:
    """No bits of floats, no sums of pairs, no places of numbers: BAD_REQUEST."""
    wrong = [
        *itertools.product(FLOATS, OF_BITS),
        *itertools.product(PAIRS, COMMON + OF_BITS),
        *itertools.product(FLOATS + INTEGERS, OF_PAIRS),
    ]
    for dtype, op in wrong:
        shape = Shape(dtype=dtype, op=op)
        peer = bench.stranger(shape)
        value = wire.join_value(shape, MemberType.WORKER)
        ack = peer.request(Action.JOIN, value, request=peer.incarnation)
        expect_status(ack, Status.BAD_REQUEST, f"Join for {op.name} of {dtype.name}")


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
