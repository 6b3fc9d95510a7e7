"""The Wireshark dissector, in tshark: every packet decoded, as scapy does, field by field."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scapy.config import conf
from scapy.layers.inet import UDP
from scapy.packet import Packet
from scapy.utils import rdpcap

from iswitch.cli import main
from iswitch.core.format import pcapng, wire
from iswitch.core.format.wire import (
    PORT,
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
from iswitch.dissect import fields, plugin
from iswitch.dissect.scapy import (
    ISwitchAck,
    ISwitchAckRanks,
    ISwitchAckWho,
    ISwitchControl,
    ISwitchData,
    ISwitchMAC,
    ISwitchSuper,
    ISwitchTreeJoin,
    settings,
)
from tests.support import ROOT
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

pytestmark = pytest.mark.serial

Fields = dict[str, list[Any]]

if shutil.which("tshark") is None and os.geteuid() != 0:
    pytest.skip("tshark is not installed", allow_module_level=True)


@pytest.fixture(autouse=True)
def afresh() -> Iterator[None]:
    settings.jobs.forget()
    conf.debug_dissector = True
    yield
    conf.debug_dissector = False
    settings.dtype = DType.FLOAT32
    settings.jobs.forget()


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
    if isinstance(layer, ISwitchTreeJoin | ISwitchAckRanks) and layer.ranks:
        size = len(wire.bitmap(layer.ranks))
        bitmap = fields.Field("ranks", "ranks", "Ranks", 0, size, "bitmap")
        yield bitmap, wire.bitmap(layer.ranks).hex(":")
    for entry in layer.awaited if isinstance(layer, ISwitchAckWho) else ():
        for field in fields.entry(0):
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
                found["elements"] += part.elements.astype(np.float64).tolist()
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
        # tshark prints 15 digits: exact for integers, and as a float32 for the others
        whole = theirs == np.rint(theirs)
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
    }.items():
        assert had[name] == set(kinds), name
    layouts = [fields.HEADER, fields.SEG, fields.entry(0), *fields.VALUES.values()]
    named = {"ranks"} | {field.filter for layout in layouts for field in layout}
    named |= {f"flags.{flag}" for flag in fields.FLAGS.values()}
    assert had.keys() == named | {"seg", "data", "elements", "mac", "to_switch", "ack.missing"}


def test_fields_by_name(tmp_path: Path) -> None:
    """As people ask for them: in filters, and with -T fields."""
    path = write(tmp_path / "all.pcapng", everything())

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
    assert len(ask("iswitch.mac", "iswitch.mac")) == 20
    assert len(ask("iswitch.elements > 60000 && iswitch.type", "iswitch.E")) == 0
    assert len(ask("iswitch.refused", "iswitch.status")) == 8 * 7 * 8 + 7


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


# What is not as it should be


def spoiled(chance: random.Random) -> Iterator[Sent]:
    """Packets changed, cut and made up; Joins between them, so that jobs are known."""
    valid = list(everything())
    for number in range(1500):
        packet = chance.choice(valid)
        payload = bytearray(packet.payload)
        kind = number % 4
        if kind == 0:
            for _ in range(chance.randint(1, 3)):
                payload[chance.randrange(len(payload))] = chance.choice((0, 1, 2, 255, 9))
        elif kind == 1:
            payload = payload[: chance.randint(1, len(payload))]
        elif kind == 2:
            payload += chance.randbytes(chance.randint(1, 40))
        else:
            payload = bytearray(chance.randbytes(chance.randint(1, 60)))
            payload[0] = chance.randint(0, 9)
        yield packet._replace(payload=bytes(payload), at=0)


@pytest.mark.parametrize("twice", [False, True])
def test_data_that_reads_as_a_join(tmp_path: Path, twice: bool) -> None:
    """It changes nothing: the ToS says what it is, which Lua cannot read at its first look."""
    member, shape = worker(1), Shape.of(5, DType.FLOAT32, elements=5)
    other = Join.for_shape(Shape.of(5, DType.INT32, elements=5))
    elements = np.ones(5, np.float32).tobytes()
    packets = [
        request(member, Action.JOIN, 1, 5, Join.for_shape(shape)),
        data(member, 1 << 24 | 1, 5, other.pack()),
        ack(member, 1, 5, Ack(Action.JOIN)),
        data(member, 1 << 24 | 2, 0, elements),
    ]
    path = write(tmp_path / "join.pcapng", packets)
    names = ("iswitch.action", "iswitch.dtype")
    options = [word for name in names for word in ("-e", name)]
    text = tshark(path, tmp_path, "-T", "fields", *options, twice=twice)
    dtype = str(int(DType.FLOAT32))
    assert text.splitlines()[1::2] == [f"\t{dtype}"] * 2


@pytest.mark.parametrize("seed", [1, 2])
def test_faults_are_those_that_scapy_finds(tmp_path: Path, seed: int) -> None:
    """In words; nothing raises an error, in Lua or in Python."""
    packets = [*everything(), *spoiled(random.Random(seed))]
    path = write(tmp_path / "spoiled.pcapng", packets)
    found = layers(path, tmp_path)
    bad = 0
    for packet, theirs in zip(rdpcap_one_by_one(path), found, strict=True):
        told = messages(theirs.get("iswitch", {}))
        fault = packet[UDP].payload.fault
        assert told == ([fault] if fault else []), (packet, theirs)
        bad += bool(fault)
    assert bad > 1000
    text = tshark(path, tmp_path, "-V")
    assert "Lua Error" not in text
    assert text.count("\n    [Expert Info (Error/Malformed)") >= 1000


def rdpcap_one_by_one(path: Path) -> Iterator[Packet]:
    """As `rdpcap`, but each is looked at before those behind it tell of their jobs."""
    from scapy.utils import PcapReader

    with PcapReader(str(path)) as reader:
        yield from reader


def messages(tree: Any) -> list[str]:
    """What the experts say of malformed packets, the first of each frame."""
    if isinstance(tree, list):
        return [text for item in tree for text in messages(item)][:1]
    if not isinstance(tree, dict):
        return []
    if "iswitch.malformed" in tree:
        return [tree["_ws.expert.message"]]
    return [text for item in tree.values() for text in messages(item)][:1]


def test_an_error_in_lua_would_be_seen(tmp_path: Path) -> None:
    path = write(tmp_path / "one.pcapng", [request(worker(1), Action.HALT, 7, 1)])
    broken = plugin.dissector().replace("pinfo.cols.protocol = NAME", "error('planted')")
    script = tmp_path / "broken.lua"
    script.write_text(broken)
    command = ["tshark", "-X", f"lua_script:{script}", "-r", str(path), "-V"]
    assert "Lua Error" in subprocess.run(command, capture_output=True, text=True).stdout


def test_packets_that_were_not_captured_whole(tmp_path: Path) -> None:
    path = write(tmp_path / "all.pcapng", everything())
    for size in (45, 50, 60, 70):
        cut = tmp_path / f"{size}.pcapng"
        subprocess.run(["editcap", "-s", str(size), str(path), str(cut)], check=True)
        text = tshark(cut, tmp_path, "-V")
        assert "Lua Error" not in text
        for packet, theirs in zip(rdpcap_one_by_one(cut), seen(cut, tmp_path), strict=True):
            whole = packet.wirelen == len(packet)
            assert ("truncated" in theirs) == (not whole)
            assert packet[UDP].payload.fault == (None if whole else "not captured whole")


# Which packets are ours


def test_ports_and_heuristics(tmp_path: Path) -> None:
    """Another port is found by what a Join says; what has not the ToS is nobody's."""
    other, member = ("10.26.255.254", 5000), worker(1)

    def moved(packet: Sent) -> Sent:
        ends = [other if end == SWITCH else end for end in (packet.source, packet.destination)]
        return packet._replace(source=ends[0], destination=ends[1])

    join = Join.for_shape(Shape.of(4))
    packets = [
        moved(data(member, 1, 0, bytes(16))),  # not known yet
        moved(request(member, Action.JOIN, 7, 1000, join)),
        moved(data(member, 1, 0, bytes(16))),
        moved(ack(member, 7, 1000, Ack(Action.JOIN))),
        moved(data(member, 1, 0, bytes(16), relayed=True)),
        data(member, 1, 0, bytes(16))._replace(tos=0),
        data(member, 1, 0, bytes(16))._replace(tos=TOS_DATA | 3),
    ]
    path = write(tmp_path / "ports.pcapng", packets)
    options = ["-T", "fields", "-e", "_ws.col.Protocol"]
    listed = tshark(path, tmp_path, *options, twice=False).splitlines()
    assert listed == ["UDP", *["iSwitch"] * 4, "UDP", "iSwitch"]
    listed = tshark(path, tmp_path, *options).splitlines()  # the second look knows more
    assert listed == [*["iSwitch"] * 5, "UDP", "iSwitch"]
    listed = tshark(path, tmp_path, *options, "-o", "iswitch.ports:5000").splitlines()
    assert listed == [*["iSwitch"] * 5, "UDP", "UDP"]


