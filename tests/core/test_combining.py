"""Operations on elements: what the oracle of allreduce does not see."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

from iswitch.core.format.wire import DType, Op
from iswitch.core.sums.combining import combine_of, reduced, word_of
from tests.support.combining import COMBINATIONS, combine, drawn

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(("dtype", "op"), COMBINATIONS)
def test_rows_are_reduced_in_their_order(dtype: DType, op: Op) -> None:
    rng = np.random.default_rng(7)
    rows = [drawn(dtype, 1000, rng) for _ in range(3)]
    exact = combine(dtype, op, combine(dtype, op, rows[0], rows[1]), rows[2])
    assert reduced(np.array(rows), op, dtype).tobytes() == exact.tobytes()


@pytest.mark.parametrize(("dtype", "op"), COMBINATIONS)
def test_a_sum_takes_no_memory_to_speak_of(dtype: DType, op: Op) -> None:
    """A switch that has room for the first step of a change has room for all of it."""
    words = word_of(dtype)
    ours, theirs = (np.ones((4096, 1464), np.uint8).view(words) for _ in range(2))
    function = combine_of(op, dtype)
    function(ours, theirs, out=ours)
    tracemalloc.start()
    try:
        with np.errstate(all="ignore"):
            function(ours, theirs, out=ours)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_bytes_that_are_no_bool_are_true() -> None:
    """NumPy would take the bits of such a byte."""
    two, four = (np.full((1, 16), value, np.uint8) for value in (2, 4))
    land = combine_of(Op.LAND, DType.BOOL)
    assert land(two, four).astype(int).tolist() == [[1] * 16]
    assert combine_of(Op.BAND, DType.BOOL)(two, four).astype(int).tolist() == [[1] * 16]
    assert combine_of(Op.BXOR, DType.BOOL)(two, four).astype(int).tolist() == [[0] * 16]
