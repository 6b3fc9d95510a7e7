"""Sorts frames that came together into groups of like frames, by comparing neighbours.

The heads of frames are compared: the virtio_net_hdr and the headers of a UDP datagram. Of frames
that are not for the switch itself, only the Ethernet headers are compared.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from iswitch.core.format.arbiter import CONTROL, TAGGED, Traffic, classify
from iswitch.core.format.lines import line_at
from iswitch.core.format.packets import Address, Rows, burst_ranges

from .frame import (
    ETH,
    ETHERTYPE_IP,
    FRAGMENT,
    GSO_NONE,
    GSO_UDP_L4,
    HEAD,
    IP,
    IP_HEADER,
    MAC_SIZE,
    UDP,
    UDP_PROTOCOL,
    Frames,
    checksum,
)

_ETHERNET = slice(ETH, IP)
# Without identification and checksums, which differ from packet to packet.
FIXED = (slice(0, IP + 4), slice(IP + 6, IP + 10), slice(IP + 12, UDP + 6))
FIXED_BUT_LENGTHS = (slice(0, IP + 2), slice(IP + 6, IP + 10), slice(IP + 12, UDP + 4))


def _mask(*parts: slice) -> npt.NDArray[np.uint32]:
    mask = np.zeros(HEAD, np.uint8)
    for part in parts:
        mask[part] = 0xFF
    return mask.view(np.uint32)


DATAGRAM = _mask(*FIXED)
_SUPER = _mask(*FIXED_BUT_LENGTHS)
_STATION = _mask(_ETHERNET)
_FLOW = _mask(slice(ETH, IP + 2), slice(IP + 9, IP + 10), slice(IP + 12, UDP + 4))


class Lengths(NamedTuple):
    """The lengths in a datagram's headers, and the fields of its virtio_net_hdr."""

    flags: int
    gso_type: int
    gso_size: int
    packet: int  # bytes of the IP packet
    datagram: int  # bytes of the UDP datagram


_LENGTHS = struct.Struct(f"<BB2xH{IP - 6 + 2}xH{UDP - IP}xH")


def groups(frames: Frames, mac: npt.NDArray[np.uint8]) -> Iterator[Frames]:
    """Split frames into groups: datagrams to `mac` of one flow and length, or of one MAC pair.

    The last of several super-datagrams may be shorter. A frame too short for a head makes a group
    of its own, since its head has no meaning.
    """
    n = len(frames.lengths)
    if n == 1 or is_uniform(frames, mac):
        yield frames
        return
    words = np.ascontiguousarray(frames.heads).view(np.uint32)
    own = (frames.heads[:, ETH : ETH + MAC_SIZE] == mac).all(axis=1)
    supers = own & (frames.heads[:, 1] == GSO_UDP_L4)
    masks = np.where(own[:, None], np.where(supers[:, None], _SUPER, DATAGRAM), _STATION)
    words = words & masks
    lengths = np.asarray(frames.lengths)
    differs = (words[1:] != words[:-1]).any(axis=1)
    for field in (IP + 2, UDP + 4):  # the lengths in the headers must change with the real ones
        said = np.ascontiguousarray(frames.heads[:, field : field + 2]).view(">u2")[:, 0]
        differs |= supers[1:] & (np.diff(lengths - said) != 0)
    short = lengths < HEAD
    differs |= short[1:] | short[:-1]
    for start, stop in burst_ranges(np.where(own, lengths, 0), differs, supers):
        yield frames.part(start, stop)


def apart(frames: Frames) -> Iterator[Frames]:
    """Split frames so that their effects do not mix: by flow, and into single control packets.

    Callers use it to tell which frames cause which answers. For example, when a member's last
    contributions and its Leave come together, retransmissions caused by the former still go to a
    member.
    """
    heads = frames.heads
    ip = (heads[:, ETH + 12 : IP] == np.frombuffer(ETHERTYPE_IP, np.uint8)).all(axis=1)
    tagged, control = (ip & kinds[heads[:, IP + 1]] for kinds in (TAGGED, CONTROL))
    words = np.ascontiguousarray(heads).view(np.uint32) & _FLOW
    differs = (words[1:] != words[:-1]).any(axis=1) | control[1:] | control[:-1]
    cuts = np.flatnonzero(differs & (tagged[1:] | tagged[:-1])) + 1
    for start, stop in pairwise([0, *cuts.tolist(), len(frames.lengths)]):
        yield frames.part(start, stop)


