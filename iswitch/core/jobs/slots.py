"""Decides how many slots a job has, and who may join a job that has slots.

Rules of docs/protocol.md, "Slots".
"""

from __future__ import annotations

from iswitch.core.format.wire import Join, Status

from .job import Job
from .policies import POLICIES
from .record import Record
from .requests import Refusal


def slots_of(record: Record, job: Job | None, join: Join) -> int:
    """Return the slots of the job that a contributor joins; 0: each segment has one.

    The first contributor names the number, all others the same.

    Args:
        record: the jobs.
        job: the contributor's; None: it begins with this one.
        join: its Join.

    Raises:
        Refusal: the Join must name another number, which the refusal tells; or packets are only
            counted here, so that no aggregate shows who has contributed.
    """
    named = join.slots if join.slots < join.segments else 0
    if job is not None and job.shape is not None:
        if join.shape() != job.shape:
            return job.slots  # whoever asks refuses that
        slots = job.slots
    else:
        if named and record.data_plane.counts_packets:
            raise Refusal(Status.BAD_REQUEST)
        of_job = join.may_have_slots() and not POLICIES[record.limits.policy].passes_on
        most = record.limits.slots if of_job else 0
        slots = most if 0 < most < join.segments and not 0 < named <= most else named
    if named != slots:
        raise Refusal(Status.SLOTS, threshold=slots)
    return slots
