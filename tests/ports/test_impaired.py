"""Impaired ports around a made-up one: what comes through, when, in what shape, and how counted."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from iswitch.core.format.counters import EGRESS_DROPS, FRAME_DROPS, Counters
from iswitch.core.format.wire import TOS_DATA
from iswitch.core.switch import Switch
from iswitch.ethernet.chassis import Chassis
from iswitch.ethernet.frame import Frames, Transmission
from iswitch.ethernet.issuing import Jack
from iswitch.ethernet.segmentation import wire_frames
from iswitch.faults.impairment import Impairment, Impairments
from iswitch.faults.parts import frame_parts
from iswitch.ports.impaired import ImpairedPorts, OneWay
from tests.support.frames import (
    IPS,
    MACS,
    SWITCH_IP,
    SWITCH_MAC,
    VNET,
    checksums_right,
    ethernet,
    ip,
    partial,
    super_vnet,
    tagged,
    udp,
)

SIZE = 100  # bytes of payload of a super-frame's packets


class FakePorts:
    """Hands out what is put into `come`, and keeps a copy of what is pushed, as whole rows."""

    def __init__(self) -> None:
        self.come: list[Frames] = []
        self.sent: list[tuple[int, bytes]] = []
        self.counts = 0
        self.closed = False

    def fileno(self) -> int:
        return 0

    def deadline(self) -> None:
        return None

    def pull(self) -> Iterable[Frames]:
        while self.come:
            yield self.come.pop(0)

    def push(self, steps: Iterable[Sequence[Transmission]]) -> None:
        for step in steps:
            for one in step:
                self.sent += [(one.port, row) for row in one.whole()]
                self.counts += sum(one.counts)

    def close(self) -> None:
        self.closed = True


class World:
    """Impaired ports, a clock that is set, and everything that has come through."""

    def __init__(self, impairments: Impairments, seed: int = 1) -> None:
        self.now = 0.0
        self.inner = FakePorts()
        self.counters = Counters()
        self.ports = ImpairedPorts(self.inner, impairments, seed, self.counters, lambda: self.now)
        self.pieces: list[Frames] = []

    def receive(self, *frames: Frames, now: float | None = None) -> list[bytes]:
        """What comes through by `now`, as rows."""
        self.now = self.now if now is None else now
        self.inner.come += frames
        rows = []
        for piece in self.ports.pull():
            self.pieces.append(piece)
            rows += [piece.row(i) for i in range(len(piece.lengths))]
        return rows

    def send(self, *transmissions: Transmission) -> list[bytes]:
        """What leaves at once, as rows."""
        before = len(self.inner.sent)
        self.ports.push([transmissions])
        return [row for _, row in self.inner.sent[before:]]


def datagram(payload: bytes, identification: int = 7) -> bytes:
    body = udp(IPS[0], IPS[1], (5000, 26963), payload)
    return ethernet(MACS[1], MACS[0], ip((IPS[0], IPS[1]), 17, body, identification=identification))


def payloads(count: int, tail: int = SIZE) -> list[bytes]:
    """Distinct ones, the last shorter."""
    whole = [struct.pack(">I", i) * (SIZE // 4) for i in range(count)]
    return [*whole[:-1], whole[-1][:tail]]


def super_udp(count: int, tail: int = SIZE) -> bytes:
    frame = partial(datagram(b"".join(payloads(count, tail))), 17, 34, 6)
    return super_vnet(5, 42, SIZE, 34, 6) + frame


def super_tcp(count: int, tail: int = SIZE) -> bytes:
    segment = struct.pack(">HHIIBBHHH", 1, 2, 1000, 0, 0x50, 0x18, 512, 0, 0)
    body = segment + b"".join(payloads(count, tail))
    frame = ethernet(MACS[1], MACS[0], ip((IPS[0], IPS[1]), 6, body))
    return super_vnet(1, 54, SIZE, 34, 16) + partial(frame, 6, 34, 16)


def wire(row: bytes) -> list[bytes]:
    """The frames that a row stands for."""
    return [bytes(f) for rows in wire_frames(np.frombuffer(row, np.uint8)) for f in rows]


def numbers(rows: Iterable[bytes], header: int = 42) -> list[int]:
    """Which of `payloads` came, each in a sound frame."""
    frames = [frame for row in rows for frame in wire(row)]
    assert all(map(checksums_right, frames))
    return [int.from_bytes(frame[header : header + 4], "big") for frame in frames]


def test_what_is_not_impaired_passes_untouched() -> None:
    world = World({(1, "in"): Impairment(loss=1.0), (1, "out"): Impairment(loss=1.0)})
    frames = Frames.of(0, [super_udp(5)])
    world.receive(frames)
    assert world.pieces[0] is frames
    sent = Transmission.single(0, datagram(b"whole"))
    assert world.send(sent) == sent.whole()
    assert not any(world.counters.values())


def test_directions_are_of_their_own() -> None:
    world = World({(0, "in"): Impairment(loss=1.0)})
    assert world.receive(Frames.of(0, [super_udp(5)])) == []
    assert len(world.send(Transmission.single(0, datagram(b"whole")))) == 1
    assert (world.counters["lost_in"], world.counters["rx_frames"]) == (5, 0)
    assert world.counters["lost_out"] == 0


@pytest.mark.parametrize("kind", [super_udp, super_tcp])
@pytest.mark.parametrize("tail", [SIZE, 40])
@pytest.mark.parametrize("probability", [0.02, 0.1, 0.6])
def test_a_super_frame_counts_as_its_packets(kind, tail, probability) -> None:  # type: ignore[no-untyped-def]
    """The others stay, in order; those of UDP as a super-frame."""
    header = 42 if kind is super_udp else 54
    world = World({(0, "in"): Impairment(loss=probability)})
    row = kind(44, tail)
    sequence = 0
    for _ in range(20):
        before = world.counters["lost_in"]
        rows = world.receive(Frames.of(0, [row]))
        found = numbers(rows, header)
        assert len(found) == 44 - (world.counters["lost_in"] - before)
        assert found == sorted(set(found))
        sequence += len(rows)
        if kind is super_udp:
            assert len(rows) == min(len(found), 1)
        else:
            assert len(rows) == (1 if len(found) == 44 else len(found))
    assert world.counters["lost_in"] > 0


@given(
    st.lists(
        st.tuples(st.sampled_from("sut"), st.integers(2, 44), st.integers(4, SIZE)), max_size=6
    ),
    st.integers(0, 9),
)
def test_fates_are_the_same_however_packets_come(
    given_rows: list[tuple[str, int, int]], seed: int
) -> None:
    """In super-frames, or as frames one by one: the same frames on the wire come through."""
    bad = Impairment(loss=0.1, delay=1.0, duplicate=0.1, reorder=0.1, corrupt=0.1)
    rows = [
        VNET + datagram(payloads(1, tail)[0])
        if kind == "s"
        else (super_udp if kind == "u" else super_tcp)(count, tail)
        for kind, count, tail in given_rows
    ]
    together, singly = (World({(0, "in"): bad}, seed) for _ in range(2))
    outs = []
    for world, came in (
        (together, rows),
        (singly, [VNET + frame for row in rows for frame in wire(row)]),
    ):
        found = world.receive(*([Frames.of(0, came)] if came else []))
        found += world.receive(now=2.0)
        outs.append([without_identification(frame) for row in found for frame in wire(row)])
        assert world.ports.deadline() is None
    assert outs[0] == outs[1]
    assert together.counters == singly.counters


def without_identification(frame: bytes) -> bytes:
    """Of IPv4: packets of a super-frame are numbered anew. Its checksum hangs on it."""
    return frame[:18] + frame[20:24] + frame[26:]


def test_late_frames_are_copies() -> None:
    world = World({(0, "in"): Impairment(delay=1.0), (0, "out"): Impairment(delay=2.0)})
    row, frame = super_udp(3, 10), datagram(b"whole")
    frames = Frames.of(0, [row, VNET + frame])
    frames = frames._replace(heads=frames.heads.copy(), bodies=frames.bodies.copy())
    assert world.receive(frames) == []
    sent = Transmission.single(0, frame)
    body = sent.bodies.copy()
    assert world.send(sent._replace(bodies=body)) == []
    for array in (frames.heads, frames.bodies, body):
        array[:] = 0
    assert world.ports.deadline() == 1.0
    assert world.receive(now=0.9) == []
    assert world.receive(now=1.0) == [row, VNET + frame]
    assert world.ports.deadline() == 2.0
    assert world.receive(now=2.5) == []
    assert world.inner.sent == [(0, VNET + frame)]
    assert world.ports.deadline() is None


def test_bodies_are_not_read_beyond_their_length() -> None:
    """The issuer's last body may reach beyond the memory."""
    world = World({(0, "out"): Impairment(delay=1.0)})
    rows = np.arange(300, dtype=np.uint8).reshape(3, 100)
    bodies = np.lib.stride_tricks.as_strided(rows.reshape(-1), (2, 200), (200, 1))
    heads = np.zeros((2, 52), np.uint8)
    world.send(Transmission(0, heads, bodies, [200, 100], [1, 1]))
    world.receive(now=1.0)
    assert [len(row) for _, row in world.inner.sent] == [252, 152]


