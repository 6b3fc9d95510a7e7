"""Decides how many slots a job has, and who may join a job that has slots.

Rules of docs/protocol.md, "Slots".
"""

from __future__ import annotations

from iswitch.core.format.wire import FLAG_REPRODUCIBLE, Join, MemberType, Status

from .job import Job
from .policies import POLICIES
from .record import Record
from .requests import Refusal

IN_POOL = 16  # slots that a job of a pool has at least, if the operator says nothing else


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
        resizes = job.resizes and join.type == MemberType.WORKER
    else:
        if named and record.data_plane.counts_packets:
            raise Refusal(Status.BAD_REQUEST)
        of_job = join.may_have_slots() and not POLICIES[record.limits.policy].passes_on
        most = most_slots(record) if of_job else 0
        resizes = is_resized(record, join)
        fewer = 0 < named <= most and not resizes
        slots = most if 0 < most < join.segments and not fewer else named
    if resizes and join.slots:  # as many as it has been told, if it was a member before
        return slots
    if named != slots:
        raise Refusal(Status.SLOTS, threshold=slots)
    return slots


def most_slots(record: Record) -> int:
    """Return the slots of a job that its operator allows, of a pool the fewest; 0: any number."""
    return record.limits.slots or (IN_POOL if record.policy.resizes else 0)


def is_resized(record: Record, join: Join) -> bool:
    """Return whether the slots of a job change that begins with this Join."""
    if not (record.policy.resizes and record.data_plane.lends and join.may_have_slots()):
        return False
    if record.reproducible or join.flags & FLAG_REPRODUCIBLE:
        return False
    return join.type == MemberType.WORKER and most_slots(record) < join.segments
