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
    HEAD,
    LINE,
    TAKEN,
    WRITTEN,
    get_up,
    lie_down,
    next_record,
)
from .ring_sending import flush, release
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
