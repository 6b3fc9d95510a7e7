"""Ethernet, ARP, IPv4, ICMP and UDP headers, checksums, and the header that goes before a frame.

In a switch every frame is preceded by its virtio_net_hdr (linux/virtio_net.h; 10 bytes, little
endian), as AF_PACKET sockets with PACKET_VNET_HDR deliver and take it. It says two things:

- `gso_type`, `gso_size`: this is a super-frame, which stands for several on the wire, each with
  `gso_size` bytes of the payload (the last may have less) and a copy of the headers.
- `flags`: with NEEDS_CSUM the transport checksum is unfinished. The field at `csum_start +
  csum_offset` holds the sum of the pseudo-header; whoever puts the frame on a wire adds the rest,
  from `csum_start` to the end.

Offsets here count from the virtio_net_hdr, unless they are fields of it. Checksums are those of
RFC 1071: sums of 16-bit words modulo 65535, which is why `% 65535` finds them.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from iswitch.core.format.packets import Rows

Sums = npt.NDArray[np.uint64]

VNET = struct.Struct("<BBHHHH")  # flags, gso_type, hdr_len, gso_size, csum_start, csum_offset
NEEDS_CSUM, DATA_VALID = 1, 2
GSO_NONE, GSO_TCPV4, GSO_TCPV6, GSO_UDP_L4 = 0, 1, 4, 5
GSO_TYPE = 0x7F  # the bit above marks TCP with ECN

ETH = VNET.size
ETH_HEADER = 14
IP = ETH + ETH_HEADER
IP_HEADER = 20
UDP = IP + IP_HEADER
PAYLOAD = UDP + 8  # of UDP in IPv4 without options
HEAD = PAYLOAD  # where frames are parted when they are received
HEADERS = ETH_HEADER + IP_HEADER + 8

MAC_SIZE = 6
BROADCAST = b"\xff" * MAC_SIZE
ETHERTYPE_IP = b"\x08\x00"
ETHERTYPE_ARP = b"\x08\x06"
ETHERTYPE_IP6 = b"\x86\xdd"
VLAN_TAG = 4  # bytes that do not count against the MTU
VLAN_TYPES = (b"\x81\x00", b"\x88\xa8")
ICMP, TCP, UDP_PROTOCOL = 1, 6, 17
DONT_FRAGMENT = 0x4000
UDP_ZERO = 0xFFFF  # how UDP writes a checksum of zero
FRAGMENT = 0x3FFF  # more fragments follow, or an offset
TTL = 64

ARP = struct.Struct(">HHBBH6s4s6s4s")
ARP_IP = (1, 0x0800, 6, 4)  # Ethernet, IPv4, and the sizes of their addresses
ARP_REQUEST, ARP_REPLY = 1, 2
ECHO_REPLY, ECHO_REQUEST = 0, 8


class Frames(NamedTuple):
    """Frames that came in at one port together.

    `heads` is (n, HEAD), `bodies` is (n, any): virtio_net_hdr and frame i are the first
    `lengths[i]` bytes of the two rows together. What lies beyond means nothing. So the payloads
    of UDP datagrams lie in `bodies` without their headers, one after the other if they are equally
    long: super-frames of consecutive packets are one array of packets.
    """

    ingress: int
    heads: Rows
    bodies: Rows
    lengths: list[int]

    @classmethod
    def of(cls, ingress: int, rows: Sequence[bytes]) -> Frames:
        """Make frames of rows, each with its virtio_net_hdr."""
        lengths = [len(row) for row in rows]
        width = max(*lengths, HEAD)
        packed = np.frombuffer(b"".join(row.ljust(width, b"\0") for row in rows), np.uint8)
        table = packed.reshape(len(rows), width)
        return cls(ingress, table[:, :HEAD], table[:, HEAD:], lengths)

    @classmethod
    def single(cls, ingress: int, frame: bytes, vnet: bytes = bytes(ETH)) -> Frames:
        """Make one frame, by default a whole one with finished checksums."""
        return cls.of(ingress, [vnet + frame])

    def part(self, start: int, stop: int) -> Frames:
        """Give frames start..stop-1."""
        heads, bodies = self.heads[start:stop], self.bodies[start:stop]
        return Frames(self.ingress, heads, bodies, self.lengths[start:stop])

    def copy(self) -> Frames:
        """Copy the frames into memory of their own."""
        return self._replace(heads=self.heads.copy(), bodies=self.bodies.copy())

    def row(self, i: int) -> bytes:
        """Give one frame, with its virtio_net_hdr."""
        length = self.lengths[i]
        head: bytes = self.heads[i].tobytes()
        if length <= HEAD:
            return head[:length]
        body: bytes = self.bodies[i, : length - HEAD].tobytes()
        return head + body


class Transmission(NamedTuple):
    """Frames to send at one port: frame i is `heads[i]` and the first `lengths[i]` of `bodies[i]`.

    Without heads, the bodies are frames with their virtio_net_hdr. `counts[i]` says for how many
    frames on the wire it stands.
    """

    port: int
    heads: Rows | None
    bodies: Rows
    lengths: list[int]
    counts: list[int]

    @classmethod
    def single(cls, port: int, frame: bytes) -> Transmission:
        """Make a transmission of one whole frame with finished checksums."""
        body = np.frombuffer(bytes(ETH) + frame, np.uint8).reshape(1, -1)
        return cls(port, None, body, [body.size], [1])

    @classmethod
    def whole_frames(cls, port: int, frames: Rows) -> Transmission:
        """Make a transmission of whole frames of one size, with finished checksums."""
        n = len(frames)
        bodies = np.zeros((n, ETH + frames.shape[1]), np.uint8)
        bodies[:, ETH:] = frames
        return cls(port, None, bodies, [bodies.shape[1]] * n, [1] * n)

    def copy(self) -> Transmission:
        """Copy the frames into memory of their own."""
        heads = None if self.heads is None else self.heads.copy()
        return self._replace(heads=heads, bodies=self.bodies.copy())

    def whole(self) -> list[bytes]:
        """Put each frame together, with its virtio_net_hdr."""
        heads = [b""] * len(self.lengths) if self.heads is None else map(bytes, self.heads)
        parts = zip(heads, self.bodies, self.lengths, strict=True)
        return [head + body[:length].tobytes() for head, body, length in parts]


class RecurringFrames(list[Transmission]):
    """Frames that are sent from one place in memory again and again, with other payloads.

    It is the same object each time, and never changed: a port may keep `Notes` about it.
    """


def checksum(data: bytes) -> int:
    """Compute the Internet checksum of bytes whose checksum field is zero; 0 of sound ones."""
    number = int.from_bytes(data + bytes(len(data) % 2), "big")
    return 0xFFFF - (number % 0xFFFF or (0xFFFF if number else 0))


def sums(rows: Rows) -> Sums:
    """Sum the 16-bit words of each row in this machine's byte order, not yet folded.

    An odd last byte counts as if a zero followed. Words are taken two at a time: 2**16 counts as 1.
    """
    size = rows.shape[1]
    pairs = size & ~3
    if rows.strides[1] != 1:
        rows = np.ascontiguousarray(rows)
    total: Sums = rows[:, :pairs].view("<u4").sum(axis=1, dtype=np.uint64)
    if size & 2:
        total += rows[:, pairs : pairs + 2].view("<u2")[:, 0]
    if size & 1:
        total += rows[:, -1]
    return total


def fold(total: Sums, zero: int = 0) -> npt.NDArray[np.uint16]:
    """Make checksums, the complements, of sums of bytes that are not all zero.

    Of the two forms of zero it is 0x0000 (RFC 1624); in UDP, where that says "none", 0xFFFF.
    """
    folded = (0xFFFF - total % np.uint64(0xFFFF)).astype(np.uint16)
    folded[folded == 0xFFFF] = zero
    return folded


def ip_header(
    source: bytes, destination: bytes, protocol: int, payload: int, tos: int = 0, ttl: int = TTL
) -> bytes:
    """Make an IPv4 header, not to be fragmented (so it needs no identification, RFC 6864)."""
    start = struct.pack(">BBHHHBB", 0x45, tos, IP_HEADER + payload, 0, DONT_FRAGMENT, ttl, protocol)
    check = checksum(start + bytes(2) + source + destination)
    return start + check.to_bytes(2, "big") + source + destination


def pseudo_header(source: bytes, destination: bytes, protocol: int, length: int) -> bytes:
    """Make what the checksums of UDP and TCP over IPv4 cover in addition (RFC 768)."""
    return source + destination + struct.pack(">HH", protocol, length)


class Route(NamedTuple):
    """The contents of a UDP datagram's headers, without its length."""

    source_mac: bytes
    destination_mac: bytes
    source: bytes
    destination: bytes
    source_port: int
    destination_port: int
    tos: int

    def head(self, payload: int, size: int) -> Rows:
        """Make the headers of `payload` bytes in packets of `size`, their checksum unfinished."""
        length = 8 + payload
        gso = (GSO_UDP_L4, HEADERS, size) if payload > size else (GSO_NONE, 0, 0)
        pseudo = pseudo_header(self.source, self.destination, UDP_PROTOCOL, length)
        head = (
            VNET.pack(NEEDS_CSUM, *gso, UDP - ETH, 6)
            + self.destination_mac
            + self.source_mac
            + ETHERTYPE_IP
            + ip_header(self.source, self.destination, UDP_PROTOCOL, length, self.tos)
            + struct.pack(">HHH", self.source_port, self.destination_port, length)
            + (0xFFFF - checksum(pseudo)).to_bytes(2, "big")
        )
        return np.frombuffer(head, np.uint8).reshape(1, -1)

    def heads(self, size: int, total: Sums) -> Rows:
        """Make the headers of payloads of `size` bytes, of these sums, with checksums."""
        n = len(total)
        heads = np.repeat(self.head(size, size), n, axis=0)
        heads[:, :ETH] = 0
        heads[:, UDP + 6 : PAYLOAD].view("<u2")[:, 0] = fold(
            sums(heads[:1, UDP:PAYLOAD]) + total, UDP_ZERO
        )
        return heads


