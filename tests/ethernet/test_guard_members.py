"""Addresses of members behind the ports of a switch: claimed by others, moved, and shared."""

from __future__ import annotations

import numpy as np
import pytest

from iswitch.core.format.packets import Address
from iswitch.core.format.wire import Action, Control, Join, MemberType, Shape
from iswitch.core.jobs.limits import Limits
from iswitch.core.switch import Switch
from iswitch.ethernet.chassis import Chassis
from iswitch.ethernet.frame import ARP_REPLY, ARP_REQUEST, Frames, arp
from iswitch.ethernet.issuing import Jack
from tests.ethernet.test_forwarding import A, B, Bench, C, data, plain
from tests.ethernet.test_guard import CONTROL, IPS, SPOOFS, TAG, between, joined, said, tagged
from tests.support import frames as slow

pytestmark = pytest.mark.unit

LEASE = Limits().lease


def test_the_switchs_mac_is_its_own_at_every_port() -> None:
    bench, shape = joined()
    (packet,) = data(shape, 0, np.ones(4))
    mac = slow.SWITCH_MAC
    rows = (
        plain(C, mac),
        slow.wrapped(plain(C, mac), TAG),
        tagged(mac, IPS[1], packet),
        said(ARP_REPLY, C, B, mac, IPS[1], IPS[2]),
        said(ARP_REPLY, slow.SWITCH_MAC, mac, mac, slow.SWITCH_IP, IPS[2]),
    )
    for port in range(3):
        for row in rows:
            assert bench.put(port, row) == []
    assert bench.drops() == {"spoofed": 15}


@pytest.mark.parametrize("spoof", SPOOFS.values(), ids=SPOOFS)
@pytest.mark.parametrize("before", [False, True], ids=["joined", "seen before"])
def test_a_members_addresses_are_its_own(spoof: object, before: bool) -> None:
    """Also if the frame was let through before there was a member; nothing is learned from it."""
    bench = Bench()
    (packet,) = data(Shape.of(4), 0, np.ones(4))
    row = spoof(packet)  # type: ignore[operator]
    if before:
        bench.put(1, row)
    shape = bench.join(0, numel=4)
    earlier = bench.drops()
    assert bench.put(1, row) == []
    now = bench.drops()
    assert now.pop("spoofed") - earlier.pop("spoofed", 0) == 1
    assert now == earlier
    assert bench.chassis.bridge.where(A, bench.now) == 0
    (packet,) = data(shape, 0, np.ones(4))
    ((port, frame),) = bench.put(0, tagged(A, IPS[0], packet))  # the sum comes to the member
    assert (port, frame[:6]) == (0, A)


@pytest.mark.parametrize("spoof", SPOOFS.values(), ids=SPOOFS)
def test_all_that_is_a_members_right_at_its_own_port(spoof: object) -> None:
    bench, shape = joined()
    (packet,) = data(shape, 0, np.ones(4))
    row = spoof(packet)  # type: ignore[operator]
    own = slow.SWITCH_IP in (row[24 + 12 : 24 + 16], row[24 + 14 : 24 + 18])
    bench.put(0, row)
    assert ("spoofed" in bench.drops()) == own  # but the switch's address is nobody's


def test_others_are_left_alone() -> None:
    bench, _ = joined()
    for port, mac, ip in ((1, B, IPS[1]), (2, C, IPS[2])):
        bench.put(port, plain(slow.MACS[3], mac), between(slow.MACS[3], mac, ip))
        bench.put(port, slow.VNET + arp(ARP_REQUEST, mac, ip, bytes(6), IPS[0]))
        bench.put(port, slow.VNET + arp(ARP_REQUEST, mac, bytes(4), bytes(6), ip))  # a probe
    assert bench.drops() == {}


def test_spoofed_frames_among_others_of_one_station() -> None:
    """A router sends for many: those of the member are dropped, the others go on."""
    bench, _ = joined()
    rows = [between(C, B, ip) for ip in (IPS[1], IPS[0], IPS[3], IPS[0])]
    bench.put(2, plain(B, C))
    assert bench.put(1, *rows) == [(2, rows[0][10:]), (2, rows[2][10:])]
    assert bench.drops() == {"spoofed": 2}


def test_what_lies_beyond_a_short_frame_is_no_address() -> None:
    bench, _ = joined()
    row = between(C, B, IPS[0])
    table = np.zeros((2, len(row)), np.uint8)
    table[:] = np.frombuffer(row, np.uint8)
    table[1, 36] ^= 1
    frames = Frames(1, table[:, :52], table[:, 52:], [24 + 8, 24 + 8])
    assert sum(len(step) for step in bench.chassis.receive(frames, 0.0)) > 0
    assert "spoofed" not in bench.drops()


def test_a_super_frame_counts_its_packets() -> None:
    bench, shape = joined(0)
    payload = b"".join(data(shape, 0, np.ones(4)) * 3)
    frame = slow.partial(tagged(B, IPS[0], payload)[10:], 17, 34, 6)
    size = len(payload) // 3
    bench.put(1, slow.super_vnet(5, 42, size, 34, 6) + frame)
    assert bench.drops() == {"spoofed": 3}


