"""The slots that all jobs of a switch share, where segments without one go on to the switch above.

A slot holds one packet of any job. It is taken by the first contribution to a segment, and given
back when the aggregate has come. What is sent to the switch above waits here, too, until the switch
has finished what it is doing: a segment may be pushed out while another job's packets are handled.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from iswitch.core.format.packets import Indices, Rows
from iswitch.core.format.wire import MTU_PAYLOAD

from .buffers import PLAIN, Buffers

SLOT = MTU_PAYLOAD  # bytes: a packet that fills a 1500-byte MTU
Places = npt.NDArray[np.int32]
Outranks = Callable[[int, int], bool]
"""Return whether a job of one priority may have a slot in which a job of another has a sum."""


class Owner(Protocol):
    """What has sums in slots."""

    priority: int

    def push_out(self, slots: Indices) -> None:
        """Send the sums in these slots to the switch above, as they are, and forget the slots."""


class Parts(NamedTuple):
    """Packets of a job that go to the switch above, each with the header of a part."""

    job: int
    rows: Rows
    tail: int


class Pool:
    """The slots, and the parts that wait to be sent.

    Args:
        slots: how many there are.
        outranks: decides who may push out whom.
        buffers: allocates the memory.

    Raises:
        MemoryError: too little memory.
    """

    def __init__(self, slots: int, outranks: Outranks, buffers: Buffers = PLAIN) -> None:
        self.rows = buffers.take(slots * SLOT).reshape(slots, SLOT)
        self.outbox: list[Parts] = []
        self._outranks = outranks
        self._free = list(range(slots))  # from the end on
        self._owners: dict[int, Owner] = {}

    @classmethod
    def memory(cls, slots: int) -> int:
        """Return the bytes of the slots."""
        return slots * SLOT

    @property
    def slots(self) -> int:
        """Return the number of slots."""
        return len(self.rows)

    @property
    def free(self) -> int:
        """Return the number of slots that are not taken."""
        return len(self._free)

    def take(self, owner: Owner, wanted: int) -> Indices:
        """Take up to `wanted` slots, also those of outranked jobs; return their numbers."""
        if wanted > len(self._free):
            self._make_room(owner, wanted - len(self._free))
        taken = self._free[: -wanted - 1 : -1]
        del self._free[len(self._free) - len(taken) :]
        self._owners |= dict.fromkeys(taken, owner)
        return np.array(taken, np.int64)

    def give_back(self, slots: Indices) -> None:
        """Give slots back."""
        for slot in slots.tolist():
            del self._owners[slot]
            self._free.append(slot)

    def _make_room(self, owner: Owner, wanted: int) -> None:
        """Push out the sums of jobs that are outranked, of those with the lowest priority first."""
        outranked = [
            (other.priority, slot)
            for slot, other in self._owners.items()
            if self._outranks(owner.priority, other.priority)
        ]
        victims: dict[int, tuple[Owner, list[int]]] = {}
        for _, slot in sorted(outranked)[:wanted]:
            other = self._owners[slot]
            victims.setdefault(id(other), (other, []))[1].append(slot)
        for other, slots in victims.values():
            other.push_out(np.array(slots))

    def drain(self) -> list[Parts]:
        """Take the parts that wait to be sent."""
        parts, self.outbox = self.outbox, []
        return parts
