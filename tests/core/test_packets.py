"""Bursts and the cutting of data packets into stretches, against packet by packet."""

from __future__ import annotations

from itertools import chain

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from iswitch.core.format.packets import Address, Burst, Cutter, Outgoing, Rows
from iswitch.core.format.wire import TOS_CONTROL, TOS_DATA, Shape
from tests.support.parts import peer, rows_of, seg

pytestmark = pytest.mark.unit

TOP = 2**32 - 1
SEGMENTS = 12
SHAPE = Shape.of(SEGMENTS, elements=1)


def data_packets(segs: list[tuple[int, int]]) -> Rows:
    """A packet of 12 bytes for each (round, index), with its place in the list as payload."""
    return rows_of([seg(r, i) + n.to_bytes(4, "little") for n, (r, i) in enumerate(segs)])


def naive(segs: list[tuple[int, int]]) -> list[tuple[int, int, list[int]]]:
    """Stretches packet by packet: a packet continues one if its index is the next, same round."""
    stretches: list[tuple[int, int, list[int]]] = []
    for place, (round_, index) in enumerate(segs):
        if stretches:
            of, start, places = stretches[-1]
            if of == round_ and start + len(places) == index:
                places.append(place)
                continue
        stretches.append((round_, index, [place]))
    return stretches


def cut(cutter: Cutter, segs: list[tuple[int, int]]) -> list[tuple[int, int, list[int]]]:
    found = cutter.cut(data_packets(segs), 12)
    return [
        (one.round, one.start, one.rows[:, 8:].copy().view("<u4")[:, 0].tolist())
        for stretch in found
        for one in stretch.consecutive()
    ]


rounds = st.sampled_from([0, 1, 2, 5, 2**31, TOP - 1, TOP])
indices = st.one_of(
    st.integers(0, SEGMENTS - 1), st.sampled_from([SEGMENTS, SEGMENTS + 1, 2**31, TOP - 1, TOP])
)


@st.composite
def runs(draw: st.DrawFn) -> list[tuple[int, int]]:
    """Consecutive segments; past the last index there is, counting goes on in the next round."""
    first = draw(rounds) << 32 | draw(indices)
    numbers = [(first + i) % 2**64 for i in range(draw(st.integers(1, 6)))]
    return [(number >> 32, number & TOP) for number in numbers]


bursts = st.lists(runs(), min_size=1, max_size=6).map(lambda parts: [*chain(*parts)])


@given(st.lists(bursts, min_size=1, max_size=4))
def test_cut_is_as_packet_by_packet(all_segs: list[list[tuple[int, int]]]) -> None:
    cutter = Cutter(SHAPE)
    for segs in all_segs:
        assert cut(cutter, segs) == naive(segs)


@pytest.mark.parametrize(
    "segs",
    [
        [(4, TOP), (5, 0)],  # consecutive as 64-bit numbers
        [(TOP, TOP), (0, 0), (0, 1)],
        [(4, 1), (4, 1)],
        [(4, 1), (4, 0)],
        [(4, 0), (5, 1)],
        [(4, SEGMENTS - 1), (4, SEGMENTS)],
    ],
)
def test_cut_where_rounds_and_indices_end(segs: list[tuple[int, int]]) -> None:
    assert cut(Cutter(SHAPE), segs) == naive(segs)


def test_packets_in_order_are_one_stretch_without_a_copy() -> None:
    rows = data_packets([(3, i) for i in range(2, SEGMENTS)])
    (stretch,) = Cutter(SHAPE).cut(rows, 12)
    assert stretch[:2] == (3, 2)
    assert stretch.rows is rows
    assert stretch.indices is None


def test_stretches_are_views() -> None:
    rows = data_packets([(3, 0), (3, 1), (3, 5)])
    (stretch,) = Cutter(SHAPE).cut(rows, 12)
    assert (stretch.start, stretch.stop) == (0, 6)
    assert stretch.indices is not None
    assert stretch.indices.tolist() == [0, 1, 5]
    parts = stretch.consecutive()
    assert [(one.round, one.start, len(one.rows)) for one in parts] == [(3, 0, 2), (3, 5, 1)]
    assert all(np.shares_memory(one.rows, rows) for one in [stretch, *parts])


