"""Contributions to segments that have owners, and the closing of their rounds, in compiled code.

A rank gives some segments of each block, so its datagrams hold several stretches of consecutive
segments; a datagram is cut into these pieces, and taken if all are plain. The rules are those of
`core.sums.owned`, whose tables these functions work on: the closing segment of a round completes
when everybody's is here, and as many other segments of each as that counts.
"""

from __future__ import annotations

from numba import carray

from iswitch.core.format.wire import CLOSING_SIZE, MAX_MEMBERS

from . import tables as t
from .compiling import inlined
from .libc import as_i64, as_u8
from .places import (
    ROUNDS,
    SEG_SIZE,
    big_endian,
    enqueue,
    packet_of,
    states_of,
    write_header,
)
from .receiving import COMPLETE, accumulate, is_new
from .tables import Table, Tables


@inlined
def cut(  # noqa: PLR0913 (a kernel has no objects)
    tables: Tables,
    job: Table,
    body: int,
    round_: int,
    start: int,
    packets: int,
    step: int,
    tail: int,
) -> int:
    """Cut packets of one round into stretches of consecutive segments; return their number.

    It is 0 if they do not fit the job, if a segment occurs twice, or if there are too many.

    Args:
        tables: get the stretches.
        job: the job's row.
        body: address of the first packet.
        round_: the first packet's round.
        start: its segment.
        packets: number of packets.
        step: bytes from one to the next.
        tail: bytes of the last.
    """
    if not 1 <= packets <= t.MOST_PACKETS or tail < SEG_SIZE:
        return 0
    if packets > 1 and step != job[t.SIZE]:
        return 0
    n = first = 0  # packet at which the present stretch begins
    for q in range(1, packets + 1):
        segment = 0
        if q < packets:
            if big_endian(body + q * step) != round_:
                return 0
            segment = big_endian(body + q * step + 4)
            if segment == start + q - first:
                continue
        stop = start + q - first
        last = job[t.SEGMENTS] if q == packets else job[t.FULL_SEGMENTS]
        if n == t.MOST_PIECES or stop > last:
            return 0
        for i in range(n):
            if start < tables.pieces[i, t.PIECE_STOP] and tables.pieces[i, t.PIECE_START] < stop:
                return 0
        piece = tables.pieces[n]
        piece[t.PIECE_START], piece[t.PIECE_STOP], piece[t.PIECE_AT] = start, stop, first
        n, start, first = n + 1, segment, q
    closes = tables.pieces[n - 1, t.PIECE_STOP] > job[t.FULL_SEGMENTS]
    return n if tail == (job[t.LAST_SIZE] if closes else job[t.SIZE]) else 0


