"""Numbers of two bytes in compiled code: widened to float32, and rounded to nearest even.

Sums and products of two such numbers are rounded twice, by float32 and by this. That is the same as
once, since float32 has more than twice the digits and two. NumPy and ml_dtypes do so, too; what
they make of NaN is made here as well.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .compiling import inlined

SIGN, INFINITE = np.uint32(0x8000), np.uint32(0x7C00)  # of a float16
WIDE_INFINITE = np.uint32(0x7F800000)
SMALLEST = np.uint32(113 << 23)  # below, a float16 is subnormal
TOO_LARGE = np.uint32(143 << 23)  # from there on it is infinite
SCALE = np.float32(2.0**112)  # how float16 and float32 differ in the bias of their exponents
REBIAS = np.uint32(112 << 23)
HALF = np.float32(0.5)  # added to a subnormal float16, it leaves its digits in the lowest place
HALF_BITS = np.uint32(126 << 23)


@inlined
def from_float16(h: Any) -> Any:
    """Widen a float16, given as its bits."""
    bits = np.uint32(h)
    sign = np.uint32((bits & SIGN) << np.uint32(16))
    digits = np.uint32((bits & np.uint32(0x7FFF)) << np.uint32(13))
    if bits & INFINITE == INFINITE:
        return np.uint32(sign | WIDE_INFINITE | digits).view(np.float32)
    size = np.float32(digits.view(np.float32) * SCALE)
    return np.uint32(sign | size.view(np.uint32)).view(np.float32)


@inlined
def float16_of(x: Any) -> Any:
    """Return the bits of the float16 nearest to a float32."""
    bits = np.float32(x).view(np.uint32)
    sign = np.uint32(bits >> np.uint32(16)) & SIGN
    size = np.uint32(bits & np.uint32(0x7FFFFFFF))
    if size > WIDE_INFINITE:  # NaN, which stays one if its first digits are zero
        digits = np.uint32((size & np.uint32(0x7FFFFF)) >> np.uint32(13))
        found = INFINITE + max(digits, np.uint32(1))
    elif size >= TOO_LARGE:
        found = INFINITE
    elif size < SMALLEST:
        found = np.float32(size.view(np.float32) + HALF).view(np.uint32) - HALF_BITS
    else:
        odd = np.uint32(size >> np.uint32(13)) & np.uint32(1)
        found = np.uint32(size - REBIAS + np.uint32(0xFFF) + odd) >> np.uint32(13)
    return np.uint16(sign | found)


@inlined
def from_bfloat16(h: Any) -> Any:
    """Widen a bfloat16, given as its bits."""
    return np.uint32(np.uint32(h) << np.uint32(16)).view(np.float32)


@inlined
def bfloat16_of(x: Any) -> Any:
    """Return the bits of the bfloat16 nearest to a float32."""
    bits = np.float32(x).view(np.uint32)
    if bits & np.uint32(0x7FFFFFFF) > WIDE_INFINITE:  # NaN
        return np.uint16(0xFFC0 if bits >> np.uint32(31) else 0x7FC0)
    odd = np.uint32(bits >> np.uint32(16)) & np.uint32(1)
    return np.uint16(np.uint32(bits + np.uint32(0x7FFF) + odd) >> np.uint32(16))
