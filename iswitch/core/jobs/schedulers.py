"""Schedulers of lanes: which job is next, in the queue and in its lane."""

from __future__ import annotations

from math import inf

from .lanes import Lanes
from .lodging import Lane, Lodger
from .policy import Need, Verdict

PATIENCE = 2.0  # times the seconds that a job usually computes


class Fifo(Lanes):
    """The job that came first goes first, in the queue and in its lane."""

    name = "lanes:fifo"

    def rank(self, job: Lodger) -> float:
        """Return when it came."""
        return job.came


class Srtf(Lanes):
    """The job with the shortest remaining time goes first: rounds left times what one takes.

    Jobs that do not tell how many rounds they have go last.
    """

    name = "lanes:srtf"

    def rank(self, job: Lodger) -> float:
        """Return its remaining time, in seconds."""
        return job.remaining

    def rank_in_queue(self, job: Lodger) -> float:
        """Return its rounds, the only thing known of a job that has not run, times its bytes."""
        return job.left * job.need.total if job.left else inf


class Pack(Lanes):
    """Any waiting job that fits comes in, the first of them first; lanes go to who asked first.

    Lanes become one only where that leaves at least as many rounds under way at a time, by what has
    been measured of their jobs: more jobs in a lane that is always busy would only wait for each
    other. Without such a place a job waits as it does in `static`.
    """

    name = "lanes:pack"
    overtakes = True

    def rank(self, job: Lodger) -> float:
        """Return when it asked."""
        return job.asked or 0

    def _has_room(self, need: Need) -> bool:
        """Return whether a job finds room now, if lanes become one where that pays."""
        free, expected = self._free, self._expected()
        groups = [(lane.busy, lane.size, self._load(lane)) for lane in self._open]
        while need.total > free:
            sizes = [size for _, size, _ in groups]
            if any(need.persistent + max(0, need.ephemeral - size) <= free for size in sizes):
                return bool(need.ephemeral)
            idle = [one for one in groups if not one[0]]
            if not idle or len(groups) < 2:
                return False
            one = min(idle, key=lambda group: group[1])
            groups.remove(one)
            into = max(groups, key=lambda group: group[:2])
            if not pays(one[2], into[2], expected):
                return False
            groups.remove(into)
            groups.append((into[0], max(one[1], into[1]), one[2] + into[2]))
            free += min(one[1], into[1])
        return True

    def _close_one(self) -> None:
        """Let a lane be emptied when its round ends, if that pays."""
        sizes = sorted(self._open, key=lambda one: one.size)
        loads = [self._load(lane) for lane in sizes]
        if len(sizes) > 1 and pays(loads[0], loads[-1], self._expected()):
            super()._close_one()

    @staticmethod
    def _load(lane: Lane) -> float:
        """Return how many rounds the jobs of a lane would have under way; 1 of one not measured."""
        return sum(1.0 if job.load is None else job.load for job in lane.jobs)

    def _expected(self) -> float:
        """Return what a job is expected to add: the mean of those that were measured."""
        known = [load for job in self._jobs.values() if (load := job.load) is not None]
        return sum(known) / len(known) if known else 1.0


def pays(one: float, other: float, new: float) -> bool:
    """Return whether two lanes of these loads do as much as one, with another job in it."""
    return min(1.0, one + other + new) >= min(1.0, one) + min(1.0, other)


class Fair(Lanes):
    """The job that has had the least of its lane's time goes first.

    A newcomer begins with the least time that a job of the switch has had, so that it does not
    keep the lane until it has caught up.

    Of two jobs only one asks when the other's round is over, which still has to compute. Taking
    whoever asks would let them alternate, whatever their rounds take. So the lane waits for a job
    that is a whole round behind, and would use more than its part of the lane if it never waited:
    for no longer than twice the time that it usually computes.
    """

    name = "lanes:fair"

    def __init__(self, memory: int) -> None:
        super().__init__(memory)
        self._now = 0.0  # when somebody last asked for a turn, or a round ended
        self._until = inf

    def rank(self, job: Lodger) -> float:
        """Return the seconds in which it had rounds under way."""
        return job.spent

    def ask(self, job: int, now: float) -> None:
        """Note that all members of a job want to begin a round."""
        self._now = now
        super().ask(job, now)

    def end(self, job: int, now: float, done: bool) -> None:
        """Note that this round is over: `done`, or given up."""
        self._now = now
        super().end(job, now, done)

    def turns(self) -> list[int]:
        """Give lanes without a round under way to jobs that have asked."""
        self._until = inf
        return super().turns()

    def look_at(self) -> float:
        """Return when a lane has waited long enough, in seconds."""
        return self._until

    def holds_back(self, lane: Lane, job: Lodger) -> bool:
        """Return whether a lane waits for a job that is behind and computes."""
        for one in lane.jobs:
            load = one.load
            if load is None or one.ended is None or one.need.priority != job.need.priority:
                continue
            behind = one.spent + one.spent / one.done <= job.spent
            until = one.ended + PATIENCE * one.idle / one.done
            if behind and load * len(lane.jobs) > 1 and self._now < until:
                self._until = min(self._until, until)
                return True
        return False

    def admit(self, job: int, need: Need) -> Verdict:
        """Reserve memory for one more contributor of a job, or let the job wait."""
        least = min((one.spent for one in self._jobs.values()), default=0.0)
        new = job not in self._jobs
        verdict = super().admit(job, need)
        if new and verdict.admitted:
            self._jobs[job].spent = least
        return verdict
