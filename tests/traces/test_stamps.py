"""Times in traces: peaks are cut down, and captures are stamped by a clock that nobody sets."""

from __future__ import annotations

import struct
import time
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from iswitch.cli import main
from iswitch.core.format.counters import Counters
from iswitch.core.format.wire import SEG_SIZE, TOS_CONTROL, Action, Header
from iswitch.core.jobs.uplink import GATHER_PAUSE
from iswitch.ethernet.frame import ETH, Frames
from iswitch.ethernet.frame import HEAD as ROW_HEAD
from iswitch.ports.capture import Capture
from iswitch.traces.batch import OUT, Ints, PacketBatch
from iswitch.traces.links import IP, TAGGED, LinkLayer
from iswitch.traces.reader import Reader
from iswitch.traces.report import lines
from iswitch.traces.stamps import JUMP, settled
from tests.traces.test_replay import all_equal, generate, replayed, tampered

pytestmark = pytest.mark.unit

HOURS = 10 * 3600 * 10**9


def batch(times: list[int]) -> PacketBatch:
    zeros = np.zeros(len(times), np.int64)
    return PacketBatch(1, zeros, zeros, zeros, np.array(times), zeros, zeros.astype(np.uint8))


def settle(*times: list[int]) -> tuple[list[int], int]:
    """The times of batches, and how many were cut down."""
    done = list(settled(iter([batch(some) for some in times])))
    assert [len(found.times) for found, _ in done] == [len(some) for some in times]
    whole: Ints = np.concatenate([found.times for found, _ in done])
    return whole.tolist(), sum(count for _, count in done)


def test_peaks_are_cut_down_to_the_packet_before() -> None:
    assert settle([1, 2, 3 + HOURS, 4, 5]) == ([1, 2, 2, 4, 5], 1)
    assert settle([1, 2, 3 + HOURS, 4 + HOURS, 5, 6, 7]) == ([1, 2, 2, 2, 5, 6, 7], 2)
    assert settle([1 + HOURS, 2, 3, 4]) == ([2, 2, 3, 4], 1)


@pytest.mark.parametrize("times", [([1, 2, 3 + HOURS], [4, 5]), ([1, 2], [3 + HOURS, 4, 5])])
def test_peaks_at_the_end_of_a_batch(times: tuple[list[int], list[int]]) -> None:
    assert settle(*times) == ([1, 2, 2, 4, 5], 1)


@pytest.mark.parametrize(
    "times",
    [
        [1, 2, 3 + HOURS, 4 + HOURS],  # a break
        [1, 2, 2 + JUMP // 2, 3],  # of no account
        [HOURS, HOURS + 1, 5, HOURS + 2],  # one behind: time waits
    ],
)
def test_other_times_are_left_alone(times: list[int]) -> None:
    assert settle(times) == (times, 0)
    assert settle(times[:2], times[2:]) == (times, 0)


@pytest.mark.parametrize("order", [True, False])
def test_one_packet_ahead_ends_no_lease(tmp_path: Path, order: bool) -> None:
    path = generate(tmp_path / "t", "star:2,seed=5", numel=3001)
    with Reader(path) as reader:
        at = [int(place) for found in reader.batches() for place in found.at]

    def change(content: bytearray) -> None:
        high = at[len(at) // 2] - 16  # of a pcapng block: the upper half of its time
        content[high : high + 4] = (9000).to_bytes(4, "little")

    report = replayed(tampered(path, tmp_path / "x", change), order=order)
    all_equal(report)
    assert report["trace"]["ahead"] == 1
    assert report["trace"]["seconds"] < 1
    assert any("far ahead of those around" in line for line in lines(report))


def test_nothing_compared_is_no_success(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = generate(tmp_path / "t", "star:2", numel=3001)
    assert main(["replay", str(path)]) == 0
    assert main(["replay", str(path), "--lease", "0.000001"]) == 1
    assert "not one of them could be compared" in capsys.readouterr().out


def test_a_clock_that_is_set_bends_no_capture(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "t.pcapng"
    capture = Capture(path, ["p"], Counters())
    frame = bytes(60)
    frames = Frames.single(0, frame, bytes(ETH))
    assert frames.heads.shape[1] == ROW_HEAD
    capture.received(frames)
    was = time.time_ns()
    monkeypatch.setattr(time, "time_ns", lambda: was + HOURS)
    capture.received(frames)
    capture.close()
    with Reader(path) as reader:
        (found,) = reader.batches()
    assert len(found.times) == 2
    assert 0 <= found.times[1] - found.times[0] < HOURS // 10


def test_a_capture_of_a_switch_that_is_held_up(tmp_path: Path) -> None:
    """It reads the clock, stands still, and takes packets, whose times in the file are later.

    So its next question whether all workers are there comes sooner after them than it seems.
    """
    path = generate(tmp_path / "t", "rack:2x2,delay=1ms", "tor1")
    asked: list[int] = []
    times: dict[int, int] = {}  # by where a packet's bytes begin
    with Reader(path) as reader:
        layer = LinkLayer(reader)
        for batch in reader.batches():
            packets = layer.read(batch)
            times.update(zip(batch.at.tolist(), batch.times.tolist(), strict=True))
            control = (packets.kinds == TAGGED) & (packets.heads[:, IP + 1] == TOS_CONTROL)
            for i in np.flatnonzero(control & (batch.directions == OUT)).tolist():
                at = int(packets.payload[i])
                header = Header.parse(reader.data[at : at + SEG_SIZE].tobytes())
                if header.action == Action.JOIN:
                    asked.append(int(batch.times[i]))
    pause = round(GATHER_PAUSE * 1e9)
    again = next(b for a, b in pairwise(asked) if b - a == pause)

    def delay(content: bytearray) -> None:
        for at, when in times.items():
            if again - pause <= when < again:
                late = again - 1_000
                struct.pack_into("<II", content, at - 16, late >> 32, late & 0xFFFFFFFF)

    all_equal(replayed(path))
    all_equal(replayed(tampered(path, tmp_path / "late", delay)))
