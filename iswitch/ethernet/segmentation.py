"""What a frame with a virtio_net_hdr stands for on the wire: cuts super-frames, finishes checksums.

The kernel does this for a port that takes such frames. Here it is done for those that do not, and
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

_TCP_OFFSET, _UDP_OFFSET = 16, 6  # of the checksum in the transport header: tells which it is
_TCP_FIN, _TCP_PSH, _TCP_CWR = 0x01, 0x08, 0x80
MOST_HEADERS = 256  # bytes in which all headers end
_LEAST_TRANSPORT = 20  # bytes after csum_start that have to be there to be read


class Super(NamedTuple):
    """A super-frame: bytes of all its headers, bytes of payload per frame, number of frames.

    `network` says where its IP header begins: behind VLAN tags, if it has any.
    """

    header: int
    size: int
    frames: int
    network: int

    def packet(self, payload: int) -> int:
        """Give the bytes of its largest IP packet, if it has `payload` bytes in all."""
        return self.header - ETH_HEADER + min(self.size, payload)


def read_super(row: bytes, length: int) -> Super | None:
    """Read the headers in a row of `length` bytes, its gso_type not GSO_NONE; None: not sound.

    Only the beginning of the row need be given, as far as its headers go.
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
    """Find the place of the header behind Ethernet and VLAN tags in a row."""
    at = ETH_HEADER
    while row[ETH + at - 2 : ETH + at] in VLAN_TYPES:
        at += VLAN_TAG
    return at


def wire_frames(row: Rows) -> list[Rows]:
    """Cut a row into the frames, without virtio_net_hdr, that it stands for.

    Returns:
        one or two arrays (n, size), as frames of one size are together; none if the
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
    """Make the head of a super-datagram of UDP in IPv4, without options, of `size` payload bytes.

    `head` is that of another, or of this, which had more or fewer packets; one packet is no
    super-datagram. The checksum of UDP is left unfinished.
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
    """Cut frames number `first` and on out of a super-frame, all of one size."""
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
    """Read from the headers the bytes from the transport header to the end."""
    if head[ip] >> 4 == 4:
        total = int.from_bytes(head[ip + 2 : ip + 4].tobytes(), "big")
        return total - (start - ip)
    total = int.from_bytes(head[ip + 4 : ip + 6].tobytes(), "big")
    return total - (start - ip - 40)


def _put(frames: Rows, at: int, kind: str, values: npt.NDArray[np.integer]) -> None:
    """Write a field of every frame; what does not fit is cut off."""
    dtype = np.dtype(kind)
    limit = (1 << 8 * dtype.itemsize) - 1
    packed = (values.astype(np.int64) & limit).astype(dtype)
    frames[:, at : at + dtype.itemsize] = packed.view(np.uint8).reshape(len(frames), -1)
