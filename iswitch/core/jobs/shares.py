"""A pool of slots: jobs have equal shares of the memory, which change as jobs come and go.

A job has slots for its window (`core/sums/resized.py`), a power of two, or one for each segment of
its vector. Who needs less than its share leaves the rest to the others. A job that could not have
its fewest slots waits.

At any instant

    sum over the jobs of  persistent part  +  bytes of slots  <=  memory,

where the slots of a job are the most that one of its rounds still has, or that a worker may still
take it to have. So memory that a job is to give back is free when its rounds have given it back.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from .policy import ADMITTED, REFUSED, Growth, Need, Verdict
from .queueing import MOST_WAITING, Queueing

FIXED = Growth(0, 0, 0)


@dataclass(eq=False, slots=True)
class Holder:
    """A job that has come in, or waits.

    Attributes:
        number: its number.
        need: the bytes reserved for it with its fewest slots.
        came: a number that grows with every job that comes.
        slots: reserved for it; of a job whose slots do not change: 0.
        target: its share, in slots.
        pinned: it has its fewest slots, whatever its share.
    """

    number: int
    need: Need
    came: int
    slots: int = 0
    target: int = 0
    pinned: bool = False

    @property
    def growth(self) -> Growth:
        """Return how its slots may change."""
        return self.need.growth or FIXED

    @property
    def grows(self) -> bool:
        """Return whether its slots follow its share."""
        return self.need.growth is not None and not self.pinned

    def nbytes(self, slots: int) -> int:
        """Return the bytes that it needs with that many slots."""
        least, most, each = self.growth
        return self.need.persistent + each * (min(slots, most) - least)

    @property
    def held(self) -> int:
        """Return the bytes reserved for it."""
        return self.nbytes(self.slots)

    def within(self, nbytes: int) -> int:
        """Return the most slots for which so many bytes suffice, but no fewer than its fewest."""
        least, most, each = self.growth
        if self.nbytes(most) <= nbytes:
            return most
        slots = least + max(0, nbytes - self.need.persistent) // each
        return max(least, 1 << slots.bit_length() - 1)


class Pool(Queueing[Holder]):
    """Every job has an equal share, as its slots allow."""

    name: ClassVar[str] = "pool"
    resizes = True

    def __init__(self, memory: int) -> None:
        super().__init__(memory)
        self._jobs: dict[int, Holder] = {}
        self._reserved = 0
        self._changed = False  # since `share`

    def rank_in_queue(self, job: Holder) -> float:
        """Return when it came."""
        return job.came

    @property
    def reserved(self) -> int:
        """Return the bytes that are reserved for all jobs."""
        return self._reserved

    @property
    def _free(self) -> int:
        return self.memory - self._reserved

    # Coming and going

    def admit(self, job: int, need: Need) -> Verdict:
        """Reserve memory for one more contributor of a job, or let the job wait."""
        known = self._jobs.get(job)
        if known is not None:
            if need.persistent > max(0, self._free):
                return REFUSED
            self._keep(known, need.persistent)
            return ADMITTED
        waits = self._waiting.get(job)
        if waits is None and need.persistent > self.memory:
            return REFUSED
        self._changed = True
        holder = waits or Holder(job, need, self._next())
        holder.need, holder.slots = need, (need.growth or FIXED).least
        queue = self.queue()
        if queue[:1] in ([], [job]) and need.persistent <= self._free:
            self._waiting.pop(job, None)
            self._jobs[job] = holder
            self._reserved += holder.held
            return ADMITTED
        if waits is None:
            if len(queue) >= MOST_WAITING:
                return REFUSED
            self._waiting[job] = holder
        return Verdict(False, self.queue().index(job) + 1)

    def withdraw(self, job: int, need: Need) -> None:
        """Give back what one contributor has reserved."""
        holder = self._jobs[job]
        self._keep(holder, -need.persistent)
        if need.growth is not None or not holder.need.total:
            self.leave(job)

    def leave(self, job: int) -> None:
        """Give back all that a job has reserved."""
        holder = self._jobs.pop(job, None)
        if holder is not None:
            self._reserved -= holder.held
            self._changed = True

    def forget(self, job: int) -> None:
        """Take a job out of the queue."""
        self._changed |= job in self._waiting
        super().forget(job)

    def next_in(self) -> int | None:
        """Return the job of the queue that `admit` would take in now; None: there is none."""
        first = self.queue()[:1]
        fits = first and self._waiting[first[0]].need.persistent <= self._free
        return first[0] if fits else None

    def _keep(self, holder: Holder, nbytes: int) -> None:
        holder.need = holder.need._replace(persistent=holder.need.persistent + nbytes)
        self._reserved += nbytes
        self._changed = True

    # Slots

    def slots_of(self, job: int) -> int:
        """Return the slots that a job may use in rounds to come; 0: they do not change."""
        holder = self._jobs.get(job)
        if holder is None:
            return 0
        return max(holder.growth.least, min(holder.slots, holder.target))

    def room_of(self, job: int) -> int:
        """Return the slots that are reserved for each round of a job."""
        return self._jobs[job].slots

    def pin(self, job: int) -> None:
        """Give a job its fewest slots, for as long as it lasts."""
        self._jobs[job].pinned = self._changed = True

    def uses(self, job: int, slots: int) -> None:
        """Note the most slots that a job still has, or may have, in a round."""
        holder = self._jobs[job]
        slots = max(slots, holder.target)
        if slots < holder.slots:
            self._resize(holder, slots)

    def _resize(self, holder: Holder, slots: int) -> None:
        self._reserved -= holder.held
        holder.slots = slots
        self._reserved += holder.held
        self._changed = True

    def reserved_by(self, job: int) -> int:
        """Return the bytes that are reserved for a job."""
        return self._jobs[job].held

    def share(self) -> list[int]:
        """Share what is free; return the jobs that may use other numbers of slots than before."""
        if not self._changed:
            return []
        before = {job: self.slots_of(job) for job in self._jobs}
        makes_room = self._aim()
        for holder in filter(lambda one: one.grows, self._jobs.values()):
            most = holder.within(holder.held + self._free)
            if not makes_room and holder.slots < min(holder.target, most):
                self._resize(holder, min(holder.target, most))
        self._changed = False
        return [job for job, slots in before.items() if self.slots_of(job) != slots]

    def _aim(self) -> bool:
        """Set the shares: equal, but that nobody has more than it can use, or less than it needs.

        Jobs that wait have shares, too, if all can have their fewest slots: so room is made.

        Returns:
            Whether one that waits has a share.
        """
        sharing = list(self._jobs.values())
        least = sum(one.need.persistent for one in sharing)
        for job in self.queue():
            if least + self._waiting[job].need.persistent > self.memory:
                break
            sharing.append(self._waiting[job])
            least += self._waiting[job].need.persistent
        self._divide(sharing)
        return any(holder.number in self._waiting for holder in sharing)

    def _divide(self, sharing: list[Holder]) -> None:
        """Divide the memory among jobs."""
        left, rest = self.memory, list(sharing)
        while rest:
            share = left // len(rest)
            settled = [one for one in rest if not one.grows or one.need.persistent > share]
            settled = settled or [one for one in rest if one.nbytes(one.growth.most) <= share]
            for holder in settled or rest:
                holder.target = holder.within(share) if holder.grows else holder.growth.least
                left -= holder.nbytes(holder.target)
            rest = [one for one in rest if one not in settled] if settled else []