def is_uniform(frames: Frames, mac: npt.NDArray[np.uint8]) -> bool:
    """Return whether all frames are one group; found with a few comparisons for most batches."""
    heads, lengths = frames.heads, frames.lengths
    n = len(lengths)
    first = heads[0].tobytes()
    if min(lengths) < HEAD or not same(heads, first, _ETHERNET):
        return False
    if first[ETH : ETH + MAC_SIZE] != mac.tobytes():
        return True
    return lengths.count(lengths[0]) == n and all(same(heads, first, part) for part in FIXED)


def same(heads: Rows, first: bytes, part: slice) -> bool:
    """Return whether a part of every head equals that part of `first`."""
    return bool(heads[:, part].tobytes() == first[part] * len(heads))


def fixed(head: bytes) -> bytes:
    """Return the part of a head that all datagrams of a flow and length have in common."""
    return head[: IP + 4] + head[IP + 6 : IP + 10] + head[IP + 12 : UDP + 6]


def read_lengths(head: bytes) -> Lengths:
    """Return the lengths in a head."""
    flags, gso_type, gso_size, packet, datagram = _LENGTHS.unpack_from(head)
    return Lengths(flags, gso_type, gso_size, _swap(packet), _swap(datagram))


def _swap(word: int) -> int:
    return word >> 8 | (word & 0xFF) << 8


class Flow(NamedTuple):
    """Tagged datagrams whose headers agree in all but lengths and checksums."""

    peer: Address
    tos: int
    mac: bytes
    spoofed: bool = False  # its source address belongs to a member behind another port


def read_flow(head: bytes, ingress: int, address: bytes, port: int) -> Flow | None:
    """Return the flow that a head without IP options names; None: not for this switch.

    Args:
        head: virtio_net_hdr and headers, HEAD bytes.
        ingress: the port at which the frame came in.
        address: the switch's IPv4 address, four bytes.
        port: the UDP port at which the switch listens.
    """
    line = line_at(int.from_bytes(head[UDP + 2 : UDP + 4], "big"), port)
    if (
        head[ETH + 12 : IP + 1] != ETHERTYPE_IP + b"\x45"
        or head[IP + 9] != UDP_PROTOCOL
        or head[IP + 16 : UDP] != address
        or line is None
        or int.from_bytes(head[IP + 6 : IP + 8], "big") & FRAGMENT
        or classify(head[IP + 1]) is Traffic.ORDINARY
        or head[ETH + MAC_SIZE] & 1
    ):
        return None
    host = ".".join(map(str, head[IP + 12 : IP + 16]))
    peer = Address(host, int.from_bytes(head[UDP : UDP + 2], "big"), ingress, line)
    return Flow(peer, head[IP + 1], head[ETH + MAC_SIZE : ETH + 2 * MAC_SIZE])


def is_whole(found: Lengths, length: int) -> bool:
    """Return whether a row of `length` bytes holds all bytes that its headers announce."""
    return 8 + IP_HEADER <= IP_HEADER + found.datagram <= found.packet <= length - IP and (
        found.gso_type == GSO_NONE or (found.gso_type == GSO_UDP_L4 and found.gso_size > 0)
    )


def without_options(row: bytes) -> bytes | None:
    """Return the frame without its IPv4 options; None: it has none, or its header is damaged."""
    if row[ETH + 12 : IP] != ETHERTYPE_IP or len(row) <= IP or row[IP] >> 4 != 4:
        return None
    size = (row[IP] & 0x0F) * 4
    if (
        size <= IP_HEADER
        or len(row) < IP + size
        or int.from_bytes(row[IP : IP + size], "big") % 0xFFFF
    ):
        return None
    length = int.from_bytes(row[IP + 2 : IP + 4], "big") - size + IP_HEADER
    if length < IP_HEADER:
        return None
    header = bytearray(row[IP : IP + IP_HEADER])
    header[0] = 0x45
    header[2:4] = length.to_bytes(2, "big")
    header[10:12] = bytes(2)
    header[10:12] = checksum(bytes(header)).to_bytes(2, "big")
    return row[:IP] + bytes(header) + row[IP + size :]
