"""Answers, in compiled code, the marks of an asynchronous job's workers (`answering`)."""

from __future__ import annotations

from . import tables as t
from .answering import ANSWER, MARK, REQUEST_AT, ROUND_AT, VALUE_AT
from .compiling import inlined
from .libc import memmove
from .places import big_endian, distance, enqueue, is_in_use, packet_of, write_number
from .tables import Table, Tables

NO_MARK = -1


@inlined
def request_of(tables: Tables, flow: Table, body: int, packets: int, tail: int) -> int:
    """Return the number of a mark that is plain; NO_MARK: it is something else.

    Args:
        tables: know the member.
        flow: the row of its flow.
        body: address of the packet.
        packets: number of packets.
        tail: bytes of the last.
    """
    job, member = tables.jobs[flow[t.JOB]], tables.members[flow[t.MEMBER]]
    if not member[t.ANSWERS] or member[t.ALLOWED] < 1 or packets != 1 or tail != MARK:
        return NO_MARK
    if big_endian(body) != job[t.MARK] or not job[t.SEGMENTS]:
        return NO_MARK
    if big_endian(body + VALUE_AT + 4) or big_endian(body + VALUE_AT + 8):
        return NO_MARK  # it names segments
    request = big_endian(body + REQUEST_AT)
    return request if distance(request, member[t.ASKED]) > 0 else NO_MARK


@inlined
def is_full(tables: Tables, flow: Table) -> bool:
    """Return whether the next answer would lie where one is that waits to be sent."""
    member = tables.members[flow[t.MEMBER]]
    return is_in_use(tables, member[t.ANSWERS], 0, member[t.ANSWERED] + 1)


@inlined
def answer(tables: Tables, flow: Table, request: int, now: int) -> None:
    """Answer a plain mark, of this number.

    Args:
        tables: know the member.
        flow: the row of its flow.
        request: the mark's number.
        now: the time, in nanoseconds.
    """
    job, member = tables.jobs[flow[t.JOB]], tables.members[flow[t.MEMBER]]
    row, n = member[t.ANSWERS], member[t.ANSWERED]
    answers = tables.jobs[row]
    ack = packet_of(answers, 0, n)
    memmove(ack, packet_of(answers, 1, 0), ANSWER)  # behind the answers lies what they begin as
    write_number(ack + REQUEST_AT, request)
    write_number(ack + ROUND_AT, job[t.HIGH])
    enqueue(tables, row, 0, n, n + 1)
    member[t.ASKED], member[t.ANSWERED], member[t.SEEN] = request, n + 1, now
    member[t.ALLOWED] -= 1
    tables.counts[t.PACKETS] += 1
    tables.counts[t.NBYTES] += MARK
    tables.counts[t.MARKS] += 1
