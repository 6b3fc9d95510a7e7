"""Replays with and without a known order of arrival, and of other captures."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import numpy as np
import pytest

from iswitch.cli import main
from iswitch.core.format import pcapng
from iswitch.core.format.packets import Address
from iswitch.core.format.wire import TOS_CONTROL, TOS_DATA, Action, Control, Join, Shape
from iswitch.core.jobs.limits import Limits
from iswitch.core.switch import Switch
from iswitch.ethernet.chassis import Chassis
from iswitch.ethernet.frame import Frames
from iswitch.ethernet.issuing import Jack
from iswitch.ethernet.made_up import frames
from iswitch.outside import OutsideError
from iswitch.traces.bits import within
from iswitch.traces.paired import ReplayOptions, UnwrittenChassis
from iswitch.traces.reader import Reader
from iswitch.traces.report import lines, replay
from iswitch.traces.survey import NothingToReplay, survey
from iswitch.traces.writing import TraceWriter
from tests.support import python
from tests.traces.test_replay import all_equal, data_packets, generate, replayed, tampered, trace

__all__ = ["trace"]  # fixtures


def swap_arrivals(path: Path, to: Path) -> Path:
    """Put each two contributions that follow each other, at different ports, the other way round.

    They have equal lengths, so it is a swap of bytes: of the interface, and of the frame.
    """
    places = [p for p in data_packets(path) if p.direction == 1]

    def change(content: bytearray) -> None:
        done = 0
        for one, other in zip(places[::2], places[1::2], strict=False):
            size = int.from_bytes(one.head[38:40], "big") + 34
            if one.head[26:30] == other.head[26:30] or one.head[38:40] != other.head[38:40]:
                continue
            a, b = (p.payload - 42 for p in (one, other))
            content[a : a + size], content[b : b + size] = (
                content[b : b + size],
                content[a : a + size],
            )
            a, b = a - 20, b - 20
            content[a : a + 4], content[b : b + 4] = content[b : b + 4], content[a : a + 4]
            done += 1
        assert done > 10

    return tampered(path, to, change)


def test_another_order_is_within_the_bound(tmp_path: Path) -> None:
    path = generate(
        tmp_path / "t", "star:8,jitter=400us,delay=400us,reorder=20%,seed=4", numel=9001
    )
    swapped = swap_arrivals(path, tmp_path / "swapped")
    known = replayed(swapped)["compared"]
    assert known["different"] > 0
    unknown = replayed(swapped, order=False)["compared"]
    assert unknown["different"] == unknown["missing"] == 0
    assert unknown["within_bound"] > 0
    assert unknown["within_bound"] + unknown["equal"] == unknown["captured"]


def test_sums_for_the_parent_in_another_order_are_within_their_own_bound(tmp_path: Path) -> None:
    """Not within that of the aggregate, which the parent sent."""
    form = "rack:2x4,jitter=400us,delay=400us,reorder=20%,seed=4"
    path = generate(tmp_path / "t", form, "tor1", numel=9001)
    unknown = replayed(swap_arrivals(path, tmp_path / "swapped"), order=False)["compared"]
    assert unknown["different"] == unknown["missing"] == 0
    assert unknown["within_bound"] > 0


def test_parts_are_not_checked_in_another_order(tmp_path: Path) -> None:
    """Their sums are rounded otherwise; the aggregates from above are passed on as they are."""
    given = Limits(policy="besteffort", slots=64)
    form = "rack:2x4,jitter=400us,delay=400us,reorder=20%,seed=4"
    path = generate(tmp_path / "t", form, "tor1", given, numel=9001)
    swapped = swap_arrivals(path, tmp_path / "swapped")
    assert replayed(swapped, limits=given)["compared"]["different"] > 0
    unknown = replayed(swapped, order=False, limits=given)["compared"]
    assert unknown["different"] == unknown["missing"] == 0
    assert 0 < unknown["unchecked"] < unknown["to_parent"]


def test_a_sum_for_the_parent_may_be_captured_before_its_last_contribution(tmp_path: Path) -> None:
    """It is compared once it is made, and not with the aggregate that the parent sends."""
    path = generate(tmp_path / "t", "rack:2x2,seed=3", "tor1", numel=366, rounds=3)
    places, parent = data_packets(path), bytes((10, 26, 255, 254))
    at = next(i for i, place in enumerate(places) if place.head[30:34] == parent)
    assert places[at - 1].direction == 1
    one, other = (place.payload - 70 for place in places[at - 1 : at + 1])  # where blocks begin

    def change(content: bytearray) -> None:
        """Swap two packets of one length, with their interfaces and directions, not their times."""
        for a, b in ((8, 12), (20, int.from_bytes(content[one + 4 : one + 8], "little"))):
            first, second = (slice(block + a, block + b) for block in (one, other))
            content[first], content[second] = content[second], content[first]

    report = replayed(tampered(path, tmp_path / "x", change), order=False)
    all_equal(report)
    assert report["compared"]["to_parent"] == 3


def test_the_bound_is_no_pardon(tmp_path: Path) -> None:
    """A change of a high bit is beyond it."""
    path = generate(tmp_path / "t", "star:4", numel=3001)
    place = next(p for p in data_packets(path) if p.direction == 2)

    def change(content: bytearray) -> None:
        content[place.payload + 8 + 4 * 17 + 3] ^= 0x40  # in the exponent
        content[place.payload - 2 : place.payload] = b"\0\0"

    compared = replayed(tampered(path, tmp_path / "x", change), order=False)["compared"]
    assert compared["different"] == 1
    assert compared["differences"][0]["element"] == 17


def test_bounds() -> None:
    a = np.array([1, np.nan, np.inf, 1], np.float32)
    b = np.array([1.5, np.nan, 1, 2], np.float32)
    bound = np.array([0.5, 0, np.inf, 0.5])
    assert within(a, b, bound).tolist() == [True, True, True, False]


def host_only(path: Path, to: Path, host: str) -> Path:
    """As a pcap file, what a capture at one host has."""
    import struct

    address = bytes(map(int, host.split(".")))
    content = struct.pack("<IHHiIII", 0xA1B23C4D, 2, 4, 0, 0, 65535, 1)
    with Reader(path) as reader:
        for batch in reader.batches():
            for at, size, ns in zip(batch.at, batch.sizes, batch.times, strict=True):
                frame = reader.data[at : at + size].tobytes()
                if address in (frame[26:30], frame[30:34]):
                    head = struct.pack("<IIII", ns // 10**9, ns % 10**9, size, size)
                    content += head + frame
    to.write_bytes(content)
    return to


def test_a_trace_of_one_host(trace: Path, tmp_path: Path) -> None:
    report = replayed(host_only(trace, tmp_path / "host.pcap", "10.26.0.2"))
    assert report["view"] == "host"
    assert "compared" not in report
    (job,) = report["jobs"]
    (member,) = job["members"]
    assert member["address"].startswith("10.26.0.2:")
    assert job["rounds"] == 4
    assert [r["segments"] >= job["segments"] for r in job["per_round"]] == [True] * 4
    assert report["aggregates_received"] >= 4 * job["segments"]
    assert "a trace of one host" in "\n".join(lines(report))


def test_broken_files_are_reported_and_the_rest_used(trace: Path, tmp_path: Path) -> None:
    whole = trace.read_bytes()
    path = tmp_path / "x"
    path.write_bytes(whole[: len(whole) * 2 // 3])
    report = replayed(path)
    (problem,) = report["trace"]["problems"]
    assert problem["offset"] < len(whole) * 2 // 3
    assert report["compared"]["equal"] > 0
    assert not report["compared"]["different"]
    assert f"broken at byte {problem['offset']:,}" in "\n".join(lines(report))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--switch", "10.9.9.9:26963"], "nobody joins 10.9.9.9:26963"),
        (["--switch", "s9"], "is no address"),
        (["--topology", "rack:2x2"], "which of its switches was captured"),
        (["--topology", "star:4", "--switch", "x"], "star:4 has s1"),
        (["--speed", "fast"], "write max, real, or 10x"),
        (["--inject", "lo", "--out", "x"], "leave one out"),
        (["--inject", "nosuch0"], "no interface"),
    ],
)
def test_usage(
    trace: Path, options: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        assert main(["replay", str(trace), *options]) == 2
    except SystemExit as end:
        assert end.code == 2  # noqa: PT017
    assert message in capsys.readouterr().err


def test_the_switch_may_be_named(trace: Path) -> None:
    assert main(["replay", str(trace), "--topology", "star:4"]) == 0  # it has one only
    assert main(["replay", str(trace), "--topology", "star:4", "--switch", "s1"]) == 0
    assert main(["replay", str(trace), "--switch", "10.26.255.254:26963"]) == 0


def test_nobody_joins(trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "x"
    path.write_bytes(trace.read_bytes()[:200])
    assert main(["replay", str(path)]) == 2
    assert "from the beginning of the job" in capsys.readouterr().err


def test_speed(trace: Path) -> None:
    begin = time.monotonic()
    assert main(["replay", str(trace), "--speed", "0.1x"]) == 0
    seconds = replayed(trace)["trace"]["seconds"]
    assert time.monotonic() - begin > 9 * seconds


def test_a_trace_that_becomes_shorter_is_told(
    trace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What is mapped and no longer there ends a process by SIGBUS."""
    path = tmp_path / "x"

    def shorten(*_: object) -> None:
        os.truncate(path, 5000)

    path.write_bytes(trace.read_bytes())
    monkeypatch.setattr(time, "sleep", shorten)
    assert main(["replay", str(path), "--speed", "real"]) == 2
    assert f"{path} became shorter while it was read" in capsys.readouterr().err
    path.write_bytes(trace.read_bytes())
    with Reader(path, window=20_000) as reader:
        batches = reader.batches()
        next(batches)
        shorten()
        with pytest.raises(OutsideError, match="became shorter"):
            next(batches)


