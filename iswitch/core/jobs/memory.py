"""Reserves and allocates the memory of a contributor before it is let in."""

from __future__ import annotations

from collections.abc import Iterator
from math import inf

from iswitch.core.format.wire import Join, Mode, Shape, Status, kib
from iswitch.core.sums.assembly import Assembly
from iswitch.core.sums.numpy_plane import memory_needed
from iswitch.core.sums.passing import PassingAccelerator
from iswitch.core.sums.resized import ResizedAccelerator
from iswitch.core.sums.turns import TurnAccelerator

from .job import Job
from .member import Member
from .policy import Growth, Need
from .processes import Asked
from .queue import Waiting
from .record import Record
from .requests import Refusal
from .resizing import note_named, pin
from .slots import is_resized, slots_of
from .way import Way
from .window import Window


def reserve(
    record: Record,
    job: Job,
    asked: Asked,
    seat: int,
    window: Window | None,
    passes_on: bool = False,
) -> None:
    """Reserve and allocate all the memory that a contributor needs.

    Args:
        record: the jobs.
        job: the contributor's, which begins with it if it has no shape.
        asked: its Join.
        seat: its seat.
        window: the rounds in which the job begins, if the parent has named them.
        passes_on: whether the parent has been told that contributions come in parts.

    Raises:
        Refusal: there is too little memory, or the job waits for it; nothing has changed.
    """
    shape = asked.shape
    assert shape is not None
    begins = job.shape is None
    if begins and not record.data_plane.has_room(shape):
        raise Refusal(Status.FULL)
    way = way_of(record, job, asked, passes_on)
    if asked.join.sends_parts and not record.data_plane.merges:
        raise Refusal(Status.BAD_REQUEST)
    merges = asked.join.sends_parts and seat not in job.assemblies
    need = _need(record, job, asked, seat, way)
    need = need._replace(persistent=need.persistent + merges * Assembly.memory(shape))
    refuse_beyond_quota(record, job, need.total)
    _admit(record, job, asked, need)
    take_back(record)
    try:
        record.limits.buffers.see(need.total)
        assembly = Assembly(shape, record.counters, record.limits.buffers) if merges else None
        if way.resizes:
            pin(record, job, asked.join)
        if begins:
            job.begin(shape, seat, way, window)
        else:
            job.sums.join(seat)
    except Refusal:
        record.policy.withdraw(job.number, need)
        raise
    except MemoryError:
        record.policy.withdraw(job.number, need)
        record.counters["joins_without_memory"] += 1
        record.limits.buffers.refused(job.number, need.total)
        raise _lacks(record, need.total, machine=True) from None
    if assembly is not None:
        job.assemblies[seat] = assembly
        job.threshold = 0  # which a controller may have set before
    job.reserved[seat] = job.reserved.get(seat, 0) + need.total


def way_of(record: Record, job: Job, asked: Asked, passes_on: bool) -> Way:
    """Return how a contributor's job adds up; `passes_on`: the parent expects parts.

    Raises:
        Refusal: the Join names another number of slots.
    """
    slots = slots_of(record, job, asked.join)
    if job.shape is not None:
        pool = record.pool if job.passes_on else None
        return Way(job.reproducible, slots, job.takes_turns, job.resizes, pool)
    in_order = asked.wants_rank_order or record.reproducible
    if asked.shape is not None and asked.shape.mode is Mode.ASYNCHRONOUS:
        in_order = False
    if passes_on:
        if not record.passes_on(asked.join):  # the parent has been told what another worker said
            raise Refusal(Status.MISMATCH)
        return Way(pool=record.pool)
    turns = takes_turns(record, asked, in_order, slots)
    return Way(in_order, slots, turns, is_resized(record, asked.join))


