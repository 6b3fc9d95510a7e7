"""Schedulers of lanes: which job is next, in the queue and in its lane."""

from __future__ import annotations

from math import inf

from .lanes import Lanes, Lodger
from .policy import Need, Verdict


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
    """Any waiting job that fits comes in, the first of them first; lanes go to who asked first."""

    name = "lanes:pack"
    overtakes = True

    def rank(self, job: Lodger) -> float:
        """Return when it asked."""
        return job.asked or 0


class Fair(Lanes):
    """The job that has had the least of its lane's time goes first.

    A newcomer begins with the least time that a job of the switch has had, so that it does not
    keep the lane until it has caught up.
    """

    name = "lanes:fair"

    def rank(self, job: Lodger) -> float:
        """Return the seconds in which it had rounds under way."""
        return job.spent

    def admit(self, job: int, need: Need) -> Verdict:
        """Reserve memory for one more contributor of a job, or let the job wait."""
        least = min((one.spent for one in self._jobs.values()), default=0.0)
        new = job not in self._jobs
        verdict = super().admit(job, need)
        if new and verdict.admitted:
            self._jobs[job].spent = least
        return verdict