def test_duplicates_follow_their_originals() -> None:
    world = World({(0, "in"): Impairment(duplicate=1.0)})
    assert numbers(world.receive(Frames.of(0, [super_udp(3)]))) == [0, 0, 1, 1, 2, 2]
    assert numbers(world.receive(Frames.of(0, [super_udp(2, 20)]))) == [0, 0, 1, 1]
    assert world.counters["duplicated_in"] == 5


def test_duplicates_do_not_make_super_frames_too_large() -> None:
    """IPv4 counts 65535 bytes."""
    payload = bytes(65507)
    row = super_vnet(5, 42, 1472, 34, 6) + partial(datagram(payload), 17, 34, 6)
    world = World({(0, "in"): Impairment(duplicate=1.0)})
    rows = world.receive(Frames.of(0, [row]))
    assert len(numbers(rows)) == 90
    assert max(map(len, rows)) <= 65535 + 24


def test_reordered_packets_come_first() -> None:
    world = World({(0, "in"): Impairment(delay=1.0, reorder=0.3)})
    early = numbers(world.receive(Frames.of(0, [super_udp(44)])))
    late = numbers(world.receive(now=1.0))
    assert 0 < len(early) == world.counters["reordered_in"] < 44
    assert sorted(early + late) == list(range(44))
    assert early == sorted(early)
    assert late == sorted(late)


