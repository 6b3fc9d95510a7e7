"""Rings behind links with a rate, in compiled code: what `iswitch.ports.rings.pacing` does.

Both ways work on the same tables, with the same rules (`ports.rings.due`). Of a link's line
(`iswitch.faults.line`) only the plain case is here: a queue that has room. What is sent into it is
noted, and sent into the line itself when the call is over (`ring_lanes`).
"""

from __future__ import annotations

import numpy as np
from numba import carray

from iswitch.ethernet.frame import HEADERS
from iswitch.faults import fifo
from iswitch.ports.rings import due

from . import ring_table as r
from .compiling import inlined
from .libc import as_f64, as_i64, store_release
from .records import (
    BROKEN,
    EMPTY,
    LINE,
    TAKEN,
    next_record,
)
from .ring_table import Rings
from .tables import SECOND, Table

AT_ONCE = 4  # new records of a worker that are looked at in a turn
NEVER = 1 << 62  # nanoseconds

last_departure = inlined(fifo.last_departure)
due_of, due_by = inlined(due.due_of), inlined(due.due_by)
grain_of, is_too_few = inlined(due.grain_of), inlined(due.is_too_few)
next_look, piece_of = inlined(due.next_look), inlined(due.piece_of)

# Lanes


@inlined
def has_room(lane: Table, packets: int, rows: int, now: float) -> bool:
    """Return whether a lane's queue surely has room for packets, and its table for their rows."""
    floats = lane.view(np.float64)
    while lane[r.SENT_NEXT] < lane[r.SENT_STOP]:
        at = r.SENT + lane[r.SENT_NEXT] % r.MOST_SENT * r.SENT_COLUMNS
        if floats[at + r.SENT_DONE] > now:
            break
        floats[r.PASSED] = floats[at + r.SENT_DONE]
        lane[r.WAITING] -= lane[at + r.SENT_PACKETS]
        lane[r.SENT_NEXT] += 1
    earlier = lane[r.EARLIER] if now < floats[r.EARLIER_UNTIL] else 0
    is_full = lane[r.SENT_STOP] - lane[r.SENT_NEXT] + rows > r.MOST_SENT
    return not is_full and earlier + lane[r.WAITING] + packets <= lane[r.ROOM]


@inlined
def send(lane: Table, packets: int, size: int, tail: int, now: float) -> tuple[float, float, float]:
    """Send packets into a lane that has room; return FIRST, EACH and LAST of `rings.due`.

    Args:
        lane: the lane.
        packets: their number.
        size: bytes of each.
        tail: bytes of the last.
        now: the time, in seconds.
    """
    floats = lane.view(np.float64)
    each = (size + HEADERS) * floats[r.EACH_BYTE]
    last = (tail + HEADERS) * floats[r.EACH_BYTE]
    first = (last if packets == 1 else each) + max(now, floats[r.BUSY])
    done = last_departure(now, floats[r.BUSY], packets, each, last)
    at = r.SENT + lane[r.SENT_STOP] % r.MOST_SENT * r.SENT_COLUMNS
    floats[at + r.SENT_AT], floats[at + r.SENT_DONE] = now, done
    lane[at + r.SENT_PACKETS] = packets
    lane[at + r.SENT_SIZE], lane[at + r.SENT_TAIL] = size, tail
    lane[r.SENT_STOP] += 1
    lane[r.WAITING] += packets
    floats[r.BUSY] = done
    delay = floats[r.DELAY]
    return first + delay, 0.0 if packets == 1 else each, done + delay


# From workers