def arp(operation: int, sender: bytes, sender_ip: bytes, target: bytes, target_ip: bytes) -> bytes:
    """Make an ARP frame for Ethernet and IPv4 (RFC 826); a request goes to all stations."""
    to = BROADCAST if operation == ARP_REQUEST else target
    packed = ARP.pack(*ARP_IP, operation, sender, sender_ip, target, target_ip)
    return to + sender + ETHERTYPE_ARP + packed


class Arp(NamedTuple):
    """An ARP packet for Ethernet and IPv4."""

    operation: int
    sender: bytes
    sender_ip: bytes
    target: bytes
    target_ip: bytes


def parse_arp(frame: bytes) -> Arp | None:
    """Read a frame (without virtio_net_hdr); None: it is no ARP packet."""
    if len(frame) < ETH_HEADER + ARP.size or frame[12:14] != ETHERTYPE_ARP:
        return None
    *kind, operation, sender, sender_ip, target, target_ip = ARP.unpack_from(frame, ETH_HEADER)
    if tuple(kind) != ARP_IP:
        return None
    return Arp(operation, sender, sender_ip, target, target_ip)


class Ip(NamedTuple):
    """An IPv4 packet in a frame."""

    tos: int
    fragment: bool
    protocol: int
    source: bytes
    destination: bytes
    payload: bytes
    sound: bool  # the header's checksum is right


