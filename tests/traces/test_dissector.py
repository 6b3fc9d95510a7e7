"""The Wireshark dissector, in tshark: every packet decoded, as scapy does, field by field."""

from __future__ import annotations

import os
import shutil
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scapy.layers.inet import UDP
from scapy.packet import Packet
from scapy.utils import rdpcap

from iswitch.core.format import wire
from iswitch.core.format.wire import (
    TOS_CONTROL,
    TOS_DATA,
    Ack,
    Action,
    DType,
    Join,
    MemberType,
    Mode,
    Op,
    Segments,
    Shape,
    Status,
)
from iswitch.dissect import fields
from iswitch.dissect.scapy import (
    ISwitchAck,
    ISwitchAckJob,
    ISwitchAckRanks,
    ISwitchAckWho,
    ISwitchControl,
    ISwitchData,
    ISwitchMAC,
    ISwitchSuper,
    ISwitchTreeJoin,
    settings,
)
from tests.support.captured import (
    SWITCH,
    Sent,
    ack,
    data,
    everything,
    layers,
    request,
    tshark,
    worker,
    write,
)
from tests.traces.test_dissect_scapy import afresh

__all__ = ["afresh"]  # for every test

Fields = dict[str, list[Any]]

if shutil.which("tshark") is None and os.geteuid() != 0:
    pytest.skip("tshark is not installed", allow_module_level=True)


def flat(tree: Any, found: Fields | None = None) -> Fields:
    """All of iswitch's leaves in tshark's JSON, by name, in order."""
    found = defaultdict(list) if found is None else found
    if isinstance(tree, list):
        for item in tree:
            flat(item, found)
    elif isinstance(tree, dict):
        for name, value in tree.items():
            for leaf in value if isinstance(value, list) else [value]:
                if isinstance(leaf, dict):
                    flat(leaf, found)
                elif name.startswith("iswitch."):
                    found[name.removeprefix("iswitch.")].append(leaf)
    return found


def seen(path: Path, folder: Path, *options: str) -> list[Fields]:
    """Of each packet, what tshark has of it."""
    return [dict(flat(packet.get("iswitch", {}))) for packet in layers(path, folder, *options)]


def filters(layer: Packet) -> Iterator[tuple[fields.Field, Any]]:
    """The fields of the one table that a layer of scapy's has, and their values."""
    if isinstance(layer, ISwitchControl):
        table = fields.HEADER
    elif isinstance(layer, ISwitchData):
        table = fields.SEG
    else:
        more = fields.VARIABLE
        names = [field.name for field in layer.fields_desc if field.name not in more]
        (table,) = (
            layout
            for kind, layout in fields.VALUES.items()
            if [field.name for field in layout] == names
            and issubclass(kind, wire.Ack) == isinstance(layer, ISwitchAck)
        )
    for field in table:
        value = layer.getfieldval(field.name)
        yield field, value.hex(":") if isinstance(value, bytes) else int(value)
    if isinstance(layer, ISwitchTreeJoin | ISwitchAckRanks):
        bits = wire.bitmap(layer.ranks, bool(layer.fields.get("unranked")))
        if bits:
            yield fields.Field("ranks", "ranks", "Ranks", 0, len(bits), "bitmap"), bits.hex(":")
    entries = layer.awaited if isinstance(layer, ISwitchAckWho) else ()
    named = fields.entry(wire.AckWho)
    if isinstance(layer, ISwitchAckJob):
        entries, named = layer.members, fields.entry(wire.AckJob)
    for entry in entries:
        for field in named:
            value = entry.getfieldval(field.name)
            yield field, value if field.codes == "ipv4" else int(value)


def expected(packet: Packet) -> Fields:
    """What tshark should have of a sound packet, by what scapy has."""
    found: Fields = defaultdict(list)
    layer = packet[UDP].payload
    known = settings.jobs.of(
        (packet["IP"].src, packet[UDP].sport), (packet["IP"].dst, packet[UDP].dport)
    )
    assert known is not None
    for part in layer.packets if isinstance(layer, ISwitchSuper) else layer.iterpayloads():
        if isinstance(part, ISwitchMAC):
            found["mac"] = [part.mac.hex(":")]
            continue
        for field, value in filters(part):
            found[field.filter].append(value)
            if field.codes == "flags":
                for bit, name in fields.FLAGS.items():
                    found[f"flags.{name}"].append(bool(value & bit))
        if "round" in part.fields and "index" in part.fields:
            found["seg"].append(part.round << 32 | part.index)
        if isinstance(part, ISwitchAck) and part.action == Action.HELP:
            found["ack.missing"] = [sum(1 << rank for rank in part.missing)]
        if isinstance(part, ISwitchData):
            found["job"].append(known.job)
            if known.shape:
                found["dtype"].append(int(known.shape.dtype))
            found["to_switch"].append(known.to_switch)
            if len(part.elements):
                found["data"].append(part.elements.tobytes().hex(":"))
                numbers = part.elements["value"] if part.elements.dtype.names else part.elements
                found["elements"] += numbers.astype(np.float64).tolist()
    found.setdefault("to_switch", [known.to_switch])
    return dict(found)