def test_dtype_without_a_join(tmp_path: Path) -> None:
    packet = data(worker(1), 1, 0, np.array([1, -2], np.float16).tobytes())
    path = write(tmp_path / "alone.pcapng", [packet])
    options = ["-T", "fields", "-e", "iswitch.elements"]
    chosen = tshark(path, tmp_path, *options, "-o", "iswitch.dtype:float16")
    assert chosen == "1,-2\n"
    assert tshark(path, tmp_path, *options) != chosen
    assert seen(path, tmp_path)[0]["assumed"]


def test_fragments_are_left_alone(tmp_path: Path) -> None:
    frame = bytearray(data(worker(1), 1, 0, bytes(16)).frame())
    frame[20] |= 0x20  # more fragments follow
    rows = np.frombuffer(bytes(frame), np.uint8).reshape(1, -1)
    blocks = [pcapng.section(), pcapng.interface("a")]
    blocks.append(pcapng.packets(0, 1, pcapng.Direction.IN, rows))
    path = tmp_path / "fragment.pcapng"
    path.write_bytes(b"".join(blocks))
    for defragment in ("TRUE", "FALSE"):
        text = tshark(path, tmp_path, "-V", "-o", f"ip.defragment:{defragment}")
        assert "iSwitch" not in text


def test_a_simulated_history(tmp_path: Path) -> None:
    """Of the simulated world, with losses and restarts: all of it is decoded, none malformed."""
    path = tmp_path / "soak.pcapng"
    command = [sys.executable, "-m", "iswitch", "soak", "--seed", "149", "--pcapng", str(path)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=60)
    assert "Lua Error" not in tshark(path, tmp_path, "-V")
    found = seen(path, tmp_path)
    assert not [packet for packet in found if "malformed" in packet or "unmatched" in packet]
    assert sum("elements" in packet and "dtype" in packet for packet in found) > 100
    acks = [packet for packet in found if packet.get("action") == [str(Action.ACK.value)]]
    assert len(acks) > 30
    assert all("request_in" in packet and "ack_time" in packet for packet in acks)


