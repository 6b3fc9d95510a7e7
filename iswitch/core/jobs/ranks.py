"""Ranks: numbers of workers, unique in the whole tree at any time.

Rules of docs/protocol.md, "Ranks". The root gives the ranks. A switch below states to its parent,
in its Joins, all ranks that its workers have or ask for, and the number of workers that need one;
the answer to the newest statement holds. So statements may be lost, repeated, or overtake one
another.

This module gives and takes ranks. Its callers tell the parent, and remove members that lost theirs.
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
    """The last statement of a switch to its parent, and the parent's decision.

    Attributes:
        number: counts up with every change.
        ranks: bitmap of the ranks that the workers below have or ask for.
        unranked: the number of workers that need a rank, whichever it is.
        granted: bitmap of the ranks that the parent has confirmed.
        reserved: bitmap of ranks that are stated while one process hands them over to the next.
        decided: whether the parent has answered this statement.
    """

    number: int = 0
    ranks: int = 0
    unranked: int = 0
    granted: int = 0
    reserved: int = 0
    decided: bool = False

    def say(self, ranks: int, unranked: int) -> bool:
        """Change the statement; return whether it differs from the last one."""
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
        """Return the silent worker whose rank a newcomer asks for; None if the rank is free.

        Args:
            job: the job of both.
            peer: the newcomer's address.
            rank: the rank that it asks for.
            now: the time, in seconds.

        Raises:
            Refusal: a live worker has the rank, or a worker behind another switch.
        """
        holder = self._holder(job, rank, now)
        if holder is None or holder.address == peer:
            return None
        silence = now - holder.last_seen
        if holder.type is not MemberType.WORKER:
            raise taken(rank, holder.name)
        if silence < self.record.limits.lease:
            raise taken(rank, holder.name, silence)
        return holder

    def enter(self, job: Job, member: Member, wanted: int, former: Member | None) -> None:
        """Give a new worker the free rank that it asks for, or that of the member it follows.

        Args:
            job: the job of the worker.
            member: the worker; other members get no rank.
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
        """Return the workers that need a rank now."""
        unranked = [member for member in job.contributors() if member.is_due]
        there = self.record.workers(job, now) if unranked else 0
        return [member for member in unranked if _is_due(member, there)]

    def number(self, job: Job, due: list[Member], now: float) -> None:
        """Give workers the lowest free ranks, at the root.

        Args:
            job: the job of the workers.
            due: the workers.
            now: the time, in seconds.
        """
        for member in due:
            most = self._most(member.expected, member.since, now)
            job.give(member, self._free(job, 1, most, now))

    def _most(self, expected: int, since: float, now: float) -> int:
        """Return how many ranks there are for workers that ask for none.

        If the number of workers is known, there are only as many ranks. A worker that finds none
        free waits until a lease runs out; after one lease time, it may have any rank.

        Args:
            expected: the number of workers; 0: unknown.
            since: when the worker came, in seconds.
            now: the time, in seconds.
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
            job: the job in which they are free.
            count: the number of ranks wanted; fewer are returned if fewer are free.
            most: all are below this number.
            now: the time, in seconds.
            wanted: bitmap of ranks to leave out.
        """
        free = (1 << most) - 1 & ~wanted & ~_held(job, None, now)
        return _some(free, count)[0]

    # Switches below

    def state(self, job: Job, switch: Member, join: TreeJoin, anew: bool, now: float) -> None:
        """Note the statement of ranks of a switch below; at the root, also decide on it.

        Args:
            job: the job.
            switch: the switch below, a member of the job.
            join: its Join, with the statement.
            anew: whether a new process of the switch has sent the Join.
            now: the time, in seconds.
        """
        stated = switch.stated
        if stated is None or anew:
            kept = _held_by(switch, now) if anew else 0  # includes what older processes kept
            stated = switch.stated = Stated(kept=kept, until=now + self.record.limits.lease)
            job.give(switch, 0)
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
        come = switch.told(self.record.workers(job, now)) >= join.expected
        if not self.record.parent and come and stated.given < stated.unranked:
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
        """Return the statement for the parent: the ranks, and the number of workers without one.

        Args:
            job: the job of the workers; None: there are none yet.
            asked: ranks for which newcomers wait.
            statement: the last statement.
            now: the time, in seconds.
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
        """Return free ranks for the workers without one, for a parent that knows no ranks.

        Args:
            job: the job of the workers; None: there are none yet.
            statement: the last statement.
            now: the time, in seconds.
        """
        return self._free(job, statement.unranked, RANKS, now, statement.ranks) if job else 0

    def settle(self, job: Job, statement: Statement, now: float) -> list[Member]:
        """Apply the parent's decision; return the workers that have lost their rank by it.

        Args:
            job: the job of the workers.
            statement: the statement on which the parent has decided.
            now: the time, in seconds.
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


def taken(rank: int, holder: tuple[str, int], silence: float | None = None) -> Refusal:
    """Make the refusal of a rank, which names its holder.

    Args:
        rank: the rank.
        holder: host and port of the worker that has it, or of the switch behind which it is.
        silence: seconds since the worker last sent anything; None: the holder is a switch.
    """
    address, port = holder
    host = int.from_bytes(bytes(map(int, address.split("."))), "big")
    heard = ELSEWHERE if silence is None else int(1000 * silence)
    return Refusal(Status.RANK_TAKEN, rank=rank, threshold=host, round=port, contributors=heard)


def _is_due(member: Member, there: int) -> bool:
    """Return whether a worker is due a rank: it has none, and all workers that it expects came.

    So workers that ask for a rank get theirs first.
    """
    return member.is_due and member.told(there) >= member.expected


def _held_by(member: Member, now: float) -> int:
    """Return the bitmap of the ranks that are a member's own or kept for it."""
    stated = member.stated
    kept = stated.kept if stated is not None and now < stated.until else 0
    return member.ranks | kept


def _held(job: Job, besides: Member | None, now: float) -> int:
    """Return the bitmap of the ranks of all contributors but `besides`."""
    held = 0
    for member in job.contributors():
        if member is not besides:
            held |= _held_by(member, now)
    return held


def _some(free: int, count: int) -> tuple[int, int]:
    """Split a bitmap of ranks into its `count` lowest ones and the rest."""
    if free.bit_count() <= count:
        return free, 0
    some = 0
    for _ in range(count):
        some |= free & -free
        free &= ~some
    return some, free
