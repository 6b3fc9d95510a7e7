"""Frames that claim a member's address behind another port, at a chassis as a pure object."""

from __future__ import annotations

import ipaddress
import struct

import numpy as np
import pytest

from iswitch.core.format.wire import Action, Control, Shape
from iswitch.ethernet.claims import MOST
from iswitch.ethernet.frame import ARP_REPLY, ARP_REQUEST, BROADCAST, Frames
from tests.ethernet.test_forwarding import A, B, Bench, C, data, plain
from tests.support import frames as slow

pytestmark = pytest.mark.unit

DATA, CONTROL = 0x1C, 0x0C
IPS = slow.IPS


def joined(*hosts: int) -> tuple[Bench, Shape]:
    bench = Bench()
    return bench, bench.join(*(hosts or (0,)), numel=4)


def tagged(mac: bytes, ip: bytes, payload: bytes, tos: int = DATA) -> bytes:
    """A datagram for the switch from any MAC and address."""
    datagram = slow.udp(ip, slow.SWITCH_IP, (5000, 26963), payload)
    packet = slow.ip((ip, slow.SWITCH_IP), 17, datagram, tos)
    return slow.VNET + slow.ethernet(slow.SWITCH_MAC, mac, packet)


def between(to: bytes, mac: bytes, ip: bytes, options: bytes = b"") -> bytes:
    """An ordinary IPv4 frame."""
    packet = slow.ip((ip, IPS[3]), 17, slow.udp(ip, IPS[3], (1, 2), b"x" * 30), 0, options)
    return slow.VNET + slow.ethernet(to, mac, packet)


def said(operation: int, to: bytes, mac: bytes, sender: bytes, ip: bytes, target: bytes) -> bytes:
    """An ARP packet whose sender need not be the frame's source."""
    body = struct.pack(">HHBBH", 1, 0x0800, 6, 4, operation) + sender + ip + bytes(6) + target
    return slow.VNET + slow.ethernet(to, mac, body.ljust(46, b"\0"), 0x0806)


SPOOFS = {
    "data": lambda payload: tagged(B, IPS[0], payload),
    "data with its MAC": lambda payload: tagged(A, IPS[0], payload),
    "data of another IP with its MAC": lambda payload: tagged(A, IPS[1], payload),
    "control": lambda _: tagged(B, IPS[0], Control(Action.LEAVE, 7, 9).build(), CONTROL),
    "ordinary with its MAC": lambda _: plain(C, A),
    "ordinary with its MAC, to all": lambda _: plain(BROADCAST, A),
    "ordinary with its IP": lambda _: between(C, B, IPS[0]),
    "ordinary with its IP, and options": lambda _: between(C, B, IPS[0], bytes(4)),
    "ping of the switch": lambda _: between(slow.SWITCH_MAC, B, IPS[0]),
    "ARP: its IP is here": lambda _: said(ARP_REPLY, C, B, B, IPS[0], IPS[2]),
    "ARP: its IP is here, to all": lambda _: said(ARP_REQUEST, BROADCAST, B, B, IPS[0], IPS[2]),
    "ARP for the switch: its IP is here": lambda _: said(
        ARP_REPLY, slow.SWITCH_MAC, B, B, IPS[0], slow.SWITCH_IP
    ),
    "ARP: its MAC is another's": lambda _: said(ARP_REPLY, C, B, A, IPS[1], IPS[2]),
    "ARP from its MAC": lambda _: said(ARP_REPLY, C, A, B, IPS[1], IPS[2]),
    "ARP: the switch is here": lambda _: said(ARP_REPLY, C, B, B, slow.SWITCH_IP, IPS[2]),
    "ordinary with the switch's IP": lambda _: between(C, B, slow.SWITCH_IP),
}


FLAGS = 0x60000000  # of an advertisement: asked for, and to go before what was known


def lladdr(mac: bytes, kind: int = 2) -> bytes:
    """The option of neighbour discovery that names a MAC."""
    return bytes([kind, 1]) + mac


def address(mac: bytes, prefix: str = "fe80::") -> bytes:
    """The IPv6 address that a host with this MAC gives itself."""
    own = bytes([mac[0] ^ 2, *mac[1:3], 0xFF, 0xFE, *mac[3:]])
    return ipaddress.IPv6Address(prefix).packed[:8] + own


