"""Formats: what is built parses to itself, what is not a packet raises WireError."""

from __future__ import annotations

import struct
from dataclasses import astuple, fields
from itertools import pairwise
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from iswitch.core.format.keys import MAC_SIZE
from iswitch.core.format.wire import (
    BITMAPS,
    MAX_PAYLOAD,
    MOST_AWAITED,
    MTU_PAYLOAD,
    RANKS,
    SEG_SIZE,
    VALUES,
    Ack,
    AckRanks,
    AckWho,
    Action,
    Awaited,
    Control,
    DType,
    Header,
    Join,
    MemberType,
    Mode,
    Op,
    Round,
    Segments,
    Shape,
    Show,
    Status,
    TreeJoin,
    WireError,
    round_distance,
    split_seg,
)

pytestmark = pytest.mark.unit

BITS = {"B": 8, "H": 16, "I": 32}


hosts = st.tuples(*[st.integers(0, 255)] * 4).map(lambda four: ".".join(map(str, four)))
shorts = st.integers(0, 2**16 - 1)
awaited = st.builds(Awaited, hosts, shorts, shorts, hosts, shorts)


def values(kind: Any) -> st.SearchStrategy[Any]:
    """Any value of a kind, every field over all that its bytes can hold."""
    if kind is None:
        return st.none()
    if kind is Show:
        return st.builds(kind, shorts, shorts, st.binary(min_size=240, max_size=240))
    codes = kind.FORMAT.format.lstrip(">")
    numbers = [st.integers(0, 2 ** BITS[code] - 1) for code in codes]
    if kind in (TreeJoin, AckRanks):
        bitmap = st.integers(0, RANKS).flatmap(lambda bits: st.integers(0, (1 << bits) - 1))
        return st.builds(kind, *numbers, bitmap)
    if kind is AckWho:
        return st.builds(kind, *numbers, st.lists(awaited, max_size=MOST_AWAITED).map(tuple))
    return st.builds(kind, *numbers)


@st.composite
def controls(draw: st.DrawFn) -> Control:
    action = draw(st.sampled_from(Action))
    value = draw(st.one_of([values(kind) for kind in VALUES[action]]))
    status = draw(st.integers(0, 255)) if action is Action.ACK else Status.OK
    job, request = draw(st.integers(0, 2**16 - 1)), draw(st.integers(0, 2**32 - 1))
    return Control(action, job, request, value, status)


# Control packets


@given(controls())
def test_what_is_built_parses_to_itself(packet: Control) -> None:
    payload = packet.build()
    found = Control.parse(payload)
    assert found == packet
    assert type(found.value) is type(packet.value)
    assert found.build() == payload
    assert Header.parse(payload) == (packet.action, packet.status, packet.job, packet.request)


near_packets = st.tuples(
    st.integers(0, 10), st.sampled_from([0, 0, 1]), st.binary(min_size=6, max_size=30)
).map(lambda parts: bytes(parts[:2]) + parts[2])


@given(st.one_of(st.binary(max_size=40), near_packets))
@example(b"")
@example(b"\x02\0\0\7\0\0\0\1")
def test_any_bytes_parse_or_raise_wire_error(payload: bytes) -> None:
    """Whatever parses is the only reading of these bytes: building it gives them back."""
    try:
        packet = Control.parse(payload)
    except WireError:
        return
    assert packet.build() == payload


def lengths(action: Action) -> set[int]:
    named = {20 + 14 * n for n in range(17)} if action is Action.ACK else set()
    fixed = {0 if kind is None else kind.FORMAT.size for kind in VALUES[action]}
    with_ranks = {
        kind.FORMAT.size + n
        for kind in VALUES[action]
        if kind in (TreeJoin, AckRanks)
        for n in BITMAPS
    }
    return fixed | named | with_ranks


@pytest.mark.parametrize("action", Action)
def test_a_length_tells_whether_there_is_a_mac(action: Action) -> None:
    assert not lengths(action) & {length + MAC_SIZE for length in lengths(action)}


@pytest.mark.parametrize("action", Action)
def test_an_action_has_its_lengths_only(action: Action) -> None:
    for length in range(270):
        value = bytes(length - 1) + b"\1" if length else b""  # the end of a bitmap is not zero
        payload = bytes([action, 0, 0, 7, 0, 0, 0, 1]) + value
        if length in lengths(action):
            assert Control.parse(payload).action is action
        else:
            with pytest.raises(WireError, match=f"{action.name} does not carry {length} bytes"):
                Control.parse(payload)


