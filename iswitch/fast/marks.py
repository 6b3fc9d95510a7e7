"""Answers, in compiled code, the marks of an asynchronous job's members (`answering`)."""

from __future__ import annotations

from . import tables as t
from .answering import (
    ANSWER,
    CONTRIBUTORS_AT,
    MARK,
    REQUEST_AT,
    ROUND_AT,
    THRESHOLD_AT,
    VALUE_AT,
)
from .compiling import inlined
from .libc import memmove
from .places import big_endian, distance, enqueue, is_in_use, packet_of, write_number
from .tables import Table, Tables
from .versions import NOBODY, table_of

NO_MARK = -1


@inlined
def request_of(
    tables: Tables, flow: Table, body: int, packets: int, tail: int, now: int
) -> tuple[int, int, int]:
    """Read a mark: its request's number, and the number and the first segment asked about.

    The request is NO_MARK for all that is not plain. Each part is read once, as it may lie in
    memory to which another process writes.

    Args:
        tables: know the member.
        flow: the row of its flow.
        body: address of the packet.
        packets: number of packets.
        tail: bytes of the last.
        now: the time, in nanoseconds.
    """
    job, member = tables.jobs[flow[t.JOB]], tables.members[flow[t.MEMBER]]
    nothing = NO_MARK, 0, 0
    if not member[t.ANSWERS] or member[t.ALLOWED] < 1 or packets != 1 or tail != MARK:
        return nothing
    if big_endian(body) != job[t.MARK] or not job[t.SEGMENTS] or now >= job[t.ASKS_AT]:
        return nothing
    start = big_endian(body + VALUE_AT + 4)
    if start > (job[t.SEGMENTS] if member[t.IS_SWITCH] else 0) or big_endian(body + VALUE_AT + 8):
        return nothing  # it names segments
    request = big_endian(body + REQUEST_AT)
    if distance(request, member[t.ASKED]) <= 0:
        return nothing
    return request, big_endian(body + VALUE_AT), start


@inlined
def is_full(tables: Tables, flow: Table) -> bool:
    """Return whether the next answer would lie where one is that waits to be sent."""
    member = tables.members[flow[t.MEMBER]]
    return is_in_use(tables, member[t.ANSWERS], 0, member[t.ANSWERED] + 1)


@inlined
def has_counted(last: Table, segment: int, number: int) -> bool:
    """Return whether a segment has counted a contribution, or a later one of its sender.

    Args:
        last: the numbers last counted, and whose.
        segment: the segment.
        number: of the contribution.
    """
    return bool(last[segment, 0] != NOBODY and distance(last[segment, 1], number) >= 0)


@inlined
def counted(job: Table, member: Table, number: int, start: int) -> tuple[int, int]:
    """Tell how many segments from `start` on have counted a sum, and how many then have not.

    Args:
        job: the job's row.
        member: the row of the switch that has sent it.
        number: of the sum.
        start: the first segment.
    """
    last, first = table_of(job, member[t.LAST]), start
    while first < job[t.SEGMENTS] and has_counted(last, first, number):
        first += 1
    stop = first
    while stop < job[t.SEGMENTS] and not has_counted(last, stop, number):
        stop += 1
    return first - start, stop - first


@inlined
def answer(tables: Tables, flow: Table, request: int, number: int, start: int, now: int) -> None:
    """Answer a plain mark.

    Args:
        tables: know the member.
        flow: the row of its flow.
        request: the mark's number.
        number: of the sum that it asks about, if it is a switch's.
        start: the first segment that it asks about.
        now: the time, in nanoseconds.
    """
    job, member = tables.jobs[flow[t.JOB]], tables.members[flow[t.MEMBER]]
    row, n = member[t.ANSWERS], member[t.ANSWERED]
    answers = tables.jobs[row]
    ack = packet_of(answers, 0, n)
    memmove(ack, packet_of(answers, 1, 0), ANSWER)  # behind the answers lies what they begin as
    write_number(ack + REQUEST_AT, request)
    write_number(ack + ROUND_AT, job[t.HIGH])
    if member[t.IS_SWITCH]:
        has, lacks = counted(job, member, number, start)
        write_number(ack + THRESHOLD_AT, lacks)
        write_number(ack + CONTRIBUTORS_AT, has)
    enqueue(tables, row, 0, n, n + 1)
    member[t.ASKED], member[t.ANSWERED], member[t.SEEN] = request, n + 1, now
    member[t.ALLOWED] -= 1
    tables.counts[t.PACKETS] += 1
    tables.counts[t.NBYTES] += MARK
    tables.counts[t.MARKS] += 1
