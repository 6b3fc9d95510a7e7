"""Answers, in compiled code, the marks of an asynchronous job's members (`answering`)."""

from __future__ import annotations

from numba import carray

from iswitch.core.format.keys import MAC_SIZE

from . import seals
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
from .libc import as_i64, call_at, memmove
from .places import big_endian, distance, enqueue, is_in_use, packet_of, write_number
from .tables import Table, Tables
from .versions import NOBODY, table_of


@inlined
def seal(job: Table, packet: int, size: int) -> Table:
    """Make the MAC of a packet of a keyed job; return its words.

    Args:
        job: the job's row.
        packet: address of the packet.
        size: its bytes, without the MAC.
    """
    words: Table = carray(as_i64(job[t.SEAL]), seals.WORDS)
    context, mac = words[seals.CONTEXT], job[t.SEAL] + 8 * seals.MAC
    words[seals.LENGTH] = 0
    call_at(words[seals.INIT], (context, 0, 0, 0))  # with the key that it has
    call_at(words[seals.UPDATE], (context, packet, size))
    call_at(words[seals.FINAL], (context, mac, job[t.SEAL] + 8 * seals.LENGTH, MAC_SIZE))
    return words[seals.MAC :]


@inlined
def is_right(job: Table, packet: int, size: int) -> bool:
    """Return whether the MAC behind a packet is right, in constant time.

    The arguments are those of `seal`.
    """
    right, given = seal(job, packet, size), carray(as_i64(packet + size), MAC_SIZE // 8)
    differs = carray(as_i64(job[t.SEAL]), seals.WORDS)[seals.LENGTH] ^ MAC_SIZE  # 0 if it was made
    for i in range(len(given)):
        differs |= right[i] ^ given[i]
    return not differs


@inlined
def came_at(tables: Tables, flow: Table) -> int:
    """Return the address of the copy of a member's mark: behind what its answers begin as."""
    return packet_of(tables.jobs[tables.members[flow[t.MEMBER], t.ANSWERS]], 1, 1)


@inlined
def is_mark(tables: Tables, flow: Table, body: int, packets: int, tail: int, now: int) -> bool:
    """Return whether this is a plain mark, of which a copy is kept then.

    All is read from the copy, as the mark may lie in memory to which another process writes.

    Args:
        tables: know the member.
        flow: the row of its flow.
        body: address of the packet.
        packets: number of packets.
        tail: bytes of the last.
        now: the time, in nanoseconds.
    """
    job, member = tables.jobs[flow[t.JOB]], tables.members[flow[t.MEMBER]]
    size = MARK + (MAC_SIZE if job[t.SEAL] else 0)
    if not member[t.ANSWERS] or member[t.ALLOWED] < 1 or packets != 1 or tail != size:
        return False
    mark = came_at(tables, flow)
    memmove(mark, body, size)
    if big_endian(mark) != job[t.MARK] or not job[t.SEGMENTS] or now >= job[t.ASKS_AT]:
        return False
    start = big_endian(mark + VALUE_AT + 4)
    if start > (job[t.SEGMENTS] if member[t.IS_SWITCH] else 0) or big_endian(mark + VALUE_AT + 8):
        return False  # it names segments
    if distance(big_endian(mark + REQUEST_AT), member[t.ASKED]) <= 0:
        return False
    return not job[t.SEAL] or is_right(job, mark, MARK)


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
def answer(tables: Tables, flow: Table, now: int) -> None:
    """Answer a plain mark, of which `is_mark` has kept a copy.

    Args:
        tables: know the member.
        flow: the row of its flow.
        now: the time, in nanoseconds.
    """
    mark = came_at(tables, flow)
    request = big_endian(mark + REQUEST_AT)
    job, member = tables.jobs[flow[t.JOB]], tables.members[flow[t.MEMBER]]
    row, n = member[t.ANSWERS], member[t.ANSWERED]
    answers = tables.jobs[row]
    ack = packet_of(answers, 0, n)
    memmove(ack, packet_of(answers, 1, 0), ANSWER)  # behind the answers lies what they begin as
    write_number(ack + REQUEST_AT, request)
    write_number(ack + ROUND_AT, job[t.HIGH])
    if member[t.IS_SWITCH]:
        number, start = big_endian(mark + VALUE_AT), big_endian(mark + VALUE_AT + 4)
        has, lacks = counted(job, member, number, start)
        write_number(ack + THRESHOLD_AT, lacks)
        write_number(ack + CONTRIBUTORS_AT, has)
    size = MARK
    if job[t.SEAL]:
        size += MAC_SIZE
        memmove(ack + ANSWER, seal(job, ack, ANSWER).ctypes.data, MAC_SIZE)
    enqueue(tables, row, 0, n, n + 1)
    member[t.ASKED], member[t.ANSWERED], member[t.SEEN] = request, n + 1, now
    member[t.ALLOWED] -= 1
    tables.counts[t.PACKETS] += 1
    tables.counts[t.NBYTES] += size
    tables.counts[t.MARKS] += 1
