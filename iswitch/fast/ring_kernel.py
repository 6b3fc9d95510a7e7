"""The switch's kernel over rings: one call reads, checks, adds, writes and wakes, record by record.

It returns as `switch_kernel.serve` does, and when a socket or a worker's connection has something
to say. What it is told of positions in memory are numbers of the switch's own. A worker may write
into its memory at any time: what lies there is loaded once, checked, and used (`records`); sums get
headers of our own.
"""

from __future__ import annotations

from numba import carray, types

from iswitch.core.format.wire import TOS_DATA
from iswitch.ports.rings import due

from . import ring_pacing as pacing
from . import ring_table as r
from . import tables as t
from .compiling import inlined, kernel
from .libc import (
    as_i64,
    epoll_wait,
    fence,
    load32,
    load_acquire,
    nanoseconds,
    ppoll,
    sched_yield,
    store_release,
)
from .receiving import add, begin, is_plain
from .records import (
    BROKEN,
    EMPTY,
    GROUP,
    GROUP_SHIFT,
    HEAD,
    LINE,
    LINES,
    PIECE,
    TAKEN,
    WRITTEN,
    call,
    get_up,
    lay,
    length_of,
    lie_down,
    next_record,
    put,
)
from .ring_table import Rings
from .switch_kernel import tables_type
from .tables import POLLIN, READABLE, SECOND, Table, Tables

SPIN = 50_000  # nanoseconds at least to look at the rings before sleeping
LOOK = 1_000_000  # nanoseconds after which to look at the sockets, though the rings bring packets
EVENT_WORDS = 3  # 32-bit words of a struct epoll_event on x86-64


@inlined
def swapped(word: int) -> tuple[int, int]:
    """Return the two numbers of 32 bits, in network order, that lie in 64 bits of memory."""
    low, high = word & 0xFFFFFFFF, (word >> 32) & 0xFFFFFFFF
    first = ((low & 0xFF) << 24) | ((low & 0xFF00) << 8) | ((low >> 8) & 0xFF00) | (low >> 24)
    second = ((high & 0xFF) << 24) | ((high & 0xFF00) << 8) | ((high >> 8) & 0xFF00) | (high >> 24)
    return first, second


# Sums


@inlined
def taken_by_all(rings: Rings, out: Table) -> int:
    """Return the bytes of a job's ring that all its readers have taken, as they say."""
    taken = int(out[r.OUT_WRITTEN])
    for i in range(out[r.OUT_FIRST], out[r.OUT_STOP]):
        reader = rings.readers[i]
        said = load_acquire(rings.rings[reader[r.READER], r.UP] + GROUP)
        if said >> GROUP_SHIFT == reader[r.READER_GROUP]:
            reader[r.READER_TAKEN] = max(reader[r.READER_TAKEN], (said & LINES) * LINE)
        taken = min(taken, reader[r.READER_TAKEN])
    return taken


@inlined
def wake(rings: Rings, out: Table) -> None:
    """Wake up the readers of a job's ring that sleep."""
    fence()
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
    while at < stop:
        n = min(stop - at, most)
        source = job[t.ROWS] + (run[t.RUN_SLOT] * job[t.SEGMENTS] + at) * size
        tail = job[t.LAST_SIZE] if at + n > job[t.FULL_SEGMENTS] else size
        before = out[r.OUT_WRITTEN]
        taken = taken_by_all(rings, out)
        written = put(
            out[r.OUT_MEMORY], out[r.OUT_SIZE], before, taken, source, n, size, tail, TOS_DATA
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
            job[t.ROWS] + (run[t.RUN_SLOT] * job[t.SEGMENTS] + at) * size,
            n,
            size,
            tail if at + n == stop else size,
            TOS_DATA,
        )
        at += n
        pacing.hold(out, pacing.due_of(first, each, last, packets, at - 1 - begins), n)
    counts[t.TX_FRAMES] += packets * job[t.RECEIVERS]
    return stop


@inlined
def flush(tables: Tables, rings: Rings, now: int) -> bool:
    """Write the runs of the queue into rings; False: one is full, and UNSENT tells from where on.

    All are counted as sent.

    Args:
        tables: have the queue.
        rings: know the rings.
        now: the time, in nanoseconds.
    """
    parameters, counts = tables.parameters, tables.counts
    for i in range(parameters[t.QUEUED]):
        run = tables.queue[i]
        job, out = tables.jobs[run[t.RUN_JOB]], rings.outs[run[t.RUN_JOB]]
        at, stop = run[t.RUN_START], run[t.RUN_STOP]
        size, receivers = job[t.SIZE], job[t.RECEIVERS]
        last = job[t.LAST_SIZE] if stop > job[t.FULL_SEGMENTS] else size
        counts[t.TX_PACKETS] += (stop - at) * receivers
        counts[t.TX_NBYTES] += ((stop - at - 1) * size + last) * receivers
        if parameters[t.UNSENT] >= 0:
            continue
        if out[r.OUT_HELD]:
            at = put_paced(tables, rings, i, now / SECOND)
        else:
            at = put_now(tables, rings, i)
        if at < stop:
            parameters[t.UNSENT], parameters[t.UNSENT_FROM] = i, at
            parameters[t.UNSENT_TO], parameters[t.UNSENT_RECEIVER] = stop, 0
            parameters[t.ERROR] = 0
    if parameters[t.UNSENT] >= 0:
        return False
    parameters[t.QUEUED] = 0
    return True


