"""Cuts super-frames into the frames that they stand for on the wire, and finishes checksums.

The kernel does this for a port that accepts super-frames. This module does it for other ports, and
for captures.
"""

from __future__ import annotations

import struct
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from iswitch.core.format.packets import Rows

from .frame import (
    ETH,
    ETH_HEADER,
    GSO_NONE,
    GSO_TCPV4,
    GSO_TCPV6,
    GSO_TYPE,
    GSO_UDP_L4,
    IP,
    IP_HEADER,
    NEEDS_CSUM,
    UDP,
    UDP_ZERO,
    VLAN_TAG,
    VLAN_TYPES,
    VNET,
    checksum,
    fold,
    sums,
)

_TCP_OFFSET, _UDP_OFFSET = 16, 6  # of the checksum in the transport header; tells the protocol
_TCP_FIN, _TCP_PSH, _TCP_CWR = 0x01, 0x08, 0x80
MOST_HEADERS = 256  # bytes in which all headers end
_LEAST_TRANSPORT = 20  # bytes after csum_start that TCP needs at least


class Super(NamedTuple):
    """A super-frame: bytes of all its headers, bytes of payload per frame, number of frames.

    `network` is the offset of its IP header in the frame, behind any VLAN tags.
    """

    header: int
    size: int
    frames: int
    network: int

    def packet(self, payload: int) -> int:
        """Return the size in bytes of its largest IP packet, for `payload` bytes in all frames."""
        return self.header - ETH_HEADER + min(self.size, payload)


