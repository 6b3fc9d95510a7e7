"""Asks the switch above, in compiled code, what it has counted of partial sums (`asking`)."""

from __future__ import annotations

from iswitch.core.format.keys import MAC_SIZE
from iswitch.core.format.wire import COUNTED, Action
from iswitch.core.jobs.upward import LONGEST_PAUSE, TRIPS

from . import tables as t
from .answering import ANSWER, CONTRIBUTORS_AT, MARK, REQUEST_AT, ROUND_AT, THRESHOLD_AT, VALUE_AT
from .compiling import inlined
from .libc import memmove
from .marks import is_right, seal
from .places import ROUNDS, big_endian, enqueue, packet_of, write_header, write_number
from .tables import Table, Tables
from .versions import name, number_of_next, slot_of, table_of

ALL_COUNTED = int(Action.HELP) << 8 | COUNTED  # the first 16 bits of an answer
ACK_BITS = (int(Action.ACK) ^ int(Action.HELP)) << 24  # in which an answer's first 32 bits differ


@inlined
def uncounted(job: Table) -> int:
    """Return how many runs the newest partial sum has; 0 if part of it is counted.

    Python asks about each of these runs, whose segments are in one state.
    """
    states, runs = table_of(job, job[t.STATE_EVEN]), 1
    for segment in range(len(states)):
        if states[segment, 0] & ROUNDS != job[t.NUMBER] or not states[segment, 1] >> 32:
            return 0
        before = states[max(segment - 1, 0)]
        runs += before[0] != states[segment, 0] or before[1] != states[segment, 1]
    return runs


@inlined
def is_open(job: Table) -> bool:
    """Return whether contributions wait in an open sum."""
    states = table_of(job, job[t.STATE_EVEN])
    held = 0
    for segment in range(len(states)):
        held |= states[segment, 1] & ROUNDS
    return held != 0


@inlined
def is_answer(tables: Tables, flow: Table, body: int, packets: int, tail: int) -> bool:
    """Return whether the switch above answers the open question, and has counted everything.

    Args:
        tables: know the job.
        flow: the row of its flow.
        body: address of the packet.
        packets: number of packets.
        tail: bytes of the last.
    """
    job = tables.jobs[flow[t.JOB]]
    size = ANSWER + (MAC_SIZE if job[t.SEAL] else 0)
    if not job[t.SEGMENTS] or not job[t.UP] or job[t.QUESTION] < 0 or job[t.MAY_ANSWER] < 1:
        return False
    if packets != 1 or tail != size or big_endian(body) != job[t.MARK] ^ ACK_BITS:
        return False
    if big_endian(body + REQUEST_AT) != job[t.QUESTION]:
        return False
    if big_endian(body + VALUE_AT) >> 16 != ALL_COUNTED or big_endian(body + THRESHOLD_AT):
        return False
    if big_endian(body + CONTRIBUTORS_AT) != job[t.SEGMENTS]:
        return False
    if not 0 < uncounted(job) < t.MOST_PACKETS:  # or what goes up next may be too many runs
        return False
    return not job[t.SEAL] or is_right(job, body, ANSWER)


@inlined
def hear(tables: Tables, flow: Table, body: int, tail: int, now: int) -> None:
    """Take an answer that says that all is counted, and send up what has waited for that.

    Args:
        tables: know the job.
        flow: the row of its flow.
        body: address of the packet.
        tail: its bytes.
        now: the time, in nanoseconds.
    """
    row = flow[t.JOB]
    job = tables.jobs[row]
    name(job, big_endian(body + ROUND_AT))
    job[t.TRIP] += (now - job[t.MARKED] - job[t.TRIP]) // 4
    job[t.QUESTION], job[t.LOST_AT], job[t.PAUSE] = -1, t.NEVER, job[t.LEAST_PAUSE]
    job[t.MAY_ANSWER] -= 1
    job[t.ANSWERS_DOWN] += 1
    job[t.ANSWERED_AT] = now
    go(tables, row)
    tables.counts[t.PACKETS] += 1
    tables.counts[t.NBYTES] += tail
    tables.counts[t.MARKS] += 1


