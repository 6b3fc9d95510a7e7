"""Checks, in compiled code, whether what came is plain, and adds it."""

from __future__ import annotations

from numba import carray

from iswitch.core.sums.states import RoundStates

from . import tables as t
from .adding import combine_rows
from .compiling import inlined
from .libc import as_i64, as_u16, memmove, sum_of
from .places import (
    ROUNDS,
    SEG_SIZE,
    big_endian,
    bytes_of,
    contributors,
    distance,
    enqueue,
    holds,
    is_in_use,
    laps_of,
    packet_of,
    states_of,
    write_header,
)
from .tables import Table, Tables, Wires
from .versions import overwrites

COMPLETE = RoundStates.COMPLETE
IP_WORD, UDP_WORD, HEAD_WORDS = 12, 22, 26  # of 16 bits, in a head
VLAN_VALID = 0x10  # at VLAN_AT


@inlined
def find(tables: Tables, wires: Wires, i: int, socket: int, guess: int) -> int:
    """Return the flow of datagram `i`; -1: it is of no plain flow.

    Args:
        tables: know the flows.
        wires: hold the datagram.
        i: its place.
        socket: the socket that it came from.
        guess: the flow to look at first.
    """
    flows = tables.parameters[t.FLOWS]
    for k in range(-1, flows):
        flow = guess if k < 0 else k
        if flow >= flows or tables.flows[flow, t.FROM_SOCKET] != socket:
            continue
        differs = 0
        for word in range(len(tables.mask)):
            differs |= (wires.keys[i, word] ^ tables.keys[flow, word]) & tables.mask[word]
        if not differs:
            return flow
    return -1


@inlined
def is_sound(tables: Tables, wires: Wires, i: int, flow: int, body: int) -> bool:
    """Return whether a frame is whole, and its checksums are right.

    Args:
        tables: know its flow.
        wires: hold the frame.
        i: its place.
        flow: row of its flow.
        body: address of its payload.
    """
    row = tables.flows[flow]
    if (wires.messages[i, 7] & 0xFFFFFFFF) < row[t.LEAST] or wires.status[
        i, t.VLAN_AT
    ] & VLAN_VALID:
        return False
    head = carray(as_u16(wires.keys[i:].ctypes.data), HEAD_WORDS)
    total = 0
    for word in range(IP_WORD, UDP_WORD):
        total += head[word]
    if total % 0xFFFF:
        return False
    if not row[t.UNCHECKED] or not head[HEAD_WORDS - 1]:
        return True
    length = 8 + row[t.FLOW_TAIL]
    total = 0x1100 + ((length & 0xFF) << 8 | length >> 8)
    for word in range(UDP_WORD - 4, HEAD_WORDS):
        total += head[word]
    return bool((total + sum_of(body, row[t.FLOW_TAIL])) % 0xFFFF == 0)


@inlined
def measure(tables: Tables, wires: Wires, i: int, flow: int, body: int) -> tuple[int, int, int]:
    """Return the packets of a datagram, bytes from one to the next, and bytes of the last.

    No packets: it is damaged. The arguments are those of `is_sound`.
    """
    row = tables.flows[flow]
    if tables.parameters[t.IS_ETHERNET]:
        if not is_sound(tables, wires, i, flow, body):
            return 0, 0, 0
        return row[t.FLOW_PACKETS], row[t.STEP], row[t.FLOW_TAIL]
    length, step = wires.messages[i, 7] & 0xFFFFFFFF, row[t.STEP]
    if length > tables.parameters[t.STRIDE]:
        return 0, 0, 0
    if not step or step >= length:
        return 1, length, length
    packets = (length + step - 1) // step
    return packets, step, length - (packets - 1) * step


@inlined
def fits(
    job: Table, body: int, round_: int, start: int, packets: int, step: int, tail: int
) -> bool:
    """Return whether packets are consecutive segments of one round, as long as the job's are.

    Args:
        job: its row.
        body: address of the first packet.
        round_: the first packet's round.
        start: its segment.
        packets: number of packets.
        step: bytes from one to the next.
        tail: bytes of the last.
    """
    if (
        not 1 <= packets <= t.MOST_PACKETS
        or tail < SEG_SIZE
        or (packets > 1 and step != job[t.SIZE])
    ):
        return False
    stop = start + packets
    if stop > job[t.SEGMENTS]:
        return False
    if tail != (job[t.LAST_SIZE] if stop > job[t.FULL_SEGMENTS] else job[t.SIZE]):
        return False
    for q in range(1, packets):
        if big_endian(body + q * step) != round_ or big_endian(body + q * step + 4) != start + q:
            return False
    return True