def read_super(row: bytes, length: int) -> Super | None:
    """Read the headers of a super-frame; None: they are damaged.

    Args:
        row: virtio_net_hdr (not of GSO_NONE) and frame, at least as far as the headers go.
        length: bytes of the whole row.
    """
    _, gso_type, _, size, start, offset = VNET.unpack_from(row)
    kind = gso_type & GSO_TYPE
    at = ETH + start
    network = _network(row)
    if start < network + IP_HEADER or not size or at + 8 > len(row):
        return None
    if kind in (GSO_TCPV4, GSO_TCPV6) and offset == _TCP_OFFSET:
        if at + _LEAST_TRANSPORT > len(row):
            return None
        header = start + (row[at + 12] >> 4) * 4
        if header < start + _LEAST_TRANSPORT:
            return None
    elif kind == GSO_UDP_L4 and offset == _UDP_OFFSET:
        header = start + 8
    else:
        return None
    payload = length - ETH - header
    version = row[ETH + network] >> 4
    versions = {GSO_TCPV4: (4,), GSO_TCPV6: (6,)}.get(kind, (4, 6))
    if payload < 1 or version not in versions:
        return None
    return Super(header, size, -(-payload // size), network)


def _network(row: bytes) -> int:
    """Return the offset in the frame of the header behind Ethernet and VLAN tags."""
    at = ETH_HEADER
    while row[ETH + at - 2 : ETH + at] in VLAN_TYPES:
        at += VLAN_TAG
    return at


def wire_frames(row: Rows) -> list[Rows]:
    """Cut a row into the frames on the wire, without virtio_net_hdr.

    Returns:
        One array (n, size) of bytes for each size of frames, two at most; none if the
        virtio_net_hdr makes no sense.
    """
    flags, gso_type, _, _, start, offset = VNET.unpack(row[:ETH].tobytes())
    frame = row[ETH:]
    if gso_type & GSO_TYPE == GSO_NONE:
        whole = frame.reshape(1, -1)
        if not flags & NEEDS_CSUM:
            return [whole]
        if start < ETH_HEADER or start + offset + 2 > frame.size:
            return []
        finished = whole.copy()
        check = fold(sums(finished[:, start:]), UDP_ZERO if offset == _UDP_OFFSET else 0)
        finished[:, start + offset : start + offset + 2] = check.astype("<u2").view(np.uint8)
        return [finished]
    found = read_super(row[:MOST_HEADERS].tobytes(), row.size)
    if found is None:
        return []
    payload = frame[found.header :]
    head = frame[: found.header]
    full = len(payload) // found.size
    pieces = []
    if full:
        bodies = payload[: full * found.size].reshape(full, found.size)
        pieces.append(_frames(head, found, bodies, 0, start, offset))
    if full < found.frames:
        rest = payload[full * found.size :].reshape(1, -1)
        pieces.append(_frames(head, found, rest, full, start, offset))
    return pieces


@lru_cache(maxsize=1024)
def super_head(head: bytes, size: int) -> bytes:
    """Make the head of a datagram with `size` payload bytes from the head of a super-datagram.

    Both are UDP in IPv4 without options, and of one flow. The result is a plain datagram if the
    payload fits in one packet. The checksum of UDP is left unfinished.
    """
    _, _, header, step, start, offset = VNET.unpack_from(head)
    gso = (GSO_UDP_L4, header, step) if size > step else (GSO_NONE, 0, 0)
    new = bytearray(VNET.pack(NEEDS_CSUM, *gso, start, offset) + head[ETH:])
    whole, length = int.from_bytes(head[UDP + 4 : UDP + 6], "big"), 8 + size
    field = int.from_bytes(head[UDP + offset : UDP + offset + 2], "big")
    struct.pack_into(">H", new, IP + 2, IP_HEADER + length)
    struct.pack_into(">H", new, IP + 10, 0)
    struct.pack_into(">H", new, IP + 10, checksum(bytes(new[IP:UDP])))
    struct.pack_into(">H", new, UDP + 4, length)
    struct.pack_into(">H", new, UDP + offset, (field - whole + length) % 0xFFFF)
    return bytes(new)


def _frames(head: Rows, whole: Super, bodies: Rows, first: int, start: int, offset: int) -> Rows:
    """Make the frames on the wire from number `first` on, with finished checksums.

    Args:
        head: all headers of the super-frame, as bytes.
        whole: the super-frame.
        bodies: the payloads of the frames, (n, size) bytes.
        first: number of the first frame in the super-frame.
        start: `csum_start` of the virtio_net_hdr.
        offset: `csum_offset`.

    Returns:
        (n, bytes of a frame).
    """
    n, size = bodies.shape
    ip, is_end = whole.network, first + n == whole.frames
    frames = np.empty((n, head.size + size), np.uint8)
    frames[:, : head.size] = head
    frames[:, head.size :] = bodies
    number = np.arange(first, first + n)
    transport = head.size - start + size
    # The pseudo-header's sum in the field covers the length of the whole; the sum is linear.
    length = _length(head, ip, start)
    if head[ip] >> 4 == 4:
        _put(frames, ip + 2, ">u2", np.full(n, start - ip + transport))
        identification = int.from_bytes(head[ip + 4 : ip + 6].tobytes(), "big")
        _put(frames, ip + 4, ">u2", identification + number)
        _put(frames, ip + 10, ">u2", np.zeros(n, np.int64))
        _put(frames, ip + 10, "<u2", fold(sums(frames[:, ip:start])))
    else:
        _put(frames, ip + 4, ">u2", np.full(n, start - ip - 40 + transport))
    if offset == _TCP_OFFSET:
        (sequence,) = struct.unpack(">I", head[start + 4 : start + 8].tobytes())
        _put(frames, start + 4, ">u4", sequence + number * whole.size)
        if not is_end:
            frames[:, start + 13] &= 0xFF & ~(_TCP_FIN | _TCP_PSH)
        elif n > 1:
            frames[:-1, start + 13] &= 0xFF & ~(_TCP_FIN | _TCP_PSH)
        frames[number > 0, start + 13] &= 0xFF & ~_TCP_CWR
    else:
        _put(frames, start + 4, ">u2", np.full(n, transport))
    field = int.from_bytes(head[start + offset : start + offset + 2].tobytes(), "big")
    pseudo = (field - length + transport) % 0xFFFF
    _put(frames, start + offset, ">u2", np.full(n, pseudo))
    zero = UDP_ZERO if offset == _UDP_OFFSET else 0
    _put(frames, start + offset, "<u2", fold(sums(frames[:, start:]), zero))
    return frames


def _length(head: Rows, ip: int, start: int) -> int:
    """Return the number of bytes from the transport header to the end, as the headers state it."""
    if head[ip] >> 4 == 4:
        total = int.from_bytes(head[ip + 2 : ip + 4].tobytes(), "big")
        return total - (start - ip)
    total = int.from_bytes(head[ip + 4 : ip + 6].tobytes(), "big")
    return total - (start - ip - 40)


def _put(frames: Rows, at: int, kind: str, values: npt.NDArray[np.integer]) -> None:
    """Write a field of every frame; higher bits that do not fit are dropped.

    Args:
        frames: (n, bytes of a frame).
        at: offset of the field.
        kind: dtype of the field.
        values: one for each frame, (n,).
    """
    dtype = np.dtype(kind)
    limit = (1 << 8 * dtype.itemsize) - 1
    packed = (values.astype(np.int64) & limit).astype(dtype)
    frames[:, at : at + dtype.itemsize] = packed.view(np.uint8).reshape(len(frames), -1)
