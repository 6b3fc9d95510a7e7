"""Plays a worker's round over rings in one call, as long as its aggregates come in order.

As `worker_kernel`, with records in place of datagrams. It returns before the first record that is
not the next in order, and when a socket has something to say.
"""

from __future__ import annotations

from typing import Any

from numba import carray

from iswitch.core.format.wire import TOS_DATA

from .compiling import inlined, kernel, unowned
from .copying import copy_line, copy_lines, copy_past, place
from .libc import (
    as_i64,
    as_u8,
    fence,
    load_acquire,
    memcmp,
    memmove,
    ppoll,
    read,
    sched_yield,
    store_release,
)
from .records import (
    EMPTY,
    FOUND,
    GROUP,
    GROUP_SHIFT,
    HEAD,
    LINE,
    TAKEN,
    WRITTEN,
    call,
    describe,
    get_up,
    length_of,
    lie_down,
    next_record,
    open_record,
    show,
)
from .ring_table import Its
from .tables import POLLIN, READABLE, SECOND
from .worker_kernel import (
    HEADER,
    begin_next,
    clock,
    elements_of,
    ended,
    has_rested,
    is_large,
    lay_out,
    note,
    numbers,
    probe_pause,
    room,
    widened,
    write_round,
)
from .worker_table import At, End

AT_ONCE = 4  # records sent, or taken, between two looks at the other
SPIN = 50_000  # nanoseconds to look at the rings before sleeping; waking up takes nearly as long
LOOK = 10_000_000  # nanoseconds after which to look at the sockets, though the rings bring packets
STUCK, SENT_SOME, CANNOT = range(3)
TIMEOUT, RUNG, TOLD, INTERRUPTED = range(4)


@inlined
def lay_out_past(table: Any, body: Any, stop: Any, line: Any, past: Any) -> None:
    """Write the segments from SENT on to `stop` into a record, and past the caches what is kept.

    The segments are full ones, and their packets whole lines. The contribution's headers stay in
    the caches, since those of aggregates are compared with them.

    Args:
        table: the round.
        body: address of the record's packets.
        stop: segment behind the last one.
        line: address of room for a line.
        past: whether the record goes past the caches, too.
    """
    size, sent = table[At.SIZE], table[At.SENT]
    rows = carray(as_u8(table[At.ROWS]), (table[At.SEGMENTS] * size,))
    vector = carray(as_u8(table[At.VECTOR]), (table[At.BYTES],))
    ahead = LINE - HEADER
    for segment in range(sent, stop):
        row = segment * size
        write_round(rows, row, table[At.ROUND])
        start, length = elements_of(table, segment)
        copy_past(rows, row + HEADER, vector, start, length)
        packet, elements = body + (segment - sent) * size, table[At.VECTOR] + start
        if past:
            memmove(line, table[At.ROWS] + row, HEADER)
            memmove(line + HEADER, elements, ahead)
            copy_line(packet, line)
            copy_lines(packet + LINE, elements + ahead, length - ahead, past)
        else:
            memmove(packet, table[At.ROWS] + row, HEADER)
            memmove(packet + HEADER, elements, length)
    table[At.FILLED] = stop


@inlined
def put_burst(table: Any, ring: Any, stop: Any) -> Any:
    """Write the packets from SENT on to `stop` into the ring; return whether there was room."""
    size, sent = table[At.SIZE], table[At.SENT]
    packets = stop - sent
    taken = load_acquire(ring[Its.DOWN] + TAKEN)
    head, written = open_record(
        ring[Its.UP], ring[Its.UP_SIZE], ring[Its.UP_WRITTEN], taken, length_of(packets, size)
    )
    if not head:
        return False
    last, past = stop == table[At.SEGMENTS], ring[Its.APART] >= ring[Its.NEAR]
    if is_large(table) and size % LINE == 0 and not last and table[At.FILLED] <= sent:
        lay_out_past(table, head + LINE, stop, ring[Its.FIRST_LINE], past)
    else:
        lay_out(table, stop)
        copy_lines(head + LINE, table[At.ROWS] + sent * size, packets * size, past)
    describe(head, packets, size, table[At.LAST] if last else size, TOS_DATA)
    place = table.ctypes.data + 8 * At.SECONDS
    ring[Its.APART] = show(ring[Its.UP], written, ring[Its.APART], place)
    ring[Its.UP_WRITTEN] = written
    one = ring.ctypes.data + 8 * Its.ONE
    ring[Its.RUNG] = call(ring[Its.DOWN], ring[Its.KICK], ring[Its.RUNG], one)
    return True


