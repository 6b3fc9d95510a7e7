"""What a switch tells of itself and its jobs to anybody, and of a job's members to these.

A question changes nothing, and no answer is kept, or longer than the question: so nobody can be
flooded with answers. Rules of docs/protocol.md, "What a switch shows".
"""

from __future__ import annotations

from iswitch.core.format.packets import Address, Outgoing
from iswitch.core.format.wire import (
    MAX_MEMBERS,
    MOST_AWAITED,
    Ack,
    Action,
    Control,
    Show,
    Shown,
    Status,
    kib,
)

from .record import Record, bare_answer
from .who import named

MOST_JOBS = 0xFFFF  # for which an Ack has room


def show(record: Record, peer: Address, packet: Control, asked: Show, now: float) -> Outgoing:
    """Answer a Show.

    Args:
        record: the jobs.
        peer: who asks.
        packet: the request.
        asked: what that asks.
        now: the time.
    """
    ack: Ack | None
    if asked.what == Shown.SWITCH:
        ack = _switch(record, packet.job)
    elif asked.what == Shown.JOBS:
        ack = _next_job(record, packet.job, asked.first, now)
    elif asked.what == Shown.MEMBERS:
        ack = _members(record, peer, packet.job, asked.first, now)
    else:
        return bare_answer(peer, packet, Status.BAD_REQUEST)
    if ack is None:
        return bare_answer(peer, packet, Status.NOT_MEMBER)
    answer = Control(Action.ACK, packet.job, packet.request, ack)
    return Outgoing.control(peer, answer.build())


def _switch(record: Record, number: int) -> Ack:
    """Tell of memory, and count the jobs that share the key of the one named."""
    reserved = record.reserved
    free = max(0, record.limits.memory - reserved)
    above = int(record.parent is not None)
    jobs = min(record.jobs.many(number), MOST_JOBS)
    return Ack(Action.SHOW, 0, jobs, kib(free, whole=True), kib(reserved), above)


def _next_job(record: Record, named: int, first: int, now: float) -> Ack | None:
    """Tell of the first job from a number on that shares the key of the one named."""
    number = record.jobs.next(named, first)
    return None if number is None else _job(record, number, number, now)


def _members(record: Record, peer: Address, number: int, first: int, now: float) -> Ack | None:
    """Name the contributors on seats from a number on, if a member of the job asks.

    A member keeps its seat: one that is there all the while is named once.
    """
    job = record.jobs.get(number)
    if job is None or job.member(peer) is None:
        return None
    members = job.contributors()
    rest = [member for member in members if member.seat >= first]
    follows = rest[MOST_AWAITED].seat if len(rest) > MOST_AWAITED else MAX_MEMBERS
    ack = _job(record, number, follows, now)
    assert ack is not None
    return ack.naming(len(members), tuple(named(member) for member in rest[:MOST_AWAITED]))


def _job(record: Record, number: int, rank: int, now: float) -> Ack | None:
    job = record.jobs.get(number)
    if job is None:
        return None
    workers = record.workers(job, now)
    return Ack(Action.SHOW, 0, rank, job.threshold_in_force, job.high, workers)
