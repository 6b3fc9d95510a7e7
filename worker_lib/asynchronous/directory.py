"""Addresses of the workers that contributed to a version, carried by the vectors themselves.

A switch does not tell its members of one another. So every contribution ends in extra elements,
which the switch adds like all others: a one, to count contributions, and for every place (a rank)
SLOTS elements. The worker of that rank sets these to a one and its address, four bits per element;
the others set zeros. If one worker contributes n times to a version, its address is summed n times,
and dividing by the sum of its ones restores it. All elements are small integers, which every
element type adds exactly (bfloat16: up to 17 contributions of one worker).
"""

from __future__ import annotations

import socket
from hashlib import blake2b
from typing import Any

import numpy as np

from iswitch.core.format.wire import MAX_MEMBERS, Vector

ADDRESS = 6  # bytes of an IPv4 address and a port
SLOTS = 1 + 2 * (ADDRESS + 1)  # elements of a place: a one; address and checksum in nibbles

Where = tuple[str, int]


class Directory:
    """Collects the addresses of workers from the versions.

    Args:
        num_workers: number of workers in the job. There are twice as many places (at most 64),
            since a dead worker keeps its rank until its lease runs out. Workers of higher ranks
            are not listed.

    Attributes:
        places: number of ranks that are listed.
        size: number of extra elements in a contribution.
        addresses: the (host, port) pairs learned so far.
    """

    def __init__(self, num_workers: int) -> None:
        self.places = min(2 * num_workers, MAX_MEMBERS)
        self.size = 1 + self.places * SLOTS
        self.addresses: set[Where] = set()
        self._last = np.zeros((self.places, SLOTS - 1))  # nibbles learned last; zeros: none

    def entry(self, place: int, where: Where, dtype: np.dtype[Any], counts: bool) -> Vector:
        """Return the extra elements of a contribution, [size].

        Args:
            place: rank of this worker.
            where: its address.
            dtype: element type of the vector.
            counts: count this as a contribution; false: it is only a greeting.
        """
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
        """Return the number of contributions in a sum, by its extra elements [size]."""
        return int(elements[0])

    def learn(self, elements: Vector) -> None:
        """Add the addresses that a version's extra elements [size] carry; skip damaged ones."""
        sums = elements[1:].reshape(self.places, SLOTS)
        if (sums[:, :1] * self._last == sums[:, 1:]).all():  # as nearly always
            return
        table = sums.astype(np.float64)
        listed = table[:, 0] > 0
        told = table[:, 1:] / np.where(listed, table[:, 0], 1.0)[:, None]
        news = np.flatnonzero(listed & (told != self._last).any(axis=1))
        self._last[news] = told[news]
        for values in told[news]:
            held = values.astype(np.uint8)
            if (held != values).any() or (held > 15).any():
                continue  # two workers had this rank in one version
            packed = (held[::2] << 4 | held[1::2]).tobytes()
            if packed[ADDRESS:] == _checksum(packed[:ADDRESS]):
                self.addresses.add(unpack(packed[:ADDRESS]))

    def forget(self, where: Where) -> None:
        """Remove the address of a worker that has gone; a later version may add it again."""
        self.addresses.discard(where)
        self._last[:] = 0

    def pack(self) -> bytes:
        """Return all addresses, sorted, six bytes each."""
        return b"".join(pack(where) for where in sorted(self.addresses))

    def learn_packed(self, packed: bytes | bytearray) -> None:
        """Add the addresses that another worker has packed with `pack`."""
        parts = (packed[i : i + ADDRESS] for i in range(0, len(packed), ADDRESS))
        self.addresses.update(unpack(part) for part in parts)


def pack(where: Where) -> bytes:
    """Pack an IPv4 address and a port into six bytes."""
    return socket.inet_aton(where[0]) + where[1].to_bytes(2, "big")


def unpack(packed: bytes | bytearray) -> Where:
    """Return the IPv4 address and port that six bytes hold."""
    return socket.inet_ntoa(packed[:4]), int.from_bytes(packed[4:], "big")


def _checksum(packed: bytes) -> bytes:
    return blake2b(packed, digest_size=1).digest()