@pytest.mark.parametrize(
    ("row", "count"),
    [(VNET + datagram(b"whole"), 1), (super_udp(9, 30), 9), (super_tcp(9), 9)],
    ids=["plain", "udp", "tcp"],
)
def test_one_bit_is_flipped_when_the_checksums_are_finished(row: bytes, count: int) -> None:
    world = World({(0, "out"): Impairment(corrupt=1.0)})
    vector = np.frombuffer(row, np.uint8).reshape(1, -1)
    out = world.send(Transmission(0, None, vector, [len(row)], [count]))
    assert [row[:10] for row in out] == [VNET] * count
    assert world.inner.counts == count == world.counters["corrupted_out"]
    for was, now in zip(wire(row), out, strict=True):
        differs = np.bitwise_xor(np.frombuffer(was, np.uint8), np.frombuffer(now[10:], np.uint8))
        assert np.bitwise_count(differs).sum() == 1
        assert not differs[:14].any()


def test_arp_stays_whole() -> None:
    world = World({(0, "in"): Impairment(corrupt=1.0)})
    request = VNET + ethernet(b"\xff" * 6, MACS[0], bytes(28), 0x0806)
    assert world.receive(Frames.of(0, [request])) == [request]
    assert world.counters["corrupted_in"] == 0


def test_a_frame_shorter_than_a_head_can_be_late() -> None:
    world = World({(0, "out"): Impairment(delay=1.0)})
    short = ethernet(MACS[1], MACS[0], b"short")
    world.send(Transmission.single(0, short), Transmission.single(0, datagram(b"whole")))
    world.receive(now=1.0)
    assert [row for _, row in world.inner.sent] == [VNET + short, VNET + datagram(b"whole")]


