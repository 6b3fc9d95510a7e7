"""Compares packets and elements bit by bit, and by bounds."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from iswitch.core.format.packets import Rows


def equal_rows(ours: Rows, theirs: Rows) -> npt.NDArray[np.bool_] | None:
    """Tell which rows are equal, (n,); None: all of them."""
    wide = ours.shape[1] % 8 == 0 and all(
        a.strides[1] == 1 and a.strides[0] % 8 == 0 and a.ctypes.data % 8 == 0
        for a in (ours, theirs)
    )
    same = ours.view(np.uint64) == theirs.view(np.uint64) if wide else ours == theirs
    if same.all():
        return None
    rows: npt.NDArray[np.bool_] = same.all(axis=1)
    return rows


def differing(a: npt.NDArray[Any], b: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """Tell which elements differ in any bit, (n,)."""
    found: npt.NDArray[np.bool_] = (octets(a) != octets(b)).any(axis=1)
    return found


def octets(vector: npt.NDArray[Any]) -> Rows:
    """View elements as their bytes, (n, itemsize)."""
    return vector.view(np.uint8).reshape(len(vector), -1)


def within(
    a: npt.NDArray[Any], b: npt.NDArray[Any], bound: npt.NDArray[np.float64]
) -> npt.NDArray[np.bool_]:
    """Tell which elements differ by no more than their bound, or are both NaN.

    A bound that is not finite allows any difference: where the sum of magnitudes overflows, a
    sum may overflow in one order of addition, and not in another.
    """
    with np.errstate(all="ignore"):
        x, y = a.astype(np.float64), b.astype(np.float64)
        near = (np.abs(x - y) <= bound) | (x == y)
    fine: npt.NDArray[np.bool_] = near | (np.isnan(x) & np.isnan(y)) | ~np.isfinite(bound)
    return fine


def text(value: Any) -> str:
    """Write an element exactly."""
    is_bfloat16 = value.dtype.kind == "V" and value.dtype.names is None
    return repr(float(value) if is_bfloat16 else value.item())


def flipped(a: Any, b: Any) -> int | None:
    """Find the one bit in which two elements differ; None: there are several."""
    bits = int.from_bytes(a.tobytes(), "little") ^ int.from_bytes(b.tobytes(), "little")
    return bits.bit_length() - 1 if bits.bit_count() == 1 else None
