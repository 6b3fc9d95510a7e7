"""Checks that workers are told of absent members, or continue without them, as promised.

With `on_member_lost="raise"` every other worker is told soon after the lease, and of exactly those
members. With "continue" every other worker gets more sums soon after the lease.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from iswitch.core.format.packets import Address
from iswitch.core.format.wire import NO_RANK
from worker_lib.errors import MemberLost

from .contributing import Contributing
from .lives import Life
from .scenario import Job
from .violation import Violation

TOLD = 8.0  # seconds after a lease in which all are told, or continue; three are usual
LATELY = 8.0  # seconds after its end in which an absence may be told: two heartbeats, and 2 s


@dataclass
class Absence:
    """The absence of one worker process.

    `until`: when the process came back or was replaced. `rounds`: by host, the rounds that the
    others had done when it went.
    """

    life: Life
    since: float
    left: bool
    rounds: dict[str, int]
    until: float = float("inf")
    rank: int | None = None  # at its switch, which may know it before the life does

    def lasts(self, now: float) -> bool:
        """Tell whether the absence lasts, or has just ended."""
        return now <= self.until + LATELY


class Absences:
    """The absences in one job.

    Args:
        job: the job.
        lease: seconds, of every switch.
        switch_of: returns the address of a host's switch.
        rank_of: returns the rank that the worker of a host has at its switch.
    """

    def __init__(
        self,
        job: Job,
        lease: float,
        switch_of: Callable[[str], Address],
        rank_of: Callable[[str], int | None],
    ) -> None:
        self.job = job
        self.lease = lease
        self.switch_of = switch_of
        self.rank_of = rank_of
        self.absences: list[Absence] = []
        self.told: dict[str, float] = {}  # when a host was told last

    def goes(self, life: Life, others: Iterable[Life | Contributing], left: bool) -> Absence:
        """Note that a worker is away from now on."""
        rounds = {other.host: other.rounds for other in others if other is not life}
        absence = Absence(life, life.network.now, left, rounds)
        self.absences.append(absence)
        return absence

    def is_told(self, who: Life, lost: MemberLost) -> None:
        """Judge a MemberLost that a worker was told: the named members must be away."""
        now = who.network.now
        self.told[who.host] = now
        away = [absence for absence in self.absences if absence.lasts(now)]
        if not away:
            raise Violation("lost in error", f"{who.who}, with everybody there: {lost}")
        switch = self.switch_of(who.host)
        silent = [a for a in away if not a.left]
        for absence in silent:
            if absence.until == float("inf"):
                absence.rank = self.rank_of(absence.life.host)
        ranks = {a.rank for a in silent}
        if not set(lost.ranks) <= ranks:
            raise Violation("lost in error", f"{who.who}, though these are away: {ranks}: {lost}")
        all_heard = all(one.rank != NO_RANK for one in lost.awaited)
        long_gone = {
            a.rank
            for a in silent
            if (all_heard or self.switch_of(a.life.host) == switch)
            and now > a.since + self.lease + LATELY
            and a.until == float("inf")
        }
        if not long_gone <= set(lost.ranks):
            raise Violation("not named", f"{who.who}, though these are lost: {long_gone}: {lost}")

    def check(self, absence: Absence, lives: Iterable[Life | Contributing]) -> None:
        """Check that all workers that run know of the absence."""
        now = absence.life.network.now
        if absence.until < now:
            return
        away = {other.life.host for other in self.absences if other.until > absence.since}
        for life in lives:
            if life.host in away:  # itself, for some of the time at least
                continue
            has_more = life.rounds > absence.rounds.get(life.host, 0)
            if self.job.tells and self.told.get(life.host, -1.0) < absence.since:
                raise Violation(
                    "not told", f"{life.host} of {absence.life.who}, away since {absence.since:g} s"
                )
            if not self.job.tells and life.host in absence.rounds and not has_more:
                raise Violation(
                    "no progress",
                    f"{life.host} waits for {absence.life.who}, away since {absence.since:g} s",
                )