@inlined
def go(tables: Tables, row: int) -> None:
    """Send up what has enough contributions, now that all before it is counted.

    Args:
        tables: know the job.
        row: the job's row.
    """
    job = tables.jobs[row]
    states = table_of(job, job[t.STATE_EVEN])
    for segment in range(len(states)):
        head, held = states[segment, 0], states[segment, 1] & ROUNDS
        states[segment, 1] = held
        if held and held >= job[t.THRESHOLD]:
            slot = slot_of(states, segment)
            number = number_of_next(job, head)
            write_header(packet_of(job, slot, segment), number, segment)
            states[segment, 0], states[segment, 1] = number | (1 - slot) << 32, 1 << 32
            enqueue(tables, row, slot, segment, segment + 1)
            job[t.COMPLETED] += 1
            tables.counts[t.AGGREGATES] += 1
            job[t.UNASKED] = 1
    tables.parameters[t.UP_AT] = 0


@inlined
def ask(tables: Tables, job: Table, now: int) -> None:
    """Ask about the newest partial sum, which has gone up in all segments.

    Args:
        tables: have the queue.
        job: the job's row.
        now: the time, in nanoseconds.
    """
    way, n = tables.jobs[job[t.UP]], job[t.MARKS_UP]
    mark = packet_of(way, 0, n)
    memmove(mark, packet_of(way, 1, 0), MARK)
    job[t.REQUEST] = (job[t.REQUEST] + 1) & ROUNDS
    write_number(mark + REQUEST_AT, job[t.REQUEST])
    write_number(mark + VALUE_AT, job[t.NUMBER])
    if job[t.SEAL]:
        memmove(mark + MARK, seal(job, mark, MARK).ctypes.data, MAC_SIZE)
    enqueue(tables, job[t.UP], 0, n, n + 1)
    job[t.MARKS_UP] = n + 1
    job[t.QUESTION], job[t.UNASKED], job[t.MARKED] = job[t.REQUEST], 0, now
    job[t.MARK_AT] = now + job[t.LEAST_PAUSE]
    job[t.LOST_AT] = now + max(int(TRIPS * job[t.TRIP]), job[t.PAUSE])
    job[t.PAUSE] = min(2 * job[t.PAUSE], int(LONGEST_PAUSE * t.SECOND))


@inlined
def is_due(job: Table, now: int) -> bool:
    """Return whether an open sum has been held long enough; hold one that was opened.

    Args:
        job: the job's row.
        now: the time, in nanoseconds.
    """
    job[t.OPENED] = 0
    if not is_open(job):
        job[t.HOLD_AT] = 0
    elif not job[t.HOLD_AT]:
        job[t.HOLD_AT] = now + job[t.HOLD]
    return bool(0 < job[t.HOLD_AT] <= now)


@inlined
def look_up(tables: Tables, now: int) -> bool:
    """Ask what has to be asked now; return whether Python has to look at partial sums.

    Args:
        tables: know the jobs, and get the time of the next look.
        now: the time, in nanoseconds.
    """
    soonest = t.NEVER
    for row in range(tables.parameters[t.JOBS]):
        job = tables.jobs[row]
        if not job[t.LOST_AT] or not job[t.SEGMENTS]:  # no partial sums, or not at present
            continue
        asks = job[t.UNASKED] and now >= job[t.MARK_AT]
        ends = now >= job[t.HOLD_AT] if job[t.HOLD_AT] else job[t.OPENED]
        if now >= job[t.LOST_AT] or ((asks or ends) and is_due(job, now)):
            return True
        if asks:
            if not job[t.UP] or job[t.QUESTION] >= 0 or uncounted(job) != 1:
                return True
            ask(tables, job, now)
        soonest = min(soonest, job[t.LOST_AT])
        if job[t.HOLD_AT]:
            soonest = min(soonest, job[t.HOLD_AT])
        if job[t.UNASKED]:
            soonest = min(soonest, job[t.MARK_AT])
    tables.parameters[t.UP_AT] = soonest
    return False