@inlined
def release(rings: Rings, now: int) -> None:
    """Let readers have the sums that their links have brought by now."""
    for k in range(len(rings.outs)):
        out = rings.outs[k]
        if out[r.OUT_HELD] and pacing.release(out, now / SECOND):
            wake(rings, out)


# Contributions


@inlined
def add_plain(
    tables: Tables, flow: Table, body: int, packets: int, step: int, tail: int, now: int
) -> bool:
    """Add a worker's packets, if they are plain; return whether they were.

    Args:
        tables: know the job.
        flow: the row of the worker's flow.
        body: address of the first packet.
        packets: number of packets.
        step: bytes of each.
        tail: bytes of the last.
        now: the time, in nanoseconds.
    """
    round_, start = swapped(load_acquire(body))
    if not is_plain(tables, flow, body, round_, start, packets, step, tail):
        return False
    job = tables.jobs[flow[t.JOB]]
    if round_ != job[t.HIGH]:
        begin(job, round_)
    add(tables, flow, body, round_, start, packets, step, tail, now)
    return True


@inlined
def take(tables: Tables, rings: Rings, i: int, now: int) -> int:
    """Handle the next record of a worker.

    Args:
        tables: know the jobs.
        rings: know the rings.
        i: the worker's row.
        now: the time, in nanoseconds.

    Returns:
        TIMER: it is handled; NOTHING: there is none; NOT_PLAIN: nothing was done; UNSENDABLE: it is
        handled, and a ring of sums is full.
    """
    ring, flow = rings.rings[i], tables.flows[i]
    found, taken, length, packets, step, tail, tos = next_record(
        ring[r.UP], ring[r.UP_SIZE], ring[r.UP_TAKEN]
    )
    if found == EMPTY:
        ring[r.UP_TAKEN] = taken
        return t.NOTHING
    if found == BROKEN or not ring[r.KNOWN] or tos != TOS_DATA:
        return t.NOT_PLAIN
    ring[r.UP_TAKEN] = taken
    body = ring[r.UP] + HEAD + taken % ring[r.UP_SIZE] + LINE
    if not add_plain(tables, flow, body, packets, step, tail, now):
        return t.NOT_PLAIN
    ring[r.UP_TAKEN] += length
    store_release(ring[r.OURS] + TAKEN, ring[r.UP_TAKEN])
    if tables.parameters[t.QUEUED] and not flush(tables, rings, now):
        return t.UNSENDABLE
    return t.TIMER


@inlined
def take_paced(tables: Tables, rings: Rings, i: int, now: int) -> int:
    """Handle what a worker's link has brought; the arguments and the result are those of `take`."""
    ring, flow = rings.rings[i], tables.flows[i]
    if not pacing.look(rings, ring, now / SECOND):
        return t.NOT_PLAIN
    at, come = pacing.come(ring, now / SECOND)
    if at < 0:
        return t.NOTHING
    row = carray(as_i64(ring[r.COMING]), (due.MOST_COMING, due.COMING))[at]
    if not ring[r.KNOWN] or row[due.TOS] != TOS_DATA:
        return t.NOT_PLAIN
    packets, step = come - row[due.GIVEN], row[due.SIZE]
    tail = row[due.TAIL] if come == row[due.PACKETS] else step
    body = ring[r.UP] + HEAD + row[due.AT] + row[due.GIVEN] * step
    if not add_plain(tables, flow, body, packets, step, tail, now):
        return t.NOT_PLAIN
    pacing.hand_on(ring, at, come)
    if tables.parameters[t.QUEUED] and not flush(tables, rings, now):
        return t.UNSENDABLE
    return t.TIMER


@inlined
def take_all(tables: Tables, rings: Rings, now: int) -> int:
    """Handle the next record of each worker, until one is not plain.

    That worker comes last in the turns that follow, so that it keeps no other waiting.

    Args:
        tables: know the jobs, and get the worker's row.
        rings: know the rings.
        now: the time, in nanoseconds.

    Returns:
        As `take`; NOTHING: there was none.
    """
    parameters, came = tables.parameters, t.NOTHING
    first = parameters[t.SOCKET] + 1
    for k in range(parameters[t.SOCKETS]):
        i = (first + k) % parameters[t.SOCKETS]
        if rings.rings[i, r.COMING]:
            result = take_paced(tables, rings, i, now)
        else:
            result = take(tables, rings, i, now)
        if result not in (t.TIMER, t.NOTHING):
            parameters[t.SOCKET] = i
            return result
        if result == t.TIMER:
            came = result
    return came


