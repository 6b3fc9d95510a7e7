"""Packets into the rings of a job's members, and the bells of those that sleep."""

from __future__ import annotations

from . import ring_pacing as pacing
from . import ring_table as r
from . import tables as t
from .compiling import inlined
from .libc import load_acquire
from .places import packet_of
from .records import (
    GROUP,
    GROUP_SHIFT,
    PIECE,
    TAKEN,
    again_from,
    call,
    group_taken,
    lay,
    length_of,
    show,
)
from .records import put as put_record
from .ring_table import Rings
from .tables import SECOND, Table, Tables


@inlined
def taken_by_all(rings: Rings, out: Table) -> int:
    """Return the bytes of a job's ring that all its readers have taken, as they say."""
    taken = int(out[r.OUT_WRITTEN])
    for i in range(out[r.OUT_FIRST], out[r.OUT_STOP]):
        reader = rings.readers[i]
        theirs = rings.rings[reader[r.READER], r.UP]
        if reader[r.READER_GROUP] < 0:
            return int(load_acquire(theirs + TAKEN))
        said = load_acquire(theirs + GROUP)
        if said >> GROUP_SHIFT == reader[r.READER_GROUP]:
            reader[r.READER_TAKEN] = group_taken(said, reader[r.READER_TAKEN], out[r.OUT_WRITTEN])
        taken = min(taken, reader[r.READER_TAKEN])
    return taken


@inlined
def clock(rings: Rings) -> int:
    """Return the address of room for a struct timespec."""
    return int(rings.word.ctypes.data + 16)


@inlined
def wake(rings: Rings, out: Table) -> None:
    """Wake up the readers of a job's ring that sleep, after its records were shown."""
    for i in range(out[r.OUT_FIRST], out[r.OUT_STOP]):
        ring = rings.rings[rings.readers[i, r.READER]]
        ring[r.RUNG] = call(ring[r.UP], ring[r.BELL], ring[r.RUNG], rings.word.ctypes.data)


@inlined
def put_now(tables: Tables, rings: Rings, i: int) -> int:
    """Write a run of the queue into its ring, as far as there is room; return where it stopped.

    Args:
        tables: know the job.
        rings: know the ring.
        i: the run.
    """
    run, counts = tables.queue[i], tables.counts
    job, out = tables.jobs[run[t.RUN_JOB]], rings.outs[run[t.RUN_JOB]]
    at, stop, size = int(run[t.RUN_START]), int(run[t.RUN_STOP]), int(job[t.SIZE])
    most = max(1, PIECE // size)
    again = again_from(out[r.OUT_SIZE], job[t.FULL_SEGMENTS] * size)
    while at < stop:
        n = min(stop - at, most)
        source = packet_of(job, run[t.RUN_SLOT], at)
        tail = job[t.LAST_SIZE] if at + n > job[t.FULL_SEGMENTS] else size
        before = out[r.OUT_WRITTEN]
        taken = taken_by_all(rings, out)
        written, out[r.OUT_APART] = put_record(
            out[r.OUT_MEMORY],
            out[r.OUT_SIZE],
            before,
            taken,
            source,
            n,
            size,
            tail,
            int(job[t.TOS]),
            out[r.OUT_APART] >= out[r.OUT_NEAR],
            again,
            out[r.OUT_APART],
            clock(rings),
        )
        if written == before:
            break
        out[r.OUT_WRITTEN] = written
        counts[t.TX_FRAMES] += n * job[t.RECEIVERS]
        at += n
        wake(rings, out)
    return at


@inlined
def put_paced(tables: Tables, rings: Rings, i: int, now: float) -> int:
    """Send a run of the queue into the links of its readers: all of it, or nothing.

    Args:
        tables: know the job.
        rings: know the ring and the links.
        i: the run.
        now: the time, in seconds.

    Returns:
        the segment at which it stopped.
    """
    run, counts = tables.queue[i], tables.counts
    job, out = tables.jobs[run[t.RUN_JOB]], rings.outs[run[t.RUN_JOB]]
    begins, stop, size = int(run[t.RUN_START]), int(run[t.RUN_STOP]), int(job[t.SIZE])
    packets, at = stop - begins, begins
    tail = job[t.LAST_SIZE] if stop > job[t.FULL_SEGMENTS] else size
    most = max(1, pacing.piece_of(packets * size, out[r.OUT_GRAIN], PIECE) // size)
    pieces, longest = -(-packets // most), length_of(min(most, packets), size)
    taken = taken_by_all(rings, out)
    if out[r.OUT_WRITTEN] + (pieces + 1) * longest - taken > out[r.OUT_SIZE]:
        return begins  # the ring may be too full, also with what it leaves empty at its end
    if not pacing.can_hold(rings, out, packets, pieces, now):
        return begins
    first, each, last = pacing.send_to_all(rings, out, packets, size, tail, now)
    while at < stop:
        n = min(stop - at, most)
        out[r.OUT_WRITTEN] = lay(
            out[r.OUT_MEMORY],
            out[r.OUT_SIZE],
            out[r.OUT_WRITTEN],
            taken,
            packet_of(job, run[t.RUN_SLOT], at),
            n,
            size,
            tail if at + n == stop else size,
            int(job[t.TOS]),
            out[r.OUT_APART] >= out[r.OUT_NEAR],
            out[r.OUT_SIZE],
        )
        at += n
        pacing.hold(out, pacing.due_of(first, each, last, packets, at - 1 - begins), n)
    counts[t.TX_FRAMES] += packets * job[t.RECEIVERS]
    return stop


@inlined
def has_ring(rings: Rings, row: int) -> bool:
    """Return whether packets of a job's row go into a ring."""
    return bool(row < len(rings.outs) and rings.outs[row, r.OUT_MEMORY] != 0)


@inlined
def put(tables: Tables, rings: Rings, i: int, now: int) -> bool:
    """Write a run of the queue into its ring; False: that is full, and UNSENT tells from where on.

    Args:
        tables: have the queue.
        rings: know the rings.
        i: the run.
        now: the time, in nanoseconds.
    """
    parameters, run = tables.parameters, tables.queue[i]
    if rings.outs[run[t.RUN_JOB], r.OUT_HELD]:
        at = put_paced(tables, rings, i, now / SECOND)
    else:
        at = put_now(tables, rings, i)
    if at == run[t.RUN_STOP]:
        return True
    parameters[t.UNSENT], parameters[t.UNSENT_FROM] = i, at
    parameters[t.UNSENT_TO], parameters[t.UNSENT_RECEIVER] = run[t.RUN_STOP], 0
    parameters[t.ERROR] = 0
    return False


@inlined
def release(rings: Rings, now: int) -> None:
    """Let readers have the sums that their links have brought by now."""
    for k in range(len(rings.outs)):
        out = rings.outs[k]
        if out[r.OUT_HELD]:
            end = pacing.release(out, now / SECOND)
            if end:
                place = clock(rings)
                out[r.OUT_APART] = show(out[r.OUT_MEMORY], end, out[r.OUT_APART], place)
                wake(rings, out)
