"""What a kernel has of one job: its rows, and who gets what leaves by each."""

from __future__ import annotations

from typing import NamedTuple

from iswitch.core.format.packets import Address, Outgoing
from iswitch.core.format.wire import TOS_DATA, MemberType
from iswitch.core.jobs.job import Job
from iswitch.core.jobs.member import Member
from iswitch.core.sums.plane import Accelerator
from iswitch.core.switch import Switch
from iswitch.ports.kernel.mmsg import address_of

from . import tables as t
from .answering import Answers, Singles, may_answer
from .asking import Questions
from .owners import Ranks
from .plain import Sets, Versions
from .tables import Form, Table


def form_of(job: Job) -> Form:
    """Return what packets of a job's data are like."""
    shape = job.sums.shape
    return Form(TOS_DATA, shape.packet_size, shape.last_size)


class Way(NamedTuple):
    """How packets reach some receivers: columns of a row, and what they point to."""

    columns: dict[int, int]
    kept: object


class Outlet(NamedTuple):
    """Who gets what leaves by a row: sums, aggregates of the switch above, marks, or answers."""

    peers: tuple[Address, ...]
    from_above: bool
    way: Way
    singles: Singles | None = None


class Lent(NamedTuple):
    """A job that has a row."""

    row: int
    job: Job
    sums: Accelerator
    sets: Sets | Versions | None  # None: not plain at present, so that others may have their memory
    members: list[tuple[int, Member]]  # with their rows
    outlets: dict[int, Outlet]  # by their rows
    down: int = -1  # row of the way to the members below another switch; -1: there is none
    ranks: Ranks | None = None  # where each segment goes to one rank
    kept: object = None  # what the row points to

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
        if outlet.singles is not None:
            return outlet.singles.packets(start, stop)
        assert self.sets is not None  # a kernel has added it up
        rows = self.sets.packets(slot, start, stop, outlet.from_above)
        return Outgoing(outlet.peers, TOS_DATA, rows, self.sums.shape.tail(stop))

    def lend_numbers(self, switch: Switch, table: Table, versions: Versions, now: float) -> None:
        """Lend the numbers last counted of each member, and the answers to its marks.

        Args:
            switch: the switch.
            table: of members.
            versions: where the sums of this asynchronous job are.
            now: the time, in seconds.
        """
        singles = [(row, out.singles) for row, out in self.outlets.items()]
        rows = {id(one.member): row for row, one in singles if isinstance(one, Answers)}
        for at, member in self.members:
            columns, row = table[at], rows.get(id(member), 0)
            columns[t.LAST] = address_of(versions.sums.last[member.seat].words)
            columns[t.IS_SWITCH] = member.type is MemberType.SWITCH
            columns[t.ANSWERS] = row if may_answer(switch, self.job, member, now) else 0
            if columns[t.ANSWERS]:
                columns[t.ASKED], columns[t.ALLOWED] = self.answers(row).lend(switch, now)

    def hear(self, switch: Switch, table: Table) -> list[tuple[Address, float]]:
        """Take up what members have sent in a call; return who was heard, and when, in seconds.

        Args:
            switch: the switch.
            table: of members.
        """
        heard: list[tuple[Address, float]] = []
        for at, member in self.members:
            columns = table[at]
            seen, contributed, packets, nbytes, answered = columns[t.SEEN :].tolist()
            if not seen:
                continue
            member.last_seen, member.has_spoken = max(member.last_seen, seen / t.SECOND), True
            member.tally.packets += packets
            member.tally.nbytes += nbytes
            if packets:
                member.met = None
                if self.job.synchronous:
                    member.contributed = contributed
            if answered:
                self.answers(int(columns[t.ANSWERS])).take_up(switch, answered)
            columns[t.SEEN :] = 0
            heard.append((member.address, member.last_seen))
        return heard

    def answers(self, row: int) -> Answers:
        """Return the answers that leave by a row."""
        found = self.outlets[row].singles
        assert isinstance(found, Answers)
        return found

    @property
    def goes_up(self) -> bool:
        """Return whether partial sums go up in a call."""
        return isinstance(self.sets, Versions) and self.sets.upward is not None

    @property
    def marks_row(self) -> int:
        """Return the row by which marks leave for the switch above; 0: there is none."""
        singles = ((row, out.singles) for row, out in self.outlets.items())
        return next((row for row, one in singles if isinstance(one, Questions)), 0)
