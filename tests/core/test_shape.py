"""Shapes of vectors, differences of rounds, element types."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from iswitch.core.format.wire import (
    MTU_PAYLOAD,
    SEG_SIZE,
    DType,
    Mode,
    Op,
    Shape,
    WireError,
    round_distance,
    split_seg,
)

pytestmark = pytest.mark.unit


# Shape


E = 366


@pytest.mark.parametrize(
    ("numel", "segments", "last", "full"),
    [
        (0, 1, 0, 0),
        (1, 1, 1, 0),
        (E - 1, 1, E - 1, 0),
        (E, 1, E, 1),
        (E + 1, 2, 1, 1),
        (2 * E - 1, 2, E - 1, 1),
        (2 * E, 2, E, 2),
        (2 * E + 1, 3, 1, 2),
    ],
)
def test_shape_of(numel: int, segments: int, last: int, full: int) -> None:
    shape = Shape.of(numel)
    shape.check()
    assert (shape.dtype, shape.op, shape.mode) == (DType.FLOAT32, Op.SUM, Mode.SYNCHRONOUS)
    assert (shape.elements, shape.segments, shape.last) == (E, segments, last)
    assert shape.numel == numel
    assert shape.full_segments == full
    assert shape.packet_size == MTU_PAYLOAD == 1472
    assert shape.last_size == 8 + 4 * last
    assert shape.packet.itemsize == shape.packet_size
    assert shape.packet["data"].shape == (E,)


@pytest.mark.parametrize("elements", [1, 2, 7])
@pytest.mark.parametrize("numel", range(20))
def test_segments_hold_the_vector_once(numel: int, elements: int) -> None:
    shape = Shape.of(numel, elements=elements)
    shape.check()
    held = [elements] * (shape.segments - 1) + [shape.last]
    assert sum(held) == numel == shape.numel
    assert all(0 < n <= elements for n in held) or held == [0]


@pytest.mark.parametrize(
    ("dtype", "elements"),
    [(DType.FLOAT32, 366), (DType.INT32, 366), (DType.FLOAT16, 732), (DType.BFLOAT16, 732)],
)
def test_default_elements_fill_the_mtu(dtype: DType, elements: int) -> None:
    shape = Shape.of(10_000, dtype)
    assert shape.elements == elements
    assert MTU_PAYLOAD - dtype.itemsize < shape.packet_size <= MTU_PAYLOAD


@pytest.mark.parametrize(
    ("dtype", "most"),
    [
        (DType.FLOAT32, 16374),
        (DType.INT32, 16374),
        (DType.FLOAT16, 32749),
        (DType.BFLOAT16, 32749),
    ],
)
def test_largest_segment(dtype: DType, most: int) -> None:
    Shape.of(0, dtype, elements=most).check()
    Shape.of(5 * most, dtype, elements=most).check()
    with pytest.raises(WireError, match=f"E = {most + 1} does not fit"):
        Shape.of(1, dtype, elements=most + 1).check()


@pytest.mark.parametrize(
    ("elements", "last", "segments", "message"),
    [
        (4, 4, 0, "at least one segment"),
        (4, 5, 1, "not above E"),
        (4, 0, 2, "empty vector"),
        (0, 0, 2, "empty vector"),
    ],
)
def test_shapes_no_vector_has(elements: int, last: int, segments: int, message: str) -> None:
    shape = Shape(DType.FLOAT32, Op.SUM, Mode.SYNCHRONOUS, elements, last, segments)
    with pytest.raises(WireError, match=message):
        shape.check()


def test_headers_are_segs() -> None:
    headers = Shape.of(5, elements=2).headers(0xFFFFFFFF)
    assert headers.tobytes().hex(" ", 8) == " ".join(f"ffffffff{i:08x}" for i in range(3))


@given(st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 1))
def test_split_seg(round_: int, index: int) -> None:
    assert split_seg(round_ << 32 | index) == (round_, index)


def test_packet_layout() -> None:
    record = np.zeros(1, Shape.of(2, elements=2).packet)
    record["seg"], record["data"] = 5 << 32 | 1, [[1.0, 2.5]]
    assert record.tobytes().hex() == "00000005000000010000803f00002040"
    fields = record.dtype.fields
    assert fields is not None
    assert fields["data"][1] == SEG_SIZE


# Serial numbers


TOP = 2**32


@pytest.mark.parametrize(
    ("a", "b", "distance"),
    [
        (0, 0, 0),
        (1, 0, 1),
        (0, 1, -1),
        (0, TOP - 1, 1),
        (TOP - 1, 0, -1),
        (5, TOP - 3, 8),
        (2**31 - 1, 0, 2**31 - 1),
        (2**31, 0, -(2**31)),  # exactly 2**31 apart: either is behind the other
        (0, 2**31, -(2**31)),
        (2**31 + 1, 0, -(2**31) + 1),
    ],
)
def test_round_distance(a: int, b: int, distance: int) -> None:
    assert round_distance(a, b) == distance


@given(st.integers(0, TOP - 1), st.integers(-(2**31), 2**31 - 1))
def test_round_distance_undoes_addition(a: int, step: int) -> None:
    b = (a + step) % TOP
    assert round_distance(b, a) == step
    if step != -(2**31):
        assert round_distance(a, b) == -step


def test_order_of_a_circle() -> None:
    rounds = [(TOP - 3 + i) % TOP for i in range(7)]
    assert all(round_distance(b, a) == 1 for a, b in pairwise(rounds))


# Element types


@pytest.mark.parametrize("dtype", DType)
def test_dtype_of_its_own(dtype: DType) -> None:
    assert DType.of(dtype.numpy) is dtype
    assert dtype.numpy.itemsize == dtype.itemsize


@pytest.mark.parametrize(
    ("given_", "wanted"),
    [
        (np.float32, DType.FLOAT32),
        ("float16", DType.FLOAT16),
        ("<i4", DType.INT32),
        (ml_dtypes.bfloat16, DType.BFLOAT16),
        (np.zeros(0, np.float32).dtype, DType.FLOAT32),
        (float, DType.FLOAT64),
        ("i8", DType.INT64),
        (bool, DType.BOOL),
        ("u1", DType.UINT8),
        ("float64_int64", DType.FLOAT64_INT64),
        ([("value", "f4"), ("index", "i4")], DType.FLOAT32_INT32),
    ],
)
def test_dtype_of(given_: Any, wanted: DType) -> None:
    assert DType.of(given_) is wanted


@pytest.mark.parametrize(
    "given_", ["u4", "i2", ">f4", ">i4", "S4", "c8", [("value", "f4"), ("at", "i4")], "f4,i4"]
)
def test_dtype_of_another(given_: Any) -> None:
    with pytest.raises(WireError, match="use float32, float16, bfloat16, int32, float64"):
        DType.of(given_)