@inlined
def owns(job: Table, seat: int, start: int, stop: int) -> bool:
    """Return whether a seat may contribute all of these segments.

    Args:
        job: the job's row.
        seat: the seat.
        start: first segment.
        stop: one past the last segment.
    """
    step, last = job[t.PER_SOURCE], min(stop, job[t.FULL_SEGMENTS])
    if not step or start >= last:
        return True
    bits, others = carray(as_i64(job[t.BIT_OF]), job[t.OWNERS]), 0
    for rank in range(start // step, (last - 1) // step + 1):
        others += bits[rank] != 1 << seat
    return bool(others == 0)


@inlined
def is_plain(  # noqa: PLR0913 (as for `contributions.is_plain`)
    tables: Tables,
    flow: Table,
    body: int,
    round_: int,
    start: int,
    packets: int,
    step: int,
    tail: int,
) -> bool:
    """Return whether packets are a member's new contributions to segments that it owns.

    The stretches are noted in the tables, for `accumulate_pieces`. The arguments are those of
    `cut`.
    """
    job = tables.jobs[flow[t.JOB]]
    seat = tables.members[flow[t.MEMBER], t.SEAT]
    n = cut(tables, job, body, round_, start, packets, step, tail)
    tables.parameters[t.PIECES] = n
    for i in range(n):
        begins, ends = tables.pieces[i, t.PIECE_START], tables.pieces[i, t.PIECE_STOP]
        if not owns(job, seat, begins, ends) or not is_new(job, seat, round_, begins, ends):
            return False
    return bool(n > 0)


@inlined
def accumulate_pieces(
    tables: Tables, flow: Table, body: int, round_: int, packets: int, step: int
) -> int:
    """Add the packets that `is_plain` has cut; return how many segments are complete now.

    Args:
        tables: have the stretches.
        flow: the row of the packets' flow.
        body: address of the first packet.
        round_: their round.
        packets: number of packets.
        step: bytes from one to the next.
    """
    row = flow[t.JOB]
    job, slot, n = tables.jobs[row], round_ & 1, tables.parameters[t.PIECES]
    due = carray(as_i64(job[t.DUE]), 2)
    completed = 0
    for i in range(n):
        piece = tables.pieces[i]
        start, stop, at = piece[t.PIECE_START], piece[t.PIECE_STOP], piece[t.PIECE_AT]
        completed += accumulate(tables, flow, body + at * step, round_, start, stop - start, step)
        due[slot] -= stop - start
        if stop > job[t.FULL_SEGMENTS]:
            seat = tables.members[flow[t.MEMBER], t.SEAT]
            note_count(job, slot, seat, body + (packets - 1) * step)
            due[slot] = 0
        # As `Cutter` cuts them: what ascends is one stretch, with gaps.
        if i + 1 == n or tables.pieces[i + 1, t.PIECE_START] < stop:
            completed += close(tables, row, slot, round_)
    return completed


@inlined
def note_count(job: Table, slot: int, seat: int, packet: int) -> None:
    """Note how many segments the sender of a closing segment contributes.

    Args:
        job: the job's row.
        slot: the set.
        seat: the sender's seat.
        packet: address of the closing segment.
    """
    element, count = carray(as_u8(packet + SEG_SIZE), CLOSING_SIZE), 0
    for i in range(CLOSING_SIZE):
        count |= element[i] << (8 * i)
    carray(as_i64(job[t.COUNTED]), (2, MAX_MEMBERS))[slot, seat] = count


@inlined
def close(tables: Tables, row: int, slot: int, round_: int) -> int:
    """Complete a closing segment if nothing is due any more; return 1 if it is complete now.

    Args:
        tables: know the job.
        row: the job's row.
        slot: the set.
        round_: the round.
    """
    job = tables.jobs[row]
    closing, due = job[t.FULL_SEGMENTS], carray(as_i64(job[t.DUE]), 2)
    state = states_of(job, slot)[closing]
    if due[slot] > 0 or state[0] != round_ or not is_whole(job, state[1]):
        return 0
    due[slot], finished = count_up(job, tables.lacks, slot, round_, state[1])
    if due[slot]:
        return 0
    state[0] = job[t.FINISHED] << 32 | round_
    packet = packet_of(job, slot, closing)
    write_header(packet, round_, closing)
    elements = carray(as_u8(packet + SEG_SIZE), job[t.SIZE] - SEG_SIZE)
    elements[:] = 0
    for i in range(CLOSING_SIZE):
        elements[i] = (finished >> (8 * i)) & 0xFF
    enqueue(tables, row, slot, closing, closing + 1)
    job[t.COMPLETED] += 1
    tables.counts[t.AGGREGATES] += 1
    return 1


@inlined
def is_whole(job: Table, bitmap: int) -> bool:
    """Return whether everybody is among these contributors, of which there is one."""
    return bool(bitmap != 0 and bitmap & job[t.WHOLE] == job[t.WHOLE])


@inlined
def count_up(job: Table, lacks: Table, slot: int, round_: int, bitmap: int) -> tuple[int, int]:
    """Count how many contributions are still due, at least, and how many aggregates there are.

    Args:
        job: the job's row.
        lacks: room for a number of each seat.
        slot: the set.
        round_: the round.
        bitmap: the seats whose closing segment is here.
    """
    states = states_of(job, slot)
    bits_of = carray(as_i64(job[t.BIT_OF]), job[t.OWNERS])
    counted = carray(as_i64(job[t.COUNTED]), (2, MAX_MEMBERS))[slot]
    for seat in range(MAX_MEMBERS):
        lacks[seat] = counted[seat]
    finished, same, alike = 0, 0, 0  # the bitmap of the segments before, and their number
    for s in range(job[t.FULL_SEGMENTS]):
        if states[s, 0] & ROUNDS != round_:
            continue
        progress, bits = states[s, 0] >> 32, states[s, 1]
        if progress == COMPLETE:
            bits = bits | bits_of[s // job[t.PER_SOURCE]] if job[t.PER_SOURCE] else -1
        if progress and bits:
            finished += 1
        if bits != same:
            spread(lacks, same, alike)
            same, alike = bits, 0
        alike += 1
    spread(lacks, same, alike)
    due = 0
    for seat in range(MAX_MEMBERS):
        if bitmap >> seat & 1 and lacks[seat]:
            due += max(1, lacks[seat])
    return due, finished


@inlined
def spread(lacks: Table, bitmap: int, segments: int) -> None:
    """Take segments that these seats have contributed from the number that each lacks."""
    for seat in range(MAX_MEMBERS):
        if bitmap >> seat & 1:
            lacks[seat] -= segments
