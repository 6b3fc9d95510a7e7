"""Where the segments of a job lie, in compiled code, and which of them wait to be sent."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from numba import carray

from . import tables as t
from .compiling import inlined
from .libc import as_i64, as_u8, as_u32, load32
from .tables import Table, Tables

Laps = npt.NDArray[np.uint32]
SEG_SIZE = 8
ROUNDS = 0xFFFFFFFF  # the mask of round numbers


@inlined
def big_endian(address: int) -> int:
    """Read 32 bits in network order."""
    x = load32(address) & 0xFFFFFFFF
    return ((x & 0xFF) << 24) | ((x & 0xFF00) << 8) | ((x >> 8) & 0xFF00) | (x >> 24)


@inlined
def distance(one: int, other: int) -> int:
    """Return how far round `one` is ahead of `other`; rounds wrap."""
    return ((one - other + 0x80000000) & ROUNDS) - 0x80000000


@inlined
def states_of(job: Table, slot: int) -> Table:
    """Return the states of a set: round and progress, and bitmap, of each position."""
    states: Table = carray(as_i64(job[t.STATE_EVEN + slot]), (job[t.SLOTS], 2))
    return states


@inlined
def laps_of(job: Table, slot: int) -> Laps:
    """Return the laps that the positions of a set hold; none, if all segments have room."""
    place = job[t.LAPS_EVEN + slot]
    laps: Laps = carray(as_u32(place), job[t.SLOTS] if place else 0)
    return laps


@inlined
def holds(job: Table, laps: Laps, segment: int) -> bool:
    """Return whether the position of a segment holds it, or no other one.

    Args:
        job: the job's row.
        laps: of its set.
        segment: the segment.
    """
    return not len(laps) or laps[segment & job[t.MASK]] == segment >> job[t.SHIFT]


@inlined
def contributors(job: Table, states: Table, laps: Laps, segment: int, round_: int) -> int:
    """Return the bitmap of the contributors to a segment, in a round that it is open in.

    Args:
        job: the job's row.
        states: of the round's set.
        laps: of this set.
        segment: the segment.
        round_: the round.
    """
    state = states[segment & job[t.MASK]]
    if state[0] & ROUNDS != round_ or not holds(job, laps, segment):
        return 0
    return int(state[1])


@inlined
def packet_of(job: Table, slot: int, segment: int) -> int:
    """Return the address of a segment's packet, in a set of a job's sums."""
    return int(job[t.ROWS] + slot * job[t.APART] + (segment & job[t.MASK]) * job[t.SIZE])


@inlined
def bytes_of(job: Table, start: int, stop: int) -> tuple[int, int]:
    """Return the bytes from the first element of segments to their last, and those of a packet.

    Of a packet without its header; only the last segment may be shorter, and is one by itself then.
    """
    size = (job[t.SIZE] if stop <= job[t.FULL_SEGMENTS] else job[t.LAST_SIZE]) - SEG_SIZE
    return (stop - start - 1) * job[t.SIZE] + size, size


@inlined
def write_number(address: int, number: int) -> None:
    """Write 32 bits in network order."""
    digits = carray(as_u8(address), 4)
    for i in range(4):
        digits[i] = (number >> (24 - 8 * i)) & 0xFF


@inlined
def write_header(address: int, round_: int, segment: int) -> None:
    """Write a packet's header: round and segment."""
    write_number(address, round_)
    write_number(address + 4, segment)


@inlined
def enqueue_run(tables: Tables, row: int, slot: int, start: int, stop: int) -> None:
    """Note that segments have to be sent by a row's way; the arguments are those of `enqueue`."""
    n = tables.parameters[t.QUEUED]
    near = 0 if start & tables.jobs[row, t.MASK] == 0 else min(n, 2)
    for i in range(n - near, n):  # of two ways to all receivers, the last run may go the other
        last = tables.queue[i]
        if last[t.RUN_JOB] == row and last[t.RUN_SLOT] == slot and last[t.RUN_STOP] == start:
            last[t.RUN_STOP] = stop
            return
    run = tables.queue[n]
    run[t.RUN_JOB], run[t.RUN_SLOT] = row, slot
    run[t.RUN_START], run[t.RUN_STOP] = start, stop
    tables.parameters[t.QUEUED] = n + 1


@inlined
def enqueue(tables: Tables, row: int, slot: int, start: int, stop: int) -> None:
    """Note that segments have to be sent, each to those that receive it.

    Args:
        tables: have the queue.
        row: the row of the job, or of its way down.
        slot: the set in which they lie, one after the other.
        start: first segment.
        stop: one past the last segment.
    """
    job = tables.jobs[row]
    step, at, last = job[t.PER_RECEIVER], start, min(stop, job[t.FULL_SEGMENTS])
    while step and at < last:
        end = min(last, at - at % step + step)
        way = carray(as_i64(job[t.WAYS]), job[t.OWNERS])[at // step % job[t.OWNERS]]
        if way >= 0:
            enqueue_run(tables, way, slot, at, end)
        at = end
    if at < stop:
        enqueue_run(tables, row, slot, at, stop)
    if at < stop and job[t.ALSO]:
        enqueue_run(tables, job[t.ALSO], slot, at, stop)


@inlined
def is_in_use(tables: Tables, row: int, slot: int, stop: int) -> bool:
    """Return whether what waits to be sent may lie where packets of later segments are put.

    Args:
        tables: have the queue.
        row: the row of the job, or of its way down.
        slot: the set that the packets are put into.
        stop: one past the last segment.
    """
    for i in range(tables.parameters[t.QUEUED]):
        run = tables.queue[i]
        ours = run[t.RUN_JOB] == row and run[t.RUN_SLOT] == slot
        if ours and run[t.RUN_START] + tables.jobs[row, t.SLOTS] < stop:
            return True
    return False