@inlined
def send(table: Any, ring: Any) -> Any:
    """Send new segments as far as the window allows, at most AT_ONCE bursts; False: no room."""
    bursts = min(room(table), AT_ONCE)
    if bursts < 1:
        return True
    burst, now = table[At.BURST], clock(table)
    sent_at = carray(as_i64(table[At.SENT_AT]), (table[At.SEGMENTS] // burst + 1,))
    before, has_room = table[At.SENT], True
    while bursts > 0 and table[At.SENT] < table[At.SEGMENTS] and has_room:
        at = table[At.SENT] // burst
        stop = min((at + 1) * burst, table[At.SEGMENTS])
        has_room = put_burst(table, ring, stop)
        if has_room:
            sent_at[at] = now
            table[At.SENT] = stop
            bursts -= 1
    if table[At.SENT] > before:
        note(table, now)
    return has_room


@inlined
def in_order(table: Any, body: Any, packets: Any, step: Any, tail: Any) -> Any:
    """Return whether packets are the next aggregates.

    Args:
        table: the round.
        body: address of the first packet.
        packets: number of packets.
        step: bytes of each.
        tail: bytes of the last.
    """
    size, came = table[At.SIZE], table[At.CAME]
    stop = came + packets
    if stop > table[At.SENT] or not (step == size or (packets == 1 and step == tail)):
        return False
    if tail != (table[At.LAST] if stop == table[At.SEGMENTS] else size):
        return False
    for i in range(packets):
        if memcmp(body + i * step, table[At.ROWS] + (came + i) * size, HEADER) != 0:
            return False
    return True


@inlined
def is_spoken_to(ring: Any) -> Any:
    """Return whether the switch has written something for this worker alone."""
    return load_acquire(ring[Its.DOWN] + WRITTEN) != ring[Its.DOWN_TAKEN]


@inlined
def take(table: Any, ring: Any) -> Any:
    """Put the records of the ring of sums in their place, AT_ONCE at most; False: not plain."""
    if ring[Its.GROUP_NUMBER] >= 0 and is_spoken_to(ring):
        return False
    size, floats, large = ring[Its.GROUP_SIZE], numbers(table), is_large(table)
    out = carray(as_u8(table[At.OUT]), (table[At.BYTES],))
    data = carray(as_u8(ring[Its.GROUP] + HEAD), (size,))
    for _ in range(AT_ONCE):
        found, taken, length, packets, step, tail, tos = next_record(
            ring[Its.GROUP], size, ring[Its.GROUP_TAKEN]
        )
        if found == EMPTY:
            return True
        at = taken % size + LINE
        plain = found == FOUND and tos == TOS_DATA
        if not plain or not in_order(table, ring[Its.GROUP] + HEAD + at, packets, step, tail):
            return False
        for i in range(packets):
            start, n = elements_of(table, table[At.CAME] + i)
            place(out, start, data, at + i * step + HEADER, n, large)
        ring[Its.GROUP_TAKEN] = taken + length
        if ring[Its.GROUP_NUMBER] < 0:
            store_release(ring[Its.UP] + TAKEN, ring[Its.GROUP_TAKEN])
        else:
            said = ring[Its.GROUP_NUMBER] << GROUP_SHIFT | ring[Its.GROUP_TAKEN] // LINE
            store_release(ring[Its.UP] + GROUP, said)
        table[At.CAME] += packets
        floats[At.WINDOW] = widened(
            floats[At.WINDOW],
            floats[At.THRESHOLD],
            table[At.CEILING],
            table[At.WHOLE_BURST],
            packets,
        )
    return True


@inlined
def heed(table: Any, ring: Any) -> Any:
    """Take what has come, and note when; return as `take` does."""
    before = table[At.CAME]
    plain = take(table, ring)
    came = table[At.CAME]
    if came > before:
        fence()
        now, burst = clock(table), table[At.BURST]
        sent_at = carray(as_i64(table[At.SENT_AT]), (table[At.SEGMENTS] // burst + 1,))
        table[At.CAME_AT] = now
        table[At.ROUND_TRIP] = now - sent_at[(came - 1) // burst]
        table[At.SILENT_AT] = now + int(SECOND * probe_pause(table[At.ROUND_TRIP] / SECOND))
        note(table, now)
    return plain


@inlined
def has_more(ring: Any) -> Any:
    """Return whether the switch has written something."""
    if ring[Its.GROUP_NUMBER] >= 0 and is_spoken_to(ring):
        return True
    return load_acquire(ring[Its.GROUP] + WRITTEN) != ring[Its.GROUP_TAKEN]


@inlined
def spin(table: Any, ring: Any, now: Any) -> Any:
    """Look at the rings for a while, and let others run meanwhile; return the time then."""
    stop = now + SPIN
    while now < stop and not has_more(ring):
        sched_yield()
        now = clock(table)
    return now


@inlined
def wait(table: Any, ring: Any, rests: Any) -> Any:
    """Look at the sockets, and wait for the bell if `rests`; return what has happened.

    Args:
        table: the round.
        ring: the rings.
        rests: whether to wait.
    """
    seconds = 0
    if rests:
        ring[Its.SLEEPS], ring[Its.NUMBER] = lie_down(
            ring[Its.UP], ring[Its.SLEEPS], ring[Its.NUMBER]
        )
        fence()
        if not has_more(ring):
            seconds = max(min(table[At.SILENT_AT], table[At.UNTIL]) - clock(table), 0)
    table[At.WAIT_SECONDS] = seconds // SECOND
    table[At.WAIT_NANOSECONDS] = seconds % SECOND
    ring[Its.POLLED] = ring[Its.BELL] | POLLIN
    ring[Its.POLLED_2] = ring[Its.CONNECTION] | POLLIN
    ring[Its.POLLED_3] = table[At.FD] | POLLIN
    base = ring.ctypes.data
    found = ppoll(base + 8 * Its.POLLED, 3, table.ctypes.data + 8 * At.WAIT_SECONDS, 0)
    ring[Its.SLEEPS] = get_up(ring[Its.UP], ring[Its.SLEEPS])
    ring[Its.LOOK_AT] = clock(table) + LOOK
    if found < 0:
        return INTERRUPTED
    if ring[Its.POLLED_2] >> READABLE or ring[Its.POLLED_3] >> READABLE:
        return TOLD
    if ring[Its.POLLED] >> READABLE:
        read(ring[Its.BELL], base + 8 * Its.HEARD, 8)
        return RUNG
    return TIMEOUT


@inlined
def go_on(table: Any, ring: Any) -> Any:
    """Play the round that the tables describe; return an `End`."""
    table[At.STEPS_DONE] = 0
    while True:
        has_room = send(table, ring)
        before = table[At.CAME]
        if not heed(table, ring):
            return End.UNUSUAL.value
        if table[At.CAME] == table[At.SEGMENTS]:
            return End.DONE.value
        came = table[At.CAME] > before
        if not has_room and not came and table[At.SENT] == table[At.CAME]:
            return End.NOT_SENT.value
        rests = not came and (not has_room or room(table) < 1)
        now = clock(table)
        if rests:
            now = spin(table, ring, now)
            rests = not has_more(ring)
        if rests or now >= ring[Its.LOOK_AT]:
            found = wait(table, ring, rests)
            if found == TOLD:
                return End.UNUSUAL.value
            if found == INTERRUPTED:
                return End.PAUSED.value
            now = clock(table)
            if found == TIMEOUT and now >= table[At.SILENT_AT] and not has_more(ring):
                return End.SILENT.value
        if now >= table[At.UNTIL]:
            return End.PAUSED.value


@kernel("int64(int64[::1], int64[::1])")
def play(table: Any, ring: Any) -> Any:
    """Play the round that the tables describe; return an `End`."""
    return go_on(unowned(table), unowned(ring))


@kernel("int64(int64[::1], int64[::1], int64, int64, int64)")
def play_next(table: Any, ring: Any, vector: Any, out: Any, timeout: Any) -> Any:
    """Play the round behind the last one; return an `End`.

    The arguments but the rings are those of `begin_next`. With NOT_BEGUN no round has begun.
    """
    table, ring = unowned(table), unowned(ring)
    has_news = False
    if has_rested(table):
        has_news = has_more(ring) or wait(table, ring, False) in (TOLD, INTERRUPTED)
    if not begin_next(table, vector, out, timeout, has_news):
        return End.NOT_BEGUN.value
    return ended(table, go_on(table, ring))
