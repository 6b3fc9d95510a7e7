"""Packets of the queue to their receivers: through sockets, or into rings (`ring_sending`)."""

from __future__ import annotations

from numba import carray

from . import tables as t
from .compiling import inlined
from .libc import EINTR, as_i64, as_u16, errno_location, load32, memmove, sendmmsg, sum_of
from .places import packet_of
from .ring_sending import has_ring, put
from .ring_table import Rings
from .tables import Table, Tables, Wires

HEAD = 52  # bytes of a frame's headers


@inlined
def finish_head(job: Table, wires: Wires, n: int, receiver: int, last: int, total: int) -> int:
    """Finish the head of a single frame: its UDP checksum. Return the address of the head.

    Args:
        job: the job's row.
        wires: have room for the head.
        n: place of the message.
        receiver: number of the receiver.
        last: 1 for the vector's last packet, if it is shorter.
        total: sum of the payload's 16-bit words.
    """
    address = wires.scratch[n:].ctypes.data
    at = receiver * 2 + last
    memmove(address, job[t.HEADS] + (at * 2 + 1) * t.HEAD_ROOM, HEAD)
    sums = carray(as_i64(job[t.SUMS]), job[t.RECEIVERS] * 2)
    check = 0xFFFF - (total + sums[at]) % 0xFFFF
    carray(as_u16(address), HEAD // 2)[HEAD // 2 - 1] = check if check else 0xFFFF
    return address


@inlined
def describe(tables: Tables, wires: Wires, n: int, run: int, start: int, stop: int) -> int:
    """Describe one super-datagram to each receiver; return the number of messages with these.

    Args:
        tables: know the job.
        wires: have room for the messages.
        n: number of messages so far.
        run: the run, by its place in the queue.
        start: first segment.
        stop: one past the last segment.
    """
    job = tables.jobs[tables.queue[run, t.RUN_JOB]]
    size = job[t.SIZE]
    last = 1 if stop > job[t.FULL_SEGMENTS] else 0
    length = (stop - start - 1) * size + (job[t.LAST_SIZE] if last else size)
    payload = packet_of(job, tables.queue[run, t.RUN_SLOT], start)
    total = sum_of(payload, length) if job[t.SEPARATE] else 0
    names = carray(as_i64(job[t.NAMES]), job[t.RECEIVERS])
    for receiver in range(job[t.RECEIVERS]):
        part, message, note = wires.parts[n], wires.out[n], wires.notes[n]
        part[0] = part[1] = 0
        if job[t.SEPARATE]:
            part[0], part[1] = finish_head(job, wires, n, receiver, last, total), HEAD
        elif job[t.HEADS]:
            at = (receiver * 2 + last) * (job[t.AT_MOST] + 1) + stop - start
            part[0], part[1] = job[t.HEADS] + at * t.HEAD_ROOM, HEAD
        part[2], part[3] = payload, length
        message[0] = names[receiver]
        message[4], message[5] = job[t.CONTROL], job[t.CONTROL_SIZE]
        note[0], note[1], note[2], note[3] = run, start, stop, receiver
        n += 1
    return n


@inlined
def send(tables: Tables, wires: Wires, n: int, through: int) -> bool:
    """Send messages; return whether the kernel has taken all, else note the first that it has not.

    Args:
        tables: know the jobs.
        wires: hold the messages.
        n: number of messages.
        through: descriptor of the socket.
    """
    parameters, at = tables.parameters, 0
    while at < n:
        address = wires.out[at:].ctypes.data
        sent = sendmmsg(through, address, n - at, parameters[t.SEND_FLAGS])
        if sent > 0:
            for i in range(at, at + sent):
                note = wires.notes[i]
                copies = tables.jobs[tables.queue[note[0], t.RUN_JOB], t.COPIES]
                tables.counts[t.TX_FRAMES] += (note[2] - note[1]) * copies
            at += sent
            continue
        error = load32(errno_location())
        if error == EINTR:
            continue
        note = wires.notes[at]
        parameters[t.UNSENT], parameters[t.UNSENT_FROM] = note[0], note[1]
        parameters[t.UNSENT_TO], parameters[t.UNSENT_RECEIVER] = note[2], note[3]
        parameters[t.ERROR] = error
        return False
    return True


@inlined
def count_sends(tables: Tables) -> None:
    """Count the packets of all runs in the queue."""
    for i in range(tables.parameters[t.QUEUED]):
        run = tables.queue[i]
        job = tables.jobs[run[t.RUN_JOB]]
        packets, peers = run[t.RUN_STOP] - run[t.RUN_START], job[t.RECEIVERS] * job[t.COPIES]
        nbytes = packets * job[t.SIZE]
        if run[t.RUN_STOP] > job[t.FULL_SEGMENTS]:
            nbytes += job[t.LAST_SIZE] - job[t.SIZE]
        tables.counts[t.TX_PACKETS] += packets * peers
        tables.counts[t.TX_NBYTES] += nbytes * peers


@inlined
def send_runs(tables: Tables, wires: Wires, first: int, last: int) -> bool:
    """Send runs `first` to `last` - 1 of the queue; return whether the kernel has taken all."""
    n = through = 0
    for i in range(first, last):
        run = tables.queue[i]
        job = tables.jobs[run[t.RUN_JOB]]
        if job[t.THROUGH] != through:
            if not send(tables, wires, n, through):
                return False
            n, through = 0, job[t.THROUGH]
        at = run[t.RUN_START]
        while at < run[t.RUN_STOP]:
            if n + job[t.RECEIVERS] > len(wires.out):
                if not send(tables, wires, n, through):
                    return False
                n = 0
            stop = min(run[t.RUN_STOP], at + job[t.AT_MOST])
            n = describe(tables, wires, n, i, at, stop)
            at = stop
    return send(tables, wires, n, through)


@inlined
def flush(tables: Tables, rings: Rings, wires: Wires, now: int) -> bool:
    """Send the runs of the queue; return whether all were taken, else UNSENT tells the rest.

    All are counted as sent.

    Args:
        tables: have the queue.
        rings: get the packets of jobs with a ring.
        wires: bring all others.
        now: the time, in nanoseconds.
    """
    count_sends(tables)
    i, queued = 0, tables.parameters[t.QUEUED]
    while i < queued:
        stop = i
        while stop < queued and not has_ring(rings, tables.queue[stop, t.RUN_JOB]):
            stop += 1
        if stop > i and not send_runs(tables, wires, i, stop):
            return False
        if stop < queued and not put(tables, rings, stop, now):
            return False
        i = stop + 1
    tables.parameters[t.QUEUED] = 0
    return True