@pytest.mark.parametrize("seed", range(20))
def test_spoiled_traces_end(trace: Path, tmp_path: Path, seed: int) -> None:
    """No exception, no hang, whatever is in the file."""
    chance = np.random.default_rng(seed)
    content = np.frombuffer(trace.read_bytes()[:600_000], np.uint8).copy()
    places = chance.integers(200, len(content), chance.integers(1, 4000))
    content[places] = chance.integers(0, 256, len(places))
    path = tmp_path / "x"
    path.write_bytes(content.tobytes())
    try:
        report = replayed(path, order=bool(seed % 2))
    except NothingToReplay:
        return
    json.dumps(report)
    text = "\n".join(lines(report))
    trace_of = report["trace"]
    assert f"{trace_of['packets']:,} packets in" in text
    assert trace_of["packets"] == sum(
        trace_of[kind] for kind in ("to_switch", "from_switch", "passing", "cut_off", "skipped")
    )
    for finding in report["findings"]:
        if finding["packet"] is None:
            continue
        assert 0 < finding["packet"] <= trace_of["packets"]
        assert 0 < finding["offset"] < len(content)


def crowd(path: Path, places: int, size: int = 60) -> Path:
    """A trace of one job, and of a broadcast at each of so many interfaces."""
    worker, switch = Address("10.0.0.1", 5000), Address("10.0.0.254", 26963)
    join = Control(Action.JOIN, 7, 1000, Join.for_shape(Shape.of(1), expected=1)).build()
    broadcast = np.frombuffer(b"\xff" * 6 + b"\2\0\0\0\0\1\x08\x06", np.uint8)
    broadcast = np.pad(broadcast, (0, size - broadcast.size)).reshape(1, -1)
    content = pcapng.section() + pcapng.interface("eth0")
    for number, (tos, payload) in enumerate(
        ((TOS_CONTROL, join), (TOS_DATA, bytes(8) + np.float32(1).tobytes()))
    ):
        frame = frames(worker, switch, tos, np.frombuffer(payload, np.uint8).reshape(1, -1))
        content += pcapng.packets(0, number * 1000, pcapng.Direction.IN, frame)
    for i in range(1, places):
        content += pcapng.interface(f"eth{i}")
        content += pcapng.packets(i, 1000 + i * 1000, pcapng.Direction.IN, broadcast)
    path.write_bytes(content)
    return path


