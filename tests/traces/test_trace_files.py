"""Broken trace files, link types, fuzz, and files of public tools."""

from __future__ import annotations

import os
import random
import shutil
import struct
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from iswitch.traces.batch import IN, OUT, UNKNOWN
from iswitch.traces.links import CUT, ORDINARY, OTHER, TAGGED, LinkLayer
from iswitch.traces.reader import NotATrace, Reader
from tests.traces.test_traces import (
    FRAMES,
    PAYLOADS,
    Read,
    content,
    cooked2,
    epb,
    idb,
    pcap,
    read,
    shb,
)

pytestmark = pytest.mark.unit

__all__ = ["read"]  # fixtures


def test_a_pcap_that_ends_inside_a_record(read: Read) -> None:
    file = pcap(FRAMES)
    reader = read(file[:-1])
    assert [each for each, _ in content(reader)] == FRAMES[:-1]
    (problem,) = reader.problems.first
    assert problem.offset == len(file) - 16 - len(FRAMES[-1])
    assert "packet that should have" in problem.what


def test_a_pcap_goes_on_behind_what_is_broken(read: Read) -> None:
    file = bytearray(pcap(FRAMES * 3))
    at = 24 + 4 * 16 + sum(map(len, FRAMES[:4]))  # the header of the fifth record
    file[at + 8 : at + 12] = b"\xff\xff\xff\x7f"
    reader = read(bytes(file))
    found = [each for each, _ in content(reader)]
    assert found == FRAMES[:4] + (FRAMES * 3)[5:]
    (problem,) = reader.problems.first
    assert problem.offset == at
    assert "no record is here" in problem.what


@pytest.mark.parametrize("damage", ["type", "length", "end"])
def test_a_pcapng_goes_on_behind_what_is_broken(read: Read, damage: str) -> None:
    blocks = [epb("<", 0, i, each) for i, each in enumerate(FRAMES)]
    start = shb("<") + idb("<", 1, b"", 9)
    at = len(start) + sum(map(len, blocks[:5]))
    file = bytearray(start + b"".join(blocks))
    place = {"type": at + 1, "length": at + 6, "end": at + len(blocks[5]) - 2}[damage]
    file[place] ^= 0xFF
    reader = read(bytes(file))
    found = [each for each, _ in content(reader)]
    assert found == FRAMES[:5] + FRAMES[6:]
    if damage != "type":  # else it is a block of a kind that is passed over
        (problem,) = reader.problems.first
        assert problem.offset == at


def test_a_packet_of_no_interface_is_reported_and_its_number_kept(read: Read) -> None:
    file = shb("<") + idb("<", 1, b"", 9)
    file += epb("<", 3, 1, FRAMES[0]) + epb("<", 0, 1, FRAMES[1])
    reader = read(file)
    (batch,) = reader.batches()
    assert batch.sizes.tolist() == [0, len(FRAMES[1])]
    assert "interface" in reader.problems.first[0].what


def test_cut_off_packets_are_told_from_whole_ones(read: Read) -> None:
    file = pcap([])
    for each in FRAMES:
        file += struct.pack("<IIII", 1, 1, min(len(each), 96), len(each)) + each[:96]
    reader = read(file)
    (batch,) = reader.batches()
    kinds = LinkLayer(reader).read(batch).kinds
    assert kinds.tolist() == [CUT if len(each) > 96 else TAGGED for each in FRAMES]


@pytest.mark.parametrize(
    ("begin", "message"),
    [
        (b"", "is empty"),
        (b"snoop\0\0\0" + bytes(40), "snoop"),
        (b"\x1f\x8b\x08" + bytes(40), "gunzip"),
        (b"hello, world, hello", "editcap -F pcapng"),
        (b"\x0a\x0d\x0d\x0a" + bytes(40), "byte order"),
        (pcap([])[:20], "ends inside the header"),
    ],
)
def test_what_is_no_trace(tmp_path: Path, begin: bytes, message: str) -> None:
    path = tmp_path / "x"
    path.write_bytes(begin)
    with pytest.raises(NotATrace, match=message):
        Reader(path)


def test_what_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(NotATrace, match="no file that could be mapped"):
        Reader("/dev/null")
    with pytest.raises(OSError, match="No such file"):
        Reader(tmp_path / "nosuch")


def cooked(whole: bytes, sent: bool = False) -> bytes:
    kind = 4 if sent else 0
    return struct.pack(">HHH6s2x", kind, 1, 6, whole[6:12]) + whole[12:14] + whole[14:]


def tagged(whole: bytes) -> bytes:
    return whole[:12] + b"\x81\x00\x00\x07" + whole[12:]


def doubly(whole: bytes) -> bytes:
    return whole[:12] + b"\x88\xa8\x00\x07\x81\x00\x00\x08" + whole[12:]


LINKS: list[tuple[int, Callable[[bytes], bytes]]] = [
    (1, lambda whole: whole),
    (1, tagged),
    (1, doubly),
    (113, cooked),
    (276, lambda whole: cooked2(whole, 3)),
    (101, lambda whole: whole[14:]),
    (12, lambda whole: whole[14:]),
    (228, lambda whole: whole[14:]),
]


@pytest.mark.parametrize(("link", "dress"), LINKS)
def test_link_types(read: Read, link: int, dress: Callable[[bytes], bytes]) -> None:
    reader = read(pcap([dress(each) for each in FRAMES], link=link))
    (batch,) = reader.batches()
    found = LinkLayer(reader).read(batch)
    assert found.kinds.tolist() == [TAGGED] * len(FRAMES)
    for i, whole in enumerate(FRAMES):
        assert found.heads[i].tobytes() == whole[:42]
        at = found.payload[i]
        assert reader.data[at : at + len(PAYLOADS[i])].tobytes() == PAYLOADS[i]
    directions = {IN} if link in (113, 276) else {UNKNOWN}
    assert set(found.directions.tolist()) == directions


