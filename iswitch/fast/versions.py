"""Counts, in compiled code, the numbered contributions of asynchronous jobs, and makes versions.

The state of a segment is that of `core.sums.asynchronous`: two words, of its version and its open
slot, and of the contributions in that and the versions kept. Below another switch it is that of
`core.sums.partial`: of the number of its last partial sum and its open buffer, and of the
contributions in that and whether the last sum is uncounted; versions come from above.
"""

from __future__ import annotations

from numba import carray

from iswitch.core.sums import numbered
from iswitch.core.sums.asynchronous import AsynchronousAccelerator
from iswitch.core.sums.partial import PartialAccelerator

from . import tables as t
from .adding import combine_rows
from .compiling import inlined
from .libc import as_i64, memmove
from .places import ROUNDS, SEG_SIZE, bytes_of, distance, enqueue, packet_of, write_header
from .tables import Table, Tables

KEPT, AHEAD = AsynchronousAccelerator.KEPT, AsynchronousAccelerator.AHEAD
NOBODY, ITS_OWN = numbered.NOBODY, numbered.ITS_OWN
HERE, NOTHING = PartialAccelerator.HERE, PartialAccelerator.NOTHING

is_late = inlined(numbered.is_late)


@inlined
def table_of(job: Table, address: int) -> Table:
    """Return a table of two words for each segment of a job."""
    table: Table = carray(as_i64(address), (job[t.SLOTS], 2))
    return table


@inlined
def slot_of(states: Table, segment: int) -> int:
    """Return the open slot of a segment."""
    return int(states[segment, 0] >> 32) & ROUNDS


@inlined
def is_below(job: Table) -> bool:
    """Return whether versions of an asynchronous job are made by a switch above."""
    return bool(job[t.DOWN] >= 0)


@inlined
def name(job: Table, version: int) -> None:
    """Know of a version; it may be the newest."""
    if distance(version, job[t.HIGH]) > 0:
        job[t.BASE], job[t.HIGH] = job[t.HIGH], version


@inlined
def find_lowest(job: Table, states: Table) -> None:
    """Find the lowest of the versions of all segments."""
    behind = 0
    for segment in range(len(states)):
        behind = max(behind, (job[t.HIGH] - states[segment, 0]) & ROUNDS)
    job[t.LOWEST] = (job[t.HIGH] - behind) & ROUNDS


@inlined
def counts(job: Table, member: Table, number: int, start: int, stop: int) -> bool:
    """Return whether a member's contribution counts at all of these segments.

    Args:
        job: the job's row.
        member: the member's row.
        number: of the contribution.
        start: first segment.
        stop: one past the last segment.
    """
    states, last = table_of(job, job[t.STATE_EVEN]), table_of(job, member[t.LAST])
    knows = False
    for segment in range(start, stop):
        if is_late(distance(number, last[segment, 1]), last[segment, 0]):
            return False
        version = states[segment, 0] & ROUNDS
        if is_below(job):
            held = states[segment, 1] & ROUNDS
            if states[segment, 1] >> 32 and held // AHEAD >= job[t.THRESHOLD]:
                return False
        elif distance(version, job[t.LOWEST]) >= AHEAD:
            if knows:
                return False
            find_lowest(job, states)
            knows = True
            if distance(version, job[t.LOWEST]) >= AHEAD:
                return False
    return True


@inlined
def overwrites(tables: Tables, row: int, start: int, stop: int) -> bool:
    """Return whether contributions to segments go where versions of these wait to be sent.

    Args:
        tables: have the queue.
        row: the row of the job.
        start: first segment.
        stop: one past the last segment.
    """
    job = tables.jobs[row]
    states = table_of(job, job[t.STATE_EVEN])
    for i in range(tables.parameters[t.QUEUED]):
        run = tables.queue[i]
        if run[t.RUN_JOB] == row:
            for segment in range(max(start, run[t.RUN_START]), min(stop, run[t.RUN_STOP])):
                if slot_of(states, segment) == run[t.RUN_SLOT]:
                    return True
    return False


