"""Tells which rounds a switch may take from a member, and from its parent."""

from __future__ import annotations

from iswitch.core.format.wire import round_distance
from iswitch.core.jobs.job import Job
from iswitch.core.jobs.member import Member


def is_out_of_turn(job: Job, member: Member, round_: int) -> bool:
    """Tell whether a round is before a member's first, or outside the job's window.

    While a member is held back, until all have joined, none of its rounds counts.
    """
    first, window = member.first_round, job.window
    if first is not None and round_distance(round_, first) < 0:
        return True
    if member.held_back and not job.members.gathered and not job.threshold:
        return True
    ahead = round_distance(round_, window.high) > 1
    return round_ != first and (is_past(job, round_) or ahead)


def is_past(job: Job, round_: int) -> bool:
    """Tell whether a round is before a job's window."""
    lowest = job.window.lowest
    past = lowest is not None and round_distance(round_, lowest) < 0
    return past or round_distance(round_, job.window.high) < -1
