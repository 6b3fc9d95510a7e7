"""What was changed in a trace is found and named, and nobody else is blamed for it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from iswitch.cli import main
from iswitch.traces.links import TAGGED, LinkLayer
from iswitch.traces.reader import Reader
from iswitch.traces.report import is_clean, lines
from tests.traces.test_replay import data_packets, generate, replayed, tampered, trace
from tests.traces.test_replay_order import host_only

pytestmark = pytest.mark.unit

__all__ = ["trace"]  # the fixture


def named(report: dict[str, Any]) -> set[int]:
    """The packets that a report names."""
    return {finding["packet"] for finding in report["findings"]}


@pytest.mark.parametrize("checksum", ["kept", "cleared"])
@pytest.mark.parametrize("direction", [1, 2], ids=["contribution", "aggregate"])
@pytest.mark.parametrize("bit", [12, 23, 31])  # lower ones may be lost in rounding
def test_a_flipped_bit_is_found_and_named(
    trace: Path, tmp_path: Path, direction: int, checksum: str, bit: int
) -> None:
    of_way = [p for p in data_packets(trace) if p.direction == direction]
    place = next(p for p in of_way[40:] if int.from_bytes(p.head[38:40], "big") == 1480)
    at = place.payload + 8 + 4 * 100 + bit // 8

    def change(content: bytearray) -> None:
        content[at] ^= 1 << bit % 8
        if checksum == "cleared":
            content[place.payload - 2 : place.payload] = b"\0\0"

    report = replayed(tampered(trace, tmp_path / "x", change))
    assert not is_clean(report)
    places = [(f["packet"], f["offset"], f["element"], f["bit"]) for f in report["findings"]]
    assert (place.number, at, 100, bit) in places
    finding = report["findings"][places.index((place.number, at, 100, bit))]
    assert ("checksum is wrong" in finding["evidence"]) == (checksum == "kept")
    assert finding["what"].startswith("contribution of" if direction == 1 else "aggregate to")
    if direction == 2 or checksum == "kept":
        assert len(places) == 1
    text = "\n".join(lines(report))
    assert f"packet {place.number}, byte {at} of the file" in text
    assert f"element 100 bit {bit}:" in text


@pytest.mark.parametrize("checksum", ["kept", "cleared"])
@pytest.mark.parametrize(
    ("way", "what"),
    [
        (("10.26.0.2", "10.26.255.253"), "contribution of 10.26.0.2:40000"),
        (("10.26.255.253", "10.26.255.254"), "contribution to 10.26.255.254:26963"),
        (("10.26.255.254", "10.26.255.253"), "aggregate of 10.26.255.254:26963"),
        (("10.26.255.253", "10.26.0.1"), "aggregate to 10.26.0.1:40000"),
    ],
)
def test_a_flipped_bit_below_another_switch_is_named_and_nothing_else(
    tmp_path: Path, way: tuple[str, str], what: str, checksum: str
) -> None:
    """What goes to the parent is one sum, what comes from it another."""
    path = generate(tmp_path / "t", "rack:2x3,seed=2", "tor1", numel=3001, rounds=3)
    head = b"".join(bytes(map(int, host.split("."))) for host in way)
    place = [p for p in data_packets(path) if p.head[26:34] == head][11]

    def change(content: bytearray) -> None:
        content[place.payload + 8 + 4 * 17 + 3] ^= 0x80
        if checksum == "cleared":
            content[place.payload - 2 : place.payload] = b"\0\0"

    report = replayed(tampered(path, tmp_path / "x", change))
    assert not is_clean(report)
    assert [(f["packet"], f["what"]) for f in report["findings"]] == [(place.number, what)]
    assert report["findings"][0]["element"] == 17


@pytest.mark.parametrize("numel", [0, 100])
def test_another_round_in_an_aggregate_is_found_and_named(tmp_path: Path, numel: int) -> None:
    trace = generate(tmp_path / "t", "star:2", numel=numel, rounds=6)
    place = next(p for p in data_packets(trace) if p.direction == 2)

    def change(content: bytearray) -> None:
        content[place.payload + 3] ^= 1

    report = replayed(tampered(trace, tmp_path / "x", change))
    assert named(report) == {place.number}
    assert any(f"packet {place.number}, byte " in line for line in lines(report))


def test_a_missing_contribution_is_missed(tmp_path: Path) -> None:
    path = generate(tmp_path / "t", "star:3")
    place = next(p for p in data_packets(path) if p.direction == 1)

    def change(content: bytearray) -> None:
        content[place.payload - 6 : place.payload - 4] = b"\0\1"  # for another port

    report = replayed(tampered(path, tmp_path / "x", change))
    assert report["compared"]["missing"] == 3
    assert report["compared"]["differences"][0]["kind"] == "missing"
    assert not is_clean(report)
    (finding,) = report["findings"]
    assert finding["packet"] is None
    who, seg = place.head[29] - 1, int.from_bytes(path.read_bytes()[place.payload :][:8], "big")
    line = f"the contribution of rank {who} at 10.26.0.{who + 1}:40000 to round {seg >> 32}, "
    line += f"segment {seg & 0xFFFFFFFF} is not in the trace"
    assert line in lines(report)


def test_exit_status(trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = next(p for p in data_packets(trace) if p.direction == 2)
    bad = tampered(trace, tmp_path / "x", lambda c: c.__setitem__(place.payload + 9, 77))
    assert main(["replay", str(trace)]) == 0
    assert main(["replay", str(bad), "--json"]) == 1
    report = json.loads(capsys.readouterr().out.partition("\n{")[2].join(["{", ""]))
    assert report["findings"][0]["packet"] == place.number


@pytest.mark.parametrize("direction", [1, 2], ids=["contribution", "aggregate"])
@pytest.mark.parametrize("bit", [0, 7, 24, 31, 32, 55, 60, 63])
def test_a_flipped_bit_of_seg_is_named_and_nobody_else(
    tmp_path: Path, direction: int, bit: int
) -> None:
    """From the round's highest to the segment's lowest; the packet is of no segment, or another."""
    path = generate(tmp_path / "t", "star:3,seed=5", numel=3001, rounds=3)
    places = [p for p in data_packets(path) if p.direction == direction]
    for place in (places[3], places[len(places) // 2], places[-1]):

        def change(content: bytearray, at: int = place.payload) -> None:
            content[at + bit // 8] ^= 0x80 >> bit % 8

        report = replayed(tampered(path, tmp_path / "x", change))
        assert not is_clean(report)
        assert named(report) == {place.number}


def test_a_flipped_bit_of_a_control_packet_is_named(tmp_path: Path) -> None:
    """Of Joins, and of their Acks."""
    path = generate(tmp_path / "t", "star:3,seed=5", numel=3001, rounds=1)
    data = {place.number for place in data_packets(path)}
    places: list[tuple[int, int, int]] = []
    with Reader(path) as reader:
        layer = LinkLayer(reader)
        for batch in reader.batches():
            packets = layer.read(batch)
            for i in np.flatnonzero(packets.kinds == TAGGED).tolist():
                if batch.number + i not in data:
                    way = int(packets.directions[i])
                    places.append((batch.number + i, int(packets.payload[i]), way))
    assert {way for _, _, way in places} == {1, 2}
    for number, at, way in places:

        def change(content: bytearray, at: int = at) -> None:
            content[at + 6] ^= 4

        report = replayed(tampered(path, tmp_path / "x", change))
        assert not is_clean(report)
        assert named(report) == {number}
        (line,) = [line for line in lines(report) if line.startswith(f"packet {number}, ")]
        assert f"control packet {'of' if way == 1 else 'to'} 10.26.0." in line
        assert "checksum is wrong" in line


@pytest.mark.parametrize("direction", ["to the switch", "from it"])
def test_a_flipped_bit_in_a_trace_of_one_host_is_named(tmp_path: Path, direction: str) -> None:
    path = generate(tmp_path / "t", "star:3,seed=5", numel=3001, rounds=2)
    host = host_only(path, tmp_path / "host.pcap", "10.26.0.2")
    assert is_clean(replayed(host))
    source = slice(26, 30) if direction == "to the switch" else slice(30, 34)
    place = [p for p in data_packets(host) if p.head[source] == bytes((10, 26, 0, 2))][9]

    def change(content: bytearray) -> None:
        content[place.payload + 20] ^= 4

    report = replayed(tampered(host, tmp_path / "x", change))
    assert report["view"] == "host"
    assert not is_clean(report)
    assert named(report) == {place.number}
    assert any(line.startswith(f"packet {place.number}, ") for line in lines(report))


def test_what_nothing_explains_is_named(trace: Path) -> None:
    """The switch that was recorded did not add in rank order."""
    report = replayed(trace, reproducible=True)
    assert not is_clean(report)
    assert {(f["round"], f["segment"]) for f in report["findings"]} == {
        (d["round"], d["segment"]) for d in report["compared"]["differences"]
    }
    assert all("other options?" in finding["evidence"] for finding in report["findings"])
