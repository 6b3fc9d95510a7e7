"""Ranks: numbers of workers in the whole tree, which no two of them have at a time.

Rules of docs/protocol.md, "Ranks". The root decides who has which. A switch below states to its
parent, in its Joins, all ranks that its workers have or ask for, and how many workers are to be
given some; the answer to the newest statement holds. So statements may be lost, repeated, or
overtake one another.

Here ranks are given and taken; what follows from that, for the parent or for members that have lost
theirs, is returned for others to do.
"""

from __future__ import annotations

from dataclasses import dataclass

from iswitch.core.format.packets import Address
from iswitch.core.format.wire import (
    ELSEWHERE,
    NO_RANK,
    RANKS,
    ROUND_MASK,
    MemberType,
    Status,
    TreeJoin,
    round_distance,
)

from .job import Job
from .member import Member, Stated
from .record import Record
from .requests import Refusal


@dataclass
class Statement:
    """What a switch last stated to its parent, and what the parent decided.

    Attributes:
        number: counts up with every change.
        ranks: bitmap of what the workers below have, or ask for.
        unranked: how many workers are to be given a rank.
        granted: of `ranks` those that the parent has confirmed.
        reserved: stated although nobody has them: they pass from one process to the next.
        decided: whether the parent has answered this statement.
    """

    number: int = 0
    ranks: int = 0
    unranked: int = 0
    granted: int = 0
    reserved: int = 0
    decided: bool = False

    def say(self, ranks: int, unranked: int) -> bool:
        """State this from now on; return whether it is new."""
        if self.number and (ranks, unranked) == (self.ranks, self.unranked):
            return False
        self.number = (self.number + 1) & ROUND_MASK or 1
        self.ranks, self.unranked, self.decided = ranks, unranked, False
        self.granted &= ranks
        return True