@inlined
def is_new(job: Table, seat: int, round_: int, start: int, stop: int) -> bool:
    """Return whether a member's contribution is missing in all of these open segments.

    Or they take over positions, from segments of an earlier lap that are complete.

    Args:
        job: the job's row.
        seat: the member's seat.
        round_: the round, in the window.
        start: first segment.
        stop: one past the last segment.
    """
    states, laps = states_of(job, round_ & 1), laps_of(job, round_ & 1)
    if stop - start > job[t.SLOTS]:
        return False
    for s in range(start, stop):
        state = states[s & job[t.MASK]]
        if state[0] & ROUNDS != round_:
            continue
        if holds(job, laps, s):
            if state[0] >> 32 or state[1] & (1 << seat):
                return False
        elif state[0] >> 32 != COMPLETE or laps[s & job[t.MASK]] > s >> job[t.SHIFT]:
            return False
    return True


@inlined
def begins(job: Table, round_: int) -> bool:
    """Return whether a contribution that is plain begins a round."""
    return bool(not job[t.VERSIONS] and round_ != job[t.HIGH])


@inlined
def begin(job: Table, round_: int) -> None:
    """Raise the window to the next round."""
    job[t.HIGH] = round_
    if abs(distance(job[t.BASE], round_)) > 1:
        job[t.BASE] = round_
    if job[t.CLEARS]:
        states_of(job, round_ & 1)[:] = 0


@inlined
def will_overwrite(tables: Tables, flow: Table, round_: int, start: int, stop: int) -> bool:
    """Return whether contributions go where sums wait to be sent.

    Args:
        tables: have the queue.
        flow: the row of the packets' flow.
        round_: their round, which has begun; or their number.
        start: first segment.
        stop: one past the last segment.
    """
    row = flow[t.JOB]
    if tables.jobs[row, t.VERSIONS]:
        return overwrites(tables, row, start, stop)
    return is_in_use(tables, row, round_ & 1, stop)


@inlined
def count_bits(bitmap: int) -> int:
    """Count the bits that are set."""
    bits = 0
    while bitmap:
        bitmap &= bitmap - 1
        bits += 1
    return bits


@inlined
def add_up(job: Table, sum_at: int, packet: int, start: int, stop: int, bitmap: int) -> None:
    """Sum the contributions to segments in rank order.

    Args:
        job: the job's row.
        sum_at: address of the packet of `start` in the sums.
        packet: bytes from the first packet of each member's contributions to that of `start`.
        start: first segment.
        stop: one past the last segment.
        bitmap: the contributors.
    """
    nbytes, size = bytes_of(job, start, stop)
    total = sum_at + SEG_SIZE
    order = carray(as_i64(job[t.ORDER]), (job[t.ORDERED], 2))
    first = True
    for k in range(job[t.ORDERED]):
        if not bitmap & (1 << order[k, 0]):
            continue
        part = order[k, 1] + packet + SEG_SIZE
        if first:
            memmove(total, part, nbytes)
            first = False
        else:
            combine_rows(job[t.COMBINE], total, part, size, stop - start, job[t.SIZE])


@inlined
def is_complete(job: Table, start: int, bitmap: int) -> bool:
    """Return whether these contributors make segments complete, of which `start` is the first."""
    if job[t.OWNERS]:
        if start == job[t.FULL_SEGMENTS]:  # the closing one, of which `owned.close` decides
            return False
        if job[t.PER_SOURCE]:
            return True
    if job[t.THRESHOLD]:
        return bool(count_bits(bitmap) >= job[t.THRESHOLD])
    return bool(bitmap & job[t.WHOLE] == job[t.WHOLE])


