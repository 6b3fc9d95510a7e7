"""Building packets with scapy, showing them, and bytes that are no packet."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import hypothesis
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scapy.layers.inet import IP, UDP
from scapy.layers.l2 import Ether
from scapy.packet import Packet, Raw, fuzz
from scapy.utils import rdpcap

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
    Segments,
    Shape,
    Status,
    SwitchJoin,
    WireError,
)
from iswitch.dissect import jobs
from iswitch.dissect import scapy as layers
from iswitch.dissect.scapy import (
    ISwitchAck,
    ISwitchControl,
    ISwitchData,
    ISwitchHelp,
    ISwitchJoin,
    ISwitchMalformed,
    ISwitchSetH,
    sealed,
    settings,
)
from tests.support import python
from tests.support.captured import (
    KEY,
    SWITCH,
    Sent,
    ack,
    data,
    everything,
    request,
    worker,
    write,
)
from tests.traces.test_dissect_scapy import afresh, dissected, rebuilt

pytestmark = pytest.mark.unit

__all__ = ["afresh"]  # for every test


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
    done = python("-c", code)
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


@pytest.mark.parametrize("given", [np.zeros(2, complex), np.zeros(2, ">f4"), np.zeros(2, np.int16)])
def test_elements_of_other_types_are_refused(given: Any) -> None:
    with pytest.raises(WireError, match="use float32, float16, bfloat16, int32, float64"):
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


def test_rdpcap_learns_from_joins(tmp_path: Path) -> None:
    found = rdpcap(str(write(tmp_path / "all.pcapng", everything())))
    dtypes = {DType.of(p[ISwitchData].elements.dtype) for p in found if ISwitchData in p}
    assert dtypes == set(DType)


def test_a_refused_join_changes_nothing() -> None:
    known, member = jobs.JobsSeen(), worker(1)
    first, second = Shape.of(10), Shape.of(10, DType.INT32)

    def take(sent: Sent) -> None:
        known.learn(sent.source, sent.destination, Control.parse(sent.payload))

    take(request(member, Action.JOIN, 7, 1000, Join.for_shape(first)))
    take(ack(member, 7, 1000, Ack(Action.JOIN)))
    take(request(worker(2), Action.JOIN, 7, 1000, Join.for_shape(second)))
    assert known.of(SWITCH, member) == (7, first, False, False)
    take(ack(worker(2), 7, 1000, Ack(Action.JOIN), Status.MISMATCH))
    assert known.of(member, SWITCH) == (7, first, True, False)
    take(request(member, Action.JOIN, 8, 1000, Join.for_shape(second)))
    take(ack(member, 8, 1000, Ack(Action.JOIN), Status.DENIED))
    assert known.of(member, SWITCH) == (7, first, True, False)
    take(request(member, Action.JOIN, 8, 1001, Join.for_shape(second)))
    take(ack(member, 8, 1001, Ack(Action.JOIN)))
    assert known.of(member, SWITCH) == (8, second, True, False)


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
        assert known.of(worker(number), SWITCH) == (7, shape, True, False)
        assert known.of(SWITCH, worker(number)) == (7, shape, False, False)


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
    done = python("-c", code)
    assert "pip install -e '.[scapy]'" in done.stdout, done.stderr


def test_key_of_the_tests_is_one() -> None:
    packet = sealed(ISwitchControl(action="Halt", job=1, request=1), KEY)
    assert Key(KEY).opened(bytes(packet)) == bytes(ISwitchControl(action="Halt", job=1, request=1))
    assert layers.settings is settings
