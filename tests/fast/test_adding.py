"""Elements are combined in compiled code as NumPy combines them, to the bit."""

from __future__ import annotations

from types import ModuleType

import numpy as np
import pytest

from iswitch.core.format.wire import DType, Op
from iswitch.core.sums.combining import reduced
from iswitch.fast import loading
from iswitch.fast.tables import Bytes, way_of
from iswitch.ports.kernel.mmsg import address_of

pytestmark = [
    pytest.mark.skipif(not loading.installed(), reason="Numba is not installed"),
    pytest.mark.usefixtures("checked"),
]


def drawn(rng: np.random.Generator, dtype: DType, n: int) -> np.ndarray:
    """Bytes of n random elements: small numbers and specials, as any bits are seldom equal."""
    if dtype.is_pair:
        pairs = np.zeros(n, dtype.numpy)
        for name in ("value", "index"):
            pairs[name] = rng.integers(-2, 3, n)
        if pairs["value"].dtype.kind == "f":
            pairs["value"][rng.random(n) < 0.1] = np.nan
        return pairs.view(np.uint8)
    if not dtype.is_float:
        bits = rng.integers(0, 256, n * dtype.itemsize, np.uint8)
        return bits * (rng.random(len(bits)) < 0.5)
    values = rng.standard_normal(n).astype(dtype.numpy)
    for special in (0.0, -0.0, np.nan, np.inf, -np.inf):
        values[rng.random(n) < 0.05] = special
    return values.view(np.uint8)


def combine(adding: ModuleType, op: Op, dtype: DType, ours: Bytes, theirs: Bytes) -> None:
    """Combine elements in compiled code, into ours; as two rows if they can be halved."""
    rows = 2 if len(ours) % (2 * dtype.itemsize) == 0 else 1
    size = len(ours) // rows
    places = address_of(ours), address_of(theirs)
    adding.combine_at.ctypes(way_of(op, dtype), *places, size, rows, size)


@pytest.mark.parametrize("dtype", DType, ids=lambda dtype: dtype.label)
def test_elements_are_combined_as_numpy_does(dtype: DType) -> None:
    adding = loading.load("adding")
    rng = np.random.default_rng(20)
    for op in Op:
        for n in (1, 7, 366) if op.takes(dtype) else ():
            ours, theirs = drawn(rng, dtype, n), drawn(rng, dtype, n)
            want = reduced(np.stack([ours, theirs]).view(dtype.numpy), op, dtype)
            combine(adding, op, dtype, ours, theirs)
            assert want.tobytes() == ours.tobytes(), (op.label, n)


@pytest.mark.usefixtures("quiet")
@pytest.mark.parametrize("dtype", [DType.FLOAT16, DType.BFLOAT16], ids=["float16", "bfloat16"])
@pytest.mark.parametrize("op", [Op.SUM, Op.PROD, Op.MAX, Op.MIN], ids=lambda op: op.label)
def test_every_number_of_two_bytes_is_combined_as_numpy_does(op: Op, dtype: DType) -> None:
    adding = loading.load("adding")
    rng = np.random.default_rng(21)
    ours = np.arange(1 << 16, dtype=np.uint16)
    for _ in range(20):
        theirs = rng.permutation(ours)
        got = ours.copy()
        combine(adding, op, dtype, got.view(np.uint8), theirs.view(np.uint8))
        want = reduced(np.stack([ours, theirs]).view(dtype.numpy), op, dtype).view(np.uint16)
        # Whose digits a NaN made of two has, processors decide.
        nan = np.isnan(ours.view(dtype.numpy)) & np.isnan(theirs.view(dtype.numpy))
        assert np.isnan(got.view(dtype.numpy)[nan]).all()
        assert (got[~nan] == want[~nan]).all()
