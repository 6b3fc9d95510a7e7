"""Layers for scapy: every packet there is, built and dissected, and bytes that are none."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hypothesis
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scapy.config import conf
from scapy.layers.inet import IP, UDP
from scapy.layers.l2 import Ether
from scapy.packet import Packet, Raw, fuzz
from scapy.utils import rdpcap

from iswitch.core.format import wire
from iswitch.core.format.keys import MAC_SIZE, Key
from iswitch.core.format.wire import (
    PORT,
    TOS_CONTROL,
    TOS_DATA,
    Ack,
    Action,
    Control,
    DType,
    Join,
    MemberType,
    Mode,
    Op,
    Segments,
    Shape,
    Status,
    SwitchJoin,
    WireError,
)
from iswitch.dissect import fields, jobs
from iswitch.dissect import scapy as layers
from iswitch.dissect.scapy import (
    ISwitchAck,
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
from tests.core.test_wire import awaited
from tests.docs.test_protocol_doc import BLOCKS, Block, meant_control, meant_data
from tests.support import ROOT
from tests.support.captured import (
    KEY,
    SWITCH,
    Sent,
    ack,
    data,
    everything,
    request,
    vector,
    worker,
    write,
)

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


def entry_of(awaited: wire.Awaited) -> dict[str, Any]:
    names = [field.name for field in fields.entry(0)]
    return dict(zip(names, awaited, strict=True))


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
    if isinstance(control.value, wire.AckWho):
        named.append("awaited")
        given[-1] = [ISwitchAwaited(**entry_of(one)) for one in control.value.awaited]
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
        wire.AckWho: [st.lists(awaited, max_size=wire.MOST_AWAITED).map(tuple)],
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
    shape = Shape(dtype, Op.SUM, Mode.SYNCHRONOUS, len(elements), len(elements), 1)
    packet = data(member, 4, 0, elements.tobytes(), relayed=True)
    if dtype is not DType.FLOAT32:
        assert dissected(packet)[ISwitchData].elements.dtype == np.float32  # nobody has told
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


# Building


def test_control_sets_action_port_and_tos() -> None:
    packet = IP(dst="10.0.0.9") / UDP(sport=4000) / ISwitchControl(job=7) / ISwitchSetH(threshold=3)
    found = IP(bytes(packet))
    assert (found.tos, found[UDP].dport) == (TOS_CONTROL, PORT)
    assert found[ISwitchControl].action == Action.SETH
    assert IP(bytes(IP() / UDP() / ISwitchData(elements=[1, 2]))).tos == TOS_DATA
    assert IP(bytes(IP(tos=0x1F) / UDP() / ISwitchData())).tos == 0x1F  # a ToS given stays


def test_dissects_by_port_and_tos() -> None:
    def payload(**ip: Any) -> Packet:
        sport, dport = ip.pop("sport", 4000), ip.pop("dport", PORT)
        raw = bytes(IP(**ip) / UDP(sport=sport, dport=dport) / Raw(b"\7" + bytes(7)))
        payload: Packet = IP(raw)[UDP].payload
        return payload

    for ecn in range(4):
        assert type(payload(tos=TOS_CONTROL | ecn)) is ISwitchControl
        assert type(payload(tos=TOS_DATA | ecn)) is ISwitchData
    assert type(payload(tos=TOS_DATA, sport=PORT, dport=4000)) is ISwitchData
    assert type(payload(tos=0)) is Raw
    assert type(payload(tos=TOS_DATA, dport=4001)) is Raw
    assert type(payload(tos=TOS_DATA, flags="MF")) is Raw


@pytest.mark.slow
def test_another_port() -> None:
    code = (
        "from scapy.layers.inet import IP, UDP\n"
        "from iswitch.dissect.scapy import *\n"
        "bind(5000)\n"
        "packet = IP(bytes(IP() / UDP() / ISwitchControl(action='Halt')))\n"
        "print(packet[UDP].dport, packet[ISwitchControl].action)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout == "5000 7\n", done.stderr


@pytest.mark.parametrize(
    ("given", "dtype"),
    [
        ([1, 2.5], np.float32),
        (np.arange(3, dtype=np.int32), np.int32),
        (np.ones((2, 2), np.float16), np.float16),
        (b"abc", np.uint8),
    ],
)
def test_elements_that_are_given(given: Any, dtype: Any) -> None:
    packet = ISwitchData(elements=given)
    assert packet.elements.dtype == dtype
    expected = given if isinstance(given, bytes) else np.asarray(given, dtype).tobytes()
    assert bytes(packet)[8:] == expected


@pytest.mark.parametrize("given", [np.zeros(2), np.zeros(2, ">f4"), np.zeros(2, np.int64)])
def test_elements_of_other_types_are_refused(given: Any) -> None:
    with pytest.raises(WireError, match="use float32, float16, bfloat16 or int32"):
        ISwitchData(elements=given)


def test_copies_and_comparisons() -> None:
    packet = ISwitchData(round=1, elements=[1, 2, float("nan")])
    assert packet.copy() == packet
    assert packet != ISwitchData(round=1, elements=[1, 2, 3])
    assert packet != ISwitchControl()


def test_answers() -> None:
    """What sr1() asks of an Ack."""
    member = worker(1)
    asked = dissected(request(member, Action.HELP, 7, 9, Segments(1, 2, 3)))[IP]
    found = dissected(ack(member, 7, 9, Ack(Action.HELP)))[IP]
    assert found.answers(asked)
    for other in (Ack(Action.HALT), Ack(Action.JOIN)):
        assert not dissected(ack(member, 7, 9, other))[IP].answers(asked)
    assert not dissected(ack(member, 7, 10, Ack(Action.HELP)))[IP].answers(asked)
    assert not asked.answers(asked)


def test_scapys_fuzz() -> None:
    for layer in (ISwitchControl() / ISwitchHelp(), ISwitchControl() / ISwitchJoin()):
        assert bytes(fuzz(layer))
    assert bytes(IP() / UDP() / fuzz(ISwitchData()))


# For people


def test_show() -> None:
    member = worker(1)
    shape = Shape.of(100, DType.FLOAT16, elements=100)
    join = Join.for_shape(shape, expected=4, flags=9)
    text = dissected(request(member, Action.JOIN, 7, 1000, join))[UDP].payload.show(dump=True)
    lines = [" ".join(line.split()) for line in text.splitlines()]
    assert lines == [
        "###[ iSwitch control ]###", "action = Join", "status = OK", "job = 7", "request = 1000",
        "###[ iSwitch Join ]###", "type = worker", "dtype = float16", "op = sum",
        "mode = synchronous", "E = 100", "last = 100", "segments = 1", "expected = 4",
        "flags = stands_at+whole", "round = 0",
    ]  # fmt: skip
    elements = np.arange(100, dtype=np.float16) / 8
    found = dissected(data(member, 5, 0, elements.tobytes()))
    assert "elements  = 100 float16: 0.0, 0.125, 0.25, 0.375, 0.5, 0.625, 0.75, 0.875, ...\n" in (
        str(found.show(dump=True))
    )
    assert found.summary().endswith(" / iSwitch contribution round 5 index 0")
    found = dissected(ack(member, 7, 3, Ack(Action.HELP, 0, 1, 1, 5, 6), Status.GONE))
    assert found.summary().endswith(
        " / iSwitch Ack job 7 request 3 status GONE"
        " / action Help rank 1 threshold 1 round 5 contributors 6"
    )
    assert found[ISwitchAck].missing == [1, 2, 32]


def test_faults_are_shown() -> None:
    member = worker(1)
    found = dissected(Sent(member, SWITCH, TOS_CONTROL, b"\x0a" + bytes(10)))
    assert "###[ iSwitch control, malformed: unknown action 10 ]###" in str(found.show(dump=True))
    assert "iSwitch 10 job 0 request 0, malformed: unknown action 10" in found.summary()
    found = dissected(Sent(member, SWITCH, TOS_DATA, b"abc"))
    assert found.summary().endswith(" / malformed: a packet has at least 8 bytes")
    assert found[ISwitchMalformed].fault == "a packet has at least 8 bytes"


def test_a_packet_that_was_not_captured_whole() -> None:
    whole = data(worker(1), 5, 0, bytes(400))
    for size in (50, 46, 45):
        found = Ether(whole.frame()[:size])
        assert found[UDP].payload.fault == "not captured whole"


# Bytes that are no packet


TOS = st.sampled_from([TOS_CONTROL, TOS_DATA, TOS_DATA | 3])
VALID = list(everything())


def check_anything(packet: Sent) -> None:
    """Whatever it is: it is shown, and its bytes are what they were; it agrees with the switch."""
    frame = packet.frame()
    found = Ether(frame)
    assert found.show(dump=True)
    assert found.summary()
    assert rebuilt(found) == frame
    layer, is_control = found[UDP].payload, packet.tos & 0xFC == TOS_CONTROL
    if not packet.payload:
        return
    if is_control:
        fits = False
        for payload in (packet.payload, packet.payload[:-MAC_SIZE]):
            with contextlib.suppress(WireError):
                Control.parse(payload)
                fits = True
        assert fits or layer.fault
    elif len(packet.payload) < 8:
        assert layer.fault


@hypothesis.settings(deadline=None)
@given(TOS, st.binary(max_size=80), st.booleans())
def test_random_bytes_raise_nothing(tos: int, payload: bytes, relayed: bool) -> None:
    ends = (SWITCH, worker(1)) if relayed else (worker(1), SWITCH)
    check_anything(Sent(*ends, tos, payload))


@hypothesis.settings(deadline=None)
@given(st.sampled_from(VALID), st.data())
def test_spoiled_packets_raise_nothing(packet: Sent, draw: st.DataObject) -> None:
    payload = bytearray(packet.payload)
    for _ in range(draw.draw(st.integers(1, 4))):
        at = draw.draw(st.integers(0, len(payload) - 1))
        payload[at] = draw.draw(st.integers(0, 255))
    end = draw.draw(st.integers(0, len(payload)))
    check_anything(packet._replace(payload=bytes(payload[:end] if end else payload)))


# What is learnt


def test_rdpcap_learns_from_joins(tmp_path: Path) -> None:
    found = rdpcap(str(write(tmp_path / "all.pcapng", everything())))
    dtypes = {p[ISwitchData].elements.dtype.name for p in found if ISwitchData in p}
    assert dtypes == {"float32", "float16", "bfloat16", "int32"}


def test_a_refused_join_changes_nothing() -> None:
    known, member = jobs.JobsSeen(), worker(1)
    first, second = Shape.of(10), Shape.of(10, DType.INT32)

    def take(sent: Sent) -> None:
        known.learn(sent.source, sent.destination, Control.parse(sent.payload))

    take(request(member, Action.JOIN, 7, 1000, Join.for_shape(first)))
    take(ack(member, 7, 1000, Ack(Action.JOIN)))
    take(request(worker(2), Action.JOIN, 7, 1000, Join.for_shape(second)))
    assert known.of(SWITCH, member) == (7, first, False)
    take(ack(worker(2), 7, 1000, Ack(Action.JOIN), Status.MISMATCH))
    assert known.of(member, SWITCH) == (7, first, True)
    take(request(member, Action.JOIN, 8, 1000, Join.for_shape(second)))
    take(ack(member, 8, 1000, Ack(Action.JOIN), Status.DENIED))
    assert known.of(member, SWITCH) == (7, first, True)
    take(request(member, Action.JOIN, 8, 1001, Join.for_shape(second)))
    take(ack(member, 8, 1001, Ack(Action.JOIN)))
    assert known.of(member, SWITCH) == (8, second, True)


def test_who_is_known_from_other_packets() -> None:
    """A member whose Join was not captured, of a job whose shape another's told."""
    known, shape = jobs.JobsSeen(), Shape.of(10)
    assert known.of(worker(1), SWITCH) is None
    for sent in (
        request(worker(1), Action.HELP, 7, 5, Segments(1, 0, 1)),
        request(worker(2), Action.HELP, 7, 5, Segments(1, 0, 1), relayed=True),
        request(worker(3), Action.JOIN, 7, 5, Join.for_shape(shape)),
        request(worker(4), Action.JOIN, 7, 5, Join(MemberType.CONTROLLER)),
    ):
        known.learn(sent.source, sent.destination, Control.parse(sent.payload))
    for number in range(1, 5):
        assert known.of(worker(number), SWITCH) == (7, shape, True)
        assert known.of(SWITCH, worker(number)) == (7, shape, False)


