"""Plays a worker's round over rings in one call, as long as its aggregates come in order.

As `worker_kernel`, with records in place of datagrams. It returns before the first record that is
not the next in order, and when a socket has something to say.
"""

from __future__ import annotations

from typing import Any

from numba import carray

from iswitch.core.format.wire import TOS_DATA

from .compiling import inlined, kernel, unowned
from .copying import copy_line, copy_lines, copy_past
from .libc import (
    as_i64,
    as_u8,
    fence,
    load_acquire,
    memmove,
    ppoll,
    read,
    sched_yield,
    store_release,
)
from .records import (
    FOUND,
    GROUP,
    HEAD,
    LINE,
    TAKEN,
    WRITTEN,
    again_from,
    call,
    describe,
    get_up,
    group_word,
    length_of,
    lie_down,
    next_record,
    open_record,
    show,
)
from .ring_table import Its
from .tables import POLLIN, READABLE, SECOND
from .waking import WAKING
from .worker_kernel import begin_next, ended, has_rested, must_ask, note_came, take_next
from .worker_round import HEADER, clock, elements_of, is_large, lay_out, note, room, write_round
from .worker_table import At, End

AT_ONCE = 4  # records sent, or taken, between two looks at the other
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
        ring[Its.UP],
        ring[Its.UP_SIZE],
        ring[Its.UP_WRITTEN],
        taken,
        length_of(packets, size),
        again_from(ring[Its.UP_SIZE], table[At.SEGMENTS] * size),
    )
    if not head:
        return False
    last, past = stop == table[At.SEGMENTS], ring[Its.APART] >= ring[Its.NEAR]
    full = not (last or table[At.POSITIONS])  # with owners, each block's last need not be
    if full and is_large(table) and size % LINE == 0 and table[At.FILLED] <= sent:
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
def is_spoken_to(ring: Any) -> Any:
    """Return whether the switch has written something for this worker alone."""
    return load_acquire(ring[Its.DOWN] + WRITTEN) != ring[Its.DOWN_TAKEN]


@inlined
def has_sums(ring: Any) -> Any:
    """Return whether something is in the ring of sums of all."""
    return load_acquire(ring[Its.GROUP] + WRITTEN) != ring[Its.GROUP_TAKEN]


@inlined
def take_record(table: Any, base: Any, size: Any, taken: Any) -> Any:
    """Put a ring's next record in its place; return the bytes taken from it then; -1: not plain.

    Args:
        table: the round.
        base: address of the memory.
        size: bytes of its ring.
        taken: bytes that were taken from it.
    """
    found, taken, length, packets, step, tail, tos = next_record(base, size, taken)
    if found != FOUND or tos != TOS_DATA:
        return -1
    data = carray(as_u8(base + HEAD), (size,))
    if not take_next(table, data, taken % size + LINE, packets, step, tail):
        return -1
    return taken + length


@inlined
def take(table: Any, ring: Any) -> Any:
    """Put the next records in their place, AT_ONCE at most; False: the next one is not plain.

    What is for this worker alone comes before a closing one, which is for all, unless it is of the
    next round. So it is looked for first, but behind the look for others.
    """
    in_group, owned = ring[Its.GROUP_NUMBER] >= 0, table[At.POSITIONS] != 0
    for _ in range(AT_ONCE):
        some = has_sums(ring)
        alone = in_group and is_spoken_to(ring)
        if alone and not owned:
            return False
        if not some and not alone:
            return True
        taken = -1
        if alone:
            taken = take_record(table, ring[Its.DOWN], ring[Its.DOWN_SIZE], ring[Its.DOWN_TAKEN])
        if taken >= 0:
            ring[Its.DOWN_TAKEN] = taken
        elif some and (not alone or table[At.REMAINING] == 1):
            taken = take_record(table, ring[Its.GROUP], ring[Its.GROUP_SIZE], ring[Its.GROUP_TAKEN])
            if taken < 0:
                return False
            ring[Its.GROUP_TAKEN], alone = taken, False
        else:
            return False
        if alone or not in_group:
            store_release(ring[Its.UP] + TAKEN, taken)
        else:
            store_release(ring[Its.UP] + GROUP, group_word(ring[Its.GROUP_NUMBER], taken))
        if owned and table[At.REMAINING] == 0:  # what follows is of the next round
            return True
    return True


@inlined
def heed(table: Any, ring: Any) -> Any:
    """Take what has come, and note when; return as `take` does."""
    remaining, taken = table[At.REMAINING], table[At.TAKEN]
    plain = take(table, ring)
    note_came(table, remaining, taken)
    return plain


@inlined
def has_more(ring: Any) -> Any:
    """Return whether the switch has written something."""
    return has_sums(ring) or (ring[Its.GROUP_NUMBER] >= 0 and is_spoken_to(ring))


@inlined
def spin(table: Any, ring: Any, now: Any) -> Any:
    """Look at the rings for a while, and let others run meanwhile; return the time then."""
    stop = now + WAKING
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
        if must_ask(table):
            return End.ASKS.value
        before = table[At.REMAINING]
        if not heed(table, ring):
            return End.UNUSUAL.value
        if table[At.REMAINING] == 0:
            return End.DONE.value
        came = table[At.REMAINING] < before
        if not has_room and not came and table[At.SENT] == table[At.TAKEN]:
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