def test_a_member_that_moved_is_back_after_its_lease() -> None:
    bench, shape = joined()
    join = Control(Action.JOIN, 7, 2, Join.for_shape(shape, MemberType.WORKER)).build()
    row = tagged(A, IPS[0], join, CONTROL)
    bench.now = 1.0
    assert bench.put(2, row) == []
    assert bench.put(2, plain(B, A)) == []
    for bench.now in np.arange(LEASE - 1, LEASE + 3, 0.5):
        deadline = bench.chassis.deadline()
        if deadline is not None and deadline <= bench.now:
            for sends in bench.chassis.handle_timer(bench.now):
                bench.out(sends)
        bench.put(2, plain(B, A))
    assert bench.drops() == {"spoofed": 2 + 2}
    ((port, frame),) = bench.put(2, row)
    assert (port, frame[:6]) == (2, A)
    assert bench.chassis.bridge.where(A, bench.now) == 2
    bench.put(0, plain(B, A))
    assert bench.drops() == {"spoofed": 5}  # and now it is behind this one


def test_a_member_that_left_may_join_elsewhere_at_once() -> None:
    bench, shape = joined()
    leave = Control(Action.LEAVE, 7, 9).build()
    assert bench.put(1, tagged(A, IPS[0], leave, CONTROL)) == []  # not by others
    bench.put(0, tagged(A, IPS[0], leave, CONTROL))
    join = Control(Action.JOIN, 7, 2, Join.for_shape(shape, MemberType.WORKER)).build()
    ((port, _),) = bench.put(2, tagged(A, IPS[0], join, CONTROL))
    assert port == 2
    assert bench.drops() == {"spoofed": 1}


def test_a_new_mac_at_the_members_port_is_its_own_from_then_on() -> None:
    bench, _ = joined()
    new = b"\2" * 6
    bench.put(1, plain(C, new))
    bench.put(0, slow.VNET + arp(ARP_REQUEST, new, IPS[0], bytes(6), slow.SWITCH_IP))
    assert bench.put(1, plain(C, new)) == []
    assert bench.drops() == {"spoofed": 1}
    assert bench.put(1, plain(C, A)) != []


def test_what_was_sent_with_a_members_new_mac_before_is_judged_anew() -> None:
    """Also a flow to the switch itself, which is judged only once."""
    bench, shape = joined()
    (packet,) = data(shape, 0, np.ones(4))
    new = b"\2" * 6
    row = tagged(new, IPS[1], packet)
    bench.put(1, row)
    assert bench.drops() == {"stranger": 1}
    bench.put(0, slow.VNET + arp(ARP_REQUEST, new, IPS[0], bytes(6), slow.SWITCH_IP))
    assert bench.put(1, row) == []
    assert bench.drops() == {"stranger": 1, "spoofed": 1}
    assert bench.chassis.bridge.where(new, bench.now) == 0


def test_a_corrupted_frame_of_a_member_changes_nothing() -> None:
    bench, shape = joined()
    (packet,) = data(shape, 0, np.ones(4))
    row = bytearray(tagged(b"\2" * 6, IPS[0], packet))
    row[30] ^= 1  # the IP header does not add up
    bench.put(0, bytes(row))
    assert bench.drops() == {"bad_checksum": 1}
    assert bench.put(1, plain(C, A)) == []


def test_the_switch_above_is_behind_its_port() -> None:
    parent = Address("10.26.0.2", 26963, 1)
    chassis = Chassis(
        Switch(parent=parent), slow.SWITCH_IP, slow.SWITCH_MAC, [Jack(), Jack(), Jack()]
    )
    answer = arp(ARP_REPLY, B, IPS[1], slow.SWITCH_MAC, slow.SWITCH_IP)
    for _ in chassis.receive(Frames.single(1, answer), 0.0):
        pass
    for row in (plain(C, B), tagged(C, IPS[1], bytes(8)), between(A, C, IPS[1])):
        assert not any(chassis.receive(Frames.of(2, [row]), 0.0))
    assert chassis.counters.drops() == {"spoofed": 3}


def test_two_members_behind_one_port_may_share_a_mac() -> None:
    """Those behind a router, say."""
    bench = Bench()
    for ip in (IPS[0], IPS[1]):
        join = Control(Action.JOIN, 7, 1, Join.for_shape(Shape.of(4), MemberType.WORKER)).build()
        assert bench.put(0, tagged(A, ip, join, CONTROL))
    assert bench.put(1, tagged(B, IPS[1], bytes(8))) == []
    leave = Control(Action.LEAVE, 7, 9).build()
    bench.put(0, tagged(A, IPS[1], leave, CONTROL))
    assert bench.put(1, plain(C, A)) == []  # still the other's
    assert bench.drops() == {"spoofed": 2}


def test_a_known_flow_is_judged_once() -> None:
    """But again when members have come or gone."""
    bench, shape = joined()
    judged = []
    guard = bench.chassis.guard
    true_verdict = guard.is_spoofed

    def count(mac: bytes, ip: bytes, ingress: int) -> bool:
        judged.append(ip)
        return true_verdict(mac, ip, ingress)

    guard.is_spoofed = count  # type: ignore[method-assign]
    for round_ in range(50):
        (packet,) = data(shape, round_, np.ones(4))
        bench.put(0, tagged(A, IPS[0], packet))
        bench.put(1, tagged(B, IPS[0], packet))
    assert judged == [IPS[0], IPS[0]]
    assert bench.drops() == {"spoofed": 50}
    join = Control(Action.JOIN, 8, 1, Join(MemberType.CONTROLLER)).build()
    bench.put(2, tagged(C, IPS[2], join, CONTROL))
    bench.put(0, tagged(A, IPS[0], packet))
    assert judged == [IPS[0], IPS[0], IPS[2], IPS[0]]
