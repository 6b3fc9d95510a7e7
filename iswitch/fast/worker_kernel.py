"""Plays a worker's round in one call, as long as its aggregates come in order.

It sends what the window allows, waits, receives aggregates and puts them in their place. It returns
before the first datagram that is not the next in order. Python checks what it is told; lengths and
headers of what comes are checked here, against what this worker has sent.
"""

from __future__ import annotations

from typing import Any

from numba import carray

from worker_lib.protocol import window

from .compiling import inlined, kernel, unowned
from .copying import copy, place
from .libc import (
    EAGAIN,
    EINTR,
    MSG_DONTWAIT,
    as_f64,
    as_i64,
    as_u8,
    errno_location,
    fence,
    load32,
    memcmp,
    nanoseconds,
    ppoll,
    recvmmsg,
    sendmmsg,
)
from .tables import POLLIN, SECOND
from .worker_table import (
    KIND,
    KINDS,
    LONGEST,
    LOOK_AGAIN,
    LOOK_PAUSE,
    META,
    MOST_REPEATED,
    SLOTS,
    STEP,
    At,
    End,
)

HEADER = 8  # bytes of round and segment
GROUP = 4  # bursts sent between two looks at what has come
NAME_LENGTH, CONTROL_LENGTH, FLAGS, LENGTH = 1, 5, 6, 7  # words of a MMSGHDR
MESSAGE = 64  # bytes of it
SOCKADDR = 16
ROUNDS = 0xFFFFFFFF  # the mask of round numbers

# Rules that the Python way follows, too
bursts_allowed = inlined(window.bursts_allowed)
widened = inlined(window.widened)
probe_pause = inlined(window.probe_pause)
sampled = inlined(window.sampled)
patience = inlined(window.patience)


@inlined
def clock(table: Any) -> Any:
    """Return the time."""
    return nanoseconds(table.ctypes.data + 8 * At.SECONDS)


@inlined
def numbers(table: Any) -> Any:
    """View the table as float64."""
    return carray(as_f64(table.ctypes.data), table.shape)


@inlined
def elements_of(table: Any, segment: Any) -> tuple[Any, Any]:
    """Return where a segment's elements begin in the vector, and their size, in bytes."""
    step = table[At.SIZE] - HEADER
    return segment * step, min(step, table[At.BYTES] - segment * step)


@inlined
def is_large(table: Any) -> Any:
    """Return whether this round's vectors are copied past the caches."""
    return table[At.BYTES] >= table[At.LARGE]


@inlined
def write_round(rows: Any, at: Any, round_: Any) -> None:
    """Write a round into the header that begins at byte `at`."""
    for i in range(4):
        rows[at + i] = (round_ >> (24 - 8 * i)) & 0xFF


@inlined
def note(table: Any, now: Any) -> None:
    """Record how far the round is."""
    done = table[At.STEPS_DONE]
    bursts = table[At.SEGMENTS] // table[At.BURST] + 1
    steps = carray(as_i64(table[At.STEPS]), (bursts + table[At.SEGMENTS], STEP))
    steps[done, 0] = table[At.SENT]
    steps[done, 1] = table[At.CAME]
    steps[done, 2] = now
    table[At.STEPS_DONE] = done + 1


@inlined
def lay_out(table: Any, stop: Any) -> None:
    """Write the segments before `stop` that are not laid out yet into the contribution."""
    size, round_ = table[At.SIZE], table[At.ROUND]
    rows = carray(as_u8(table[At.ROWS]), (table[At.SEGMENTS] * size,))
    vector = carray(as_u8(table[At.VECTOR]), (table[At.BYTES],))
    for segment in range(table[At.FILLED], stop):
        at = segment * size
        write_round(rows, at, round_)
        start, length = elements_of(table, segment)
        copy(rows, at + HEADER, vector, start, length)
        for i in range(at + HEADER + length, at + size):  # of a vector shorter than the job's
            rows[i] = 0
    table[At.FILLED] = max(table[At.FILLED], stop)


@inlined
def room(table: Any) -> Any:
    """Return how many bursts may be sent now."""
    under_way = table[At.SENT] - table[At.CAME]
    allowed = bursts_allowed(numbers(table)[At.WINDOW], under_way, table[At.BURST])
    if allowed < 1 and under_way == 0:
        allowed = 1
    return allowed if table[At.SENT] < table[At.SEGMENTS] else 0


