"""Combines elements in compiled code, to the bits that `core.sums.combining` makes.

All loops are one function of the C kind, which kernels call by its name: compiled as a part of each
of them they would be optimized again every time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
from llvmlite.binding import add_symbol
from numba import carray, types

from iswitch.core.format.wire import DType, Op

from .compiling import function, inlined
from .halves import bfloat16_of, float16_of, from_bfloat16, from_float16
from .libc import as_u8
from .tables import OPS

Bytes = npt.NDArray[np.uint8]
Element = Callable[[Any, Any], Any]  # combines two elements
Group = Callable[[int, Bytes, Bytes], None]  # those of two arrays, as the number of an `Op` says

SUM, MAX, MIN, PROD = Op.SUM.value, Op.MAX.value, Op.MIN.value, Op.PROD.value
LAND, LOR, BAND, BOR = Op.LAND.value, Op.LOR.value, Op.BAND.value, Op.BOR.value
LXOR, MAXLOC = Op.LXOR.value, Op.MAXLOC.value

# Single elements


@inlined
def _add(a: Any, b: Any) -> Any:
    return a + b


@inlined
def _multiply(a: Any, b: Any) -> Any:
    return a * b


@inlined
def _larger(a: Any, b: Any) -> Any:
    return a if a > b or a != a else b


@inlined
def _smaller(a: Any, b: Any) -> Any:
    return a if a < b or a != a else b


@inlined
def _above(a: Any, b: Any) -> Any:
    return a > b or a != a


@inlined
def _below(a: Any, b: Any) -> Any:
    return a < b or a != a


@inlined
def _not_below(a: Any, b: Any) -> Any:
    return a >= b or a != a


@inlined
def _not_above(a: Any, b: Any) -> Any:
    return a <= b or a != a


def _rounded(element: Element, wide: Any, narrow: Any) -> Element:
    """Make a step on numbers of two bytes from one on float32, which `narrow` rounds."""

    def rounded(a: Any, b: Any) -> Any:
        return narrow(element(wide(a), wide(b)))

    return inlined(rounded)


def _chosen(choice: Element, wide: Any) -> Element:
    """Make the choice between numbers of two bytes from that between float32: bits stay."""

    def chosen(a: Any, b: Any) -> Any:
        return a if choice(wide(a), wide(b)) else b

    return inlined(chosen)


# Arrays


def _numbers(
    word: Any, add: Element, multiply: Element, larger: Element, smaller: Element
) -> Group:
    """Make the loops over numbers, which are seen as words."""

    def group(op: int, into: Bytes, source: Bytes) -> None:
        ours, theirs = into.view(word), source.view(word)
        if op == SUM:
            for i in range(len(ours)):
                ours[i] = add(ours[i], theirs[i])
        elif op == PROD:
            for i in range(len(ours)):
                ours[i] = multiply(ours[i], theirs[i])
        elif op == MAX:
            for i in range(len(ours)):
                ours[i] = larger(ours[i], theirs[i])
        else:
            for i in range(len(ours)):
                ours[i] = smaller(ours[i], theirs[i])

    return inlined(group)


def _integers(word: Any) -> Group:
    """Make the loops over integers, which take logical and bitwise operations, too."""
    numbers = _numbers(word, _add, _multiply, _larger, _smaller)

    def group(op: int, into: Bytes, source: Bytes) -> None:
        ours, theirs = into.view(word), source.view(word)
        if op <= PROD:
            numbers(op, into, source)
        elif op >= BAND:
            _combine_bits(op, into, source)
        elif op == LAND:
            for i in range(len(ours)):
                ours[i] = 1 if ours[i] and theirs[i] else 0
        elif op == LOR:
            for i in range(len(ours)):
                ours[i] = 1 if ours[i] or theirs[i] else 0
        else:
            for i in range(len(ours)):
                ours[i] = 1 if (ours[i] != 0) != (theirs[i] != 0) else 0

    return inlined(group)


@inlined
def _combine_bits(op: int, into: Bytes, source: Bytes) -> None:
    if op == BAND:
        for i in range(len(into)):
            into[i] &= source[i]
    elif op == BOR:
        for i in range(len(into)):
            into[i] |= source[i]
    else:
        for i in range(len(into)):
            into[i] ^= source[i]


@inlined
def _combine_bools(op: int, into: Bytes, source: Bytes) -> None:
    if op in (PROD, MIN, LAND, BAND):
        _combine_uint8(LAND, into, source)
    elif op in (SUM, MAX, LOR, BOR):
        _combine_uint8(LOR, into, source)
    else:
        _combine_uint8(LXOR, into, source)


def _pairs(word: Any, index: Any) -> Group:
    """Make the loop over pairs of a value and its index, which is as large."""

    def group(op: int, into: Bytes, source: Bytes) -> None:
        ours, theirs = into.view(word), source.view(word)
        places, others = into.view(index), source.view(index)
        for i in range(0, len(ours), 2):
            a, b = ours[i], theirs[i]
            wins = b > a if op == MAXLOC else b < a
            level = a == b or (a != a and b != b)
            sooner = others[i + 1] < places[i + 1]
            if wins or (level and sooner) or (b != b and a == a):
                ours[i] = b
                places[i + 1] = others[i + 1]

    return inlined(group)


_combine_float32 = _numbers(np.float32, _add, _multiply, _larger, _smaller)
_combine_float64 = _numbers(np.float64, _add, _multiply, _larger, _smaller)
_combine_float16 = _numbers(
    np.uint16,
    _rounded(_add, from_float16, float16_of),
    _rounded(_multiply, from_float16, float16_of),
    _chosen(_not_below, from_float16),  # of zeros of either sign NumPy keeps ours
    _chosen(_not_above, from_float16),
)
_combine_bfloat16 = _numbers(
    np.uint16,
    _rounded(_add, from_bfloat16, bfloat16_of),
    _rounded(_multiply, from_bfloat16, bfloat16_of),
    _chosen(_above, from_bfloat16),  # and ml_dtypes theirs
    _chosen(_below, from_bfloat16),
)
_combine_uint8 = _integers(np.uint8)
_combine_int32 = _integers(np.int32)
_combine_int64 = _integers(np.int64)
_locate_float32 = _pairs(np.float32, np.int32)
_locate_float64 = _pairs(np.float64, np.int64)
_locate_int32 = _pairs(np.int32, np.int32)
_locate_int64 = _pairs(np.int64, np.int64)

FLOAT32, FLOAT64 = DType.FLOAT32.value, DType.FLOAT64.value
FLOAT16, BFLOAT16 = DType.FLOAT16.value, DType.BFLOAT16.value
INT32, INT64 = DType.INT32.value, DType.INT64.value
UINT8, BOOL = DType.UINT8.value, DType.BOOL.value
FLOAT32_INT32, FLOAT64_INT64 = DType.FLOAT32_INT32.value, DType.FLOAT64_INT64.value
INT32_INT32 = DType.INT32_INT32.value


@inlined
def _combine_row(way: int, into_at: int, source_at: int, size: int) -> None:
    """Combine the elements of one row."""
    into, source = carray(as_u8(into_at), size), carray(as_u8(source_at), size)
    dtype, op = way // OPS, way % OPS
    if dtype == FLOAT32:
        _combine_float32(op, into, source)
    elif dtype == FLOAT64:
        _combine_float64(op, into, source)
    elif dtype == FLOAT16:
        _combine_float16(op, into, source)
    elif dtype == BFLOAT16:
        _combine_bfloat16(op, into, source)
    elif dtype == UINT8:
        _combine_uint8(op, into, source)
    elif dtype == INT32:
        _combine_int32(op, into, source)
    elif dtype == INT64:
        _combine_int64(op, into, source)
    elif dtype == BOOL:
        _combine_bools(op, into, source)
    elif dtype == FLOAT32_INT32:
        _locate_float32(op, into, source)
    elif dtype == FLOAT64_INT64:
        _locate_float64(op, into, source)
    elif dtype == INT32_INT32:
        _locate_int32(op, into, source)
    else:
        _locate_int64(op, into, source)


_SIGNATURE = types.void(*[types.int64] * 6)


@function(_SIGNATURE)
def combine_at(way: int, into_at: int, source_at: int, size: int, rows: int, step: int) -> None:
    """Combine elements with those of the same number that are there.

    The arguments are those of `combine_rows`.
    """
    for i in range(rows):
        _combine_row(way, into_at + i * step, source_at + i * step, size)


add_symbol("iswitch_combine", combine_at.address)
combine_rows: Callable[[int, int, int, int, int, int], None] = types.ExternalFunction(
    "iswitch_combine", _SIGNATURE
)
"""Combine elements with those of the same number that are there, in rows of one distance.

Args:
    way: what `tables.way_of` returns.
    into_at: address of the elements of the first row; the result is written here.
    source_at: address of those to combine with them.
    size: bytes of a row's elements.
    rows: number of rows.
    step: bytes from one row to the next, on either side.
"""