@inlined
def look(rings: Rings, ring: Table, now: float) -> bool:
    """Send a worker's new records into its link, as `Inlet.look`; False: the next is not plain."""
    ends = carray(as_i64(ring[r.COMING_ENDS]), (due.ENDS,))
    table = carray(as_i64(ring[r.COMING]), (due.MOST_COMING, due.COMING))
    times = carray(as_f64(ring[r.COMING]), (due.MOST_COMING, due.COMING))
    lane = rings.lanes[ring[r.INWARD]]
    for _ in range(AT_ONCE):
        if ends[due.STOP] - ends[due.NEXT] >= due.MOST_COMING:
            break
        found, taken, length, packets, size, tail, tos = next_record(
            ring[r.UP], ring[r.UP_SIZE], ring[r.UP_TAKEN]
        )
        if found == EMPTY:
            ring[r.UP_TAKEN] = taken
            break
        if found == BROKEN or not has_room(lane, packets, 1, now):
            return False
        ring[r.UP_TAKEN] = taken + length
        row = table[ends[due.STOP] % due.MOST_COMING]
        row[due.AT], row[due.PACKETS] = taken % ring[r.UP_SIZE] + LINE, packets
        row[due.SIZE], row[due.TAIL], row[due.TOS] = size, tail, tos
        row[due.GIVEN], row[due.END] = 0, taken + length
        first, each, last = send(lane, packets, size, tail, now)
        row_times = times[ends[due.STOP] % due.MOST_COMING]
        row_times[due.FIRST], row_times[due.EACH], row_times[due.LAST] = first, each, last
        ends[due.STOP] += 1
    return True


@inlined
def come(ring: Table, now: float) -> tuple[int, int]:
    """Return the row of the packets to hand on, and how many of them have come, as `Inlet.read`.

    The row is -1 if there are none.
    """
    ends = carray(as_i64(ring[r.COMING_ENDS]), (due.ENDS,))
    if ends[due.NEXT] == ends[due.STOP]:
        return -1, 0
    pauses = carray(as_f64(ring[r.COMING_ENDS]), (due.ENDS,))
    table = carray(as_i64(ring[r.COMING]), (due.MOST_COMING, due.COMING))
    times = carray(as_f64(ring[r.COMING]), (due.MOST_COMING, due.COMING))
    newest = times[(ends[due.STOP] - 1) % due.MOST_COMING]
    pauses[due.PAUSE] = grain_of(newest[due.LAST], now)
    i = ends[due.NEXT] % due.MOST_COMING
    count, given = table[i, due.PACKETS], table[i, due.GIVEN]
    first, each, last = times[i, due.FIRST], times[i, due.EACH], times[i, due.LAST]
    stop = due_by(first, each, last, count, now)
    begins = due_of(first, each, last, count, given)
    if is_too_few(stop, count, given, begins, now, pauses[due.PAUSE]):
        return -1, 0
    return i, stop


@inlined
def hand_on(ring: Table, i: int, stop: int) -> None:
    """Note that packets of the oldest row were handed on; if these are all, give the record up.

    Args:
        ring: the worker's ring.
        i: the row.
        stop: packets of the record that were handed on.
    """
    ends = carray(as_i64(ring[r.COMING_ENDS]), (due.ENDS,))
    row = carray(as_i64(ring[r.COMING]), (due.MOST_COMING, due.COMING))[i]
    row[due.GIVEN] = stop
    if stop == row[due.PACKETS]:
        ends[due.NEXT] += 1
        ends[due.TAKEN] = row[due.END]
        store_release(ring[r.OURS] + TAKEN, ends[due.TAKEN])


# To workers


@inlined
def can_hold(rings: Rings, out: Table, packets: int, pieces: int, now: float) -> bool:
    """Return whether the lanes to all readers, and the queue of their ring, have room.

    Args:
        rings: know the lanes.
        out: the ring of sums.
        packets: their number.
        pieces: the records that they go in.
        now: the time, in seconds.
    """
    ends = carray(as_i64(out[r.OUT_ENDS]), (due.ENDS,))
    if ends[due.STOP] - ends[due.NEXT] + pieces > due.MOST_HELD:
        return False
    for i in range(out[r.OUT_FIRST], out[r.OUT_STOP]):
        reader = rings.readers[i]
        lane, shares = rings.lanes[reader[r.READER_LANE]], reader[r.READER_SHARES]
        if not has_room(lane, packets * shares, shares, now):
            return False
    return True