def test_what_is_not_ascending_is_cut() -> None:
    rows = data_packets([(3, 0), (3, 2), (3, 2), (3, 1), (4, 3)])
    stretches = Cutter(SHAPE).cut(rows, 12)
    assert [(one.round, one.start, one.stop) for one in stretches] == [
        (3, 0, 3),
        (3, 2, 3),
        (3, 1, 2),
        (4, 3, 4),
    ]


def test_rows_wider_apart_than_long() -> None:
    """A receive buffer's slots are larger than the packets in them."""
    buffer = np.full((4, 100), 0xEE, np.uint8)
    buffer[:, :12] = data_packets([(9, i) for i in range(4)])
    (stretch,) = Cutter(SHAPE).cut(buffer[:, :12], 12)
    assert (stretch.round, stretch.start, stretch.rows.shape) == (9, 0, (4, 12))


def test_headers_of_many_rounds() -> None:
    """Rounds that are forgotten and come again have the same headers."""
    cutter = Cutter(SHAPE)
    for round_ in [*range(3 * Cutter.ROUNDS), 0, 5, TOP]:
        headers = cutter.headers(round_, 2, 7)
        assert headers.dtype == np.dtype(">u8")
        assert headers.tobytes() == b"".join(seg(round_, i) for i in range(2, 7))


def test_headers_kept_are_bounded() -> None:
    cutter = Cutter(SHAPE)
    for round_ in range(100):
        cutter.cut(data_packets([(round_, 0)]), 12)
    assert len(cutter._headers) == Cutter.ROUNDS
    assert list(cutter._headers) == list(range(92, 100))


# Bursts


@given(st.integers(1, 5), st.integers(1, 20), st.data())
def test_pieces_are_the_packets(n: int, size: int, data: st.DataObject) -> None:
    tail = data.draw(st.integers(1, size))
    rows = np.arange(n * size, dtype=np.uint8).reshape(n, size)
    burst = Burst(peer(0), TOS_DATA, rows, tail)
    sizes = [size] * (n - 1) + [tail]
    want = [row[:length].tobytes() for row, length in zip(rows, sizes, strict=True)]
    pieces = burst.by_size()
    assert [row.tobytes() for piece in pieces for row in piece] == want
    assert burst.nbytes == sum(sizes)
    assert len(pieces) == (2 if n > 1 and tail < size else 1)
    assert all(np.shares_memory(piece, rows) for piece in pieces)


def test_single() -> None:
    burst = Burst.single(peer(1), TOS_CONTROL, b"abcdefghij")
    assert burst.rows.tobytes() == b"abcdefghij"
    assert (burst.peer, burst.tos, burst.tail, burst.nbytes) == (peer(1), TOS_CONTROL, 10, 10)
    assert [piece.shape for piece in burst.by_size()] == [(1, 10)]


def test_empty_datagram() -> None:
    burst = Burst.single(peer(1), TOS_CONTROL, b"")
    assert (burst.rows.shape, burst.nbytes) == ((1, 0), 0)


def test_outgoing_control() -> None:
    out = Outgoing.control(peer(2), b"12345678")
    assert (out.peers, out.tos, out.tail) == ((peer(2),), TOS_CONTROL, 8)
    assert out.rows.tobytes() == b"12345678"
    assert out.rows.shape == (1, 8)


def test_addresses_differ_by_switch_port() -> None:
    assert Address("10.0.0.1", 40000) == Address("10.0.0.1", 40000, 0)
    assert Address("10.0.0.1", 40000, 1) != Address("10.0.0.1", 40000, 2)
    assert str(Address("10.0.0.1", 40000, 3)) == "10.0.0.1:40000"


def test_a_cutter_takes_no_memory_for_what_has_not_come() -> None:
    """A Join, or a damaged trace, may speak of any number of segments."""
    cutter = Cutter(Shape.of(2**32 - 1, elements=1))
    assert cutter.cut(data_packets([(7, 3)]), 12)[0].start == 3
    assert not cutter._headers
    assert not cutter._free
