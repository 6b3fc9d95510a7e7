"""Reading pcap and pcapng: formats, clocks, link types, tags; files that are broken or foreign."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from time import process_time

import numpy as np
import pytest

from iswitch.core.format.packets import Address
from iswitch.core.format.pcapng import Direction, interface, packets, section
from iswitch.core.format.wire import TOS_DATA
from iswitch.ethernet.made_up import frames
from iswitch.traces.batch import IN, OUT, UNKNOWN, evenly, gather
from iswitch.traces.blocks import MOST_INTERFACES, MOST_NAME
from iswitch.traces.chain import run_length, search_windows
from iswitch.traces.links import LinkLayer
from iswitch.traces.reader import Reader

pytestmark = pytest.mark.unit

A, S = Address("10.0.0.1", 5000), Address("10.0.0.254", 26963)
BEGIN = 1_700_000_000
PAYLOADS = [bytes([i]) * n for i, n in enumerate((24, 24, 24, 1472, 1472, 9, 24, 200, 200, 1))]


def frame(payload: bytes) -> bytes:
    return frames(A, S, TOS_DATA, np.frombuffer(payload, np.uint8).reshape(1, -1)).tobytes()


FRAMES = [frame(payload) for payload in PAYLOADS]


def times(tick: int, n: int = len(FRAMES), step: int = 1_234_567_891) -> list[int]:
    """Nanoseconds, as far as ticks of so many tell them."""
    return [BEGIN * 10**9 + i * step // tick * tick for i in range(n)]


def pcap(
    whole: list[bytes],
    order: str = "<",
    tick: int = 1000,
    link: int = 1,
    step: int = 1_234_567_891,
) -> bytes:
    magic = 0xA1B2C3D4 if tick == 1000 else 0xA1B23C4D
    file = struct.pack(f"{order}IHHiIII", magic, 2, 4, 0, 0, 65535, link)
    for time, each in zip(times(tick, len(whole), step), whole, strict=True):
        seconds, rest = divmod(time, 10**9)
        file += struct.pack(f"{order}IIII", seconds, rest // tick, len(each), len(each)) + each
    return file


def block(kind: int, body: bytes, order: str) -> bytes:
    total = 12 + len(body)
    return struct.pack(f"{order}II", kind, total) + body + struct.pack(f"{order}I", total)


def option(code: int, value: bytes, order: str) -> bytes:
    return struct.pack(f"{order}HH", code, len(value)) + value + bytes(-len(value) % 4)


def idb(order: str, link: int, name: bytes, resolution: int | None, offset: int = 0) -> bytes:
    body = struct.pack(f"{order}HHI", link, 0, 0) + option(2, name, order)
    if resolution is not None:
        body += option(9, bytes([resolution]), order)
    if offset:
        body += option(14, struct.pack(f"{order}q", offset), order)
    return block(1, body + option(0, b"", order), order)


def epb(order: str, number: int, ticks: int, whole: bytes, options: bytes = b"") -> bytes:
    head = struct.pack(
        f"{order}IIIII", number, ticks >> 32, ticks & 0xFFFFFFFF, len(whole), len(whole)
    )
    return block(6, head + whole + bytes(-len(whole) % 4) + options, order)


def shb(order: str) -> bytes:
    return block(0x0A0D0D0A, struct.pack(f"{order}IHHq", 0x1A2B3C4D, 1, 0, -1), order)


Read = Callable[[bytes], Reader]


@pytest.fixture
def read(tmp_path: Path) -> Iterator[Read]:
    """Opens bytes as a file."""
    opened: list[Reader] = []

    def open_(content: bytes, window: int = 4 << 20) -> Reader:
        path = tmp_path / f"{len(opened)}.trace"
        path.write_bytes(content)
        opened.append(Reader(path, window))
        return opened[-1]

    yield open_
    for reader in opened:
        reader.close()


def content(reader: Reader) -> list[tuple[bytes, int]]:
    """Every packet, and its time."""
    found: list[tuple[bytes, int]] = []
    for batch in reader.batches():
        assert batch.number == len(found) + 1
        for at, size, time in zip(batch.at, batch.sizes, batch.times, strict=True):
            found.append((reader.data[at : at + size].tobytes(), int(time)))
    return found


@pytest.mark.parametrize("order", "<>")
@pytest.mark.parametrize("tick", [1, 1000])
def test_pcap(read: Read, order: str, tick: int) -> None:
    reader = read(pcap(FRAMES, order, tick))
    assert content(reader) == list(zip(FRAMES, times(tick), strict=True))
    assert not reader.problems.count
    assert content(reader) == list(zip(FRAMES, times(tick), strict=True))  # from the beginning


@pytest.mark.parametrize("order", "<>")
@pytest.mark.parametrize(
    ("resolution", "per_second"),
    [
        (None, 10**6),
        (9, 10**9),
        (3, 10**3),
        (12, 10**12),
        (0x80 | 20, 1 << 20),
        (0x80 | 40, 1 << 40),
    ],
)
def test_pcapng_clocks(read: Read, order: str, resolution: int | None, per_second: int) -> None:
    ticks = [i * per_second // 7 for i in range(5)]
    file = shb(order) + idb(order, 1, b"one", resolution, offset=BEGIN)
    file += b"".join(epb(order, 0, t, FRAMES[i]) for i, t in enumerate(ticks))
    reader = read(file)
    found = content(reader)
    assert [each for each, _ in found] == FRAMES[:5]
    for (_, time), t in zip(found, ticks, strict=True):
        exact = BEGIN * 10**9 + t * 10**9 // per_second
        assert abs(time - exact) <= 1, (time, exact)


def test_every_interface_has_its_own_clock_and_every_section_its_own_interfaces(read: Read) -> None:
    file = shb("<") + idb("<", 1, b"micro", None) + idb("<", 1, b"nano", 9)
    file += epb("<", 0, 5, FRAMES[0]) + epb("<", 1, 5, FRAMES[1])
    file += shb(">") + idb(">", 1, b"milli", 3) + epb(">", 0, 5, FRAMES[2])
    reader = read(file)
    assert [time for _, time in content(reader)] == [5000, 5, 5_000_000]
    assert [i.name for i in reader.interfaces] == ["micro", "nano", "milli"]
    assert [int(n) for batch in reader.batches() for n in batch.interfaces] == [0, 1, 2]


@pytest.mark.parametrize("seed", range(20))
def test_sections_and_interfaces_come_at_any_place(read: Read, seed: int) -> None:
    """A packet is of its section's byte order and interface, whatever came between."""
    rng = random.Random(seed)
    file, first, names, expected = b"", 0, 0, []
    clocks: list[tuple[int, int]] = []  # ticks a second, and seconds added, of all interfaces
    order = ""
    for _ in range(120):
        kind = rng.random() if order else 0
        if kind < 0.1:
            order = rng.choice("<>")
            file, first = file + shb(order), len(clocks)
        elif kind < 0.4:
            digits, offset = rng.choice((3, 6, 9)), rng.choice((0, 7))
            file, names = file + idb(order, 1, b"p%d" % names, digits, offset), names + 1
            clocks.append((10**digits, offset))
        elif len(clocks) > first:
            number, ticks, way = (
                rng.randrange(len(clocks) - first),
                rng.randrange(1 << 40),
                rng.randrange(3),
            )
            whole = rng.choice(FRAMES)
            flags = option(2, struct.pack(f"{order}I", way), order) if way else b""
            rate, offset = clocks[first + number]
            expected.append((whole, offset * 10**9 + ticks * (10**9 // rate), first + number, way))
            file += epb(order, number, ticks, whole, flags)
    for window in (100, 4 << 20):
        reader = read(file)
        reader.window = window
        parts = list(reader.batches())
        assert len(parts) == 1 or window == 100  # whatever is between packets
        found = content(reader)
        interfaces = [int(n) for batch in parts for n in batch.interfaces]
        ways = [int(n) for batch in parts for n in batch.directions]
        assert [*zip(*zip(*found, strict=True), interfaces, ways, strict=True)] == expected
        assert [i.name for i in reader.interfaces] == [f"p{i}" for i in range(len(clocks))]
        assert not reader.problems.count


def crafted(kind: str, n: int, whole: bytes = FRAMES[0], begin: bytes = b"") -> bytes:
    """A file with a packet at each of so many interfaces, or in each of so many sections."""
    names = [idb("<", 1, b"i%d" % i, 9) for i in range(n)]
    head = shb("<") + idb("<", 1, b"first", 9) + begin
    if kind == "interfaces first":
        return head + b"".join(names) + b"".join(epb("<", 1 + i, i, whole) for i in range(n))
    if kind == "interfaces between":
        return head + b"".join(name + epb("<", 1 + i, i, whole) for i, name in enumerate(names))
    return head + b"".join(
        shb("<>"[i % 2]) + idb("<>"[i % 2], 1, b"", 9) + epb("<>"[i % 2], 0, i, whole)
        for i in range(n)
    )


CRAFTED = ("interfaces first", "interfaces between", "sections")


@pytest.mark.slow
@pytest.mark.parametrize("kind", CRAFTED)
def test_many_interfaces_and_sections_take_time_in_proportion(read: Read, kind: str) -> None:
    """Eight times as many cost about eight times as much; with the square it were sixty-four."""

    def seconds(n: int) -> float:
        reader = read(crafted(kind, n))
        begin = process_time()
        layer = LinkLayer(reader)
        assert sum(len(layer.read(batch).kinds) for batch in reader.batches()) == n
        return process_time() - begin

    few, many = (min(seconds(n) for _ in range(3)) for n in (2500, 20_000))
    assert many < 24 * few


def test_interfaces_beyond_the_bound_are_told_and_their_packets_skipped(read: Read) -> None:
    beyond = 3
    file = crafted("interfaces first", MOST_INTERFACES + beyond - 1)
    file += shb(">") + idb(">", 1, b"late", 9) + epb(">", 0, 1, FRAMES[0])
    reader = read(file)
    sizes = np.concatenate([batch.sizes for batch in reader.batches()])
    assert len(reader.interfaces) == MOST_INTERFACES
    assert np.count_nonzero(sizes) == MOST_INTERFACES - 1
    assert sizes[-1] == 0  # but it has its number
    assert reader.problems.count == 2 * (beyond + 1)
    assert "beyond the 65,536" in reader.problems.first[0].what


def test_a_long_name_is_cut(read: Read) -> None:
    reader = read(shb("<") + idb("<", 1, b"x" * 60_000, 9) + epb("<", 0, 1, FRAMES[0]))
    assert content(reader)
    assert reader.interfaces[0].name == "x" * MOST_NAME


def test_places_of_a_cooked_capture_are_bounded(
    read: Read, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("iswitch.traces.links.MOST_PLACES", 5)
    whole = [cooked2(FRAMES[i % 3], 7 + i) for i in range(9)]
    reader = read(pcap(whole, link=276))
    layer = LinkLayer(reader)
    ports = [int(p) for batch in reader.batches() for p in layer.read(batch).ports]
    assert layer.ports == [*(f"index {7 + i}" for i in range(5)), "further places"]
    assert ports == [0, 1, 2, 3, 4, 5, 5, 5, 5]


def test_directions_are_found_behind_other_options(read: Read) -> None:
    flags = [option(2, struct.pack("<I", way), "<") for way in (1, 2, 0x105)]
    comment = option(1, b"what a day", "<")
    ends = [flags[0], flags[1], comment + flags[2], comment, b""]
    file = shb("<") + idb("<", 1, b"", 9)
    file += b"".join(epb("<", 0, 1, FRAMES[0], each) for each in ends)
    (batch,) = read(file).batches()
    assert batch.directions.tolist() == [IN, OUT, IN, UNKNOWN, UNKNOWN]


@pytest.mark.parametrize("order", "<>")
def test_what_the_capture_dropped_is_told(read: Read, order: str) -> None:
    """The last statistics of each interface count."""

    def statistics(number: int, *options: tuple[int, int]) -> bytes:
        said = b"".join(option(code, struct.pack(f"{order}Q", n), order) for code, n in options)
        return block(5, struct.pack(f"{order}III", number, 0, 0) + said, order)

    file = shb(order) + idb(order, 1, b"a", 9) + idb(order, 1, b"b", 9)
    file += statistics(0, (4, 100), (5, 7)) + epb(order, 0, 1, FRAMES[0])
    file += statistics(0, (4, 100), (5, 9), (7, 2)) + statistics(1, (5, 30)) + statistics(1)
    damaged = struct.pack(f"{order}III", 1, 0, 0) + option(5, bytes([255]) * 4000, order)
    file += statistics(7, (5, 1)) + block(5, damaged, order)
    reader = read(file)
    assert [each for each, _ in content(reader)] == FRAMES[:1]
    assert reader.dropped == 11
    assert not reader.problems.count


def test_simple_and_old_packet_blocks(read: Read) -> None:
    padded = [each + bytes(-len(each) % 4) for each in FRAMES]
    old = struct.pack("<HHIIII", 0, 7, 0, 42, len(FRAMES[0]), len(FRAMES[0])) + padded[0]
    simple = struct.pack("<I", len(FRAMES[1])) + padded[1]
    file = shb("<") + idb("<", 1, b"", 9) + block(2, old, "<") + block(3, simple, "<")
    assert content(read(file)) == [(FRAMES[0], 42), (FRAMES[1], 42)]


def test_what_iswitch_writes_is_read(read: Read) -> None:
    rows = np.frombuffer(b"".join(FRAMES[3:5]), np.uint8).reshape(2, -1)
    file = section() + interface("s1-eth1") + interface("s1-eth2")
    file += packets(1, 77, Direction.OUT, rows)
    reader = read(file)
    assert content(reader) == [(FRAMES[3], 77), (FRAMES[4], 77)]
    assert reader.application == "iswitch"
    (batch,) = reader.batches()
    assert batch.directions.tolist() == [OUT, OUT]
    assert batch.interfaces.tolist() == [1, 1]


@pytest.mark.parametrize("make", [pcap, lambda whole: shb("<") + idb("<", 1, b"", 9) + b"".join(
    epb("<", 0, i, each) for i, each in enumerate(whole))])  # fmt: skip
@pytest.mark.parametrize("window", [1 << 10, 1 << 22])
def test_runs_of_equal_records_and_others(
    read: Callable[..., Reader], make: Callable[[list[bytes]], bytes], window: int
) -> None:
    """What is found does not hang on where windows end, and on how records follow each other."""
    chance = random.Random(5)
    whole: list[bytes] = []
    while len(whole) < 3000:
        whole += [FRAMES[chance.randrange(len(FRAMES))]] * chance.choice((1, 1, 2, 9, 40, 300))
    if make is pcap:
        file = pcap([], "<")
        for each in whole:
            file += struct.pack("<IIII", 1, 1, len(each), len(each)) + each
    else:
        file = make(whole)
    reader = read(file, window)
    assert [each for each, _ in content(reader)] == whole
    assert not reader.problems.count


def test_run_length_is_exact() -> None:
    data = np.zeros(16 * 5000, np.uint8)
    words = data.view(np.uint64)
    words[1::2] = 7
    assert run_length(data, 0, 16, len(data), 8, 7) == 5000
    words[2 * 4321 + 1] = 8
    assert run_length(data, 0, 16, len(data), 8, 7) == 4321
    assert run_length(data, 0, 16, 16 * 100, 8, 7) == 100
    assert list(pairwise([a for a, _ in search_windows(5, 3 << 20)]))
    assert sum(n for _, n in search_windows(5, 3 << 20)) == (3 << 20) - 5


def test_gather() -> None:
    data = np.arange(100, dtype=np.uint8)
    for places in ([3, 10, 17], [3, 10, 18], [5], []):
        found = gather(data, np.array(places, np.int64), 4)
        assert found.tolist() == [[p, p + 1, p + 2, p + 3] for p in places]
    assert evenly(np.array([1, 5, 9])) == 4
    assert evenly(np.array([1, 5, 8])) is None


# Link types


def cooked2(whole: bytes, index: int) -> bytes:
    return whole[12:14] + struct.pack(">xxIHBB6sxx", index, 1, 0, 6, whole[6:12]) + whole[14:]
