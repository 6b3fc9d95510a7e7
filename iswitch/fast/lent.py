"""What a kernel has of one job: its rows, and who gets what leaves by each."""

from __future__ import annotations

from typing import NamedTuple

from iswitch.core.format.packets import Address, Outgoing
from iswitch.core.format.wire import TOS_DATA
from iswitch.core.jobs.job import Job
from iswitch.core.jobs.member import Member
from iswitch.core.sums.plane import Accelerator

from .owners import Ranks
from .plain import Sets


class Way(NamedTuple):
    """How packets reach some receivers: columns of a row, and what they point to."""

    columns: dict[int, int]
    kept: object


class Outlet(NamedTuple):
    """Who gets what leaves by a row: sums, or aggregates of the switch above."""

    peers: tuple[Address, ...]
    from_above: bool
    way: Way


class Lent(NamedTuple):
    """A job that has a row."""

    row: int
    job: Job
    sums: Accelerator
    sets: Sets | None  # None: not plain at present, so that others may have their memory
    members: list[tuple[int, Member]]  # with their rows
    outlets: dict[int, Outlet]  # by their rows
    down: int = -1  # row of the way to the members below another switch; -1: there is none
    ranks: Ranks | None = None  # where each segment goes to one rank

    def still(self, job: Job | None) -> bool:
        """Return whether a job has the sums, the members and the ranks that were lent."""
        if job is not self.job or job.accelerator is not self.sums:
            return False
        if self.ranks is not None and self.ranks.by_rank is not job.members.by_rank:
            return False
        members = job.contributors()
        return len(members) == len(self.members) and all(
            one is other for one, (_, other) in zip(members, self.members, strict=True)
        )

    def packets(self, row: int, slot: int, start: int, stop: int) -> Outgoing:
        """Return packets that leave by a row: segments start..stop-1 of a set."""
        outlet = self.outlets[row]
        assert self.sets is not None  # a kernel has added it up
        at = start % self.sets.sums.shape.segments
        rows = (self.sets.odd if slot else self.sets.even).rows(outlet.from_above)
        tail = self.sums.shape.tail(stop)
        return Outgoing(outlet.peers, TOS_DATA, rows[at : at + stop - start], tail)
