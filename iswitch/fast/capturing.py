"""Makes the blocks of a capture with a kernel, for rows that stand for several UDP datagrams."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from iswitch.core.format.packets import Rows
from iswitch.core.format.pcapng import FRAME_AT, TIME_AT, Direction, packets
from iswitch.ethernet.frame import (
    ETH,
    ETHERTYPE_IP,
    GSO_UDP_L4,
    HEADERS,
    IP,
    PAYLOAD,
    UDP,
    VNET,
)
from iswitch.ports.capture import Cut, Made
from iswitch.ports.kernel.mmsg import address_of

from . import loading

PLAIN = ETHERTYPE_IP + b"\x45"  # IPv4 without options, in no VLAN
UDP_OFFSET = 6  # of the checksum


@lru_cache(maxsize=256)
def _form(number: int, direction: Direction, size: int) -> Rows:
    """Make a block around a frame of zeros of this size; kept, as its address is used."""
    return np.frombuffer(packets(number, 0, direction, np.zeros((1, size), np.uint8)), np.uint8)


def cutter() -> Cut | None:
    """Return what makes blocks with a kernel; None: there is none.

    It leaves rows that are not plain to Python.
    """
    if not loading.available():
        return None
    try:
        kernels = loading.load("capture_kernel")
    except ImportError:  # the engine says so
        return None
    blocks = np.zeros(0, np.uint8)

    def cut(number: int, time_ns: int, direction: Direction, row: bytes) -> Made | None:
        nonlocal blocks
        if len(row) <= PAYLOAD or row[IP - 2 : IP + 1] != PLAIN:
            return None
        _, gso_type, _, size, start, offset = VNET.unpack_from(row)
        if (gso_type, start, offset) != (GSO_UDP_L4, UDP - ETH, UDP_OFFSET) or not size:
            return None
        payload = len(row) - PAYLOAD
        frames = -(-payload // size)
        full = _form(number, direction, HEADERS + min(size, payload))
        last = _form(number, direction, HEADERS + payload - (frames - 1) * size)
        if len(blocks) < frames * len(full):
            blocks = np.zeros(2 * frames * len(full), np.uint8)
        given = np.frombuffer(row, np.uint8)
        told = address_of(given), payload, size, time_ns, TIME_AT, FRAME_AT
        forms = address_of(full), len(full), address_of(last), len(last)
        n = kernels.write(np.array((*told, *forms, address_of(blocks)), np.int64))
        return blocks[:n].tobytes(), frames

    return cut