def comparable(found: Fields) -> Fields:
    """Numbers for tshark's texts, without what links packets."""
    links = {"request_in", "response_in", "repeat_of", "ack_time", "refused", "unmatched"}
    links |= {"repeated", "assumed"}
    numbers: Fields = {}
    for name, texts in found.items():
        if name in ("mac", "data") or name.endswith("host"):
            numbers[name] = texts
        elif name == "elements":
            numbers[name] = [float(text) for text in texts]
        elif name not in links:
            numbers[name] = [
                text if name in ("ranks", "padding") else int(text, 0) for text in texts
            ]
    return numbers


def assert_same(found: Fields, wanted: Fields) -> None:
    assert found.keys() == wanted.keys()
    for name, values in wanted.items():
        if name != "elements":
            assert found[name] == values, name
            continue
        mine, theirs = np.array(found[name]), np.array(values)
        assert mine.shape == theirs.shape
        nan = np.isnan(theirs)  # whose sign tshark does not print
        assert np.array_equal(np.isnan(mine), nan)
        assert np.array_equal(np.signbit(mine[~nan]), np.signbit(theirs[~nan]))
        # tshark prints 15 digits: exact for most integers, and as a float32 for the others
        whole = (theirs == np.rint(theirs)) & (np.abs(theirs) < 1e15)
        assert np.array_equal(mine[whole], theirs[whole])
        assert np.array_equal(mine.astype(np.float32)[~nan], theirs.astype(np.float32)[~nan])


def test_every_packet_and_every_field_as_in_scapy(tmp_path: Path) -> None:
    path = write(tmp_path / "all.pcapng", everything())
    found, wanted = seen(path, tmp_path), rdpcap(str(path))
    assert len(found) == len(wanted) == len(list(everything()))
    had: dict[str, set[Any]] = defaultdict(set)
    dtypes: set[int] = set()
    settings.jobs.forget()
    for packet, theirs in zip(wanted, found, strict=True):
        packet = type(packet)(bytes(packet))  # again, as far as jobs were known by then
        assert "malformed" not in theirs
        assert packet[UDP].payload.fault is None
        mine = comparable(theirs)
        assert_same(mine, expected(packet))
        for name, values in mine.items():
            had[name].update(values)
        dtypes |= set(mine["dtype"]) if "elements" in mine else set()
    assert dtypes == had["dtype"] == set(DType)
    for name, kinds in {
        "action": Action,
        "status": Status,
        "op": Op,
        "mode": Mode,
        "type": MemberType,
        "state": wire.JobState,
    }.items():
        assert had[name] == set(kinds), name
    entries = map(fields.entry, (wire.AckWho, wire.AckJob))
    layouts = [fields.HEADER, fields.SEG, *entries, *fields.VALUES.values()]
    named = {"ranks"} | {field.filter for layout in layouts for field in layout}
    named |= {f"flags.{flag}" for flag in fields.FLAGS.values()}
    assert had.keys() == named | {"seg", "data", "elements", "mac", "to_switch", "ack.missing"}


def test_fields_by_name(tmp_path: Path) -> None:
    """As people ask for them: in filters, and with -T fields."""
    asked = {worker(number) for number in (5, 6, 40)}  # of float16, and keyed
    some = [sent for sent in everything() if {sent.source, sent.destination} & asked]
    path = write(tmp_path / "some.pcapng", some)

    def ask(filter_: str, *names: str) -> list[list[str]]:
        options = [word for name in names for word in ("-e", name)]
        text = tshark(path, tmp_path, "-Y", filter_, "-T", "fields", *options)
        return [line.split("\t") for line in text.splitlines()]

    assert ask("iswitch.seg.index == 2 && iswitch.dtype == 2 && iswitch.to_switch == 0",
               "iswitch.job", "iswitch.round", "iswitch.elements") == [
        ["5", "7", "65536,0.333984375"], ["6", "7", "65536,0.333984375"],
    ]  # fmt: skip
    joins = ask('iswitch.action == "Join" && iswitch.flags.heartbeat == 1', "iswitch.E")
    assert joins == [["4"]]
    assert len(ask("iswitch.mac", "iswitch.mac")) == 30
    assert len(ask("iswitch.elements > 60000 && iswitch.type", "iswitch.E")) == 0
    assert len(ask("iswitch.refused", "iswitch.status")) == 2 * 7 * 12 + 7


