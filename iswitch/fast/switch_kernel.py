"""The switch's kernel: one call polls, receives, checks, adds and sends, batch after batch.

It returns for a timer, a signal, and for the first datagram that is anything but a member's new
contribution to the current or the next round, or an aggregate that the switch above was awaited to
send; then nothing of that datagram has been done.
"""

from __future__ import annotations

from numba import carray, types

from . import tables as t
from .compiling import inlined, kernel
from .from_above import is_awaited, keep
from .libc import (
    EAGAIN,
    EINTR,
    MSG_DONTWAIT,
    as_i64,
    as_u16,
    errno_location,
    load32,
    memmove,
    nanoseconds,
    ppoll,
    recvmmsg,
    sendmmsg,
)
from .receiving import add, begin, big_endian, find, is_plain, measure, sum_of
from .tables import POLLIN, READABLE, SECOND, Table, Tables, Wires

HEAD = 52  # bytes of a frame's headers

# Sending


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
    segments, size = job[t.SEGMENTS], job[t.SIZE]
    last = 1 if stop > job[t.FULL_SEGMENTS] else 0
    length = (stop - start - 1) * size + (job[t.LAST_SIZE] if last else size)
    payload = job[t.ROWS] + (tables.queue[run, t.RUN_SLOT] * segments + start) * size
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
def flush(tables: Tables, wires: Wires) -> bool:
    """Send the runs of the queue; return whether the kernel has taken all."""
    count_sends(tables)
    n = through = 0
    for i in range(tables.parameters[t.QUEUED]):
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
    if not send(tables, wires, n, through):
        return False
    tables.parameters[t.QUEUED] = 0
    return True


# Receiving


@inlined
def receive(tables: Tables, wires: Wires, socket: int, most: int) -> int:
    """Receive datagrams of one socket; return their number, or minus the error.

    Args:
        tables: have the parameters.
        wires: have room for the datagrams.
        socket: number of the socket.
        most: the largest number to receive.
    """
    parameters = tables.parameters
    for i in range(parameters[t.CAME]):
        message = wires.messages[i]
        message[1], message[5], message[6] = parameters[t.NAME_ROOM], parameters[t.CONTROL_ROOM], 0
        if not parameters[t.IS_ETHERNET]:
            wires.keys[i, :] = 0
    parameters[t.CAME] = parameters[t.REST] = 0
    parameters[t.SOCKET] = socket
    descriptor = wires.descriptors[socket] & 0xFFFFFFFF
    came = recvmmsg(descriptor, wires.messages.ctypes.data, most, MSG_DONTWAIT, 0)
    if came < 0:
        error = load32(errno_location())
        parameters[t.ERROR] = error
        return 0 if error in (EAGAIN, EINTR) else -error
    parameters[t.CAME] = came
    return came


@inlined
def take(tables: Tables, wires: Wires, now: int) -> int:
    """Handle the datagrams that came as far as they are plain.

    Args:
        tables: know the flows.
        wires: hold the datagrams.
        now: the time, in nanoseconds.

    Returns:
        TIMER: all were plain; NOT_PLAIN; UNSENDABLE: so were those so far, but not all was sent.
    """
    parameters, guess = tables.parameters, 0
    while parameters[t.REST] < parameters[t.CAME]:
        i = parameters[t.REST]
        found = find(tables, wires, i, parameters[t.SOCKET], guess)
        if found < 0:
            return t.NOT_PLAIN
        guess, flow = found, tables.flows[found]
        job = tables.jobs[flow[t.JOB]]
        body = parameters[t.BODIES] + i * parameters[t.STRIDE]
        packets, step, tail = measure(tables, wires, i, found, body)
        round_, start = big_endian(body), big_endian(body + 4)
        above = flow[t.FROM_ABOVE]
        if above and not is_awaited(tables, flow, body, round_, start, packets, step, tail):
            return t.NOT_PLAIN
        if not above and not is_plain(tables, flow, body, round_, start, packets, step, tail):
            return t.NOT_PLAIN
        begins = round_ != job[t.HIGH]
        # The next round may reuse the buffers of what is not sent yet.
        if begins or parameters[t.QUEUED] > len(tables.queue) - t.MOST_PACKETS:
            if not flush(tables, wires):
                return t.UNSENDABLE
            if begins:
                begin(job, round_)
        if above:
            keep(tables, flow, body, round_, start, packets, step, tail, now)
        else:
            add(tables, flow, body, round_, start, packets, step, tail, now)
        parameters[t.REST] += 1
    return t.TIMER


