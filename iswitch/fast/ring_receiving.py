"""Takes records out of the rings of a switch's workers, in compiled code, and waits for more.

What this is told of positions in memory are numbers of the switch's own. A worker may write into
its memory at any time: what lies there is loaded once, checked, and used (`records`); sums get
headers of our own.
"""

from __future__ import annotations

from numba import carray, types

from iswitch.core.format.wire import TOS_CONTROL, TOS_DATA
from iswitch.ports.rings import due

from . import ring_pacing as pacing
from . import ring_table as r
from . import tables as t
from .compiling import inlined
from .contributions import add, is_plain
from .libc import (
    as_i64,
    epoll_wait,
    fence,
    load32,
    load_acquire,
    nanoseconds,
    sched_yield,
    store_release,
)
from .marks import answer, is_mark
from .receiving import begin, begins
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
from .ring_table import Rings
from .sending import flush
from .tables import SECOND, Table, Tables, Wires

EVENT_WORDS = 3  # 32-bit words of a struct epoll_event on x86-64


@inlined
def swapped(word: int) -> tuple[int, int]:
    """Return the two numbers of 32 bits, in network order, that lie in 64 bits of memory."""
    low, high = word & 0xFFFFFFFF, (word >> 32) & 0xFFFFFFFF
    first = ((low & 0xFF) << 24) | ((low & 0xFF00) << 8) | ((low >> 8) & 0xFF00) | (low >> 24)
    second = ((high & 0xFF) << 24) | ((high & 0xFF00) << 8) | ((high >> 8) & 0xFF00) | (high >> 24)
    return first, second


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
    if begins(job, round_):
        begin(job, round_)
    add(tables, flow, body, round_, start, packets, step, tail, now)
    return True


@inlined
def handle(  # noqa: PLR0913 (a kernel has no objects)
    tables: Tables,
    ring: Table,
    flow: Table,
    body: int,
    packets: int,
    step: int,
    tail: int,
    tos: int,
    now: int,
) -> bool:
    """Add a worker's packets, or answer its mark; False: they are not plain, and nothing was done.

    Args:
        tables: know the job.
        ring: the worker's row.
        flow: the row of its flow.
        body: address of the first packet.
        packets: number of packets.
        step: bytes of each.
        tail: bytes of the last.
        tos: the ToS byte.
        now: the time, in nanoseconds.
    """
    if not ring[r.KNOWN]:
        return False
    if tos == TOS_DATA:
        return add_plain(tables, flow, body, packets, step, tail, now)
    if tos != TOS_CONTROL or not is_mark(tables, flow, body, packets, tail, now):
        return False
    answer(tables, flow, now)
    return True


@inlined
def take(tables: Tables, rings: Rings, wires: Wires, i: int, now: int) -> int:
    """Handle the next record of a worker.

    Args:
        tables: know the jobs.
        rings: know the rings.
        wires: bring what does not go into rings.
        i: the worker's row.
        now: the time, in nanoseconds.

    Returns:
        TIMER: it is handled; NOTHING: there is none; ODD: it is not plain, and nothing was done;
        UNSENDABLE: it is handled, but not all of its results could be sent; LANDED: it is, and has
        ended a round.
    """
    ring, flow = rings.rings[i], rings.flows[i]
    found, taken, length, packets, step, tail, tos = next_record(
        ring[r.UP], ring[r.UP_SIZE], ring[r.UP_TAKEN]
    )
    if found == EMPTY:
        ring[r.UP_TAKEN] = taken
        return t.NOTHING
    if found == BROKEN:
        return t.ODD
    ring[r.UP_TAKEN] = taken
    body = ring[r.UP] + HEAD + taken % ring[r.UP_SIZE] + LINE
    if not handle(tables, ring, flow, body, packets, step, tail, tos, now):
        return t.ODD
    ring[r.UP_TAKEN] += length
    store_release(ring[r.OURS] + TAKEN, ring[r.UP_TAKEN])
    if tables.parameters[t.QUEUED] and not flush(tables, rings, wires, now):
        return t.UNSENDABLE
    return t.LANDED if tables.parameters[t.OVER] else t.TIMER