ALL, NONE = ipaddress.IPv6Address("ff02::1").packed, bytes(16)
HERE, THERE = (ipaddress.IPv6Address(name).packed for name in ("fe80::7", "fe80::8"))


def discovered(mac: bytes, source: bytes, kind: int, rest: bytes, *extensions: int) -> bytes:
    """Neighbour discovery from a station to all."""
    message = bytes([kind, 0, 0, 0]) + rest
    packet = slow.discovery(source, ALL, message, *extensions)
    return slow.VNET + slow.ethernet(bytes.fromhex("333300000001"), mac, packet, 0x86DD)


def advertised(target: bytes, mac: bytes, source: bytes = HERE, *extensions: int) -> bytes:
    """B says which MAC an address has."""
    rest = struct.pack(">I", FLAGS) + target + lladdr(mac)
    return discovered(B, source, 136, rest, *extensions)


def rows6(mac: bytes) -> dict[str, bytes]:
    """What nobody but the owner of a MAC may say in IPv6; B says it."""
    own = address(mac)
    return {
        "advertised: its MAC": advertised(HERE, mac),
        "advertised: its address is here": advertised(own, B),
        "the same, of its global address": advertised(address(mac, "2001:db8::"), B),
        "advertised without a MAC": discovered(B, HERE, 136, bytes(4) + own),
        "behind options": advertised(own, B, HERE, 60),
        "behind all options": advertised(own, B, HERE, 0, 60, 43, 60, 51, 60, 44, 60),
        "solicited from its MAC": discovered(B, HERE, 135, bytes(4) + THERE + lladdr(mac, 1)),
        "a second option": discovered(
            B, HERE, 135, bytes(4) + THERE + bytes([14, 1]) + bytes(6) + lladdr(mac, 1)
        ),
        "solicited by its address": discovered(B, own, 135, bytes(4) + THERE + lladdr(B, 1)),
        "wanted: its address": discovered(B, NONE, 135, bytes(4) + own),
        "routed by its MAC": discovered(B, HERE, 134, bytes(12) + lladdr(mac, 1)),
        "routers asked from its MAC": discovered(B, HERE, 133, bytes(4) + lladdr(mac, 1)),
        "redirected to its MAC": discovered(B, HERE, 137, bytes(4) + THERE + HERE + lladdr(mac)),
        "redirected from it": discovered(B, HERE, 137, bytes(4) + THERE + own + lladdr(B)),
        "redirected to it": discovered(B, HERE, 137, bytes(4) + own + THERE + lladdr(B)),
        "anything by its address": slow.VNET
        + slow.ethernet(C, B, slow.ip6(own, THERE, 17, bytes(20)), 0x86DD),
    }


@pytest.mark.parametrize("mac", [A, slow.SWITCH_MAC], ids=["a member", "the switch"])
@pytest.mark.parametrize("wrap", [(), (slow.tag(0xE000), slow.tag())], ids=["plain", "tagged"])
@pytest.mark.parametrize("what", rows6(A))
def test_neighbour_discovery_of_others(mac: bytes, wrap: tuple[bytes, ...], what: str) -> None:
    """Right at its own port and of strangers; spoofed elsewhere, in the midst of others, too."""
    bench, _ = joined()
    row, honest = (slow.wrapped(rows6(one)[what], *wrap) for one in (mac, C))
    assert bench.put(1, row) == []
    assert bench.drops() == {"spoofed": 1}
    assert len(bench.put(1, honest, row, honest)) == 4
    assert bench.drops() == {"spoofed": 2}
    bench.put(0, row)
    assert bench.drops() == {"spoofed": 2 if mac == A else 3}


def test_discovery_that_claims_nothing_of_others() -> None:
    """Asking for a member, a fragment, what is cut short, other ICMPv6, padding."""
    bench, _ = joined()
    own = address(A)
    whole = advertised(own, A)
    fragment = bytearray(advertised(own, B, HERE, 44))
    fragment[24 + 40 + 3] = 8  # not the first
    echo = discovered(B, HERE, 128, own + lladdr(A))
    padded = discovered(B, HERE, 135, bytes(4) + THERE) + lladdr(A)  # beyond the packet
    endless = discovered(B, HERE, 135, bytes(4) + THERE + bytes(8) + lladdr(A))  # no host takes it
    asked = discovered(B, HERE, 135, bytes(4) + own + lladdr(B, 1))
    rows = [asked, bytes(fragment), echo, padded, endless]
    rows += [whole[:size] for size in range(24 + 40, 24 + 40 + 24)]
    assert len(bench.put(1, *rows)) == 2 * len(rows)
    assert bench.drops() == {}


