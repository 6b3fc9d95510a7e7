"""Who contributed to a version, and where its worker is reached: told by the vectors themselves.

A switch does not tell its members of one another. So every contribution ends in some elements of
its own, which the switch adds up like all others: a one, that counts contributions, and for every
place (a rank) another one and the address of the worker that has it, four bits an element. A sum of
several by the same worker is divided by how many they are. All are whole numbers that every
element type adds exactly (bfloat16: of up to 17 contributions of a worker).
"""

from __future__ import annotations

import socket
from hashlib import blake2b
from typing import Any

import numpy as np

from iswitch.core.format.wire import MAX_MEMBERS, Vector

ADDRESS = 6  # bytes of an IPv4 address and a port
SLOTS = 1 + 2 * (ADDRESS + 1)  # elements of a place: the one, and nibbles with their checksum

Where = tuple[str, int]


class Directory:
    """Addresses of workers, as versions tell them.

    Args:
        num_workers: of the job. There are twice as many places (64 at most), since one that died
            keeps its rank until its lease has run out. Who has a higher rank is not listed.
    """

    def __init__(self, num_workers: int) -> None:
        self.places = min(2 * num_workers, MAX_MEMBERS)
        self.size = 1 + self.places * SLOTS
        self.addresses: set[Where] = set()
        self._last = np.full((self.places, SLOTS - 1), np.nan)  # what places told

    def entry(self, place: int, where: Where, dtype: np.dtype[Any], counts: bool) -> Vector:
        """The elements of a contribution, (size,); `counts`: it is one, and no mere greeting."""
        elements = np.zeros(self.size, dtype)
        elements[0] = counts
        if place < self.places:
            packed = pack(where)
            held = np.frombuffer(packed + _checksum(packed), np.uint8)
            own = elements[1 + place * SLOTS :][:SLOTS]
            own[0] = 1
            own[1::2], own[2::2] = held >> 4, held & 15
        return elements

    def contributions(self, elements: Vector) -> int:
        """How many contributions a sum is of, by its elements."""
        return int(elements[0])

    def learn(self, elements: Vector) -> None:
        """Take the addresses that a version tells."""
        table = elements[1:].astype(np.float64).reshape(self.places, SLOTS)
        listed = table[:, 0] > 0
        told = table[:, 1:] / np.where(listed, table[:, 0], 1.0)[:, None]
        news = np.flatnonzero(listed & (told != self._last).any(axis=1))
        self._last[news] = told[news]
        for values in told[news]:
            held = values.astype(np.uint8)
            if (held != values).any() or (held > 15).any():
                continue  # two workers had this place in one version
            packed = (held[::2] << 4 | held[1::2]).tobytes()
            if packed[ADDRESS:] == _checksum(packed[:ADDRESS]):
                self.addresses.add(unpack(packed[:ADDRESS]))

    def forget(self, where: Where) -> None:
        """The worker there is no more; unless a version tells of it again."""
        self.addresses.discard(where)
        self._last[:] = np.nan

    def pack(self) -> bytes:
        """All addresses, six bytes each."""
        return b"".join(pack(where) for where in sorted(self.addresses))

    def learn_packed(self, packed: bytes | bytearray) -> None:
        """Take those that another worker knows."""
        parts = (packed[i : i + ADDRESS] for i in range(0, len(packed), ADDRESS))
        self.addresses.update(unpack(part) for part in parts)


def pack(where: Where) -> bytes:
    """An IPv4 address and a port in six bytes."""
    return socket.inet_aton(where[0]) + where[1].to_bytes(2, "big")


def unpack(packed: bytes | bytearray) -> Where:
    """The address and port of six bytes."""
    return socket.inet_ntoa(packed[:4]), int.from_bytes(packed[4:], "big")


def _checksum(packed: bytes) -> bytes:
    return blake2b(packed, digest_size=1).digest()
