"""The contributors that wait for memory, by job; the policy keeps the order of the jobs."""

from __future__ import annotations

from typing import NamedTuple

from iswitch.core.format.packets import Address
from iswitch.core.format.wire import MAX_MEMBERS, Control, Join

PATIENCE = 5.0  # seconds; a worker that waits repeats its Join every second, or more often


class Waiting(NamedTuple):
    """A contributor that waits.

    Attributes:
        peer: its address.
        packet: its request.
        join: the Join in it.
        heard: when it sent that last, in seconds.
    """

    peer: Address
    packet: Control
    join: Join
    heard: float


class Queue:
    """Remembers the Joins of contributors that wait, to answer them once there is room.

    A contributor that is silent for `PATIENCE` no longer waits. A job has no more waiting
    contributors than it can have members.
    """

    def __init__(self) -> None:
        self._by_job: dict[int, dict[Address, Waiting]] = {}

    def put(self, one: Waiting) -> bool:
        """Remember a contributor that waits; False: too many wait for this job."""
        waiting = self._by_job.setdefault(one.packet.job, {})
        if one.peer not in waiting and len(waiting) >= MAX_MEMBERS:
            return False
        waiting[one.peer] = one
        return True

    def drop(self, job: int, peer: Address) -> bool:
        """Forget a contributor; return whether nobody waits for the job any more."""
        waiting = self._by_job.get(job)
        if waiting is None or waiting.pop(peer, None) is None or waiting:
            return False
        del self._by_job[job]
        return True

    def take(self, job: int, now: float) -> list[Waiting]:
        """Take out the contributors that wait for a job, in the order in which they came."""
        waiting = self._by_job.pop(job, {})
        return [one for one in waiting.values() if one.heard + PATIENCE > now]

    def of(self, job: int) -> list[Waiting]:
        """Return the contributors that wait for a job."""
        return list(self._by_job.get(job, {}).values())

    def silent(self, now: float) -> list[int]:
        """Forget the contributors that are silent; return the jobs for which nobody waits now."""
        gone = [
            (job, one.peer)
            for job, waiting in self._by_job.items()
            for one in waiting.values()
            if one.heard + PATIENCE <= now
        ]
        return [job for job, peer in gone if self.drop(job, peer)]
