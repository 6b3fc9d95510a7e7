"""Reserves and allocates the memory of a contributor before it is let in."""

from __future__ import annotations

from iswitch.core.format.wire import Join, MemberType, Mode, Status, kib
from iswitch.core.sums.numpy_plane import memory_needed
from iswitch.core.sums.turns import TurnAccelerator

from .job import Job
from .policy import Need
from .processes import Asked
from .queue import Waiting
from .record import Record
from .requests import Refusal
from .slots import slots_of
from .window import Window


def reserve(record: Record, job: Job, asked: Asked, seat: int, window: Window | None) -> None:
    """Reserve and allocate all the memory that a contributor needs.

    Args:
        record: the jobs.
        job: the contributor's, which begins with it if it has no shape.
        asked: its Join.
        seat: its seat.
        window: the rounds in which the job begins, if the parent has named them.

    Raises:
        Refusal: there is too little memory, or the job waits for it; nothing has changed.
    """
    shape = asked.shape
    assert shape is not None
    begins = job.shape is None
    if begins and not record.data_plane.has_room(shape):
        raise Refusal(Status.FULL)
    slots = slots_of(record, job, asked.join)
    in_order = asked.wants_rank_order or record.reproducible if begins else job.reproducible
    turns = begins and takes_turns(record, asked, in_order, slots)
    need = Need(0)
    if turns:
        parts = TurnAccelerator.persistent(shape), TurnAccelerator.ephemeral(shape)
        need = Need(*parts, asked.join.left)
    elif seat not in job.reserved and not job.takes_turns:
        has_parent = record.data_plane.has_parent
        need = Need(memory_needed(shape, in_order, begins, has_parent, slots))
    if begins:
        asks, user = asked.join.priority, record.keys.user_of(job.number)
        job.priority = record.limits.grants.priority_of(job.number, user, asks)
    refuse_beyond_quota(record, job, need.total)
    verdict = record.policy.admit(job.number, need._replace(priority=job.priority))
    if verdict.place:
        waiting = len(record.policy.queue())
        raise Refusal(Status.WAITING, threshold=verdict.place, round=waiting)
    if not verdict.admitted:
        raise _lacks(record, need.total)
    take_back(record)
    try:
        record.limits.buffers.see(need.total)
        if begins:
            in_order &= shape.mode is not Mode.ASYNCHRONOUS
            job.begin(shape, in_order, seat, window, slots, turns)
        else:
            job.sums.join(seat)
    except MemoryError:
        record.policy.withdraw(job.number, need)
        record.counters["joins_without_memory"] += 1
        record.limits.buffers.refused(job.number, need.total)
        raise _lacks(record, need.total, machine=True) from None
    job.reserved.setdefault(seat, need.total)


def refuse_beyond_quota(record: Record, job: Job, needed: int) -> None:
    """Refuse a contributor for which its job or its user may not reserve so much.

    Args:
        record: the jobs.
        job: the contributor's.
        needed: bytes.

    Raises:
        Refusal: the quota of the job, or of the user of its key, would be exceeded.
    """
    grants, user = record.limits.grants, record.keys.user_of(job.number)
    if not needed or (grants.each is None and not grants.quotas):
        return
    own = sum(job.reserved.values())
    of_user = own + sum(
        sum(other.reserved.values())
        for other in record.jobs.values()
        if other is not job and record.keys.user_of(other.number) == user
    )
    mine = grants.quota_of(job.number), own
    theirs = grants.quotas.get(user) if user else None, of_user
    for rank, (quota, used) in enumerate((mine, theirs)):
        if quota is not None and used + needed > quota:
            free = kib(max(0, quota - used), whole=True)
            told = {"threshold": kib(needed), "round": free, "contributors": kib(quota)}
            raise Refusal(Status.QUOTA, rank=rank, **told)


def wait(record: Record, one: Waiting) -> bool:
    """Remember a contributor that waits for memory, so that it is answered once there is some.

    Returns:
        whether it waits; False: too many do for its job.
    """
    for job in record.queue.silent(one.heard):
        record.policy.forget(job)
    return record.queue.put(one)


def note_left(record: Record, job: Job, join: Join) -> None:
    """Note how many rounds a job has still to do, if the member that sends this Join tells it."""
    if join.left and join.type != MemberType.CONTROLLER:
        job.left = join.left
        record.policy.tell(job.number, join.left)


def takes_turns(record: Record, asked: Asked, in_order: bool, slots: int) -> bool:
    """Return whether the job of a first contributor takes turns with its memory."""
    if not record.policy.takes_turns or not record.data_plane.lends or in_order or slots:
        return False
    return asked.join.may_have_slots()


def take_back(record: Record) -> None:
    """Free what jobs have lent that have lost their turns."""
    for number in record.policy.losses():
        job = record.jobs.get(number)
        if job is not None and isinstance(job.accelerator, TurnAccelerator):
            job.accelerator.rest()


def _lacks(record: Record, needed: int, machine: bool = False) -> Refusal:
    """Make a refusal that tells the memory asked for, and the memory still free, both in KiB.

    If the limit has room but the machine has none, tell as free at least the memory asked for. Tell
    at least 1 KiB as asked for, since a member needs some that is not reserved.
    """
    asked = max(1, kib(needed))
    free = kib(max(0, record.limits.memory - record.reserved), whole=True)
    return Refusal(Status.FULL, threshold=asked, round=max(free, asked) if machine else free)