def test_a_switch_below_another() -> None:
    """Both ends have the switch's port; a Join tells which is above."""
    known, below = jobs.JobsSeen(), ("10.26.1.254", PORT)
    sent = request(below, Action.HELP, 7, 5, Segments(1, 0, 1))
    known.learn(sent.source, sent.destination, Control.parse(sent.payload))
    assert known.of(below, SWITCH) is None
    join = SwitchJoin(MemberType.SWITCH, 0, 0, 0, 4, 4, 1, workers=2)
    sent = request(below, Action.JOIN, 7, 5, join)
    known.learn(sent.source, sent.destination, Control.parse(sent.payload))
    found = known.of(SWITCH, below)
    assert found is not None
    assert not found.to_switch


@pytest.mark.slow
def test_without_scapy_the_rest_is_there() -> None:
    code = (
        "import sys; sys.modules['scapy'] = None\n"
        "import iswitch.dissect.jobs, iswitch.dissect.plugin, iswitch.cli\n"
        "try:\n    import iswitch.dissect.scapy\n"
        "except ImportError as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert "pip install '.[scapy]'" in done.stdout, done.stderr


def test_key_of_the_tests_is_one() -> None:
    packet = sealed(ISwitchControl(action="Halt", job=1, request=1), KEY)
    assert Key(KEY).opened(bytes(packet)) == bytes(ISwitchControl(action="Halt", job=1, request=1))
    assert layers.settings is settings
