"""What kernels are told of jobs whose segments have owners; `owned` says what they do."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from iswitch.core.format.packets import Address
from iswitch.core.jobs.job import Job
from iswitch.core.jobs.member import Member
from iswitch.core.sums.owned import OwnedAccelerator
from iswitch.ports.kernel.mmsg import address_of

from . import tables as t


class Ranks(NamedTuple):
    """To whom the segments of each rank go."""

    by_rank: dict[int, Member]  # of the job; another object once it has changed
    step: int  # consecutive segments of one
    rows: npt.NDArray[np.int64]  # by which they leave; -1: nobody here has the rank

    @property
    def columns(self) -> dict[int, int]:
        """Return what the row by which segments of all leave says of those of each rank."""
        return {t.PER_RECEIVER: self.step, t.WAYS: address_of(self.rows)}


def columns(job: Job) -> dict[int, int]:
    """Return what every row of a job says of owners: nothing, if its segments have none."""
    sums = job.accelerator
    if not isinstance(sums, OwnedAccelerator):
        return {}
    return {
        t.FULL_SEGMENTS: sums.division.closing,
        t.OWNERS: sums.division.owners,
        t.PER_SOURCE: sums.division.per_source,
        t.BIT_OF: address_of(sums.bit_of),
        t.COUNTED: address_of(sums.counted),
        t.DUE: address_of(sums.due),
    }


def _divided(job: Job) -> OwnedAccelerator | None:
    """Return the sums of a job of which each segment goes to one rank; None: they go to all."""
    sums = job.accelerator
    return sums if isinstance(sums, OwnedAccelerator) and sums.division.is_for_one else None


def apart(job: Job) -> list[tuple[Address, ...]]:
    """Return the members of which each is sent segments that no other gets."""
    if _divided(job) is None:
        return []
    return list({(member.address,): None for member in job.members.by_rank.values()})


def ranks(job: Job, rows: Mapping[tuple[Address, ...], int]) -> Ranks | None:
    """Say to whom the segments of each rank go; None: they go to all.

    Args:
        job: the job.
        rows: by which packets leave, by their receivers.
    """
    sums = _divided(job)
    if sums is None:
        return None
    by_rank = job.members.by_rank
    found = np.full(sums.division.owners, -1, np.int64)
    for rank, member in by_rank.items():
        if rank < len(found):
            found[rank] = rows[member.address,]
    return Ranks(by_rank, sums.division.per_block, found)
