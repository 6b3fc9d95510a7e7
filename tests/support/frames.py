"""Frames for tests, put together and taken apart byte by byte, without iswitch.ethernet.frame."""

from __future__ import annotations

import struct

VNET = bytes(10)
SWITCH_MAC, SWITCH_IP = bytes.fromhex("02690a1afffe"), bytes([10, 26, 255, 254])
MACS = [bytes([2, 0x69, 10, 26, 0, 1 + i]) for i in range(4)]
IPS = [bytes([10, 26, 0, 1 + i]) for i in range(4)]


def total(data: bytes) -> int:
    """The one's complement sum of 16-bit words, the slow way."""
    data += bytes(len(data) % 2)
    found = 0
    for (word,) in struct.iter_unpack(">H", data):
        found += word
        found = (found & 0xFFFF) + (found >> 16)
    return found


def ip(
    ends: tuple[bytes, bytes], protocol: int, payload: bytes, tos: int = 0,
    options: bytes = b"", fragment: int = 0x4000, identification: int = 7,
) -> bytes:  # fmt: skip
    size = 20 + len(options)
    head = struct.pack(
        ">BBHHHBBH4s4s", 0x40 | size // 4, tos, size + len(payload), identification, fragment,
        64, protocol, 0, *ends,
    )  # fmt: skip
    head += options
    return head[:10] + (0xFFFF - total(head)).to_bytes(2, "big") + head[12:] + payload


def udp(
    source: bytes, destination: bytes, ports: tuple[int, int], payload: bytes, *, check: bool = True
) -> bytes:
    head = struct.pack(">HHHH", *ports, 8 + len(payload), 0)
    pseudo = source + destination + struct.pack(">HH", 17, 8 + len(payload))
    found = 0xFFFF - total(pseudo + head + payload) or 0xFFFF
    return head[:6] + (found if check else 0).to_bytes(2, "big") + payload


def ethernet(destination: bytes, source: bytes, payload: bytes, kind: int = 0x0800) -> bytes:
    return destination + source + kind.to_bytes(2, "big") + payload


def tagged(
    host: int, payload: bytes, tos: int, *, ports: tuple[int, int] = (5000, 26963),
    check: bool = True, options: bytes = b"", fragment: int = 0x4000,
) -> bytes:  # fmt: skip
    """A datagram of host number `host` for the switch."""
    datagram = udp(IPS[host], SWITCH_IP, ports, payload, check=check)
    packet = ip((IPS[host], SWITCH_IP), 17, datagram, tos, options, fragment)
    return ethernet(SWITCH_MAC, MACS[host], packet)


def super_vnet(kind: int, header: int, size: int, start: int, offset: int) -> bytes:
    return struct.pack("<BBHHHH", 1, kind, header, size, start, offset)


def partial(frame: bytes, protocol: int, start: int, offset: int) -> bytes:
    """A frame whose transport checksum holds the pseudo-header's sum only."""
    length = len(frame) - start
    if frame[14] >> 4 == 4:
        pseudo = frame[26:34] + struct.pack(">HH", protocol, length)
    else:
        pseudo = frame[22:54] + struct.pack(">II", length, protocol)
    at = start + offset
    return frame[:at] + total(pseudo).to_bytes(2, "big") + frame[at + 2 :]


def checksums_right(frame: bytes) -> bool:
    """Of IPv4 and of UDP, TCP or ICMP in it; of UDP and TCP in IPv6."""
    if frame[12:14] == b"\x08\x00":
        size = (frame[14] & 15) * 4
        length = int.from_bytes(frame[16:18], "big")
        if total(frame[14 : 14 + size]) != 0xFFFF:
            return False
        protocol, data = frame[23], frame[14 + size : 14 + length]
        pseudo = frame[26:34] + struct.pack(">HH", protocol, len(data))
    elif frame[12:14] == b"\x86\xdd":
        protocol, data = frame[20], frame[54:]
        assert int.from_bytes(frame[18:20], "big") == len(data)
        pseudo = frame[22:54] + struct.pack(">II", len(data), protocol)
    else:
        return True
    if protocol == 17:
        assert int.from_bytes(data[4:6], "big") == len(data)
        return data[6:8] == b"\0\0" or total(pseudo + data) == 0xFFFF
    if protocol == 6:
        return total(pseudo + data) == 0xFFFF
    return total(data) == 0xFFFF


SNAP, SNAP_BRIDGED = b"\xaa\xaa\x03\0\0\0", b"\xaa\xaa\x03\0\0\xf8"  # with an EtherType behind


def tag(tci: int = 0, kind: int = 0x8100) -> bytes:
    """A VLAN tag: EtherType, priority and VLAN ID."""
    return struct.pack(">HH", kind, tci)


def wrapped(row: bytes, *wraps: bytes) -> bytes:
    """The same with tags or SNAP headers around the packet, the outermost first."""
    found = row[22:]
    for wrap in reversed(wraps):
        found = wrap + found
        if wrap in (SNAP, SNAP_BRIDGED):
            found = len(found).to_bytes(2, "big") + found
    return row[:22] + found


def ip6(source: bytes, destination: bytes, kind: int, payload: bytes, *extensions: int) -> bytes:
    """An IPv6 packet, with empty extension headers of these kinds before the payload."""
    kinds = [*extensions, kind]
    for i in range(len(extensions), 0, -1):
        options = bytes(6) if extensions[i - 1] == 44 else bytes([1, 4, 0, 0, 0, 0])
        payload = bytes([kinds[i], 0]) + options + payload
    head = bytes([0x60, 0, 0, 0]) + len(payload).to_bytes(2, "big") + bytes([kinds[0], 255])
    return head + source + destination + payload


def discovery(source: bytes, destination: bytes, message: bytes, *extensions: int) -> bytes:
    """An IPv6 packet with an ICMPv6 message; `message` has no checksum yet."""
    pseudo = source + destination + struct.pack(">II", len(message), 58)
    check = (0xFFFF - total(pseudo + message)).to_bytes(2, "big")
    return ip6(source, destination, 58, message[:2] + check + message[4:], *extensions)