@inlined
def send_to_all(
    rings: Rings, out: Table, packets: int, size: int, tail: int, now: float
) -> tuple[float, float, float]:
    """Send packets into the lanes to all readers; return when they have come out of all.

    The arguments are those of `send`, and the result, too.
    """
    first, each, last = 0.0, 0.0, 0.0
    for i in range(out[r.OUT_FIRST], out[r.OUT_STOP]):
        lane = rings.lanes[rings.readers[i, r.READER_LANE]]
        begins, each, ends = send(lane, packets, size, tail, now)
        first, last = max(first, begins), max(last, ends)
    return first, each, last


@inlined
def hold(out: Table, at: float, packets: int) -> None:
    """Note that the record last written counts from a time on.

    Args:
        out: the ring of sums.
        at: the time, in seconds.
        packets: packets of the record.
    """
    ends = carray(as_i64(out[r.OUT_ENDS]), (due.ENDS,))
    i = ends[due.STOP] % due.MOST_HELD
    carray(as_f64(out[r.OUT_HELD]), (due.MOST_HELD, due.HELD))[i, due.DUE] = at
    row = carray(as_i64(out[r.OUT_HELD]), (due.MOST_HELD, due.HELD))[i]
    row[due.HELD_END], row[due.HELD_PACKETS] = out[r.OUT_WRITTEN], packets
    ends[due.STOP] += 1


@inlined
def release(out: Table, now: float) -> int:
    """Find the records that are due, as `HeldWriter.release`; return their end, 0: there are none.

    They count once they are shown.

    Args:
        out: the ring of sums.
        now: the time, in seconds.
    """
    ends, end = carray(as_i64(out[r.OUT_ENDS]), (due.ENDS,)), 0
    table = carray(as_i64(out[r.OUT_HELD]), (due.MOST_HELD, due.HELD))
    times = carray(as_f64(out[r.OUT_HELD]), (due.MOST_HELD, due.HELD))
    while ends[due.NEXT] < ends[due.STOP]:
        i = ends[due.NEXT] % due.MOST_HELD
        if times[i, due.DUE] > now:
            break
        end = table[i, due.HELD_END]
        ends[due.NEXT] += 1
    return int(end)


# Both


@inlined
def soonest(rings: Rings) -> int:
    """Return when the next packets have come out of a link, in nanoseconds."""
    found = NEVER
    for k in range(len(rings.rings)):
        ring = rings.rings[k]
        if not ring[r.COMING]:
            continue
        ends = carray(as_i64(ring[r.COMING_ENDS]), (due.ENDS,))
        if ends[due.NEXT] < ends[due.STOP]:
            pauses = carray(as_f64(ring[r.COMING_ENDS]), (due.ENDS,))
            i = ends[due.NEXT] % due.MOST_COMING
            row = carray(as_i64(ring[r.COMING]), (due.MOST_COMING, due.COMING))[i]
            times = carray(as_f64(ring[r.COMING]), (due.MOST_COMING, due.COMING))[i]
            first, each, last = times[due.FIRST], times[due.EACH], times[due.LAST]
            at = due_of(first, each, last, row[due.PACKETS], row[due.GIVEN])
            found = min(found, int(next_look(at, last, pauses[due.PAUSE]) * SECOND) + 1)
    for k in range(len(rings.outs)):
        out = rings.outs[k]
        if not out[r.OUT_HELD]:
            continue
        ends = carray(as_i64(out[r.OUT_ENDS]), (due.ENDS,))
        if ends[due.NEXT] < ends[due.STOP]:
            i = ends[due.NEXT] % due.MOST_HELD
            at = carray(as_f64(out[r.OUT_HELD]), (due.MOST_HELD, due.HELD))[i, due.DUE]
            found = min(found, int(at * SECOND) + 1)
    return found