def test_a_cooked_capture_tells_directions_and_interfaces(read: Read) -> None:
    reader = read(pcap([cooked(FRAMES[0], sent) for sent in (False, True)], link=113))
    (batch,) = reader.batches()
    assert LinkLayer(reader).read(batch).directions.tolist() == [IN, OUT]
    reader = read(pcap([cooked2(FRAMES[0], index) for index in (5, 2, 5)], link=276))
    (batch,) = reader.batches()
    layer = LinkLayer(reader)
    assert layer.read(batch).ports.tolist() == [1, 0, 1]
    assert layer.ports == ["index 2", "index 5"]


def test_interfaces_of_different_link_types(read: Read) -> None:
    file = shb("<") + idb("<", 1, b"eth", 9) + idb("<", 101, b"tun", 9) + idb("<", 105, b"wlan", 9)
    file += epb("<", 0, 1, FRAMES[0]) + epb("<", 1, 2, FRAMES[1][14:]) + epb("<", 2, 3, b"what")
    reader = read(file)
    layer = LinkLayer(reader)
    (batch,) = reader.batches()
    found = layer.read(batch)
    assert found.kinds.tolist() == [TAGGED, TAGGED, OTHER]
    assert found.ports.tolist() == [0, 1, 2]
    assert layer.unknown == {105: 1}


def test_other_traffic_is_ordinary(read: Read) -> None:
    arp = b"\xff" * 6 + FRAMES[0][6:12] + b"\x08\x06" + bytes(46)
    other = bytearray(FRAMES[0])
    other[15] = 0x40  # ToS
    reader = read(pcap([arp, bytes(other), FRAMES[0]]))
    (batch,) = reader.batches()
    assert LinkLayer(reader).read(batch).kinds.tolist() == [ORDINARY, ORDINARY, TAGGED]


@pytest.mark.parametrize("seed", range(200))
def test_spoiled_files(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    whole = chance.choices(FRAMES, k=60)
    if seed % 2:
        file = bytearray(pcap(whole, chance.choice("<>"), chance.choice((1, 1000))))
    else:
        order = chance.choice("<>")
        file = bytearray(shb(order) + idb(order, chance.choice((1, 113, 276, 101)), b"x", 9))
        for i, each in enumerate(whole):
            file += epb(order, chance.choice((0, 0, 0, 1)), i, each)
    for _ in range(chance.randrange(1, 30)):
        kind, at = chance.randrange(4), chance.randrange(4, len(file))
        if kind == 0:
            file[at] = chance.randrange(256)
        elif kind == 1:
            file[at : at + 4] = struct.pack("<I", chance.choice((0, 1, 0x7FFFFFFF, 0xFFFFFFFF)))
        elif kind == 2:
            del file[at : at + chance.randrange(1, 50)]
        else:
            file[at:at] = chance.randbytes(chance.randrange(1, 50))
    path = tmp_path / "spoiled"
    path.write_bytes(file)
    try:
        reader = Reader(path, 1 << 14)
    except NotATrace:
        return
    with reader:
        layer = LinkLayer(reader)
        for batch in reader.batches():
            assert (batch.at + batch.sizes <= len(file)).all()
            assert (batch.sizes >= 0).all()
            layer.read(batch)


def tool(name: str) -> str:
    path = shutil.which(name)
    if path is None:
        assert os.geteuid() != 0, f"this test needs {name}: apt-get install tshark, or make test"
        pytest.skip(f"{name} is not installed")
    return path


@pytest.mark.slow
def test_formats_of_editcap(tmp_path: Path) -> None:
    """pcap and pcapng are read; all others that it can write are refused, and the mend is named."""
    source = tmp_path / "source.pcap"
    source.write_bytes(pcap(FRAMES))
    listed = subprocess.run([tool("editcap"), "-F"], capture_output=True, text=True)
    names = [
        line.split()[0] for line in (listed.stdout + listed.stderr).splitlines() if " - " in line
    ]
    assert {"pcap", "pcapng", "nsecpcap", "snoop", "netmon2"} <= set(names)
    good, refused = set(), {}
    for name in names:
        path = tmp_path / name
        subprocess.run(
            [tool("editcap"), "-F", name, str(source), str(path)], capture_output=True, check=False
        )
        if not path.exists() or not path.stat().st_size:
            continue  # it cannot hold such packets
        try:
            with Reader(path) as reader:
                assert [each for each, _ in content(reader)] == FRAMES
            good.add(name)
        except NotATrace as error:
            refused[name] = str(error)
    assert good == {"pcap", "pcapng", "nsecpcap"}
    assert len(refused) > 10
    assert all("editcap -F pcapng" in message for message in refused.values())


@pytest.mark.slow
def test_mergecap_makes_one_interface_of_each_file(tmp_path: Path) -> None:
    for i in range(3):
        (tmp_path / f"{i}.pcap").write_bytes(pcap([FRAMES[i]], tick=(1, 1000)[i % 2]))
    out = tmp_path / "merged.pcapng"
    subprocess.run(
        [
            tool("mergecap"),
            "-I",
            "none",
            "-w",
            str(out),
            *map(str, sorted(tmp_path.glob("*.pcap"))),
        ],
        check=True,
    )
    with Reader(out) as reader:
        assert {each for each, _ in content(reader)} == set(FRAMES[:3])
        assert len(reader.interfaces) == 3
