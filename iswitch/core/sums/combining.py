"""The operations on elements: what a switch does with a contribution and the sum so far.

Packets are combined whole, header and elements alike, as one piece of memory; the header is written
anew afterwards. So elements are viewed as words whose size also divides the eight bytes of a
header.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from iswitch.core.format.wire import SEG_SIZE, DType, Op, Vector

AT_ONCE = 256  # packets: comparing pairs takes 1 kB for each
Words = npt.NDArray[Any]
Combine = Callable[..., Words]  # (ours, theirs, out=None), as a ufunc of NumPy

_UFUNC: dict[Op, np.ufunc] = {
    Op.SUM: np.add,
    Op.MAX: np.maximum,
    Op.MIN: np.minimum,
    Op.PROD: np.multiply,
    Op.LAND: np.logical_and,
    Op.LOR: np.logical_or,
    Op.LXOR: np.logical_xor,
    Op.BAND: np.bitwise_and,
    Op.BOR: np.bitwise_or,
    Op.BXOR: np.bitwise_xor,
}
# Of bool NumPy's add is or, its multiply and: as bytes they have to be called by these names.
_OF_BOOL: dict[Op, np.ufunc] = {
    Op.SUM: np.logical_or,
    Op.MAX: np.logical_or,
    Op.BOR: np.logical_or,
    Op.PROD: np.logical_and,
    Op.MIN: np.logical_and,
    Op.BAND: np.logical_and,
    Op.BXOR: np.logical_xor,
}


def word_of(dtype: DType) -> np.dtype[Any]:
    """Return the dtype of the words in which packets of such elements are combined.

    Bool is combined as bytes, since a byte that is neither 0 nor 1 is no bool to NumPy.
    """
    if dtype.is_pair:
        return np.dtype("<u8")
    return np.dtype(np.uint8) if dtype is DType.BOOL else dtype.numpy


def combine_of(op: Op, dtype: DType) -> Combine:
    """Return the function that combines rows of words: headers and elements, (n, words)."""
    if dtype.is_pair:
        return partial(_locate, dtype.numpy, op is Op.MAXLOC)
    return (_OF_BOOL.get(op) if dtype is DType.BOOL else None) or _UFUNC[op]


def reduced(rows: Vector, op: Op, dtype: DType) -> Vector:
    """Combine rows of elements one after the other, rounding each time.

    Args:
        rows: (n, elements) of the element type.
        op: operation that combines them.
        dtype: the element type.

    Returns:
        the result, (elements,).
    """
    packets = np.zeros((len(rows), 1, SEG_SIZE + rows.shape[1] * dtype.itemsize), np.uint8)
    packets[:, 0, SEG_SIZE:] = np.ascontiguousarray(rows).view(np.uint8)
    total, *others = packets.view(word_of(dtype))
    combine = combine_of(op, dtype)
    with np.errstate(all="ignore"):
        for words in others:
            combine(total, words, out=total)
    return packets[0, 0, SEG_SIZE:].copy().view(dtype.numpy)


def _locate(
    pair: np.dtype[Any], largest: bool, ours: Words, theirs: Words, out: Words | None = None
) -> Words:
    """Keep, of each two pairs, the one with the larger value (or the smaller).

    If the values are equal, the pair with the smaller index stays. NaN wins over all numbers, as in
    `np.maximum`.

    Args:
        pair: the dtype of an element.
        largest: whether the larger value wins.
        ours: rows of 64-bit words, the header first, (n, words).
        theirs: rows of 64-bit words, as in `ours`.
        out: where to write the result: `ours`, or None for a new array.
    """
    result = ours.copy() if out is None else out
    for at in range(0, len(result), AT_ONCE):
        rows = slice(at, at + AT_ONCE)
        a, b = (words[rows, SEG_SIZE // 8 :].view(pair) for words in (result, theirs))
        nan, others_nan = a["value"] != a["value"], b["value"] != b["value"]
        wins = b["value"] > a["value"] if largest else b["value"] < a["value"]
        level = (a["value"] == b["value"]) | (nan & others_nan)
        wins = (others_nan & ~nan) | wins | (level & (b["index"] < a["index"]))
        np.copyto(a, b, where=wins)
    return result