@inlined
def send(table: Any) -> Any:
    """Send new segments as far as the window allows, at most GROUP bursts; False: refused."""
    bursts = min(room(table), GROUP)
    if bursts < 1:
        return True
    burst, packets = table[At.BURST], table[At.PACKETS]
    sent = table[At.SENT]
    stop = min((sent // burst + bursts) * burst, table[At.SEGMENTS])
    lay_out(table, stop)
    now = clock(table)
    sent_at = carray(as_i64(table[At.SENT_AT]), (table[At.SEGMENTS] // burst + 1,))
    for i in range(sent // burst, -(-stop // burst)):
        sent_at[i] = now
    message, last = sent // packets, -(-stop // packets)
    refused = False
    while message < last and not refused:
        took = sendmmsg(table[At.FD], table[At.HEADERS] + MESSAGE * message, last - message, 0)
        if took > 0:
            message += took
        else:
            table[At.ERRNO] = load32(errno_location())
            refused = table[At.ERRNO] != EINTR
    table[At.SENT] = min(message * packets, stop)
    if table[At.SENT] > sent:
        note(table, now)
    return not refused


@inlined
def wait(table: Any) -> Any:
    """Wait until something has come; return what ppoll returns."""
    return poll(table, max(min(table[At.SILENT_AT], table[At.UNTIL]) - clock(table), 0))


@inlined
def poll(table: Any, rest: Any) -> Any:
    """Wait `rest` nanoseconds at most until something has come; return what ppoll returns."""
    table[At.WAIT_SECONDS] = rest // SECOND
    table[At.WAIT_NANOSECONDS] = rest % SECOND
    table[At.POLLED] = table[At.FD] | POLLIN
    base = table.ctypes.data
    return ppoll(base + 8 * At.POLLED, 1, base + 8 * At.WAIT_SECONDS, 0)


@inlined
def receive(table: Any) -> Any:
    """Receive datagrams that have come; return whether the system call could take no more."""
    headers = carray(as_i64(table[At.SLOT_HEADERS]), (SLOTS, MESSAGE // 8))
    metas = carray(as_i64(table[At.METAS]), (SLOTS, META // 8))
    for i in range(table[At.GOT]):
        headers[i, NAME_LENGTH] = SOCKADDR
        headers[i, CONTROL_LENGTH] = META - SOCKADDR
        headers[i, FLAGS] = 0
        for k in range(META // 8):
            metas[i, k] = 0
    table[At.ERRNO] = table[At.NEXT] = 0
    most = table[At.SUPER] if table[At.IS_SUPER] else SLOTS
    got = recvmmsg(table[At.FD], table[At.SLOT_HEADERS], most, MSG_DONTWAIT, 0)
    if got < 0:
        table[At.ERRNO] = load32(errno_location())
    table[At.GOT] = max(got, 0)
    return got == most


@inlined
def packet_size(table: Any, slot: Any) -> Any:
    """Return the size of the packets in a super-datagram; 0: a single one; -1: not known."""
    metas = carray(as_i64(table[At.METAS]), (SLOTS, META // 8))
    known = carray(as_i64(table[At.KNOWN]), (KINDS, KIND))
    for kind in range(table[At.KINDS_KNOWN]):
        same = True
        for k in range(META // 8):
            same &= metas[slot, k] == known[kind, k]
        if same:
            return known[kind, META // 8]
    return -1


@inlined
def in_order(table: Any, slot: Any) -> Any:
    """Return how many packets a datagram has if they are the next aggregates; 0: they are not."""
    headers = carray(as_i64(table[At.SLOT_HEADERS]), (SLOTS, MESSAGE // 8))
    step, length = packet_size(table, slot), headers[slot, LENGTH] & 0xFFFFFFFF
    size, came = table[At.SIZE], table[At.CAME]
    if step < 0 or length < HEADER or length > LONGEST or step not in (0, size):
        return 0
    packets = -(-length // step) if step else 1
    stop, tail = came + packets, length - (packets - 1) * step
    if stop > table[At.SENT]:
        return 0
    if tail != (table[At.LAST] if stop == table[At.SEGMENTS] else size):
        return 0
    body = table[At.BODIES] + slot * LONGEST
    for i in range(packets):
        sent = table[At.ROWS] + (came + i) * size
        if memcmp(body + i * size, sent, HEADER) != 0:
            return 0
    return packets


@inlined
def take(table: Any) -> Any:
    """Put the datagrams received in their place; False: NEXT is not the next in order."""
    size, floats, large = table[At.SIZE], numbers(table), is_large(table)
    out = carray(as_u8(table[At.OUT]), (table[At.BYTES],))
    bodies = carray(as_u8(table[At.BODIES]), (SLOTS * LONGEST,))
    for slot in range(table[At.GOT]):
        table[At.NEXT] = slot
        packets = in_order(table, slot)
        if packets == 0:
            return False
        for i in range(packets):
            start, length = elements_of(table, table[At.CAME] + i)
            place(out, start, bodies, slot * LONGEST + i * size + HEADER, length, large)
        table[At.CAME] += packets
        table[At.IS_SUPER] = packets > 1
        floats[At.WINDOW] = widened(
            floats[At.WINDOW],
            floats[At.THRESHOLD],
            table[At.CEILING],
            table[At.WHOLE_BURST],
            packets,
        )
    return True


@inlined
def heed(table: Any) -> Any:
    """Take what was received, and note when; return as `take` does."""
    before = table[At.CAME]
    plain = take(table)
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
def go_on(table: Any) -> Any:
    """Play the round that the table describes; return an `End`."""
    table[At.STEPS_DONE] = 0
    more = False
    while True:
        if not send(table):
            return End.NOT_SENT.value
        if not more and room(table) < 1:
            found = wait(table)
            if found < 1:
                silent = found == 0 and clock(table) >= table[At.SILENT_AT]
                return End.SILENT.value if silent else End.PAUSED.value
        more = receive(table)
        if table[At.ERRNO] not in (0, EAGAIN, EINTR):
            return End.NOT_RECEIVED.value
        if not heed(table):
            return End.UNUSUAL.value
        if table[At.CAME] == table[At.SEGMENTS]:
            return End.DONE.value
        if table[At.SECONDS] * SECOND + table[At.NANOSECONDS] >= table[At.UNTIL]:
            return End.PAUSED.value


@kernel("int64(int64[::1])")
def play(table: Any) -> Any:
    """Play the round that the table describes; return an `End`."""
    return go_on(unowned(table))


# Rounds in a row


@inlined
def has_rested(table: Any) -> Any:
    """Return whether the last aggregate came so long ago that other packets may have come."""
    return clock(table) - table[At.CAME_AT] > LOOK_AGAIN


@inlined
def begin_next(table: Any, vector: Any, out: Any, timeout: Any, has_news: Any) -> Any:
    """Write the round behind the last one into the table; False: Python has other things to do.

    Args:
        table: the last round, which is done.
        vector: address of the vector.
        out: address of the result.
        timeout: nanoseconds until the call has to give up.
        has_news: whether something has come that has to be looked at before.
    """
    table[At.RETURNED] = table[At.REPEATED]
    now, floats = clock(table), numbers(table)
    if has_news or now >= table[At.STOP_AT] or table[At.REPEATED] == MOST_REPEATED:
        return False
    table[At.BEGAN_AT] = now
    table[At.REPEATED] += 1
    table[At.ROUND] = (table[At.ROUND] + 1) & ROUNDS
    rows, headers = table[At.OTHER_ROWS], table[At.OTHER_HEADERS]
    table[At.OTHER_ROWS], table[At.OTHER_HEADERS] = table[At.ROWS], table[At.HEADERS]
    table[At.ROWS], table[At.HEADERS] = rows, headers
    table[At.VECTOR], table[At.OUT] = vector, out
    table[At.FILLED] = table[At.SENT] = table[At.CAME] = 0
    silence = patience(
        floats[At.SMOOTHED],
        floats[At.DEVIATION],
        floats[At.FLOOR],
        floats[At.PATIENCE_CEILING],
        1.0,
    )
    table[At.UNTIL] = now + min(timeout, LOOK_PAUSE)
    table[At.SILENT_AT] = min(now + min(timeout, int(SECOND * silence)), table[At.DUE])
    return True


@inlined
def ended(table: Any, end: Any) -> Any:
    """Note that a round is done, if it is, and how long it took; return the `End`."""
    if end == End.DONE.value:
        table[At.COMPLETED] = table[At.REPEATED]
        floats, took = numbers(table), carray(as_i64(table[At.TOOK]), (MOST_REPEATED,))
        floats[At.SMOOTHED], floats[At.DEVIATION] = sampled(
            floats[At.SMOOTHED], floats[At.DEVIATION], table[At.ROUND_TRIP] / SECOND
        )
        took[table[At.REPEATED] - 1] = clock(table) - table[At.BEGAN_AT]
    return end


@kernel("int64(int64[::1], int64, int64, int64)")
def play_next(table: Any, vector: Any, out: Any, timeout: Any) -> Any:
    """Play the round behind the last one; return an `End`.

    The arguments are those of `begin_next`. With NOT_BEGUN no round has begun.
    """
    table = unowned(table)
    has_news = has_rested(table) and poll(table, 0) > 0
    if not begin_next(table, vector, out, timeout, has_news):
        return End.NOT_BEGUN.value
    return ended(table, go_on(table))
