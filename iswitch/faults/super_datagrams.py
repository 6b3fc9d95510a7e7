"""Removes lost packets from super-datagrams of the usual form, faster than parts can."""

from __future__ import annotations

import struct

import numpy as np

from iswitch.core.format.packets import Rows, SuperDatagrams
from iswitch.ethernet.frame import ETH, GSO_UDP_L4, HEAD, IP, UDP, VNET, Frames
from iswitch.ethernet.segmentation import super_head
from iswitch.ethernet.sorting import FIXED_BUT_LENGTHS, same

from .line import Ints

UDP_USUAL = struct.pack("<HH", UDP - ETH, 6)  # csum_start and csum_offset, without IP options


def packets_of(frames: Frames) -> list[int] | None:
    """Return the number of packets in each super-datagram; None: not of the usual form.

    In the usual form all are of one flow, and all packets but the very last are full.
    """
    _, heads, bodies, lengths = frames
    first = heads[0].tobytes()
    _, gso_type, _, size, *_ = VNET.unpack_from(first)
    if gso_type != GSO_UDP_L4 or first[6:ETH] != UDP_USUAL or first[IP] != 0x45 or not size:
        return None
    if bodies.shape[1] % size or not bodies.flags.c_contiguous:
        return None
    if len(lengths) > 1 and not all(same(heads, first, part) for part in FIXED_BUT_LENGTHS):
        return None
    counts: list[int] = []
    rest = 0
    for length in lengths:
        if rest:
            return None
        count, rest = divmod(length - HEAD, size)
        counts.append(count + (rest > 0))
    return counts if all(counts) else None


def without(frames: Frames, counts: list[int], lost: list[int]) -> SuperDatagrams:
    """Put super-datagrams together again without their lost packets.

    Args:
        frames: the super-datagrams.
        counts: the packets in each, by `packets_of`.
        lost: indices of the lost packets, counted over all.
    """
    _, heads, bodies, lengths = frames
    head: bytes = heads[0].tobytes()
    size = VNET.unpack_from(head)[3]
    room, total = bodies.shape[1] // size, sum(counts)
    keep = np.ones(total, bool)
    keep[lost] = False
    which = np.flatnonzero(keep)
    n = len(which)
    short = -(lengths[-1] - HEAD) % size * bool(n and keep[-1])  # bytes the last packet lacks
    if any(count != room for count in counts[:-1]):
        places = [range(i * room, i * room + count) for i, count in enumerate(counts)]
        which = np.concatenate(places)[which]
    return together(bodies.reshape(-1, size), which, max(counts), short)


def together(packets: Rows, which: Ints, most: int, short: int) -> SuperDatagrams:
    """Put packets into as few super-datagrams as possible.

    Args:
        packets: (any, size) bytes.
        which: indices of the packets to take, (n,).
        most: packets of a super-datagram.
        short: bytes by which the last packet is shorter than the others.
    """
    n, size = len(which), packets.shape[1]
    count = -(-n // most)
    taken = np.empty((count * most, size), np.uint8)
    np.take(packets, which, axis=0, out=taken[:n], mode="clip")
    rest = n - (count - 1) * most
    sizes = [most * size] * (count - 1) + [rest * size - short]
    return SuperDatagrams(taken.reshape(count, most * size), sizes, [most] * (count - 1) + [rest])


def heads_of(head: bytes, lengths: list[int]) -> Rows:
    """Make heads (n, HEAD) of super-datagrams, given payload lengths equal but for the last."""
    if head[IP + 6] & 0x40:  # fragments are forbidden: the identification has no use
        head = head[: IP + 4] + bytes(2) + head[IP + 6 : IP + 10] + bytes(2) + head[IP + 12 :]
    heads = super_head(head, lengths[0]) * (len(lengths) - 1) + super_head(head, lengths[-1])
    return np.frombuffer(heads, np.uint8).reshape(-1, HEAD)
