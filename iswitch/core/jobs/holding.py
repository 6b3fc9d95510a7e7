"""What a job has of its switch's memory, as snapshots and answers to Show tell it."""

from __future__ import annotations

from typing import NamedTuple

from iswitch.core.sums.passing import PassingAccelerator

from .job import Job
from .policy import NO_LANE, Standing
from .record import Record


class Holding(NamedTuple):
    """What a job has of the memory.

    Attributes:
        reserved: bytes that it has reserved.
        slots: segments of a round that have room at a time; 0: all. Where jobs share slots: those
            that it has now.
        standing: its lane, and whether it has its turn there.
        added: contributions that were added up here; None: all, as none goes on.
        passed_on: contributions that have gone on to the switch above; None: as `added`.
    """

    reserved: int
    slots: int
    standing: Standing = NO_LANE
    added: int | None = None
    passed_on: int | None = None

    @property
    def share_added(self) -> float:
        """Return the part of its contributions that were added up here, 0 to 1."""
        if not self.passed_on or self.added is None:
            return 1.0
        return self.added / (self.added + self.passed_on)


def holding(record: Record, job: Job) -> Holding:
    """Return what a job has."""
    reserved, sums, policy = sum(job.reserved.values()), job.accelerator, record.policy
    if isinstance(sums, PassingAccelerator):
        return Holding(reserved, sums.slots_taken(), NO_LANE, sums.added, sums.passed_on)
    slots = policy.slots_of(job.number) if job.resizes else job.slots
    return Holding(reserved, slots, policy.standing(job.number))