def test_a_header_without_sense_passes_for_others_to_drop() -> None:
    bad = Impairment(delay=1.0, corrupt=1.0)
    world = World({(0, "in"): bad})
    row = super_vnet(9, 42, SIZE, 34, 6) + datagram(b"whole")
    world.receive(Frames.of(0, [row]))
    assert world.receive(now=1.0) == [row]


def test_the_rate_spreads_packets() -> None:
    rate = 8 * (SIZE + 42)  # one a second
    world = World({(0, "in"): Impairment(rate=rate, queue=3)})
    world.receive(Frames.of(0, [super_udp(5)]))
    assert world.counters["queue_in"] == 2
    found = [numbers(world.receive(now=now)) for now in (0.5, 1.0, 2.5, 2.9, 3.5)]
    assert found == [[], [0], [1], [], [2]]


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("iswitch.ports.impaired.ROOM", 10 * (SIZE + 42))
    world = World({(0, "in"): Impairment(delay=1.0)})
    for _ in range(3):
        world.receive(Frames.of(0, [super_udp(5)]))
    assert world.counters["queue_in"] == 5
    assert len(numbers(world.receive(now=1.0))) == 10
    world.receive(Frames.of(0, [super_udp(5)]))
    assert world.counters["queue_in"] == 5


def test_counters_add_up() -> None:
    """What was received and what was sent are accounted for without a rest, also at the end."""
    bad = Impairment(0.1, 0.5, 0.5, 0.1, 0.1, 0.1, rate=10**7, queue=40)
    world = World({(0, "in"): bad, (0, "out"): bad})
    n = world.counters
    row = super_udp(44)
    vector = np.frombuffer(row, np.uint8).reshape(1, -1)
    for i in range(50):
        before = len(world.pieces)
        world.receive(Frames.of(0, [row, super_tcp(4), VNET + datagram(b"whole")]), now=i * 0.02)
        for piece in world.pieces[before:]:
            came = sum(len(wire(piece.row(i))) for i in range(len(piece.lengths)))
            n["rx_frames"] += came
            n["forwarded"] += came
        world.send(Transmission(0, None, vector, [len(row)], [44]))
        n["copies"] += 44
    world.ports.close()
    assert world.inner.closed
    n["tx_frames"] = world.inner.counts
    assert n["rx_frames"] == n["forwarded"] + sum(n[reason] for reason in FRAME_DROPS)
    assert n["rx_frames"] + n["lost_in"] + n["queue_in"] == 50 * 49 + n["duplicated_in"]
    assert n["copies"] + n["duplicated_out"] == n["tx_frames"] + sum(
        n[reason] for reason in EGRESS_DROPS
    )
    for name in ("lost", "queue", "duplicated", "reordered", "corrupted"):
        assert n[f"{name}_in"], name
        assert n[f"{name}_out"], name


def test_seeds_and_ports_have_chances_of_their_own() -> None:
    impairments = {(p, d): Impairment(loss=0.5) for p in (0, 1) for d in ("in", "out")}
    found = set()
    for seed in (1, 2):
        ways = [OneWay[Frames](d, impairments, seed, Counters()) for d in ("in", "out")]
        for way in ways:
            for port in (0, 1):
                rows = way.send(port, frame_parts(Frames.of(port, [super_udp(44)])), 0.0)
                assert rows is not None
                found.add(tuple(numbers(rows[0].row(0) for _ in "1")))
    assert len(found) == 8


def test_no_bit_of_a_contribution_can_be_flipped_unnoticed() -> None:
    """Whichever it is: the frame is dropped, and counted with a reason."""
    frame = tagged(0, bytes(range(24)), TOS_DATA)
    reasons = set()
    for bit in range(14 * 8, len(frame) * 8):
        flipped = bytearray(frame)
        flipped[bit // 8] ^= 0x80 >> bit % 8
        switch = Switch()
        chassis = Chassis(switch, SWITCH_IP, SWITCH_MAC, [Jack()] * 2)
        for sends in chassis.receive(Frames.single(0, bytes(flipped)), 0.0):
            assert sends == []
        assert switch.counters["rx_packets"] == switch.counters["answered"] == 0
        (reason,) = switch.counters.drops()
        reasons.add(reason)
    assert reasons == {"bad_checksum", "bad_frame", "unserved"}
