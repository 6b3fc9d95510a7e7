"""Writes, in compiled code, the blocks of a capture for the frames of one UDP super-datagram.

The rules are those of `ethernet.segmentation`, for IPv4 without options and VLAN tags.
"""

from __future__ import annotations

from numba import carray, types

from iswitch.ethernet.frame import ETH, ETH_HEADER, HEADERS, IP_HEADER, UDP_ZERO

from .compiling import inlined, kernel
from .libc import as_u8, as_u16, as_u32, memmove, sum_of
from .tables import Table

(
    ROW,  # address of the virtio_net_hdr, which the headers and the payloads follow
    PAYLOAD,  # bytes of all payloads
    SIZE,  # bytes of a payload, but for the last
    TIME,  # nanoseconds since 1970
    TIME_AT,  # where it is in a block
    FRAME_AT,  # where the frame is
    FULL,  # address of a block around a frame of SIZE bytes of payload
    FULL_TOTAL,  # bytes of it
    LAST,  # the same for the last frame
    LAST_TOTAL,
    BLOCKS,  # address of the result
    ARGUMENTS,
) = range(12)

UDP = ETH_HEADER + IP_HEADER  # in a frame
LENGTH, IDENTIFICATION, CHECKSUM = ETH_HEADER + 2, ETH_HEADER + 4, ETH_HEADER + 10
UDP_LENGTH, UDP_CHECKSUM = UDP + 4, UDP + 6


@inlined
def get16(address: int) -> int:
    """Read 16 bits in network order."""
    word = carray(as_u8(address), 2)
    return int(word[0]) << 8 | int(word[1])


@inlined
def put16(address: int, value: int) -> None:
    """Write 16 bits in network order."""
    word = carray(as_u8(address), 2)
    word[0], word[1] = value >> 8 & 0xFF, value & 0xFF


@inlined
def put_check(address: int, total: int, zero: int) -> None:
    """Write a checksum; `zero` stands for one of zero.

    Args:
        address: of its field.
        total: sum of all 16-bit words as they lie in memory.
        zero: how a checksum of zero is written.
    """
    check = 0xFFFF - total % 0xFFFF
    carray(as_u16(address), 1)[0] = zero if check == 0xFFFF else check


@inlined
def finish(frame: int, head: int, number: int, size: int) -> None:
    """Finish the headers of a frame whose payload is in place.

    Args:
        frame: its address.
        head: address of the headers of the whole super-datagram.
        number: of the frame.
        size: bytes of its payload.
    """
    memmove(frame, head, HEADERS)
    transport = HEADERS - UDP + size
    put16(frame + LENGTH, IP_HEADER + transport)
    put16(frame + IDENTIFICATION, get16(head + IDENTIFICATION) + number)
    put16(frame + CHECKSUM, 0)
    put_check(frame + CHECKSUM, sum_of(frame + ETH_HEADER, IP_HEADER), 0)
    put16(frame + UDP_LENGTH, transport)
    # The pseudo-header's sum in the field covers the length of the whole; the sum is linear.
    length = get16(head + LENGTH) - IP_HEADER
    pseudo = (get16(head + UDP_CHECKSUM) - length + transport + 0xFFFF) % 0xFFFF
    put16(frame + UDP_CHECKSUM, pseudo)
    put_check(frame + UDP_CHECKSUM, sum_of(frame + UDP, transport), UDP_ZERO)


@kernel(types.int64(types.int64[::1]))
def write(a: Table) -> int:
    """Write the blocks of all frames; return their bytes. `a` are the ARGUMENTS."""
    head, block, number = a[ROW] + ETH, a[BLOCKS], 0
    body, left = head + HEADERS, a[PAYLOAD]
    while left > 0:
        size = min(left, a[SIZE])
        form, total = (a[FULL], a[FULL_TOTAL]) if size == a[SIZE] else (a[LAST], a[LAST_TOTAL])
        frame, end = block + a[FRAME_AT], a[FRAME_AT] + HEADERS + size
        memmove(block, form, a[FRAME_AT])
        memmove(block + end, form + end, total - end)
        halves = carray(as_u32(block + a[TIME_AT]), 2)
        halves[0], halves[1] = a[TIME] >> 32, a[TIME] & 0xFFFFFFFF
        memmove(frame + HEADERS, body, size)
        finish(frame, head, number, size)
        block, body, left, number = block + total, body + size, left - size, number + 1
    return int(block - a[BLOCKS])
