"""Finds the addresses that a frame claims: behind tags, in IPv4, ARP, IPv6 and its discovery.

A Linux host accepts packets behind any stack of tags (IEEE 802.1Q, 802.1ad) whose VLAN ID is 0, and
behind the tags of its VLAN devices. Other hosts accept IP behind 802.2 SNAP (RFC 1042). So the
innermost header counts, whatever is around it.

The search ends after MOST tags or extension headers: a frame with more of them may hide a claim.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from .frame import ETH, ETHERTYPE_IP6, MAC_SIZE

MOST = 8  # tags around a packet, or extension headers in it, behind which the search goes on
LOOK = ETH + 14 + 8 * MOST + 40  # bytes of a row that hold all claims but neighbour discovery

TAGS = (b"\x81\x00", b"\x88\xa8", b"\x91\x00", b"\x92\x00", b"\x93\x00")
SNAP = (b"\xaa\xaa\x03\0\0\0", b"\xaa\xaa\x03\0\0\xf8")  # RFC 1042, and of bridges (802.1H)
LEAST_TYPE = 0x600  # below, it is the length of an 802.2 packet

IP6_SIZE = 40
IP6_NEXT = 6  # offset of the number of the next header
IP6_SOURCE = 8
INTERFACE_SIZE = 8  # bytes of an interface identifier: the second half of an address
ICMP6 = 58
HOP_BY_HOP, ROUTING, FRAGMENT_HEADER, AUTHENTICATION, DESTINATION, MOBILITY = 0, 43, 44, 51, 60, 135
EXTENSIONS = (HOP_BY_HOP, ROUTING, FRAGMENT_HEADER, AUTHENTICATION, DESTINATION, MOBILITY)
SOLICITATION, ADVERTISEMENT, REDIRECT = 135, 136, 137
BEFORE_OPTIONS = {133: 8, 134: 16, SOLICITATION: 24, ADVERTISEMENT: 24, REDIRECT: 40}  # RFC 4861
LINK_ADDRESSES = (1, 2)  # options: of the source, of the target


class Inner(NamedTuple):
    """The innermost header of a frame: its EtherType, and its place in the row."""

    kind: bytes
    at: int


def innermost(row: bytes) -> Inner | None:
    """Return the header behind all tags; None: there are too many tags."""
    at = ETH + 2 * MAC_SIZE
    for _ in range(MOST + 1):
        kind = row[at : at + 2]
        if kind in TAGS:
            at += 4
        elif row[at + 2 : at + 8] in SNAP and int.from_bytes(kind, "big") < LEAST_TYPE:
            at += 8
        else:
            return Inner(kind, at + 2)
    return None


def is_plain(kind: bytes) -> bool:
    """Return whether an EtherType stands for a packet that is neither wrapped nor IPv6."""
    return kind not in TAGS and kind != ETHERTYPE_IP6 and kind[0] >= LEAST_TYPE >> 8


def interface(mac: bytes) -> bytes:
    """Return the interface identifier of a MAC, 8 bytes (modified EUI-64, RFC 4291)."""
    return bytes([mac[0] ^ 2]) + mac[1:3] + b"\xff\xfe" + mac[3:]


class Discovered(NamedTuple):
    """The MACs and interface identifiers that a neighbour discovery message claims."""

    macs: list[bytes]
    interfaces: list[bytes]  # identifiers


def discovered(packet: bytes) -> Discovered | None:
    """Read the claims of an IPv6 packet; None: it has more than MOST extension headers.

    Fragments other than the first claim nothing: hosts ignore fragmented discovery (RFC 6980).
    """
    nothing = Discovered([], [])
    packet = packet[: IP6_SIZE + int.from_bytes(packet[4:6], "big")]
    kind, at = packet[IP6_NEXT] if len(packet) >= IP6_SIZE else ICMP6, IP6_SIZE
    for _ in range(MOST + 1):
        if kind == ICMP6:
            return _message(packet[IP6_SOURCE : IP6_SOURCE + 16], packet[at:])
        if kind not in EXTENSIONS or at + 8 > len(packet):
            return nothing
        if kind == FRAGMENT_HEADER and int.from_bytes(packet[at + 2 : at + 4], "big") >> 3:
            return nothing
        units = packet[at + 1]
        size = {FRAGMENT_HEADER: 8, AUTHENTICATION: 4 * units + 8}.get(kind, 8 * units + 8)
        kind, at = packet[at], at + size
    return None


def _message(source: bytes, message: bytes) -> Discovered:
    """Read the claims of an ICMPv6 message from this source."""
    kind = message[0] if message else 0
    start = BEFORE_OPTIONS.get(kind, len(message))
    claimed = {
        ADVERTISEMENT: (message[8:24],),
        REDIRECT: (message[8:24], message[24:40]),
        SOLICITATION: () if any(source) else (message[8:24],),  # its sender wants this address
    }.get(kind, ())
    interfaces = [address[-INTERFACE_SIZE:] for address in claimed if len(address) == 16]
    return Discovered(list(_link_addresses(message, start)), interfaces)


def _link_addresses(message: bytes, at: int) -> Iterator[bytes]:
    while at + 8 <= len(message) and message[at + 1]:
        if message[at] in LINK_ADDRESSES:
            yield message[at + 2 : at + 2 + MAC_SIZE]
        at += 8 * message[at + 1]