@inlined
def poll(tables: Tables, wires: Wires, now: int, spins: bool) -> int:
    """Wait until something has come, or the deadline; return what ppoll returns.

    Args:
        tables: have the deadline.
        wires: have the descriptors.
        now: the time, in nanoseconds.
        spins: whether to return at once.
    """
    parameters, clock = tables.parameters, wires.clock
    wait = 0 if spins else max(0, parameters[t.DEADLINE] - now)
    clock[2], clock[3] = wait // SECOND, wait % SECOND
    for i in range(parameters[t.DESCRIPTORS]):
        wires.descriptors[i] = (wires.descriptors[i] & 0xFFFFFFFF) | POLLIN
    descriptors, timeout = wires.descriptors.ctypes.data, clock.ctypes.data + 16
    return ppoll(descriptors, parameters[t.DESCRIPTORS], timeout, 0)


@inlined
def take_all(tables: Tables, wires: Wires, most: int) -> tuple[int, bool]:
    """Receive from every socket that has something, and handle what is plain; send the results.

    The first is the one behind that which was served last: so none that has much to say, of which
    not all is plain, keeps the others waiting.

    Args:
        tables: know the switch.
        wires: have the sockets.
        most: datagrams to receive from each.

    Returns:
        As `take`, and BROKEN: a socket has failed; whether single packets came.
    """
    parameters, result, singles = tables.parameters, t.TIMER, False
    first = parameters[t.SOCKET] + 1
    for k in range(parameters[t.SOCKETS]):
        if result != t.TIMER:
            break
        socket = (first + k) % parameters[t.SOCKETS]
        if not wires.descriptors[socket] >> READABLE:
            continue
        came = receive(tables, wires, socket, most)
        if came < 0:
            result = t.BROKEN
        elif came > 0:
            before = tables.counts[t.PACKETS]
            result = take(tables, wires, nanoseconds(wires.clock.ctypes.data))
            singles |= tables.counts[t.PACKETS] - before <= parameters[t.REST]
    if parameters[t.QUEUED] and result != t.UNSENDABLE and not flush(tables, wires):
        result = t.UNSENDABLE
    return result, singles


_table, _rows = types.int64[::1], types.int64[:, ::1]
tables_type = types.NamedTuple(
    (_table, _table, _rows, _table, _rows, _rows, _rows, _rows, _rows), Tables
)
_bytes = types.uint8[:, ::1]
_wires = types.NamedTuple(
    (_table, _rows, _rows, _bytes, _rows, _rows, _rows, _bytes, _table), Wires
)


@kernel(types.int64(tables_type, _wires))
def serve(tables: Tables, wires: Wires) -> int:
    """Serve until the deadline, or until something comes that is not plain; return why."""
    parameters = tables.parameters
    now = nanoseconds(wires.clock.ctypes.data)
    spin_until = 0
    most = parameters[t.AT_ONCE]
    while now < parameters[t.DEADLINE]:
        found = poll(tables, wires, now, now < spin_until)
        if found < 0:
            return t.INTERRUPTED
        if found:
            result, singles = take_all(tables, wires, most)
            if result != t.TIMER or parameters[t.NOTED] > t.FEW_EVENTS:
                return result
            most = t.BATCH if singles else parameters[t.AT_ONCE]
            for i in range(parameters[t.SOCKETS], parameters[t.DESCRIPTORS]):
                if wires.descriptors[i] >> READABLE:
                    return t.OTHERS
        now = nanoseconds(wires.clock.ctypes.data)
        if found:
            spin_until = now + parameters[t.SPIN]
    return t.TIMER
