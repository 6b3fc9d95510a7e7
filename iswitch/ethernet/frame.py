"""Ethernet, ARP, IPv4, ICMP and UDP headers, checksums, and the header that goes before a frame.

In a switch every frame is preceded by its virtio_net_hdr (linux/virtio_net.h; 10 bytes, little
endian), which AF_PACKET sockets with PACKET_VNET_HDR deliver and accept. It tells two things:

- `gso_type`, `gso_size`: a super-frame stands for several frames on the wire, each with `gso_size`
  bytes of the payload (the last may have less) and a copy of the headers.
- `flags`: with NEEDS_CSUM the transport checksum is unfinished. The field at `csum_start +
  csum_offset` holds the sum of the pseudo-header; the sender onto a wire adds the sum of the bytes
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
HEAD = PAYLOAD  # the byte at which received frames are split into head and body
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

    `heads` is (n, HEAD) bytes, `bodies` is (n, any) bytes. The virtio_net_hdr and frame i are the
    first `lengths[i]` bytes of the two rows put together; bytes beyond have no meaning. So `bodies`
    holds the payloads of UDP datagrams without their headers. Payloads of one length lie one after
    the other: super-frames of consecutive packets make one array of packets.
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
        """Return frames start..stop-1."""
        heads, bodies = self.heads[start:stop], self.bodies[start:stop]
        return Frames(self.ingress, heads, bodies, self.lengths[start:stop])

    def copy(self) -> Frames:
        """Copy the frames into memory of their own."""
        return self._replace(heads=self.heads.copy(), bodies=self.bodies.copy())

    def row(self, i: int) -> bytes:
        """Return the bytes of one frame, with its virtio_net_hdr."""
        length = self.lengths[i]
        head: bytes = self.heads[i].tobytes()
        if length <= HEAD:
            return head[:length]
        body: bytes = self.bodies[i, : length - HEAD].tobytes()
        return head + body


class Transmission(NamedTuple):
    """Frames to send at one port: frame i is `heads[i]` and the first `lengths[i]` of `bodies[i]`.

    Without heads, the bodies are frames with their virtio_net_hdr. Frame i stands for `counts[i]`
    frames on the wire.
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
        """Return each frame as bytes, with its virtio_net_hdr."""
        heads = [b""] * len(self.lengths) if self.heads is None else map(bytes, self.heads)
        parts = zip(heads, self.bodies, self.lengths, strict=True)
        return [head + body[:length].tobytes() for head, body, length in parts]


class RecurringFrames(list[Transmission]):
    """Frames that are sent again and again from one place in memory, with new payloads.

    The object is reused for each sending and never changed: a port may keep `Notes` about it.
    """


def checksum(data: bytes) -> int:
    """Return the Internet checksum of bytes: the field's value if the field is zero; 0 if sound."""
    number = int.from_bytes(data + bytes(len(data) % 2), "big")
    return 0xFFFF - (number % 0xFFFF or (0xFFFF if number else 0))


def sums(rows: Rows) -> Sums:
    """Return the unfolded sum of each row's 16-bit words, in this machine's byte order, (n,).

    An odd last byte counts as if a zero byte followed. Pairs of words are summed as 32-bit numbers,
    which is right modulo 65535.
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
    """Return the checksums (n,): the complements of sums. The summed bytes must not all be zero.

    A checksum of zero is written as `zero`: 0x0000 (RFC 1624), but 0xFFFF in UDP, where 0x0000
    means "no checksum".
    """
    folded = (0xFFFF - total % np.uint64(0xFFFF)).astype(np.uint16)
    folded[folded == 0xFFFF] = zero
    return folded


def ip_header(
    source: bytes, destination: bytes, protocol: int, payload: int, tos: int = 0, ttl: int = TTL
) -> bytes:
    """Make an IPv4 header that forbids fragments, and so needs no identification (RFC 6864).

    Args:
        source: IPv4 address, four bytes.
        destination: IPv4 address, four bytes.
        protocol: number of the transport protocol.
        payload: bytes after the header.
        tos: type of service.
        ttl: time to live.
    """
    start = struct.pack(">BBHHHBB", 0x45, tos, IP_HEADER + payload, 0, DONT_FRAGMENT, ttl, protocol)
    check = checksum(start + bytes(2) + source + destination)
    return start + check.to_bytes(2, "big") + source + destination


def pseudo_header(source: bytes, destination: bytes, protocol: int, length: int) -> bytes:
    """Make the pseudo-header, which checksums of UDP and TCP over IPv4 also cover (RFC 768)."""
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
        """Make the head (1, HEAD) of `payload` bytes in packets of `size`; checksum unfinished."""
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
        """Make the heads, (n, HEAD), of payloads of `size` bytes with finished checksums.

        Args:
            size: bytes of each payload.
            total: the unfolded `sums` of the payloads, (n,).
        """
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
    """Read an ARP packet from a frame (without virtio_net_hdr); None: it holds none."""
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
    """Read an IPv4 packet from a frame (without virtio_net_hdr); None: it holds no whole one."""
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
    """Make the answer to a ping; None: the packet is not a valid echo request.

    Args:
        frame: the Ethernet frame of the packet.
        packet: the IPv4 packet.
        mac: our MAC, the source of the answer.
    """
    message = packet.payload
    if packet.protocol != ICMP or packet.fragment or len(message) < 8 or checksum(message):
        return None
    if message[0] != ECHO_REQUEST:
        return None
    body = bytes([ECHO_REPLY, 0, 0, 0]) + message[4:]
    body = body[:2] + checksum(body).to_bytes(2, "big") + body[4:]
    header = ip_header(packet.destination, packet.source, ICMP, len(body), packet.tos)
    return frame[6:12] + mac + ETHERTYPE_IP + header + body
