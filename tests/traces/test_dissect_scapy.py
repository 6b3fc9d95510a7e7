"""Layers for scapy: every packet there is, built and dissected, and bytes that are none."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import hypothesis
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scapy.config import conf
from scapy.layers.inet import IP, UDP
from scapy.layers.l2 import Ether
from scapy.packet import Packet

from iswitch.core.format import wire
from iswitch.core.format.keys import Key
from iswitch.core.format.wire import (
    PORT,
    TOS_CONTROL,
    TOS_DATA,
    Ack,
    Action,
    Control,
    DType,
    Join,
    Mode,
    Op,
    Segments,
    Shape,
    SwitchJoin,
)
from iswitch.dissect import fields
from iswitch.dissect.scapy import (
    ISwitchAck,
    ISwitchAckJob,
    ISwitchAckRanks,
    ISwitchAckWho,
    ISwitchAwaited,
    ISwitchControl,
    ISwitchData,
    ISwitchFBcast,
    ISwitchHelp,
    ISwitchJoin,
    ISwitchMAC,
    ISwitchMalformed,
    ISwitchPresent,
    ISwitchRankJoin,
    ISwitchReset,
    ISwitchSetH,
    ISwitchShow,
    ISwitchSuper,
    ISwitchSwitchJoin,
    ISwitchTreeJoin,
    ISwitchWho,
    capture,
    sealed,
    settings,
)
from tests.docs.test_protocol_doc import BLOCKS, Block, meant_control, meant_data
from tests.support.captured import (
    SWITCH,
    Sent,
    data,
    everything,
    request,
    vector,
    worker,
)
from tests.support.drawn import awaited, present

pytestmark = pytest.mark.unit

KINDS: dict[Any, type[Packet]] = {
    (Action.JOIN, Join): ISwitchJoin,
    (Action.JOIN, SwitchJoin): ISwitchSwitchJoin,
    (Action.RESET, wire.Round): ISwitchReset,
    (Action.SETH, wire.Threshold): ISwitchSetH,
    (Action.FBCAST, Segments): ISwitchFBcast,
    (Action.HELP, Segments): ISwitchHelp,
    (Action.HELP, wire.Who): ISwitchWho,
    (Action.ACK, Ack): ISwitchAck,
    (Action.ACK, wire.AckWho): ISwitchAckWho,
    (Action.JOIN, wire.RankJoin): ISwitchRankJoin,
    (Action.JOIN, wire.TreeJoin): ISwitchTreeJoin,
    (Action.ACK, wire.AckRanks): ISwitchAckRanks,
    (Action.ACK, wire.AckJob): ISwitchAckJob,
    (Action.SHOW, wire.Show): ISwitchShow,
}


@pytest.fixture(autouse=True)
def afresh() -> Iterator[None]:
    """Nothing is known from another test, and what fails to dissect is seen."""
    settings.jobs.forget()
    conf.debug_dissector = True
    yield
    conf.debug_dissector = False
    settings.dtype = DType.FLOAT32
    settings.jobs.forget()


def test_captures_are_kept_apart() -> None:
    """What one told of jobs is not known in the next, and known again behind it."""
    member, switch = ("10.0.0.1", 40000), ("10.0.0.9", PORT)
    settings.jobs._members[member, switch] = 7
    with capture() as jobs:
        assert settings.jobs is jobs
        assert jobs.ports == {PORT}
        assert jobs.of(member, switch) is None
    known = settings.jobs.of(member, switch)
    assert known is not None
    assert known.job == 7


def dissected(packet: Sent) -> Packet:
    return Ether(packet.frame())


def rebuilt(packet: Packet) -> bytes:
    """Its bytes, put together anew from its fields."""
    again = packet.copy()
    again.clear_cache()
    return bytes(again)


def names(kind: fields.Kind) -> list[str]:
    return [field.name for field in fields.VALUES[kind]]


ENTRIES: dict[Any, type[Packet]] = {wire.AckWho: ISwitchAwaited, wire.AckJob: ISwitchPresent}


def entries_of(kind: Any, entries: tuple[Any, ...]) -> list[Packet]:
    names = [field.name for field in fields.entry(kind)]
    return [ENTRIES[kind](**dict(zip(names, entry, strict=True))) for entry in entries]


def as_layers(control: Control) -> Packet:
    """A control packet in layers."""
    header = ISwitchControl(
        action=control.action, status=control.status, job=control.job, request=control.request
    )
    if control.value is None:
        return header
    kind = type(control.value)
    given = [getattr(control.value, name) for name in kind.__match_args__]
    named = names(kind)
    if kind in ENTRIES:
        named.append(kind.__match_args__[-1])
        given[-1] = entries_of(kind, given[-1])
    if isinstance(control.value, wire.TreeJoin | wire.AckRanks):
        named.append("ranks")
    return header / KINDS[control.action, kind](**dict(zip(named, given, strict=True)))


# Every packet


def test_every_packet_is_dissected_and_rebuilt() -> None:
    seen: set[type[Packet]] = set()
    for packet in everything():
        frame = packet.frame()
        found = Ether(frame)
        seen |= {type(layer) for layer in found.iterpayloads()}
        assert not found.haslayer(ISwitchMalformed)
        assert found[UDP].payload.fault is None
        assert rebuilt(found) == frame
    wanted = {ISwitchControl, ISwitchData, ISwitchSuper, ISwitchMAC, *KINDS.values()}
    assert wanted <= seen


def controls() -> st.SearchStrategy[Control]:
    """Any control packet that `iswitch.core.format.wire` builds."""
    word: dict[int, st.SearchStrategy[Any]] = {
        1: st.integers(0, 255),
        2: st.integers(0, 0xFFFF),
        4: st.integers(0, 0xFFFFFFFF),
    }

    bitmaps = st.sets(st.integers(0, wire.RANKS - 1)).map(lambda ranks: sum(1 << r for r in ranks))
    entries: dict[Any, list[st.SearchStrategy[Any]]] = {
        wire.AckWho: [st.lists(awaited, max_size=wire.MOST_NAMED).map(tuple)],
        wire.AckJob: [st.lists(present, max_size=wire.MOST_NAMED).map(tuple)],
        wire.TreeJoin: [bitmaps],
        wire.AckRanks: [bitmaps],
    }

    word[wire.SHOW_PADDING] = st.binary(min_size=wire.SHOW_PADDING, max_size=wire.SHOW_PADDING)

    def of(action: Action) -> st.SearchStrategy[Control]:
        values = [
            st.none()
            if kind is None
            else st.builds(
                kind, *(word[field.size] for field in fields.VALUES[kind]), *entries.get(kind, [])
            )
            for kind in wire.VALUES[action]
        ]
        status = word[1] if action is Action.ACK else st.just(0)
        return st.builds(Control, st.just(action), word[2], word[4], st.one_of(values), status)

    return st.sampled_from(Action).flatmap(of)


@hypothesis.settings(deadline=None)
@given(controls(), st.none() | st.binary(min_size=1, max_size=64))
def test_control_is_the_same_in_layers_and_in_bytes(control: Control, key: bytes | None) -> None:
    packet, payload = as_layers(control), control.build()
    if key is not None:
        packet, payload = sealed(packet, key), payload + Key(key).mac(payload)
    assert bytes(packet) == payload
    found = dissected(Sent(worker(1), SWITCH, TOS_CONTROL, payload))[ISwitchControl]
    assert found == packet
    assert rebuilt(found) == payload
    assert found.haslayer(ISwitchMAC) == (key is not None)


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: f"line {block.line}")
def test_packets_of_the_specification(block: Block) -> None:
    packet = IP() / UDP() / (ISwitchData if block.is_data else ISwitchControl)(block.payload)
    if block.is_data:
        meant = meant_data(block)
        settings.dtype = meant.dtype
        found = IP(bytes(packet))[ISwitchData]
        assert (found.round, found.index) == (meant.round, meant.segment)
        assert found.elements.dtype == meant.dtype.numpy
        assert found.elements.tobytes() == meant.elements.tobytes()
        built = ISwitchData(round=meant.round, index=meant.segment, elements=meant.elements)
        assert bytes(built) == block.payload
    else:
        found = IP(bytes(packet))[ISwitchControl]
        assert found.fault is None
        assert bytes(as_layers(meant_control(block))) == block.packet
    assert rebuilt(found) == block.payload


@pytest.mark.parametrize("dtype", DType)
def test_elements_are_arrays_in_the_dtype_of_the_job(dtype: DType) -> None:
    elements, member = vector(dtype), worker(3)
    op = next(op for op in Op if op.takes(dtype))
    shape = Shape(dtype, op, Mode.SYNCHRONOUS, len(elements), len(elements), 1)
    packet = data(member, 4, 0, elements.tobytes(), relayed=True)
    if dtype is not DType.FLOAT32:  # nobody has told
        assumed = dissected(packet)[ISwitchData].elements.dtype
        assert assumed == (np.float32 if elements.nbytes % 4 == 0 else np.uint8)
    dissected(request(member, Action.JOIN, 9, 1000, Join.for_shape(shape)))
    found = dissected(packet)[ISwitchData]
    assert found.elements.dtype == dtype.numpy
    assert found.elements.tobytes() == elements.tobytes()
    with pytest.raises(ValueError, match="read-only"):
        found.elements[0] = 1


def test_super_datagrams_are_cut() -> None:
    """With the shape of the job; and without, where the next `Seg` is found again and again."""
    elements = np.arange(1000, dtype=np.float32)
    shape, member = Shape.of(1000, elements=300), worker(1)
    segs = shape.headers(6).tobytes()
    parts = [segs[8 * i : 8 * i + 8] + elements[300 * i :][:300].tobytes() for i in range(4)]
    packet = Sent(member, SWITCH, TOS_DATA, b"".join(parts))
    for join in (None, Join.for_shape(shape)):
        if join is not None:
            dissected(request(member, Action.JOIN, 9, 1000, join))
        found = dissected(packet)
        packets = found[ISwitchSuper].packets
        assert [(p.round, p.index, len(p.elements)) for p in packets] == [
            (6, i, n) for i, n in enumerate([300, 300, 300, 100])
        ]
        assert np.concatenate([p.elements for p in packets]).tobytes() == elements.tobytes()
        assert rebuilt(found) == packet.frame()
    assert bytes(ISwitchSuper(packets=[ISwitchData(part) for part in parts])) == b"".join(parts)


def test_what_only_looks_like_a_super_datagram_is_one_packet() -> None:
    shape, member = Shape.of(1000, elements=300), worker(1)
    dissected(request(member, Action.JOIN, 9, 1000, Join.for_shape(shape)))
    for payload in (bytes(1208 + 8), bytes(1208) + b"\0\0\0\0\0\0\0\7" + bytes(400), bytes(1212)):
        found = dissected(Sent(member, SWITCH, TOS_DATA, payload))
        assert ISwitchSuper not in found
        assert found[ISwitchData].fault == (
            f"segment 0 has {len(payload) - 8} bytes of elements, and should have 1200"
        )
