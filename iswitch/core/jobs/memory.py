"""Memory that a contributor needs, reserved and had before it is let in."""

from __future__ import annotations

from iswitch.core.format.wire import Mode, Status, kib
from iswitch.core.sums.numpy_plane import memory_needed

from .job import Job
from .processes import Asked
from .record import Record
from .requests import Refusal
from .window import Window


def reserve(record: Record, job: Job, asked: Asked, seat: int, window: Window | None) -> None:
    """Reserve, and have, all the memory that a contributor needs.

    Args:
        record: the jobs.
        job: the contributor's, which begins with it if it has no shape.
        asked: its Join.
        seat: where it is to sit.
        window: where the job begins, if the parent has said so.

    Raises:
        Refusal: there is not enough; nothing has changed.
    """
    shape = asked.shape
    assert shape is not None
    begins = job.shape is None
    if begins and not record.data_plane.has_room(shape):
        raise Refusal(Status.FULL)
    in_order = asked.wants_rank_order or record.reproducible if begins else job.reproducible
    needed = 0
    if seat not in job.reserved:
        needed = memory_needed(shape, in_order, begins, record.data_plane.has_parent)
        if record.reserved + needed > record.limits.memory:
            raise _lacks(record, needed)
    try:
        record.limits.buffers.see(needed)
        if begins:
            job.begin(shape, in_order and shape.mode is Mode.SYNCHRONOUS, seat, window)
        else:
            job.sums.join(seat)
    except MemoryError:
        record.counters["joins_without_memory"] += 1
        record.limits.buffers.refused(job.number, needed)
        raise _lacks(record, needed, machine=True) from None
    job.reserved.setdefault(seat, needed)
    record.reserved += needed


def _lacks(record: Record, needed: int, machine: bool = False) -> Refusal:
    """Tell what was asked for, and what members may reserve still; both in KiB.

    If the machine lacks it, no less is said to be free than was asked for; that is something,
    though what a member needs beside its job's buffers is not reserved.
    """
    asked = max(1, kib(needed))
    free = kib(max(0, record.limits.memory - record.reserved), whole=True)
    return Refusal(Status.FULL, threshold=asked, round=max(free, asked) if machine else free)
