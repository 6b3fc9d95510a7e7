"""What the dissector makes of damaged packets, which packets are ours, and how it is installed."""

from __future__ import annotations

import os
import random
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scapy.layers.inet import UDP
from scapy.packet import Packet

from iswitch.cli import main
from iswitch.core.format import pcapng
from iswitch.core.format.wire import (
    PORT,
    TOS_DATA,
    Ack,
    Action,
    DType,
    Join,
    Shape,
)
from iswitch.dissect import plugin
from tests.support import ROOT, python
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
from tests.traces.test_dissector import seen

__all__ = ["afresh"]  # for every test

SEEDS = 3 if "ISWITCH_MODEL_SEEDS" in os.environ else 1  # `make model` sets it


def spoiled(chance: random.Random) -> Iterator[Sent]:
    """Packets changed, cut and made up; Joins between them, so that jobs are known."""
    valid = list(everything())
    for number in range(700):
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


@pytest.mark.parametrize("seed", range(1, SEEDS + 1))
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
    assert bad > 500
    text = tshark(path, tmp_path, "-V")
    assert "Lua Error" not in text
    assert text.count("\n    [Expert Info (Error/Malformed)") >= 500


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
    for size in (45, 60):
        cut = tmp_path / f"{size}.pcapng"
        subprocess.run(["editcap", "-s", str(size), str(path), str(cut)], check=True)
        text = tshark(cut, tmp_path, "-V")
        assert "Lua Error" not in text
        for packet, theirs in zip(rdpcap_one_by_one(cut), seen(cut, tmp_path), strict=True):
            whole = packet.wirelen == len(packet)
            assert ("truncated" in theirs) == (not whole)
            fault = packet[UDP].payload.fault
            assert (fault is not None) == bool({"truncated", "malformed"} & theirs.keys())
            # Data of bytes may be told for odd: the Join that says what it is was cut.
            allowed = fault is None or "no whole number of float32" in fault
            assert allowed if whole else fault == "not captured whole"


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
    done = python("-m", "iswitch", "soak", "--seed", "149", "--pcapng", str(path))
    assert done.returncode == 0, done.stderr
    assert "Lua Error" not in tshark(path, tmp_path, "-V")
    found = seen(path, tmp_path)
    assert not [packet for packet in found if "malformed" in packet or "unmatched" in packet]
    assert sum("elements" in packet and "dtype" in packet for packet in found) > 100
    acks = [packet for packet in found if packet.get("action") == [str(Action.ACK.value)]]
    assert len(acks) > 30
    assert all("request_in" in packet and "ack_time" in packet for packet in acks)


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
