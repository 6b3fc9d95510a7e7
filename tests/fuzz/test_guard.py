"""The guard of sources against its oracle, and both against frames that scapy has made."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from scapy.layers.inet import ICMP, IP, TCP, UDP
from scapy.layers.inet6 import (
    ICMPv6EchoRequest,
    ICMPv6ND_NA,
    ICMPv6ND_NS,
    ICMPv6ND_RA,
    ICMPv6ND_Redirect,
    ICMPv6ND_RS,
    ICMPv6NDOptDstLLAddr,
    ICMPv6NDOptPrefixInfo,
    ICMPv6NDOptSrcLLAddr,
    IPv6,
    IPv6ExtHdrDestOpt,
    IPv6ExtHdrFragment,
    IPv6ExtHdrHopByHop,
    IPv6ExtHdrRouting,
)
from scapy.layers.l2 import ARP, LLC, SNAP, Dot1Q, Ether
from scapy.packet import Packet, Raw

from iswitch.ethernet import claims as product
from iswitch.ethernet import guard
from tests.fuzz.claims import DEEPEST, HIDDEN, OWNERS, Claim, check, claims, eui64, is_spoofed
from tests.fuzz.profile import FUZZ
from tests.support import frames as slow

pytestmark = pytest.mark.unit

# Nearly all are a stranger's: of several lies one is enough to be dropped for.
macs = st.sampled_from((*[slow.MACS[2]] * 9, slow.MACS[0], slow.MACS[1], slow.SWITCH_MAC))
ips = st.sampled_from((*[slow.IPS[2]] * 8, slow.IPS[0], slow.IPS[1], slow.IPS[3], slow.SWITCH_IP))
depths = st.sampled_from((0, 0, 0, 1, 1, 2, 3, DEEPEST, DEEPEST, DEEPEST + 1))
ports = st.integers(0, 3)


def name(mac: bytes) -> str:
    return mac.hex(":")


def dotted(ip: bytes) -> str:
    return ".".join(map(str, ip))


def six(mac: bytes) -> str:
    own = eui64(mac).hex()
    return "fe80::" + ":".join(own[i : i + 4] for i in range(0, 16, 4))


Said = tuple[Packet, list[Claim]]
TYPES = {ARP: 0x0806, IP: 0x0800, IPv6: 0x86DD}
TAGS = (0x8100, 0x88A8, 0x9100)
NAMED: dict[Any, list[str]] = {
    ICMPv6ND_NS: ["tgt"],
    ICMPv6ND_NA: ["tgt"],
    ICMPv6ND_Redirect: ["tgt", "dst"],
}


@st.composite
def arp(draw: st.DrawFn) -> Said:
    mac, ip, operation = draw(macs), draw(ips), draw(st.integers(1, 9))
    whose, where = name(draw(macs)), dotted(draw(ips))
    packet = ARP(op=operation, hwsrc=name(mac), psrc=dotted(ip), hwdst=whose, pdst=where)
    return packet, [("mac", mac), ("ip", ip)]


@st.composite
def ipv4(draw: st.DrawFn) -> Said:
    ip = draw(ips)
    options = draw(st.sampled_from(([], [b"\x94\4\0\0"])))
    frag = draw(st.sampled_from((0, 0, 7)))
    packet = IP(src=dotted(ip), dst=dotted(draw(ips)), options=options, frag=frag)
    inner = draw(st.sampled_from((UDP(sport=26963, dport=40000) / Raw(b"x" * 20), TCP(), ICMP())))
    return packet / inner, [("ip", ip)]


@st.composite
def ipv6(draw: st.DrawFn) -> Said:
    """With neighbour discovery, or anything else, behind some extension headers."""
    source = draw(st.none() | macs)
    own = bytes(8) if source is None else eui64(source)
    said: list[Claim] = [("interface", own)]
    packet: Packet = IPv6(src="::" if source is None else six(source), dst="ff02::1")
    empty = (IPv6ExtHdrDestOpt, IPv6ExtHdrHopByHop, IPv6ExtHdrRouting, IPv6ExtHdrFragment)
    depth = draw(depths)
    for _ in range(depth):
        packet /= draw(st.sampled_from(empty))()
    kind = draw(st.sampled_from((*NAMED, ICMPv6ND_RS, ICMPv6ND_RA, ICMPv6EchoRequest, UDP)))
    if kind in (ICMPv6EchoRequest, UDP):
        packet = packet / kind() / Raw(slow.MACS[0] * 9)
        return packet, [HIDDEN] if depth > DEEPEST else said
    named = [draw(macs) for _ in NAMED.get(kind, ())]
    packet /= kind(**dict(zip(NAMED.get(kind, ()), map(six, named), strict=True)))
    if kind is not ICMPv6ND_NS or source is None:
        said += [("interface", eui64(mac)) for mac in named]
    options = (ICMPv6NDOptSrcLLAddr, ICMPv6NDOptDstLLAddr, ICMPv6NDOptPrefixInfo)
    for option in draw(st.lists(st.sampled_from(options), max_size=3)):
        if option is ICMPv6NDOptPrefixInfo:
            packet /= option()
            continue
        mac = draw(macs)
        packet /= option(lladdr=name(mac))
        said.append(("mac", mac))
    return packet, [HIDDEN] if depth > DEEPEST else said


@st.composite
def framed(draw: st.DrawFn) -> tuple[bytes, list[Claim]]:
    """A frame, and what it claims."""
    packet, said = draw(arp() | ipv4() | ipv6() | ipv6() | ipv6())
    source = draw(macs)
    wraps: list[Any] = [draw(st.sampled_from((*TAGS, SNAP))) for _ in range(draw(depths))]
    body = bytes(packet)
    kind = TYPES[type(packet)]
    for wrap in reversed(wraps):
        if wrap is SNAP:
            body = bytes(LLC(dsap=0xAA, ssap=0xAA, ctrl=3) / SNAP(code=kind) / Raw(body))
            kind = len(body)
        else:
            vlan, priority = draw(st.sampled_from((0, 5, 4095))), draw(st.integers(0, 7))
            body = bytes(Dot1Q(vlan=vlan, prio=priority, type=kind) / Raw(body))
            kind = wrap
    frame = bytes(Ether(src=name(source), dst=name(slow.MACS[3]), type=kind) / Raw(body))
    if len(wraps) > DEEPEST:
        said = [HIDDEN]
    return frame, [("mac", source), *said]


Made = list[tuple[bytes, list[Claim]]]
several = st.lists(framed(), min_size=1, max_size=4)
ONCE = settings(FUZZ, phases=[Phase.generate], max_examples=500, database=None)


def judged(port: int, made: Made) -> None:
    """Guard and oracle judge frames by what was put into them."""
    for frame, said in made:
        assert is_spoofed(frame, port) == any(port not in OWNERS.get(one, {port}) for one in said)
        if HIDDEN not in said:
            assert sorted(claims(frame)) == sorted(said)
    check(port, [frame for frame, _ in made])


@FUZZ
@given(ports, several)
def test_frames_of_scapy_are_judged_by_what_was_put_into_them(port: int, made: Made) -> None:
    judged(port, made)


@FUZZ
@given(ports, several, st.data())
def test_damaged_frames_are_judged_as_the_oracle_does(
    port: int, made: Made, data: st.DataObject
) -> None:
    """Cut short, with bytes changed, or copies of one of which a single byte is different."""
    rows = []
    for frame, _ in made:
        row = bytearray(frame)
        for _ in range(data.draw(st.integers(0, 2))):
            row[data.draw(st.integers(12, len(row) - 1))] = data.draw(st.integers(0, 255))
        rows.append(bytes(row[: data.draw(st.integers(14, len(row)))]))
    check(port, [*rows, *data.draw(st.permutations(rows))])


BROKEN: dict[str, tuple[Any, str, Any]] = {
    "one layer more": (product, "MOST", DEEPEST + 1),
    "one layer less": (product, "MOST", DEEPEST - 1),
    "no service tags": (product, "TAGS", (b"\x81\0", b"\x91\0")),
    "no SNAP": (product, "SNAP", ()),
    "only one option": (product, "LINK_ADDRESSES", (1,)),
    "no destination options": (product, "EXTENSIONS", (0, 43, 44, 51)),
    "all options at one place": (product, "BEFORE_OPTIONS", dict.fromkeys(range(133, 138), 24)),
    "no interfaces": (guard, "IP6_SOURCE", 0),
    "no discovery behind UDP": (guard, "UNDISCOVERING", b"\x06\x11\x00"),
    "nothing beyond the head": (guard, "LOOK", 52),
}


@pytest.mark.slow
@pytest.mark.parametrize("broken", BROKEN.values(), ids=BROKEN)
def test_a_broken_guard_is_caught(
    broken: tuple[Any, str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(*broken)
    with pytest.raises(AssertionError):
        ONCE(given(ports, several)(judged))()