def test_more_extension_headers_than_are_looked_behind() -> None:
    bench, _ = joined()
    assert bench.put(1, advertised(HERE, B, HERE, *[60] * (MOST + 1))) == []
    assert bench.drops() == {"spoofed": 1}
    assert bench.put(1, advertised(HERE, B, HERE, *[60] * MOST)) != []


TAG, SERVICE = slow.tag(), slow.tag(kind=0x88A8)
WRAPS = {  # the first ten a Linux host takes; those with numbers by its VLAN devices
    "priority": (TAG,),
    "priority 7": (slow.tag(0xE000),),
    "priority, drop": (slow.tag(0xF000),),
    "service": (SERVICE,),
    "two": (TAG, TAG),
    "three": (TAG, TAG, TAG),
    "mixed": (SERVICE, slow.tag(0x2000)),
    "mixed, the other way": (slow.tag(0x2000), SERVICE),
    "the most": (TAG,) * MOST,
    "VLAN 5": (slow.tag(5),),
    "VLAN 5 in none": (TAG, slow.tag(5)),
    "VLAN 5 in service 7": (slow.tag(7, 0x88A8), slow.tag(5)),
    "9100": (slow.tag(kind=0x9100),),
    "SNAP": (slow.SNAP,),
    "SNAP of a bridge": (slow.SNAP_BRIDGED,),
    "SNAP in a tag": (TAG, slow.SNAP),
    "a tag in SNAP": (slow.SNAP, TAG),
    "the most of SNAP": (slow.SNAP,) * MOST,
}


@pytest.mark.parametrize("wraps", WRAPS.values(), ids=WRAPS)
def test_wrapped_frames_of_nobody_else_pass(wraps: tuple[bytes, ...]) -> None:
    bench, _ = joined()
    for row in (between(C, B, IPS[1]), said(ARP_REQUEST, BROADCAST, B, B, IPS[1], IPS[0])):
        assert len(bench.put(1, slow.wrapped(row, *wraps))) == 2
    assert bench.drops() == {}


@pytest.mark.parametrize("spoof", SPOOFS.values(), ids=SPOOFS)
@pytest.mark.parametrize("wraps", WRAPS.values(), ids=WRAPS)
def test_wrapping_hides_nothing(wraps: tuple[bytes, ...], spoof: object) -> None:
    """Nor does it among others that are let through."""
    bench, shape = joined()
    (packet,) = data(shape, 0, np.ones(4))
    row = slow.wrapped(spoof(packet), *wraps)  # type: ignore[operator]
    assert bench.put(1, row) == []
    assert bench.drops() == {"spoofed": 1}
    honest = slow.wrapped(between(C, B, IPS[1]), *wraps)
    assert len(bench.put(1, honest, row, honest)) == 4
    assert bench.drops() == {"spoofed": 2}
    assert bench.chassis.bridge.where(A, bench.now) == 0


def test_what_lies_too_deep_passes_nowhere() -> None:
    """Whatever it is: nobody can say what it claims."""
    bench = Bench()
    honest = between(C, B, IPS[1])
    for depth in (MOST + 1, 20, 150):
        for wrap in (TAG, SERVICE, slow.SNAP):
            assert bench.put(1, slow.wrapped(honest, *[wrap] * depth)) == []
    assert bench.drops() == {"spoofed": 9}


def test_wrapped_frames_that_are_cut_short_claim_nothing() -> None:
    """Whatever lies beyond their end, in memory that had another frame."""
    bench, _ = joined()
    row = slow.wrapped(between(C, B, IPS[0]), TAG, SERVICE)
    table = np.frombuffer(row, np.uint8).reshape(1, -1)
    for length in range(24, 24 + 8 + 20):
        frames = Frames(1, table[:, :52], table[:, 52:], [length])
        assert sum(len(step) for step in bench.chassis.receive(frames, 0.0)) == 2
    assert bench.drops() == {}
    frames = Frames(1, table[:, :52], table[:, 52:], [24 + 8 + 20])
    assert not any(bench.chassis.receive(frames, 0.0))
    assert bench.drops() == {"spoofed": 1}