@pytest.mark.root(reason="raw ports need root")
def test_super_datagrams_of_a_real_host(tmp_path: Path) -> None:
    """A capture of tshark's own on a host's interface, before the kernel has cut anything."""
    from tests.ports.test_raw import PATIENCE, allreduce, running

    path = tmp_path / "host.pcapng"
    with running("star:2") as world:
        command = ["tshark", "-i", "h2-eth0", "-w", str(path), "-q", "-B", "64"]
        watcher = world.network.popen("h2", command, stderr=subprocess.PIPE)
        assert watcher.stderr is not None
        while b"Capturing on" not in watcher.stderr.readline():
            pass
        time.sleep(1)  # it says so before it does
        allreduce(world, 20_003)
        world.end()
        time.sleep(0.5)
        watcher.send_signal(signal.SIGINT)
        watcher.communicate(timeout=PATIENCE)
    found, wanted, supers, packets = seen(path, tmp_path), rdpcap_one_by_one(path), 0, 0
    for packet, theirs in zip(wanted, found, strict=True):
        if UDP not in packet or not theirs:
            assert UDP not in packet or PORT not in (packet[UDP].sport, packet[UDP].dport)
            continue
        assert not {"malformed", "assumed", "unmatched"} & theirs.keys()
        assert_same(comparable(theirs), expected(packet))
        supers += ISwitchSuper in packet
        packets += len(theirs.get("seg", ())) * ("elements" in theirs)
    assert supers > 10
    assert packets >= 2 * 3 * 55  # of three rounds, up and down