@inlined
def take_paced(tables: Tables, rings: Rings, wires: Wires, i: int, now: int) -> int:
    """Handle what a worker's link has brought; the arguments and the result are those of `take`."""
    ring, flow = rings.rings[i], rings.flows[i]
    if not pacing.look(rings, ring, now / SECOND):
        return t.ODD
    at, come = pacing.come(ring, now / SECOND)
    if at < 0:
        return t.NOTHING
    row = carray(as_i64(ring[r.COMING]), (due.MOST_COMING, due.COMING))[at]
    packets, step = come - row[due.GIVEN], row[due.SIZE]
    tail = row[due.TAIL] if come == row[due.PACKETS] else step
    body = ring[r.UP] + HEAD + row[due.AT] + row[due.GIVEN] * step
    if not handle(tables, ring, flow, body, packets, step, tail, row[due.TOS], now):
        return t.ODD
    pacing.hand_on(ring, at, come)
    if tables.parameters[t.QUEUED] and not flush(tables, rings, wires, now):
        return t.UNSENDABLE
    return t.LANDED if tables.parameters[t.OVER] else t.TIMER


@inlined
def take_records(tables: Tables, rings: Rings, wires: Wires, now: int) -> int:
    """Handle the next record of each worker, until one is not plain.

    That worker comes last in the turns that follow, so that it keeps no other waiting.

    Args:
        tables: know the jobs, and get the worker's row.
        rings: know the rings.
        wires: bring what does not go into rings.
        now: the time, in nanoseconds.

    Returns:
        As `take`; NOTHING: there was none.
    """
    parameters, came = tables.parameters, t.NOTHING
    first = parameters[t.RING] + 1
    for k in range(len(rings.rings)):
        i = (first + k) % len(rings.rings)
        if rings.rings[i, r.COMING]:
            result = take_paced(tables, rings, wires, i, now)
        else:
            result = take(tables, rings, wires, i, now)
        if result not in (t.TIMER, t.NOTHING):
            parameters[t.RING] = i
            return result
        if result == t.TIMER:
            came = result
    return came


@inlined
def has_more(rings: Rings) -> bool:
    """Return whether a worker has written something."""
    for i in range(len(rings.rings)):
        ring = rings.rings[i]
        if load_acquire(ring[r.UP] + WRITTEN) != ring[r.UP_TAKEN]:
            return True
    return False


# Waiting


@inlined
def spin(rings: Rings, place: int, until: int, now: int) -> int:
    """Look at the rings until a worker has written something, and let others run meanwhile.

    Args:
        rings: know the rings.
        place: address of a struct timespec.
        until: when to stop, in nanoseconds.
        now: the time.

    Returns:
        The time then.
    """
    while now < until and not has_more(rings):
        sched_yield()
        now = nanoseconds(place)
    return now


@inlined
def rise(rings: Rings) -> None:
    """Ask for no bells."""
    for i in range(len(rings.rings)):
        ring = rings.rings[i]
        ring[r.SLEEPS] = get_up(ring[r.OURS], ring[r.SLEEPS])


@inlined
def settle_down(rings: Rings) -> None:
    """Ask for bells, before the last look into the rings."""
    for i in range(len(rings.rings)):
        ring = rings.rings[i]
        ring[r.SLEEPS], ring[r.NUMBER] = lie_down(ring[r.OURS], ring[r.SLEEPS], ring[r.NUMBER])
    fence()


@inlined
def only_kicks(rings: Rings, descriptor: int) -> bool:
    """Return whether workers have rung, and nobody else has anything to say at the bells.

    Args:
        rings: know the workers' bells.
        descriptor: tells of all bells; it says nothing more of what it has told here.
    """
    place = rings.events.ctypes.data
    for i in range(epoll_wait(descriptor, place, r.EVENTS, 0)):
        ringing = load32(place + 4 * (EVENT_WORDS * i + 1))
        if ringing >= len(rings.kicks) or not rings.kicks[ringing]:
            return False
    return True


_table, _rows = types.int64[::1], types.int64[:, ::1]
rings_type = types.NamedTuple((_rows, _rows, _rows, _rows, _rows, _table, _table, _table), Rings)