class Ranks:
    """Gives and refuses the ranks in the jobs of a switch."""

    def __init__(self, record: Record) -> None:
        self.record = record

    # Newcomers

    def vacated_by(self, job: Job, peer: Address, rank: int, now: float) -> Member | None:
        """Return the silent worker that has to make room for one that asks for its rank, if any.

        Args:
            job: of both.
            peer: the one that asks.
            rank: for which.
            now: the time.


        Raises:
            Refusal: a worker that is alive has it, or one at another switch.
        """
        holder = self._holder(job, rank, now)
        if holder is None or holder.address == peer:
            return None
        silence = now - holder.last_seen
        if holder.type is not MemberType.WORKER:
            raise taken(rank, holder.address)
        if silence < self.record.limits.lease:
            raise taken(rank, holder.address, silence)
        return holder

    def enter(self, job: Job, member: Member, wanted: int, former: Member | None) -> None:
        """Give a new worker the rank that it asks for, which is free, or that of the one before.

        Args:
            job: of the worker.
            member: the worker; others get none.
            wanted: the rank; NO_RANK: any.
            former: the worker whose place it takes.
        """
        if member.type is not MemberType.WORKER:
            return
        if wanted != NO_RANK:
            job.give(member, 1 << wanted)
        elif former is not None:
            job.give(member, former.ranks)

    def due(self, job: Job, now: float) -> list[Member]:
        """Return the workers that are to be given a rank now."""
        unranked = [member for member in job.contributors() if member.is_due]
        there = self.record.workers(job, now) if unranked else 0
        return [member for member in unranked if _is_due(member, there)]

    def number(self, job: Job, due: list[Member], now: float) -> None:
        """Give these workers the lowest ranks that are free: this is the root.

        Args:
            job: of the workers.
            due: the workers.
            now: the time.
        """
        for member in due:
            most = self._most(member.expected, member.since, now)
            job.give(member, self._free(job, 1, most, now))

    def _most(self, expected: int, since: float, now: float) -> int:
        """Return how many ranks there are for workers that ask for none.

        Where it is known how many workers there are, there are no more ranks: a worker that finds
        none free waits for a lease to run out, unless it has waited for one already.

        Args:
            expected: how many workers there are; 0: unknown.
            since: when the worker came.
            now: the time.
        """
        waited = now >= since + self.record.limits.lease
        return RANKS if not expected or waited else min(expected, RANKS)

    def _holder(self, job: Job, rank: int, now: float) -> Member | None:
        if rank == NO_RANK:
            return None
        members = job.contributors()
        return next((m for m in members if _held_by(m, now) >> rank & 1), None)

    def _free(self, job: Job, count: int, most: int, now: float, wanted: int = 0) -> int:
        """Return the bitmap of the lowest free ranks.

        Args:
            job: where nobody has them.
            count: how many.
            most: they are below.
            now: the time.
            wanted: bitmap of ranks to leave out.
        """
        free = (1 << most) - 1 & ~wanted & ~_held(job, None, now)
        return _some(free, count)[0]

    # Switches below

    def state(self, job: Job, switch: Member, join: TreeJoin, anew: bool, now: float) -> None:
        """Take from a switch below which ranks its workers have; without a parent, decide.

        Args:
            job: of the switch.
            switch: the member.
            join: its Join, with the statement.
            anew: a new process has sent it.
            now: the time.
        """
        stated = switch.stated
        if stated is None or anew:
            kept = _held_by(switch, now) if anew else 0  # with what one before that had
            stated = switch.stated = Stated(kept=kept, until=now + self.record.limits.lease)
            switch.ranks = 0
        elif round_distance(join.statement, stated.number) < 0:
            return
        if join.statement != stated.number:
            stated.number, stated.ranks, stated.unranked = (
                join.statement,
                join.ranks,
                join.unranked,
            )
            stated.given, stated.since = 0, now
            job.give(switch, switch.ranks & join.ranks)
            if not self.record.parent:
                self._decide(job, switch, join.ranks & ~_held(job, switch, now), 0)
        if not self.record.parent and stated.given < stated.unranked:
            most = self._most(join.expected, stated.since, now)
            count = stated.unranked - stated.given
            self._decide(job, switch, switch.ranks, self._free(job, count, most, now))

    def _decide(self, job: Job, switch: Member, granted: int, given: int) -> None:
        assert switch.stated is not None
        switch.stated.given += given.bit_count()
        switch.stated.decided = switch.stated.number
        job.give(switch, granted | given)

    # With a parent

    def claims(
        self, job: Job | None, asked: list[int], statement: Statement, now: float
    ) -> tuple[int, int]:
        """Return the ranks to state to the parent, and for how many workers some are due.

        Args:
            job: of the workers; None: there are none yet.
            asked: ranks for which newcomers wait.
            statement: the last one.
            now: the time.
        """
        ranks, unranked = statement.reserved, 0
        for rank in asked:
            ranks |= 1 << rank
        there = self.record.workers(job, now) if job else 0
        for member in job.contributors() if job else ():
            ranks |= _held_by(member, now)
            stated = member.stated
            if stated is not None and not stated.is_settled:
                ranks |= stated.ranks
                unranked += stated.unranked - stated.given
            elif _is_due(member, there):
                unranked += 1
        return ranks, unranked

    def own(self, job: Job | None, statement: Statement, now: float) -> int:
        """Return ranks for the workers that are due, where the parent knows nothing of ranks.

        Args:
            job: of the workers; None: there are none yet.
            statement: the last one.
            now: the time.
        """
        return self._free(job, statement.unranked, RANKS, now, statement.ranks) if job else 0

    def settle(self, job: Job, statement: Statement, now: float) -> list[Member]:
        """Do as the parent has decided; return the workers that have lost their rank by it.

        Args:
            job: of the workers.
            statement: on which the parent has decided.
            now: the time.
        """
        members = job.contributors()
        lost = [m for m in members if m.ranks & ~statement.granted]
        for member in lost:
            job.give(member, member.ranks & statement.granted)
        free = statement.granted & ~statement.ranks & ~_held(job, None, now)
        there = self.record.workers(job, now)
        for member in members:
            stated = member.stated
            if stated is not None and not stated.is_settled:
                granted = stated.ranks & statement.granted & ~_held(job, member, now)
                given, free = _some(free, stated.unranked - stated.given)
                self._decide(job, member, granted, given)
            elif _is_due(member, there) and member not in lost:
                given, free = _some(free, 1)
                job.give(member, given)
        return [member for member in lost if member.type is MemberType.WORKER]


def taken(rank: int, holder: Address, silence: float | None = None) -> Refusal:
    """Refuse a rank, and tell who has it.

    Args:
        rank: which.
        holder: the worker that has it, or the switch behind which that is.
        silence: seconds for which the worker was silent; None: the holder is a switch.
    """
    host = int.from_bytes(bytes(map(int, holder.host.split("."))), "big")
    heard = ELSEWHERE if silence is None else int(1000 * silence)
    return Refusal(
        Status.RANK_TAKEN, rank=rank, threshold=host, round=holder.port, contributors=heard
    )


def _is_due(member: Member, there: int) -> bool:
    """Return whether a worker is to be given a rank: when as many are there as it expects.

    So workers that ask for a rank come first.
    """
    return member.is_due and member.told(there) >= member.expected


def _held_by(member: Member, now: float) -> int:
    """Return the bitmap of the ranks of a member, which nobody else may have."""
    stated = member.stated
    kept = stated.kept if stated is not None and now < stated.until else 0
    return member.ranks | kept


def _held(job: Job, besides: Member | None, now: float) -> int:
    """Return the bitmap of the ranks that others than `besides` have."""
    held = 0
    for member in job.contributors():
        if member is not besides:
            held |= _held_by(member, now)
    return held


def _some(free: int, count: int) -> tuple[int, int]:
    """Part the lowest ranks, as many as are wanted, from the others; both as bitmaps."""
    if free.bit_count() <= count:
        return free, 0
    some = 0
    for _ in range(count):
        some |= free & -free
        free &= ~some
    return some, free