@inlined
def has_more(tables: Tables, rings: Rings) -> bool:
    """Return whether a worker has written something."""
    for i in range(tables.parameters[t.SOCKETS]):
        ring = rings.rings[i]
        if load_acquire(ring[r.UP] + WRITTEN) != ring[r.UP_TAKEN]:
            return True
    return False


# Waiting


@inlined
def spin(tables: Tables, rings: Rings, until: int, now: int) -> int:
    """Look at the rings until a worker has written something, and let others run meanwhile.

    Args:
        tables: know how many rings there are.
        rings: know the rings.
        until: when to stop, in nanoseconds.
        now: the time.

    Returns:
        The time then.
    """
    while now < until and not has_more(tables, rings):
        sched_yield()
        now = nanoseconds(rings.clock.ctypes.data)
    return now


@inlined
def rise(tables: Tables, rings: Rings) -> None:
    """Ask for no bells."""
    for i in range(tables.parameters[t.SOCKETS]):
        ring = rings.rings[i]
        ring[r.SLEEPS] = get_up(ring[r.OURS], ring[r.SLEEPS])


@inlined
def settle_down(tables: Tables, rings: Rings) -> None:
    """Ask for bells, before the last look into the rings."""
    for i in range(tables.parameters[t.SOCKETS]):
        ring = rings.rings[i]
        ring[r.SLEEPS], ring[r.NUMBER] = lie_down(ring[r.OURS], ring[r.SLEEPS], ring[r.NUMBER])
    fence()


@inlined
def wait(tables: Tables, rings: Rings, until: int, now: int) -> int:
    """Wait until a bell rings, or a descriptor can be read; return TIMER, OTHERS or INTERRUPTED.

    Args:
        tables: get the time of the next look.
        rings: have the descriptors.
        until: when to return, in nanoseconds.
        now: the time.
    """
    descriptors, clock, events = rings.descriptors, rings.clock, rings.events
    seconds = max(0, until - now)
    clock[2], clock[3] = seconds // SECOND, seconds % SECOND
    for i in range(len(descriptors)):
        descriptors[i] = (descriptors[i] & 0xFFFFFFFF) | POLLIN
    place = descriptors.ctypes.data
    found = ppoll(place, len(descriptors), clock.ctypes.data + 16, 0)
    tables.parameters[t.LOOK_AT] = nanoseconds(clock.ctypes.data) + LOOK
    if found < 0:
        return t.INTERRUPTED
    result = t.TIMER
    if descriptors[0] >> READABLE:
        place = events.ctypes.data
        told = epoll_wait(descriptors[0] & 0xFFFFFFFF, place, r.EVENTS, 0)
        for i in range(told):
            ringing = load32(place + 4 * (EVENT_WORDS * i + 1))
            if ringing >= len(rings.kicks) or not rings.kicks[ringing]:
                result = t.OTHERS
    for i in range(1, len(descriptors)):
        if descriptors[i] >> READABLE:
            result = t.OTHERS
    return result


_table, _rows = types.int64[::1], types.int64[:, ::1]
_rings = types.NamedTuple(
    (_rows, _rows, _rows, _rows, _table, _table, _table, _table, _table), Rings
)


@kernel(types.int64(tables_type, _rings))
def serve(tables: Tables, rings: Rings) -> int:
    """Serve until the deadline, or until something comes that is not plain; return why.

    The time of the next look at the sockets outlives a call: workers that write without end what is
    not plain do not put it off.
    """
    parameters = tables.parameters
    now = nanoseconds(rings.clock.ctypes.data)
    spin_until = 0
    rise(tables, rings)
    if now >= parameters[t.LOOK_AT]:
        result = wait(tables, rings, now, now)
        if result != t.TIMER:
            return result
    while now < parameters[t.DEADLINE]:
        release(rings, now)
        came = take_all(tables, rings, now)
        if came not in (t.TIMER, t.NOTHING):
            return came
        if parameters[t.NOTED] > t.FEW_EVENTS:
            return t.TIMER
        now, coming = nanoseconds(rings.clock.ctypes.data), pacing.soonest(rings)
        if came == t.TIMER:
            spin_until = now + max(SPIN, parameters[t.SPIN])
        else:
            if coming - now < SPIN:  # to sleep and to wake up would take as long
                spin_until = max(spin_until, coming)
            now = spin(tables, rings, min(spin_until, coming, parameters[t.LOOK_AT]), now)
        rests = came == t.NOTHING and now >= spin_until and now < coming
        if not rests and now < parameters[t.LOOK_AT]:
            continue
        until = now
        if rests:
            settle_down(tables, rings)
            if not has_more(tables, rings):
                until = min(parameters[t.DEADLINE], coming)
        result = wait(tables, rings, until, now)
        rise(tables, rings)
        if result != t.TIMER:
            return result
        now = nanoseconds(rings.clock.ctypes.data)
    return t.TIMER
