"""Plays a worker's round in one call, as long as its aggregates come in order.

It sends what the window allows, waits, receives aggregates and puts them in their place. It returns
before the first datagram that is not the next in order. Python checks what it is told; lengths and
headers of what comes are checked here, against what this worker has sent, or, where segments have
owners, against what it is to get (`worker_owned`).
"""

from __future__ import annotations

from typing import Any

from numba import carray

from worker_lib.protocol import window

from .compiling import inlined, kernel, unowned
from .copying import place
from .libc import (
    EAGAIN,
    EINTR,
    MSG_DONTWAIT,
    as_i64,
    as_u8,
    errno_location,
    fence,
    load32,
    memcmp,
    ppoll,
    recvmmsg,
    sched_yield,
    sendmmsg,
)
from .tables import POLLIN, SECOND
from .worker_owned import take_owned
from .worker_round import (
    HEADER,
    ROUNDS,
    clock,
    elements_of,
    is_large,
    lay_out,
    note,
    numbers,
    room,
)
from .worker_table import (
    KIND,
    KINDS,
    LONGEST,
    LOOK_AGAIN,
    LOOK_PAUSE,
    META,
    MOST_REPEATED,
    SLOTS,
    At,
    End,
)

GROUP = 4  # bursts sent between two looks at what has come
NAME_LENGTH, CONTROL_LENGTH, FLAGS, LENGTH = 1, 5, 6, 7  # words of a MMSGHDR
MESSAGE = 64  # bytes of it
SOCKADDR = 16

# Rules that the Python way follows, too
widened = inlined(window.widened)
probe_pause = inlined(window.probe_pause)
sampled = inlined(window.sampled)
patience = inlined(window.patience)
mark_is_due = inlined(window.mark_is_due)


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
    now = clock(table)
    stop = now + table[At.LOOKS]
    while now < stop:
        sched_yield()
        found = poll(table, 0)
        if found != 0:
            return found
        now = clock(table)
    return poll(table, max(min(table[At.SILENT_AT], table[At.UNTIL]) - now, 0))


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
def are_next(table: Any, body: Any, packets: Any, step: Any, tail: Any) -> Any:
    """Return whether packets are the next aggregates of a round without owners.

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
def take_next(table: Any, data: Any, at: Any, packets: Any, step: Any, tail: Any) -> Any:
    """Put packets in their place, and widen the window; False: they are not plain, nothing is done.

    Args:
        table: the round.
        data: bytes.
        at: where in these the first packet begins.
        packets: number of packets.
        step: bytes of each.
        tail: bytes of the last.
    """
    floats, before = numbers(table), table[At.TAKEN]
    if table[At.POSITIONS]:
        if not take_owned(table, data, at, packets, step, tail):
            return False
    else:
        if not are_next(table, data.ctypes.data + at, packets, step, tail):
            return False
        out, large = carray(as_u8(table[At.OUT]), (table[At.BYTES],)), is_large(table)
        for i in range(packets):
            start, length = elements_of(table, table[At.CAME] + i)
            place(out, start, data, at + i * step + HEADER, length, large)
        table[At.CAME] += packets
        table[At.TAKEN] += packets
        table[At.REMAINING] -= packets
    floats[At.WINDOW] = widened(
        floats[At.WINDOW],
        floats[At.THRESHOLD],
        table[At.CEILING],
        table[At.WHOLE_BURST],
        table[At.TAKEN] - before,
    )
    return True


@inlined
def take(table: Any) -> Any:
    """Put the datagrams received in their place; False: NEXT is not the next in order."""
    headers = carray(as_i64(table[At.SLOT_HEADERS]), (SLOTS, MESSAGE // 8))
    bodies = carray(as_u8(table[At.BODIES]), (SLOTS * LONGEST,))
    for slot in range(table[At.GOT]):
        table[At.NEXT] = slot
        step, length = packet_size(table, slot), headers[slot, LENGTH] & 0xFFFFFFFF
        if step < 0 or length < HEADER or length > LONGEST:
            return False
        step = step if step else length
        packets = -(-length // step)
        tail = length - (packets - 1) * step
        if not take_next(table, bodies, slot * LONGEST, packets, step, tail):
            return False
        table[At.IS_SUPER] = packets > 1
    return True


@inlined
def note_came(table: Any, remaining: Any, taken: Any) -> None:
    """Note when aggregates came, if some did.

    Args:
        table: the round.
        remaining: how many were missing before.
        taken: how many segments were known to be taken before.
    """
    if table[At.REMAINING] == remaining:
        return
    fence()
    now, burst, taken_now = clock(table), table[At.BURST], table[At.TAKEN]
    table[At.CAME_AT] = now
    if taken_now > taken:
        sent_at = carray(as_i64(table[At.SENT_AT]), (table[At.SEGMENTS] // burst + 1,))
        table[At.ROUND_TRIP] = now - sent_at[(taken_now - 1) // burst]
    table[At.SILENT_AT] = now + int(SECOND * probe_pause(table[At.ROUND_TRIP] / SECOND))
    note(table, now)


@inlined
def heed(table: Any) -> Any:
    """Take what was received, and note when; return as `take` does."""
    remaining, taken = table[At.REMAINING], table[At.TAKEN]
    plain = take(table)
    note_came(table, remaining, taken)
    return plain


@inlined
def must_ask(table: Any) -> Any:
    """Return whether a Help has to ask what the switch has taken before more can be sent."""
    if not table[At.POSITIONS] or table[At.MARKS] or room(table) > 0:
        return False
    sent = table[At.SENT]
    tells = carray(as_i64(table[At.TELLS]), (table[At.SEGMENTS] + 1,))
    known = max(table[At.MARKED], table[At.TAKEN], tells[sent])
    return mark_is_due(sent, known, numbers(table)[At.WINDOW])


@inlined
def go_on(table: Any) -> Any:
    """Play the round that the table describes; return an `End`."""
    table[At.STEPS_DONE] = 0
    more = False
    while True:
        if not send(table):
            return End.NOT_SENT.value
        if must_ask(table):
            return End.ASKS.value
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
        if table[At.REMAINING] == 0:
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
    table[At.FILLED] = table[At.SENT] = table[At.CAME] = table[At.TAKEN] = 0
    table[At.REMAINING] = table[At.SEGMENTS]
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