def test_requests_and_acks_are_linked(tmp_path: Path) -> None:
    member, help_ = worker(1), Segments(1, 0, 1)
    packets = [
        request(member, Action.HELP, 7, 5, help_)._replace(at=1_000_000),
        request(member, Action.HELP, 7, 5, help_)._replace(at=51_000_000),
        ack(member, 7, 5, Ack(Action.HELP))._replace(at=51_250_125),
        ack(member, 7, 5, Ack(Action.HELP))._replace(at=51_500_000),
        request(member, Action.HALT, 7, 5, relayed=True)._replace(at=60_000_000),
        request(member, Action.ACK, 7, 5, Ack(Action.HALT))._replace(at=60_001_000),
        ack(member, 7, 6, Ack(Action.HALT))._replace(at=70_000_000),
        request(member, Action.HELP, 7, 5, help_)._replace(at=80_000_000),
    ]
    path = write(tmp_path / "links.pcapng", packets)
    names = ("request_in", "response_in", "repeat_of", "ack_time")
    wanted = [
        ("", "3", "", ""), ("", "3", "1", ""), ("2", "", "", "0.000250125"),
        ("2", "", "", "0.000500000"), ("", "6", "", ""), ("5", "", "", "0.000001000"),
        ("", "", "", ""), ("", "", "", ""),
    ]  # fmt: skip
    options = [word for name in names for word in ("-e", f"iswitch.{name}")]
    text = tshark(path, tmp_path, "-T", "fields", *options)
    assert [tuple(line.split("\t")) for line in text.splitlines()] == wanted
    found = seen(path, tmp_path)
    assert [i for i, packet in enumerate(found) if "repeated" in packet] == [1]
    assert [i for i, packet in enumerate(found) if "unmatched" in packet] == [6]


@pytest.mark.parametrize("twice", [True, False])
def test_the_list_of_packets(tmp_path: Path, twice: bool) -> None:
    """What Wireshark lists, be it in one go or in two."""
    member, shape = worker(1), Shape(DType.INT32, Op.MAX, Mode.SYNCHRONOUS, 4, 2, 3)
    packets = [
        data(member, 7, 0, bytes(16)),
        request(member, Action.JOIN, 7, 1000, Join.for_shape(shape)),
        ack(member, 7, 1000, Ack(Action.JOIN, 0, 3, 1, 7, 1)),
        data(member, 7, 0, bytes(16)),
        data(member, 7, 2, bytes(8), relayed=True),
        data(member, 7, 3, bytes(16)),
        request(member, Action.HELP, 7, 1001, Segments(7, 0, 3)),
        ack(member, 7, 1001, Ack(Action.HELP, 0, 3, 0, 7, 1), Status.GONE),
        Sent(member, SWITCH, TOS_CONTROL, b"\x0a" + bytes(9)),
        Sent(member, SWITCH, TOS_DATA, b"\x09"),
    ]
    path = write(tmp_path / "list.pcapng", packets)
    options = ["-T", "fields", "-e", "_ws.col.Protocol", "-e", "_ws.col.Info"]
    text = tshark(path, tmp_path, *options, twice=twice)
    assert text.splitlines() == [
        f"iSwitch\t{info}"
        for info in (
            f"{'Contribution job 7' if twice else 'Data'} round 7 segment 0",
            "Join job 7 #1000 worker int32 max, 3 segments of 4",
            "Ack of Join job 7 #1000: OK, rank 3, round 7",
            "Contribution job 7 round 7 segment 0",
            "Aggregate job 7 round 7 segment 2",
            "Contribution job 7 round 7 segment 3 [malformed: segment 3 of a vector of 3]",
            "Help job 7 #1001 round 7 segments 0-2",
            "Ack of Help job 7 #1001: GONE, rank 3, round 7",
            "action 10 job 0 #0 [malformed: unknown action 10]",
            "Contribution job 7 [malformed: a packet has at least 8 bytes]",
        )
    ]
