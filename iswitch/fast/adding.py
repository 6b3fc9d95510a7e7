"""Combines elements in compiled code, to the bits that `core.sums.combining` makes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
from numba import types

from iswitch.core.format.wire import DType, Op

from .compiling import inlined, kernel

Bytes = npt.NDArray[np.uint8]


def _loop(word: Any, element: Callable[[Any, Any], Any]) -> Any:
    """Make a loop over two arrays of bytes that are seen as words."""

    def loop(into: Bytes, source: Bytes) -> None:
        ours, theirs = into.view(word), source.view(word)
        for i in range(len(ours)):
            ours[i] = element(ours[i], theirs[i])

    return inlined(loop)


@inlined
def _add(a: Any, b: Any) -> Any:
    return a + b


@inlined
def _larger(a: Any, b: Any) -> Any:
    return a if a > b or a != a else b


@inlined
def _smaller(a: Any, b: Any) -> Any:
    return a if a < b or a != a else b


_add_f32, _add_f64 = _loop(np.float32, _add), _loop(np.float64, _add)
_add_i32, _add_i64 = _loop(np.int32, _add), _loop(np.int64, _add)
_add_u8 = _loop(np.uint8, _add)
_max_f32, _max_f64 = _loop(np.float32, _larger), _loop(np.float64, _larger)
_max_i32, _max_i64 = _loop(np.int32, _larger), _loop(np.int64, _larger)
_min_f32, _min_f64 = _loop(np.float32, _smaller), _loop(np.float64, _smaller)
_min_i32, _min_i64 = _loop(np.int32, _smaller), _loop(np.int64, _smaller)

(
    ADD_F32, ADD_F64, ADD_I32, ADD_I64, ADD_U8, MAX_F32, MAX_F64, MAX_I32, MAX_I64,
    MIN_F32, MIN_F64, MIN_I32, MIN_I64,
) = range(13)  # fmt: skip

WAYS = {
    (Op.SUM, DType.FLOAT32): ADD_F32,
    (Op.SUM, DType.FLOAT64): ADD_F64,
    (Op.SUM, DType.INT32): ADD_I32,
    (Op.SUM, DType.INT64): ADD_I64,
    (Op.SUM, DType.UINT8): ADD_U8,
    (Op.MAX, DType.FLOAT32): MAX_F32,
    (Op.MAX, DType.FLOAT64): MAX_F64,
    (Op.MAX, DType.INT32): MAX_I32,
    (Op.MAX, DType.INT64): MAX_I64,
    (Op.MIN, DType.FLOAT32): MIN_F32,
    (Op.MIN, DType.FLOAT64): MIN_F64,
    (Op.MIN, DType.INT32): MIN_I32,
    (Op.MIN, DType.INT64): MIN_I64,
}
"""How elements are combined, for each operation and element type that is compiled."""

_bytes = types.uint8[::1]


@kernel(types.void(types.int64, _bytes, _bytes))
def combine_sums(way: int, into: Bytes, source: Bytes) -> None:
    """Add elements to sums of the same length."""
    if way == ADD_F32:
        _add_f32(into, source)
    elif way == ADD_F64:
        _add_f64(into, source)
    elif way == ADD_I32:
        _add_i32(into, source)
    elif way == ADD_I64:
        _add_i64(into, source)
    else:
        _add_u8(into, source)


@kernel(types.void(types.int64, _bytes, _bytes))
def combine_extremes(way: int, into: Bytes, source: Bytes) -> None:
    """Keep the larger, or the smaller, of each two elements."""
    if way == MAX_F32:
        _max_f32(into, source)
    elif way == MAX_F64:
        _max_f64(into, source)
    elif way == MAX_I32:
        _max_i32(into, source)
    elif way == MAX_I64:
        _max_i64(into, source)
    elif way == MIN_F32:
        _min_f32(into, source)
    elif way == MIN_F64:
        _min_f64(into, source)
    elif way == MIN_I32:
        _min_i32(into, source)
    else:
        _min_i64(into, source)


@inlined
def combine(way: int, into: Bytes, source: Bytes) -> None:
    """Combine elements with those of the same number that are there.

    Args:
        way: one of WAYS.
        into: bytes of whole elements, (n,); the result is written here.
        source: bytes of whole elements, (n,).
    """
    if way <= ADD_U8:
        combine_sums(way, into, source)
    else:
        combine_extremes(way, into, source)
