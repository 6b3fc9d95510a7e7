"""Answers Show: tells anybody about the switch and its jobs, and members about each other.

A question changes nothing. No answer is kept, and none is longer than its question: so forged
questions cannot flood a host with answers. Rules of docs/protocol.md, "What a switch shows".
"""

from __future__ import annotations

from iswitch.core.format.packets import Address, Outgoing
from iswitch.core.format.wire import (
    MAX_MEMBERS,
    MILLION,
    MOST_NAMED,
    Ack,
    AckJob,
    Action,
    Control,
    JobState,
    Present,
    Show,
    Shown,
    Status,
    kib,
)

from .holding import holding
from .job import Job
from .member import Member
from .record import Record, bare_answer
from .who import named

MOST_JOBS = 0xFFFF  # the largest number that fits in the field of an Ack
MOST_MS = 0xFFFFFFFF  # as milliseconds


def show(record: Record, peer: Address, packet: Control, asked: Show, now: float) -> Outgoing:
    """Answer a Show.

    Args:
        record: the jobs.
        peer: the sender of the question.
        packet: the request.
        asked: the Show in it.
        now: the time, in seconds.
    """
    ack: Ack | None
    if asked.what == Shown.SWITCH:
        ack = _switch(record, packet.job)
    elif asked.what == Shown.JOBS:
        ack = _next_job(record, packet.job, asked.first, now)
    elif asked.what == Shown.MEMBERS:
        ack = _members(record, peer, packet.job, asked.first, now)
    elif asked.what == Shown.QUEUE:
        ack = _waiting(record, packet.job, asked.first)
    elif asked.what == Shown.MEMORY:
        ack = _memory(record, packet.job, asked.first)
    elif asked.what == Shown.ROOM:
        ack = Ack(Action.SHOW, threshold=kib(record.room, whole=True))
    else:
        return bare_answer(peer, packet, Status.BAD_REQUEST)
    if ack is None:
        return bare_answer(peer, packet, Status.NOT_MEMBER)
    answer = Control(Action.ACK, packet.job, packet.request, ack)
    return Outgoing.control(peer, answer.build())


def _switch(record: Record, number: int) -> Ack:
    """Make the Ack that tells free and reserved memory, and the number of jobs with this key."""
    reserved = record.reserved
    free = max(0, record.limits.memory - reserved)
    above = int(record.parent is not None)
    jobs = min(record.jobs.many(number), MOST_JOBS)
    drained = int(record.drained is not None)
    return Ack(Action.SHOW, drained, jobs, kib(free, whole=True), kib(reserved), above)


def _waiting(record: Record, named: int, first: int) -> Ack | None:
    """Make the Ack for the first job that waits at place `first` or later, and has this key.

    None: there is none. Places count all jobs that wait.
    """
    queue = record.policy.queue()
    for place, number in enumerate(queue, 1):
        if place >= first and record.keys.of(number) == record.keys.of(named):
            needed = kib(record.policy.waits_for(number))
            first = record.policy.priority_of(number)
            return Ack(Action.SHOW, first, number, needed, place, len(queue))
    return None


def _memory(record: Record, named: int, number: int) -> Ack | None:
    """Make the Ack that tells what job `number` has of the memory.

    None: it does not exist, or does not have the key of job `named`.
    """
    job = record.jobs.get(number)
    if job is None or record.keys.of(number) != record.keys.of(named):
        return None
    has = holding(record, job)
    lane, turn = has.standing
    share = round(MILLION * has.share_added)
    return Ack(Action.SHOW, turn, lane, kib(has.reserved), has.slots, share)


def _next_job(record: Record, named: int, first: int, now: float) -> Ack | None:
    """Make the Ack for the first job from number `first` on that shares the key of job `named`."""
    number = record.jobs.next(named, first)
    return None if number is None else _job(record, record.jobs[number], number, [], now)


def _members(record: Record, peer: Address, number: int, first: int, now: float) -> Ack | None:
    """Make the Ack that names the contributors on seats `first` and up.

    None: the job does not exist, or the asker is no member of it. Seats never change, so
    questions with growing `first` name each present member once.

    Args:
        record: the switch's jobs and limits.
        peer: the sender of the request.
        number: the job's number.
        first: the lowest seat to name.
        now: the time, in seconds.
    """
    job = record.jobs.get(number)
    if job is None or job.member(peer) is None:
        return None
    rest = [member for member in job.contributors() if member.seat >= first]
    follows = rest[MOST_NAMED].seat if len(rest) > MOST_NAMED else MAX_MEMBERS
    return _job(record, job, follows, rest[:MOST_NAMED], now)


def _job(record: Record, job: Job, rank: int, members: list[Member], now: float) -> AckJob:
    """Make the Ack that tells of a job, and how long these members have been silent."""
    return AckJob(
        Action.SHOW,
        known=job.priority,
        rank=rank,
        threshold=job.members.threshold_in_force,
        round=job.high,
        contributors=record.workers(job, now),
        expected=job.members.expected,
        lease=_milliseconds(record.limits.lease),
        state=JobState.HALTED if job.halted else JobState[job.phase.name],
        members=tuple(
            Present(*named(member)[:3], _milliseconds(now - member.last_seen)) for member in members
        ),
    )


def _milliseconds(seconds: float) -> int:
    return min(round(1000 * seconds), MOST_MS)