def test_a_switch_of_many_ports(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A broadcast leaves at thousands of ports for the price of one; written they are not."""
    crowded = str(crowd(tmp_path / "t.pcapng", places := 10_000))
    begin = time.process_time()
    assert main(["replay", "--json", crowded]) == 0
    assert time.process_time() - begin < 60  # with the square it takes half an hour
    found = json.loads(capsys.readouterr().out)
    assert found["counters"]["forwarded"] == places - 1
    assert found["counters"]["copies"] == (places - 1) ** 2
    assert main(["replay", crowded, "--out", str(tmp_path / "out.pcapng")]) == 2
    assert "leave out --out" in capsys.readouterr().err


def test_frames_are_counted_alike_whether_they_are_written(tmp_path: Path) -> None:
    trace = crowd(tmp_path / "t.pcapng", 7)
    with Reader(trace) as reader:
        writer = TraceWriter(tmp_path / "out.pcapng")
        written = replay(reader, survey(reader), ReplayOptions(), sink=writer)
        writer.close()
    counters = replayed(trace)["counters"]
    assert counters == written["counters"]
    assert counters["tx_frames"] > counters["copies"] == 6 * 6


@pytest.mark.parametrize("size", [1514, 1515])
def test_frames_that_are_not_written_are_counted_alike(size: int) -> None:
    frame = b"\xff" * 6 + b"\2\0\0\0\0\1\x08\x06".ljust(size - 6, b"\0")
    counts = []
    for kind in Chassis, UnwrittenChassis:
        chassis = kind(Switch(), bytes([10, 0, 0, 254]), b"\2" * 6, [Jack(1500)] * 5)
        for sends in chassis.receive(Frames.single(1, frame), 0.0):
            chassis.counters["tx_frames"] += sum(sum(sent.counts) for sent in sends)
        counts.append(dict(chassis.counters))
    assert counts[0] == counts[1]
    assert (counts[0]["tx_frames"], counts[0]["too_large"]) == ((4, 0) if size == 1514 else (0, 4))


def test_memory_does_not_grow_with_the_file(tmp_path: Path) -> None:
    """Pages of the file that are mapped count, too."""
    memory = []
    for rounds in (3, 14):  # the smaller file fills a window, too
        path = generate(tmp_path / str(rounds), "star:2", numel=1_000_000, rounds=rounds)
        done = python("-m", "tests.bench.replay", "--once", "replay", "--trace", str(path))
        found = json.loads(done.stdout)
        assert found["equal"] == found["captured"] > 0
        memory.append(found["memory"])
    grown = path.stat().st_size * 11 // 12
    assert grown > 150e6
    assert memory[1] - memory[0] < grown / 5
