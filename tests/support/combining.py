"""What the operations on elements mean, one element at a time: the oracle for vectors."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from iswitch.core.format.wire import DType, Op, Vector

COMBINATIONS = [(dtype, op) for dtype in DType for op in Op if op.takes(dtype)]
ARITHMETIC: dict[Op, Callable[[Any, Any], Any]] = {
    Op.SUM: np.add,
    Op.MAX: np.maximum,
    Op.MIN: np.minimum,
    Op.PROD: np.multiply,
}
OF_BITS: dict[Op, Callable[[int, int], int]] = {
    Op.LAND: lambda a, b: a != 0 and b != 0,
    Op.LOR: lambda a, b: a != 0 or b != 0,
    Op.LXOR: lambda a, b: (a != 0) != (b != 0),
    Op.BAND: operator.and_,
    Op.BOR: operator.or_,
    Op.BXOR: operator.xor,
}
SUM_OF_BOOL: dict[Op, Callable[[bool, bool], bool]] = {
    Op.SUM: operator.or_,
    Op.MAX: operator.or_,
    Op.PROD: operator.and_,
    Op.MIN: operator.and_,
}


def combine(dtype: DType, op: Op, a: Vector, b: Vector) -> Vector:
    """Combine two vectors of an element type."""
    if dtype.is_pair:
        best = [larger(op, x, y) for x, y in zip(a.tolist(), b.tolist(), strict=True)]
        return np.array(best, dtype.numpy)
    of_bits = {**OF_BITS, **(SUM_OF_BOOL if dtype is DType.BOOL else {})}
    if op in of_bits:
        found = [of_bits[op](x, y) for x, y in zip(a.tolist(), b.tolist(), strict=True)]
        return np.array(found, dtype.numpy)
    with np.errstate(all="ignore"):
        total: Vector = ARITHMETIC[op](a, b).astype(dtype.numpy)
    return total


def larger(op: Op, a: tuple[Any, int], b: tuple[Any, int]) -> tuple[Any, int]:
    """Return the pair of the larger value (MINLOC: the smaller); of two such, of the smaller index.

    NaN is larger, and smaller, than any number.
    """

    def key(pair: tuple[Any, int]) -> tuple[bool, Any, int]:
        value, index = pair
        is_nan = value != value
        ordered = 0 if is_nan else value if op is Op.MAXLOC else -value
        return is_nan, ordered, -index

    return max(a, b, key=key)


def drawn(dtype: DType, numel: int, rng: np.random.Generator) -> Vector:
    """Draw a vector whose elements are as different as the type allows."""
    if dtype.is_pair:
        value, _ = dtype.numpy.names or ()
        vector = np.empty(numel, dtype.numpy)
        vector["value"] = rng.integers(-3, 4, numel)
        vector["index"] = rng.integers(0, 4, numel)
        if dtype.numpy[value].kind == "f":
            vector["value"][rng.random(numel) < 0.1] = np.nan
        return vector
    if dtype is DType.BOOL:
        return rng.random(numel) < 0.5
    if not dtype.is_float:
        bounds = np.iinfo(dtype.numpy)
        few = rng.integers(0, 2, numel)  # else nothing is false
        many = rng.integers(bounds.min, bounds.max, numel, dtype.numpy, endpoint=True)
        return np.where(rng.random(numel) < 0.3, few, many).astype(dtype.numpy)
    wide = rng.standard_normal(numel) * 10.0 ** rng.integers(-3, 5)
    with np.errstate(all="ignore"):
        return wide.astype(dtype.numpy)