@inlined
def count(
    tables: Tables, flow: Table, body: int, number: int, start: int, packets: int, step: int
) -> None:
    """Count a member's contribution, which counts at all of its segments; note complete versions.

    Args:
        tables: know the job.
        flow: the row of the packets' flow.
        body: address of the first packet.
        number: of the contribution.
        start: the segment of the first packet.
        packets: number of packets.
        step: bytes from one to the next.
    """
    row = flow[t.JOB]
    job, member = tables.jobs[row], tables.members[flow[t.MEMBER]]
    states, last = table_of(job, job[t.STATE_EVEN]), table_of(job, member[t.LAST])
    completed, first, end = 0, start, start + packets
    while first < end:
        head, more = states[first, 0], states[first, 1]
        stop, limit = first + 1, min(end, job[t.FULL_SEGMENTS])
        while stop < limit and states[stop, 0] == head and states[stop, 1] == more:
            stop += 1
        slot, held, kept = slot_of(states, first), more & ROUNDS, more >> 32
        sum_at, source = packet_of(job, slot, first), body + (first - start) * step
        nbytes, size = bytes_of(job, first, stop)
        if held:
            into, theirs = sum_at + SEG_SIZE, source + SEG_SIZE
            combine_rows(job[t.COMBINE], into, theirs, size, stop - first, job[t.SIZE])
        else:
            memmove(sum_at + SEG_SIZE, source + SEG_SIZE, nbytes)
        held += 1
        if held >= job[t.THRESHOLD] and not (is_below(job) and kept):
            if is_below(job):
                head, kept = number_of_next(job, head) | (1 - slot) << 32, 1
            else:
                version = (head + 1) & ROUNDS
                head, kept = version | ((slot + 1) % job[t.VERSIONS]) << 32, min(kept + 1, KEPT)
                name(job, version)
            for segment in range(first, stop):
                write_header(sum_at + (segment - first) * job[t.SIZE], head & ROUNDS, segment)
            held = 0
            completed += stop - first
            enqueue(tables, row, slot, first, stop)
        for segment in range(first, stop):
            states[segment, 0], states[segment, 1] = head, held | kept << 32
            last[segment, 0], last[segment, 1] = ITS_OWN, number
        first = stop
    job[t.COMPLETED] += completed
    tables.counts[t.AGGREGATES] += completed
    if is_below(job):
        job[t.OPENED] = 1
        job[t.UNASKED] |= completed > 0
        tables.parameters[t.UP_AT] = 0


# Below another switch


@inlined
def number_of_next(job: Table, head: int) -> int:
    """Return the number of a partial sum that goes up, and note that it is the newest.

    Args:
        job: the job's row.
        head: the first word of the segments' state, with the number of the one before.
    """
    if head & ROUNDS == job[t.NUMBER]:
        job[t.NUMBER] = (job[t.NUMBER] + 1) & ROUNDS
    return int(job[t.NUMBER])


@inlined
def kept_of(job: Table, version: int) -> tuple[Table, int]:
    """Return what is known of the version of each segment in a slot, and this slot.

    Args:
        job: the job's row.
        version: that belongs into the slot.
    """
    slot = version % KEPT
    places = carray(as_i64(job[t.KEPT_AT]), KEPT)
    table: Table = carray(as_i64(places[slot]), job[t.SLOTS])
    return table, slot


@inlined
def is_news(job: Table, version: int, start: int, stop: int) -> bool:
    """Return whether none of these segments of a version, or of one after it, has come from above.

    Args:
        job: the job's row.
        version: that comes.
        start: first segment.
        stop: one past the last segment.
    """
    known, _ = kept_of(job, version)
    for segment in range(start, stop):
        ahead, what = distance(known[segment] & ROUNDS, version), known[segment] >> 32
        if what != NOTHING and (ahead > 0 or (ahead == 0 and what == HERE)):
            return False
    return True


@inlined
def keep_version(
    tables: Tables, job: Table, body: int, version: int, start: int, stop: int, nbytes: int
) -> None:
    """Keep aggregates from above that are news, and note that the members are to get them.

    Args:
        tables: have the queue.
        job: the job's row.
        body: address of the first packet.
        version: that comes.
        start: first segment.
        stop: one past the last segment.
        nbytes: bytes of all packets.
    """
    known, slot = kept_of(job, version)
    memmove(packet_of(tables.jobs[job[t.DOWN]], slot, start), body, nbytes)
    for segment in range(start, stop):
        known[segment] = version | HERE << 32
    name(job, version)
    enqueue(tables, job[t.DOWN], slot, start, stop)


@inlined
def overwrites_version(tables: Tables, job: Table, version: int, start: int, stop: int) -> bool:
    """Return whether a version that comes goes where one waits to be sent.

    Args:
        tables: have the queue.
        job: the job's row.
        version: that comes.
        start: first segment.
        stop: one past the last segment.
    """
    for i in range(tables.parameters[t.QUEUED]):
        run = tables.queue[i]
        ours = run[t.RUN_JOB] == job[t.DOWN] and run[t.RUN_SLOT] == version % KEPT
        if ours and run[t.RUN_START] < stop and start < run[t.RUN_STOP]:
            return True
    return False
