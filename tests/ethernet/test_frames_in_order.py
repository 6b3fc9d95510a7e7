"""What the chassis takes the short way comes to the same as what it sorts first."""

from __future__ import annotations

import random
import struct

import numpy as np
import pytest

from iswitch.core.format.wire import Action, Control, Join, MemberType, Shape
from iswitch.core.switch import Switch
from iswitch.ethernet import chassis as module
from iswitch.ethernet.chassis import Chassis
from iswitch.ethernet.express import Flows, plain_data
from iswitch.ethernet.frame import Frames, RecurringFrames, Transmission
from iswitch.ethernet.issuing import Jack
from iswitch.ethernet.segmentation import wire_frames
from tests.support.frames import (
    IPS,
    MACS,
    SWITCH_IP,
    SWITCH_MAC,
    VNET,
    ip,
    partial,
    super_vnet,
    tagged,
    udp,
)

pytestmark = pytest.mark.unit

CONTROL, DATA, PORT = 0x0C, 0x1C, 26963
UDP_SUPER = 5
AT_ONCE = 4  # packets of a super-datagram here


class Both:
    """Two chassis that are given the same frames, of which one sorts all of them."""

    def __init__(self, patch: pytest.MonkeyPatch, workers: int, shape: Shape, **jack: bool) -> None:
        self.shape = shape
        jacks = [Jack(**jack)] * workers
        self.pair = [Chassis(Switch(), SWITCH_IP, SWITCH_MAC, jacks, PORT) for _ in range(2)]
        self.short_ways = 0
        sorting = self.pair[1]

        def counted(flows: Flows, frames: Frames) -> object:
            found = None if flows is sorting._flows else plain_data(flows, frames)
            self.short_ways += found is not None
            return found

        patch.setattr(module, "plain_data", counted)
        for host in range(workers):
            join = Join.for_shape(shape, MemberType.WORKER, workers, 0)
            packet = Control(Action.JOIN, 0, 7, join).build()
            self.give(host, [VNET + tagged(host, packet, CONTROL)])

    def give(self, ingress: int, rows: list[bytes]) -> None:
        """Both have to send the same packets, put together as they like, and count the same."""
        sent = []
        for chassis in self.pair:
            steps = chassis.receive(Frames.of(ingress, rows), 1.0)
            packets = [packet for step in steps for one in step for packet in unpacked(one)]
            sent.append(sorted(packets))  # what is put together differently leaves in another order
        assert sent[0] == sent[1]
        assert self.pair[0].counters == self.pair[1].counters


def unpacked(one: Transmission) -> list[tuple[int, bytes, bytes]]:
    """Port, addresses and payload of each packet on the wire."""
    frames = (
        frame.tobytes()
        for row in one.whole()
        for rows in wire_frames(np.frombuffer(row, np.uint8))
        for frame in rows
    )
    return [(one.port, f[:12] + f[26:38], f[42:]) for f in frames]


def packets(shape: Shape, round_: int, vector: np.ndarray) -> list[bytes]:
    laid = np.zeros(shape.segments, shape.packet)
    laid["seg"] = shape.headers(round_)
    laid["data"].reshape(-1)[: len(vector)] = vector
    rows = [row.tobytes() for row in laid]
    rows[-1] = rows[-1][: shape.last_size]
    return rows


def super_frame(host: int, payloads: list[bytes], identification: int) -> bytes:
    """Packets of one size, but for the last, as the kernel hands them over from a local sender."""
    ports = (5000, PORT)
    datagram = udp(IPS[host], SWITCH_IP, ports, b"".join(payloads))
    packet = ip((IPS[host], SWITCH_IP), 17, datagram, DATA, identification=identification)
    frame = SWITCH_MAC + MACS[host] + b"\x08\x00" + packet
    vnet = super_vnet(UDP_SUPER, 42, len(payloads[0]), 34, 6)
    if len(payloads) == 1:
        vnet = struct.pack("<BBHHHH", 1, 0, 0, 0, 34, 6)
    return vnet + partial(frame, 17, 34, 6)


def contribution(both: Both, host: int, round_: int, vector: np.ndarray) -> list[bytes]:
    rows = packets(both.shape, round_, vector)
    return [
        super_frame(host, rows[at : at + AT_ONCE], 7 + at) for at in range(0, len(rows), AT_ONCE)
    ]


def damaged(row: bytes, how: int) -> bytes:
    """One of the things that the short way must not overlook."""
    at = (10 + 14 + 10, 10 + 14 + 8, 10 + 14 + 1, 10 + 14 + 12, 10 + 5, 0, 10 + 34, 10 + 42, 4)[how]
    return row[:at] + bytes([row[at] ^ 0x11]) + row[at + 1 :]