@pytest.mark.parametrize("action", [a for a in Action if a is not Action.ACK])
def test_a_request_has_no_status(action: Action) -> None:
    payload = bytes([action, 1, 0, 7, 0, 0, 0, 1]) + bytes(min(lengths(action)))
    with pytest.raises(WireError, match="only an Ack has a status"):
        Control.parse(payload)


@pytest.mark.parametrize("action", [0, 10, 255])
def test_unknown_action(action: int) -> None:
    with pytest.raises(WireError, match=f"unknown action {action}"):
        Control.parse(bytes([action, 0, 0, 7, 0, 0, 0, 1]))


@pytest.mark.parametrize("length", range(8))
def test_header_needs_eight_bytes(length: int) -> None:
    with pytest.raises(WireError, match="at least 8 bytes"):
        Header.parse(bytes(length))


def test_header_of_what_does_not_parse() -> None:
    assert Header.parse(b"\xff\x01\x00\x07\x00\x00\x00\x09more") == (255, 1, 7, 9)


def test_fields_too_large_to_build() -> None:
    for value in (2**16, -1):
        with pytest.raises(struct.error):
            Control(Action.LEAVE, value, 1).build()


def test_missing_is_the_map_of_an_ack() -> None:
    assert Ack(Action.HELP, threshold=1 << 31, contributors=1).missing == 1 << 63 | 1


# Join


@given(
    st.sampled_from(DType),
    st.sampled_from(Op),
    st.sampled_from(Mode),
    st.integers(1, 16374),
    st.integers(0, 200_000),
)
def test_join_for_shape_names_the_shape(
    dtype: DType, op: Op, mode: Mode, elements: int, numel: int
) -> None:
    shape = Shape.of(numel, dtype, op, mode, elements)
    join = Join.for_shape(shape, MemberType.SWITCH, expected=3, flags=2)
    assert join.shape() == shape
    assert (join.type, join.expected, join.flags, join.round) == (MemberType.SWITCH, 3, 2, 0)


def test_join_of_a_controller_names_no_shape() -> None:
    assert Join(MemberType.CONTROLLER).shape() is None
    assert Join(MemberType.CONTROLLER, expected=9, flags=1, round=5).shape() is None


GOOD = Join(0, DType.INT32, Op.MAX, Mode.ASYNCHRONOUS, 10, 3, 2)


@pytest.mark.parametrize(
    "field",
    [
        {"dtype": 4},
        {"op": 3},
        {"mode": 2},
        {"segments": 0},
        {"last": 0},  # and two segments
        {"last": 11},  # above E
        {"elements": 0},  # last above E
        {"elements": 16375},  # 65,508 bytes
    ],
)
def test_join_with_a_field_out_of_its_range(field: dict[str, int]) -> None:
    assert GOOD.shape() == Shape(DType.INT32, Op.MAX, Mode.ASYNCHRONOUS, 10, 3, 2)
    named = {f.name: getattr(GOOD, f.name) for f in fields(GOOD)} | field
    with pytest.raises(WireError):
        Join(**named).shape()


@given(values(Join))
def test_any_join_has_a_sound_shape_or_none_or_raises(join: Join) -> None:
    try:
        shape = join.shape()
    except WireError:
        return
    if shape is None:
        assert astuple(join)[1:7] == (0,) * 6
        return
    shape.check()
    assert shape.packet_size <= MAX_PAYLOAD
    assert 0 <= shape.numel == (shape.segments - 1) * shape.elements + shape.last


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
    ],
)
def test_dtype_of(given_: Any, wanted: DType) -> None:
    assert DType.of(given_) is wanted


@pytest.mark.parametrize("given_", ["f8", "i8", "u4", "i2", "?", ">f4", ">i4", "S4", "c8"])
def test_dtype_of_another(given_: str) -> None:
    with pytest.raises(WireError, match="use float32, float16, bfloat16 or int32"):
        DType.of(given_)


def test_segments_value_is_three_numbers() -> None:
    assert Segments(1, 2, 3).pack() == bytes([0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0, 3])
    assert Round(TOP - 1).pack() == b"\xff" * 4