def _need(record: Record, job: Job, asked: Asked, seat: int, way: Way) -> Need:
    """Return what a contributor needs, but for its parts."""
    shape, begins = asked.shape, job.shape is None
    assert shape is not None
    if way.turns and begins:
        parts = TurnAccelerator.persistent(shape), TurnAccelerator.ephemeral(shape)
        return Need(*parts, asked.join.left)
    if way.pool is not None:
        return Need(PassingAccelerator.memory(shape) * begins)
    if way.resizes and begins:
        return _growing(record, job, shape, way.slots)
    if seat in job.reserved or way.turns or way.resizes:
        return Need(0)
    has_parent = record.data_plane.has_parent
    return Need(memory_needed(shape, way.reproducible, begins, has_parent, way.slots))


def _admit(record: Record, job: Job, asked: Asked, need: Need) -> None:
    """Reserve the memory, by the priority that a job's first contributor asks for.

    Raises:
        Refusal: there is too little, or the job waits for it.
    """
    if job.shape is None:
        asks, user = asked.join.priority, record.keys.user_of(job.number)
        job.priority = record.limits.grants.priority_of(job.number, user, asks)
    verdict = record.policy.admit(job.number, need._replace(priority=job.priority))
    if verdict.place:
        waiting = len(record.policy.queue())
        raise Refusal(Status.WAITING, threshold=verdict.place, round=waiting)
    if not verdict.admitted:
        raise _lacks(record, need.total)


def _growing(record: Record, job: Job, shape: Shape, slots: int) -> Need:
    """Return what the first contributor of a job needs whose slots change.

    The job grows no further than its quota, or what is left of that of its user.
    """
    kind = ResizedAccelerator
    need, each = kind.memory(shape, slots), 2 * kind.memory_per_slot(shape)
    left = min((quota - used for _, quota, used in quotas(record, job)), default=inf)
    most = shape.segments
    if kind.memory(shape, most) > left:
        more = max(0, int(left - need) // each)
        most = max(slots, 1 << (slots + more).bit_length() - 1)
    return Need(need, growth=Growth(slots, most, each))


def refuse_beyond_quota(record: Record, job: Job, needed: int) -> None:
    """Refuse a contributor for which its job or its user may not reserve so much.

    Args:
        record: the jobs.
        job: the contributor's.
        needed: bytes.

    Raises:
        Refusal: the quota of the job, or of the user of its key, would be exceeded.
    """
    for rank, quota, used in quotas(record, job) if needed else ():
        if used + needed > quota:
            free = kib(max(0, quota - used), whole=True)
            told = {"threshold": kib(needed), "round": free, "contributors": kib(quota)}
            raise Refusal(Status.QUOTA, rank=rank, **told)


def quotas(record: Record, job: Job) -> Iterator[tuple[int, int, int]]:
    """Yield the quotas of a job (0) and of the user of its key (1), and how much each has used."""
    grants, user = record.limits.grants, record.keys.user_of(job.number)
    if grants.each is None and not grants.quotas:
        return
    own = sum(job.reserved.values())
    mine = grants.quota_of(job.number)
    if mine is not None:
        yield 0, mine, own
    if user and user in grants.quotas:
        others = (
            sum(other.reserved.values())
            for other in record.jobs.values()
            if other is not job and record.keys.user_of(other.number) == user
        )
        yield 1, grants.quotas[user], own + sum(others)


def wait(record: Record, one: Waiting) -> bool:
    """Remember a contributor that waits for memory, so that it is answered once there is some.

    Returns:
        whether it waits; False: too many do for its job.
    """
    for job in record.queue.silent(one.heard):
        record.policy.forget(job)
    return record.queue.put(one)


def note_join(record: Record, job: Job, member: Member, join: Join) -> None:
    """Note what a Join of a member tells: the rounds that its job has left, and its slots."""
    if not member.contributes:
        return
    note_named(job, member, join)
    if join.left:
        job.left = join.left
        record.policy.tell(job.number, join.left)


def takes_turns(record: Record, asked: Asked, in_order: bool, slots: int) -> bool:
    """Return whether the job of a first contributor takes turns with its memory."""
    if not record.policy.takes_turns or not record.data_plane.lends or in_order or slots:
        return False
    return asked.join.may_have_slots() and not asked.join.sends_parts


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