@inlined
def count_in(  # noqa: PLR0913 (a kernel has no objects)
    job: Table,
    member: Table,
    sum_at: int,
    packet: int,
    source: int,
    start: int,
    stop: int,
    bitmap: int,
) -> bool:
    """Add packets to their segments; return whether that completes them.

    Args:
        job: the job's row.
        member: the member's row.
        sum_at: address of the packet of `start` in the sums.
        packet: bytes from the first packet of the member's contributions to that of `start`.
        source: address of the packets; their headers are copied, too.
        start: first segment.
        stop: one past the last segment.
        bitmap: the contributors to all of these segments, with the member.
    """
    nbytes, size = bytes_of(job, start, stop)
    into = (member[t.CONTRIBUTIONS] + packet if job[t.ORDER] else sum_at) + SEG_SIZE
    if job[t.ORDER] or bitmap == 1 << member[t.SEAT]:
        memmove(into, source + SEG_SIZE, nbytes)
    else:
        combine_rows(job[t.COMBINE], into, source + SEG_SIZE, size, stop - start, job[t.SIZE])
    if not is_complete(job, start, bitmap):
        return False
    if job[t.ORDER]:
        add_up(job, sum_at, packet, start, stop, bitmap)
    return True


@inlined
def note(tables: Tables, flow: Table, kind: int, round_: int, segments: int, now: int) -> None:
    """Note that a member begins a round, or that its contribution completes segments.

    Args:
        tables: have the events.
        flow: the row of the member's flow.
        kind: BEGINS or COMPLETES.
        round_: the round.
        segments: the number of segments.
        now: the time, in nanoseconds.
    """
    n, row, member = tables.parameters[t.NOTED], flow[t.JOB], flow[t.MEMBER]
    if n and kind == t.COMPLETES:
        last = tables.events[n - 1]
        same = last[t.EVENT_KIND] == kind and last[t.EVENT_ROUND] == round_
        if same and last[t.EVENT_MEMBER] == member:
            last[t.EVENT_SEGMENTS] += segments
            last[t.EVENT_AT] = now
            return
    if n < len(tables.events):
        event = tables.events[n]
        event[t.EVENT_KIND], event[t.EVENT_JOB], event[t.EVENT_MEMBER] = kind, row, member
        event[t.EVENT_ROUND], event[t.EVENT_SEGMENTS] = round_, segments
        event[t.EVENT_AT] = now
        tables.parameters[t.NOTED] = n + 1


@inlined
def accumulate(
    tables: Tables, flow: Table, body: int, round_: int, start: int, packets: int, step: int
) -> int:
    """Add packets that fit, and are new, to the sums; return how many segments are complete now.

    Args:
        tables: know the job.
        flow: the row of the packets' flow.
        body: address of the first packet.
        round_: their round.
        start: the segment of the first.
        packets: number of packets.
        step: bytes from one to the next.
    """
    row = flow[t.JOB]
    job, member = tables.jobs[row], tables.members[flow[t.MEMBER]]
    slot = round_ & 1
    states, laps = states_of(job, slot), laps_of(job, slot)
    completed, first, last = 0, start, start + packets
    while first < last:
        at = first & job[t.MASK]
        before = contributors(job, states, laps, first, round_)
        stop, end = first + 1, min(last, job[t.FULL_SEGMENTS], first - at + job[t.SLOTS])
        while stop < end and contributors(job, states, laps, stop, round_) == before:
            stop += 1
        sum_at, packet = packet_of(job, slot, first), (slot * job[t.SLOTS] + at) * job[t.SIZE]
        source, bitmap, state = body + (first - start) * step, before | 1 << member[t.SEAT], round_
        if count_in(job, member, sum_at, packet, source, first, stop, bitmap):
            state |= job[t.FINISHED] << 32
            completed += stop - first
            enqueue(tables, row, slot, first, stop)
        for i in range(stop - first):
            write_header(sum_at + i * job[t.SIZE], round_, first + i)
            states[at + i, 0], states[at + i, 1] = state, bitmap
            if len(laps):
                laps[at + i] = first >> job[t.SHIFT]
        first = stop
    job[t.COMPLETED] += completed
    if job[t.LEFT] and job[t.COMPLETED] >= job[t.LEFT]:
        tables.parameters[t.OVER] = 1
    tables.counts[t.AGGREGATES] += completed
    return completed
