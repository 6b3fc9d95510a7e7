"""Formats: what is built parses to itself, what is not a packet raises WireError."""

from __future__ import annotations

import struct
from dataclasses import astuple, fields

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from iswitch.core.format.division import divided
from iswitch.core.format.keys import MAC_SIZE
from iswitch.core.format.wire import (
    BITMAPS,
    FLAG_WHOLE,
    MAX_PAYLOAD,
    SEG_SIZE,
    VALUES,
    Ack,
    AckJob,
    AckRanks,
    AckWho,
    Action,
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
    TreeJoin,
    WireError,
)
from tests.support.combining import COMBINATIONS
from tests.support.drawn import controls, values

pytestmark = pytest.mark.unit


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
    entries = {AckWho: 14, AckJob: 12}  # bytes of each; there are up to 16
    named = {
        kind.FORMAT.size + entries[kind] * n
        for kind in VALUES[action]
        if kind in (AckWho, AckJob)
        for n in range(17)
    }
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
        # The end of a bitmap is not zero; a Join of workers without a rank has the longest.
        last = b"\0" if action is Action.JOIN and length == TreeJoin.FORMAT.size else b"\1"
        value = bytes(length - 1) + last if length else b""
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


def test_segments_value_is_three_numbers() -> None:
    assert Segments(1, 2, 3).pack() == bytes([0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0, 3])
    assert Round(2**32 - 1).pack() == b"\xff" * 4


# Join


@given(
    st.sampled_from(COMBINATIONS),
    st.sampled_from([mode for mode in Mode if not mode.has_owners]),
    st.integers(1, 16374),
    st.integers(0, 200_000),
)
def test_join_for_shape_names_the_shape(
    kind: tuple[DType, Op], mode: Mode, elements: int, numel: int
) -> None:
    dtype, op = kind
    elements = min(elements, (MAX_PAYLOAD - SEG_SIZE) // dtype.itemsize)
    shape = Shape.of(numel, dtype, op, mode, elements)
    join = Join.for_shape(shape, MemberType.SWITCH, expected=3, flags=2)
    assert join.shape() == shape
    assert (join.type, join.expected, join.flags, join.round) == (MemberType.SWITCH, 3, 2, 0)


@given(
    st.sampled_from(COMBINATIONS),
    st.sampled_from([mode for mode in Mode if mode.has_owners]),
    st.integers(1, 60),
    st.integers(0, 20_000),
)
def test_join_for_shape_names_the_owners(
    kind: tuple[DType, Op], mode: Mode, owners: int, numel: int
) -> None:
    dtype, op = kind
    shape = divided(numel, owners, mode, dtype, op)
    join = Join.for_shape(shape, MemberType.WORKER, owners, FLAG_WHOLE)
    assert join.checked() == (MemberType.WORKER, shape)
    assert shape.elements * (shape.segments - 1) >= numel * shape.blocks


def test_join_of_a_controller_names_no_shape() -> None:
    assert Join(MemberType.CONTROLLER).shape() is None
    assert Join(MemberType.CONTROLLER, expected=9, flags=1, round=5).shape() is None


GOOD = Join(0, DType.INT32, Op.MAX, Mode.ASYNCHRONOUS, 10, 3, 2)


@pytest.mark.parametrize(
    "field",
    [
        {"dtype": 12},
        {"op": 12},
        {"op": Op.MAXLOC},  # of no pairs
        {"dtype": DType.FLOAT32, "op": Op.BAND},
        {"dtype": DType.FLOAT64_INT64},  # which have no maximum, but its place
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
