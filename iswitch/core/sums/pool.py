"""The slots that all jobs of a switch share, where segments without one go on to the switch above.

A slot holds one packet of any job. It is taken by the first contribution to a segment, and given
back when the aggregate has come, or after its sum has gone up, once somebody needs it. What is sent
to the switch above waits here, too, until the switch has finished what it is doing: a segment may
be pushed out while another job's packets are handled.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

import numpy as np

from iswitch.core.format.packets import Indices, Rows
from iswitch.core.format.wire import MOST_PRIORITY, MTU_PAYLOAD

from .buffers import PLAIN, Buffers

SLOT = MTU_PAYLOAD  # bytes: a packet that fills a 1500-byte MTU
NUMBER = np.dtype(np.uint32)  # of a slot, of a job
PRIORITY = np.dtype(np.int8)
FREE = -1  # the priority of a slot that is not taken
SPENT = -2  # of one whose sum has gone up
Outranks = Callable[[int, int], bool]
"""Return whether a job of one priority may have a slot in which a job of another has a sum."""


class Owner(Protocol):
    """What has sums in slots.

    Attributes:
        job: the number of its job.
        priority: of the job; it stays.
    """

    job: int
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

    Attributes:
        rows: the slots, (slots, SLOT) bytes.
        outbox: parts that wait to be sent.
        free: number of slots that are not taken.

    Raises:
        MemoryError: too little memory.
    """

    def __init__(self, slots: int, outranks: Outranks, buffers: Buffers = PLAIN) -> None:
        self.rows = buffers.take(slots * SLOT).reshape(slots, SLOT)
        self.outbox: list[Parts] = []
        self._outranks = outranks
        self.free = slots
        numbers = buffers.take(2 * slots * NUMBER.itemsize).view(NUMBER).reshape(2, slots)
        self._free, self._jobs = numbers  # the first `free` ones, taken from the end; their owners'
        self._free[:] = np.arange(slots)[::-1]
        self._priorities = buffers.take(slots).view(PRIORITY)
        self._priorities[:] = FREE
        self._owners: dict[int, Owner] = {}  # by job

    @classmethod
    def memory(cls, slots: int) -> int:
        """Return the bytes of the slots, and of the tables that say whose they are."""
        return slots * (SLOT + 2 * NUMBER.itemsize + PRIORITY.itemsize)

    @property
    def slots(self) -> int:
        """Return the number of slots."""
        return len(self.rows)

    def take(self, owner: Owner, wanted: int) -> Indices:
        """Take up to `wanted` slots, also those of outranked jobs; return their numbers."""
        if wanted > self.free:
            self._make_room(owner, wanted - self.free)
        left = max(0, self.free - wanted)
        taken = self._free[left : self.free][::-1].astype(np.int64)
        self.free = left
        self._jobs[taken] = owner.job
        self._priorities[taken] = owner.priority
        self._owners[owner.job] = owner
        return taken

    def give_back(self, slots: Indices) -> None:
        """Give slots back."""
        self._priorities[slots] = FREE
        self._free[self.free : self.free + len(slots)] = slots
        self.free += len(slots)

    def spend(self, slots: Indices) -> None:
        """Note that the sums in these slots have gone up, so that they may go (`clear`)."""
        self._priorities[slots] = SPENT

    def clear(self, wanted: int) -> None:
        """Free slots whose sums have gone up, until enough are free, or none of these is left."""
        if wanted > self.free:
            self._push_out(np.flatnonzero(self._priorities == SPENT)[: wanted - self.free])

    def _make_room(self, owner: Owner, wanted: int) -> None:
        """Push out the sums of jobs that are outranked, of those with the lowest priority first."""
        for priority in range(MOST_PRIORITY + 1):
            if not wanted or not self._outranks(owner.priority, priority):
                continue
            victims = np.flatnonzero(self._priorities == priority)[:wanted]
            wanted -= len(victims)
            self._push_out(victims)

    def _push_out(self, victims: Indices) -> None:
        """Have the owners of these slots give them up."""
        jobs = self._jobs[victims]
        for job in np.unique(jobs).tolist():
            self._owners[job].push_out(victims[jobs == job])

    def forget(self, owner: Owner) -> None:
        """Forget an owner that has given back all its slots."""
        if self._owners.get(owner.job) is owner:
            del self._owners[owner.job]

    def drain(self) -> list[Parts]:
        """Take the parts that wait to be sent."""
        parts, self.outbox = self.outbox, []
        return parts