# Installing


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    return tmp_path


def test_install_and_uninstall(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plugin_path = home / ".local/lib/wireshark/plugins/iswitch.lua"
    for _ in range(2):
        assert main(["dissector", "--install"]) == 0
        out = capsys.readouterr().out.splitlines()
        assert out[0] == f"installed {plugin_path}"
        assert out[1].startswith("tshark ")
        assert out[1].endswith("loads it; a Wireshark that is running must be started again")
    assert plugin_path.read_text() == plugin.dissector()
    path = write(home / "one.pcapng", [request(worker(1), Action.HALT, 7, 1)])
    done = subprocess.run(["tshark", "-r", str(path)], capture_output=True, text=True)
    assert "iSwitch 50 Halt job 7 #1" in done.stdout
    assert main(["dissector", "--uninstall"]) == 0
    assert not plugin_path.exists()
    assert main(["dissector", "--uninstall"]) == 2
    assert "is not there: nothing to remove" in capsys.readouterr().err


def test_print(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["dissector", "--print"]) == 0
    assert capsys.readouterr().out == plugin.dissector()


def test_what_is_anothers_stays(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "iswitch.lua").write_text("-- mine")
    for what in ("--install", "--uninstall"):
        assert main(["dissector", what, "--folder", str(tmp_path)]) == 2
        assert "is another's" in capsys.readouterr().err
    assert (tmp_path / "iswitch.lua").read_text() == "-- mine"


def test_a_folder_that_cannot_be_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    folder = str(tmp_path / "file" / "plugins")
    assert main(["dissector", "--install", "--folder", folder]) == 2
    assert "cannot write" in capsys.readouterr().err


def made_up(folder: Path, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tshark that is this script."""
    (folder / "tshark").write_text(f"#!/bin/sh\n{script}\n")
    (folder / "tshark").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")


@pytest.mark.parametrize(
    ("script", "told"),
    [
        ("echo 'Temp: /tmp'", "it was built without"),
        ("exit 1", "tshark does not run"),
        ("echo 'Personal Lua Plugins: '$HOME/plugins", "tshark does not load it"),
    ],
)
def test_a_tshark_that_does_not_help(
    script: str, told: str, home: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    made_up(home, script, monkeypatch)
    assert main(["dissector", "--install"]) == 2
    assert told in capsys.readouterr().err


def test_without_tshark(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(home))
    assert main(["dissector", "--install"]) == 0
    assert capsys.readouterr().out == f"installed {home}/.local/lib/wireshark/plugins/iswitch.lua\n"


def test_the_package_brings_all_parts() -> None:
    """What is installed from a wheel is what is in the checkout."""
    import tomllib

    told = tomllib.loads((ROOT / "pyproject.toml").read_text())
    patterns = told["tool"]["setuptools"]["package-data"]["iswitch"]
    held = {path for pattern in patterns for path in (ROOT / "iswitch").glob(pattern)}
    parts = set((ROOT / "iswitch" / "dissect" / "lua").iterdir())
    assert parts <= held
    assert {path.stem for path in parts} == set(plugin.PARTS)
    assert str(PORT) in plugin.dissector()