@pytest.mark.parametrize("offload", [True, False], ids=["super-frames", "one by one"])
@pytest.mark.parametrize("numel", [1, 20, 90, 250])
def test_the_short_way_comes_to_the_same(
    numel: int, offload: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    chance = random.Random(numel)
    shape = Shape.of(numel, elements=10)
    both = Both(monkeypatch, 3, shape, offload=offload)
    for round_ in range(60):
        order = [(host, np.full(numel, host + round_, np.float32)) for host in range(3)]
        chance.shuffle(order)
        for host, vector in order:
            left = contribution(both, host, round_, vector)
            while left:
                n = chance.randint(1, len(left))
                batch, left = left[:n], left[n:]
                fate = chance.random()
                if fate < 0.1:  # something else among them; then as they are
                    worse = list(batch)
                    k = chance.randrange(n)
                    worse[k] = damaged(worse[k], chance.randrange(9))
                    both.give(host, worse)
                elif fate < 0.15:
                    both.give(host, [row[: len(row) - 3] for row in batch])
                elif fate < 0.17:  # one of them only
                    k = chance.randrange(n)
                    both.give(host, [*batch[:k], batch[k][:-3], *batch[k + 1 :]])
                elif fate < 0.2:
                    both.give((host + 1) % 3, batch)
                elif fate < 0.25:
                    both.give(host, batch[::-1])
                elif fate < 0.3:
                    both.give(host, batch)
                both.give(host, batch)
    assert both.pair[0].counters["aggregates"] == 60 * shape.segments
    assert both.short_ways > 60


@pytest.mark.parametrize("numel", [1, 20, 90, 240, 250])
def test_whole_vectors_take_the_short_way_from_the_second_on(
    numel: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    both = Both(monkeypatch, 2, Shape.of(numel, elements=10))
    for round_ in range(3):
        for host in range(2):
            both.give(host, contribution(both, host, round_, np.ones(numel, np.float32)))
        assert both.short_ways == 2 * round_


def test_what_lacks_of_a_super_datagram_is_not_made_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its bytes would be those that lay there before."""
    both = Both(monkeypatch, 2, Shape.of(120, elements=10))
    for round_ in range(3):
        for host in range(2):
            whole = contribution(both, host, round_, np.ones(120, np.float32))
            if round_ == 2:
                both.give(host, [whole[0], whole[1][:-8], whole[2]])
                assert both.pair[0].counters["bad_frame"] == host + 1
            both.give(host, whole)
    assert both.pair[0].counters["aggregates"] == 3 * 12


def test_small_vectors_leave_in_the_same_object(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a port need not describe them anew; and in another, once a receiver has moved."""
    shape = Shape.of(90, elements=10)
    both = Both(monkeypatch, 2, shape)
    chassis = both.pair[0]

    def result(round_: int) -> list[object]:
        steps: list[object] = []
        for host in range(2):
            rows = contribution(both, host, round_, np.ones(90, np.float32))
            steps += chassis.receive(Frames.of(host, rows), 1.0)
        return steps

    result(0)  # of flows that are not known yet
    found = [result(round_) for round_ in range(1, 7)]
    assert all(len(steps) == 1 and type(steps[0]) is RecurringFrames for steps in found)
    assert found[0][0] is found[2][0] is found[4][0]
    assert found[1][0] is found[3][0] is found[5][0]
    assert found[0][0] is not found[1][0]  # two sets of sums
    chassis.issuer.learn(".".join(map(str, IPS[0])), 0, b"\2moved")
    assert result(7)[0] is not found[0][0]


@pytest.mark.parametrize("seed", range(4))
def test_super_datagrams_of_any_lengths_take_the_short_way(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As they come where some are lost and sent again; but not those that are something else."""
    chance = random.Random(seed)
    shape = Shape.of(245, elements=10)
    both = Both(monkeypatch, 2, shape)
    for round_ in range(40):
        for host in range(2):
            rows = packets(shape, round_, np.full(245, host + round_, np.float32))
            late = set(chance.sample(range(len(rows) - 1), 5))  # they come behind others
            rows = [row for i, row in enumerate(rows) if i not in late]
            left: list[bytes] = []
            while rows:
                n = chance.randint(1, AT_ONCE)
                left.append(super_frame(host, rows[:n], 7 + len(left)))
                rows = rows[n:]
            while left:
                n = chance.randint(1, len(left))
                batch, left = left[:n], left[n:]
                if chance.random() < 0.2:
                    worse, k = list(batch), chance.randrange(n)
                    worse[k] = damaged(worse[k], chance.randrange(9))
                    both.give(host, worse)
                both.give(host, batch)
            whole = contribution(both, host, round_, np.full(245, host + round_, np.float32))
            both.give(host, whole)  # what has not come yet
    assert both.pair[0].counters["aggregates"] == 40 * shape.segments
    assert both.short_ways > 150  # 180; 90 if lengths may not differ


def test_lengths_that_differ_are_one_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is what makes one broadcast of what several datagrams complete."""
    shape = Shape.of(120, elements=10)
    both = Both(monkeypatch, 1, shape)
    for round_ in range(3):
        rows = packets(shape, round_, np.ones(120, np.float32))
        some = [super_frame(0, rows[a:b], a) for a, b in ((0, 3), (3, 4), (4, 8), (8, 12))]
        if round_ < 2:
            both.give(0, some)
        else:  # of flows that are known by now
            steps = list(both.pair[0].receive(Frames.of(0, some), 1.0))
            assert len(steps) == 1
            assert sum(sum(one.counts) for one in steps[0]) == 12