def parse_ip(frame: bytes) -> Ip | None:
    """Read a frame (without virtio_net_hdr); None: it is no whole IPv4 packet."""
    packet = frame[ETH_HEADER:]
    if frame[12:14] != ETHERTYPE_IP or len(packet) < IP_HEADER:
        return None
    header = (packet[0] & 0x0F) * 4
    length = int.from_bytes(packet[2:4], "big")
    if packet[0] >> 4 != 4 or header < IP_HEADER or not header <= length <= len(packet):
        return None
    return Ip(
        tos=packet[1],
        fragment=bool(int.from_bytes(packet[6:8], "big") & FRAGMENT),
        protocol=packet[9],
        source=packet[12:16],
        destination=packet[16:20],
        payload=packet[header:length],
        sound=checksum(packet[:header]) == 0,
    )


def echo_reply(frame: bytes, packet: Ip, mac: bytes) -> bytes | None:
    """Answer the ping that is in `frame`; None: it is no sound echo request."""
    message = packet.payload
    if packet.protocol != ICMP or packet.fragment or len(message) < 8 or checksum(message):
        return None
    if message[0] != ECHO_REQUEST:
        return None
    body = bytes([ECHO_REPLY, 0, 0, 0]) + message[4:]
    body = body[:2] + checksum(body).to_bytes(2, "big") + body[4:]
    header = ip_header(packet.destination, packet.source, ICMP, len(body), packet.tos)
    return frame[6:12] + mac + ETHERTYPE_IP + header + body
