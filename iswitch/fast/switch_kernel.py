"""The switch's kernel: one call polls, receives, checks, adds and sends, batch after batch.

Packets come from sockets, and from rings in shared memory. It returns for a timer, a signal, and
for the first datagram or record that is anything but a member's new contribution to the current or
the next round, or an aggregate that the switch above was awaited to send; then nothing of that
datagram or record has been done.
"""

from __future__ import annotations

from numba import types

from . import ring_pacing as pacing
from . import tables as t
from .compiling import inlined, kernel, unowned
from .contributions import add, is_plain
from .from_above import is_awaited, is_unsent, keep
from .going_up import hear, is_answer, look_up
from .libc import (
    EAGAIN,
    EINTR,
    MSG_DONTWAIT,
    errno_location,
    load32,
    nanoseconds,
    ppoll,
    recvmmsg,
    sched_yield,
)
from .marks import answer, is_full, is_mark
from .places import big_endian
from .receiving import begin, begins, find, measure, will_overwrite
from .ring_receiving import (
    has_more,
    only_kicks,
    rings_type,
    rise,
    settle_down,
    spin,
    take_records,
)
from .ring_sending import release
from .ring_table import Rings
from .sending import flush
from .tables import POLLIN, READABLE, SECOND, Table, Tables, Wires
from .waking import WAKING

# Nanoseconds after which to look at the sockets, though the rings bring packets: if sockets bring
# plain packets, too, and if they do not
SOON, LOOK = 20_000, 1_000_000


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
def judge(  # noqa: PLR0913 (as for `receiving.is_plain`)
    tables: Tables,
    flow: Table,
    body: int,
    round_: int,
    start: int,
    packets: int,
    step: int,
    tail: int,
    now: int,
) -> tuple[bool, bool, bool]:
    """Tell of packets whether they are plain, begin a round, and reuse what waits to be sent.

    The arguments are those of `receiving.fits`, of which round and segment of a mark mean nothing,
    and the time in nanoseconds.
    """
    job = tables.jobs[flow[t.JOB]]
    if flow[t.ASKS] and flow[t.FROM_ABOVE]:
        return is_answer(tables, flow, body, packets, tail), False, False
    if flow[t.ASKS]:
        if not is_mark(tables, flow, body, packets, tail, now):
            return False, False, False
        return True, False, is_full(tables, flow)
    if flow[t.FROM_ABOVE]:
        if not is_awaited(tables, flow, body, round_, start, packets, step, tail):
            return False, False, False
        return True, False, is_unsent(tables, flow, round_, start, start + packets)
    if not is_plain(tables, flow, body, round_, start, packets, step, tail):
        return False, False, False
    next_ = begins(job, round_)
    return True, next_, next_ or will_overwrite(tables, flow, round_, start, start + packets)


@inlined
def take(tables: Tables, rings: Rings, wires: Wires, now: int) -> int:
    """Handle the datagrams that came as far as they are plain.

    Args:
        tables: know the flows.
        rings: get the results for workers that have some.
        wires: hold the datagrams.
        now: the time, in nanoseconds.

    Returns:
        TIMER: all were plain; NOT_PLAIN; UNSENDABLE: so were those so far, but not all was sent;
        LANDED: they ended a round, and the others are still to be handled.
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
        plain, next_, full = judge(tables, flow, body, round_, start, packets, step, tail, now)
        if not plain:
            return t.NOT_PLAIN
        if full or parameters[t.QUEUED] > len(tables.queue) - t.MOST_ADDED:
            if not flush(tables, rings, wires, now):
                return t.UNSENDABLE
            if next_:
                begin(job, round_)
        if flow[t.ASKS] and flow[t.FROM_ABOVE]:
            hear(tables, flow, body, tail, now)
        elif flow[t.ASKS]:
            answer(tables, flow, now)
        elif flow[t.FROM_ABOVE]:
            keep(tables, flow, body, round_, start, packets, step, tail, now)
        else:
            add(tables, flow, body, round_, start, packets, step, tail, now)
        parameters[t.REST] += 1
        if parameters[t.OVER]:
            return t.LANDED
    return t.TIMER


@inlined
def poll(tables: Tables, wires: Wires, until: int, now: int) -> int:
    """Wait until something has come; return what ppoll returns.

    Args:
        tables: know how many descriptors there are.
        wires: have the descriptors.
        until: when to return, in nanoseconds.
        now: the time.
    """
    parameters, clock = tables.parameters, wires.clock
    wait = max(0, until - now)
    clock[2], clock[3] = wait // SECOND, wait % SECOND
    for i in range(parameters[t.DESCRIPTORS]):
        wires.descriptors[i] = (wires.descriptors[i] & 0xFFFFFFFF) | POLLIN
    descriptors, timeout = wires.descriptors.ctypes.data, clock.ctypes.data + 16
    return ppoll(descriptors, parameters[t.DESCRIPTORS], timeout, 0)


@inlined
def take_datagrams(tables: Tables, rings: Rings, wires: Wires, most: int) -> tuple[int, bool]:
    """Receive from every socket that has something, and handle what is plain; send the results.

    The first is the one behind that which was served last: so none that has much to say, of which
    not all is plain, keeps the others waiting.

    Args:
        tables: know the switch.
        rings: get the results for workers that have some.
        wires: have the sockets.
        most: datagrams to receive from each.

    Returns:
        What `take` returns, and BROKEN: a socket has failed; whether single packets came.
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
            now = nanoseconds(wires.clock.ctypes.data)
            result = take(tables, rings, wires, now)
            singles |= tables.counts[t.PACKETS] - before <= parameters[t.REST]
    now = nanoseconds(wires.clock.ctypes.data)
    if parameters[t.QUEUED] and result != t.UNSENDABLE and not flush(tables, rings, wires, now):
        result = t.UNSENDABLE
    return result, singles


_table, _rows = types.int64[::1], types.int64[:, ::1]
tables_type = types.NamedTuple(
    (_table, _table, _rows, _table, _rows, _rows, _rows, _rows, _rows, _rows, _table), Tables
)
_bytes = types.uint8[:, ::1]
_wires = types.NamedTuple(
    (_table, _rows, _rows, _bytes, _rows, _rows, _rows, _bytes, _table), Wires
)


@inlined
def look(tables: Tables, rings: Rings, wires: Wires, rests: bool, most: int) -> tuple[int, bool]:
    """Look at the descriptors, and take what has come.

    Args:
        tables: know the switch, and get the time of the next look.
        rings: may bring something before.
        wires: have the descriptors.
        rests: whether to wait until something comes.
        most: datagrams to receive from each socket.

    Returns:
        As `take_datagrams`; NOTHING: nothing has come; INTERRUPTED; OTHERS: Python has to look.
    """
    parameters, descriptors = tables.parameters, wires.descriptors
    place = wires.clock.ctypes.data
    now = nanoseconds(place)
    until = now
    if rests:
        settle_down(rings)
        if not has_more(rings):
            until = min(parameters[t.DEADLINE], parameters[t.UP_AT], pacing.soonest(rings))
    found = poll(tables, wires, until, now)
    rise(rings)
    if len(rings.rings):
        parameters[t.LOOK_AT] = nanoseconds(place) + (SOON if parameters[t.FLOWS] else LOOK)
    if found == 0 and not rests and parameters[t.SPIN] and not len(rings.rings):
        sched_yield()  # where there are rings, `spin` does
    if found <= 0:
        return (t.NOTHING if found == 0 else t.INTERRUPTED), False
    bells = parameters[t.BELLS]
    ring = bells >= 0 and descriptors[bells] >> READABLE
    if ring and only_kicks(rings, descriptors[bells] & 0xFFFFFFFF):
        descriptors[bells] &= 0xFFFFFFFF
    result, singles = take_datagrams(tables, rings, wires, most)
    for i in range(parameters[t.SOCKETS], parameters[t.DESCRIPTORS]):
        if result == t.TIMER and descriptors[i] >> READABLE:
            result = t.OTHERS
    return result, singles


@kernel(types.int64(tables_type, rings_type, _wires))
def serve(tables: Tables, rings: Rings, wires: Wires) -> int:
    """Serve until the deadline, or until something comes that is not plain; return why.

    The time of the next look at the sockets outlives a call: workers that write without end what is
    not plain into their rings do not put it off.
    """
    tables, rings, wires = unowned(tables), unowned(rings), unowned(wires)
    parameters, place = tables.parameters, wires.clock.ctypes.data
    now, spin_until, most = nanoseconds(place), 0, parameters[t.AT_ONCE]
    least = WAKING if len(rings.rings) else 0
    rests = False
    rise(rings)
    while now < parameters[t.DEADLINE]:
        came = t.NOTHING
        if rests or now >= parameters[t.LOOK_AT]:
            came, singles = look(tables, rings, wires, rests, most)
            if came not in (t.TIMER, t.NOTHING):
                return came
            most = t.BATCH if singles else parameters[t.AT_ONCE]
            now = nanoseconds(place)
        release(rings, now)
        result = take_records(tables, rings, wires, now)
        if result not in (t.TIMER, t.NOTHING):
            return result
        if parameters[t.NOTED] > t.FEW_EVENTS:
            return t.TIMER
        now, coming = nanoseconds(place), pacing.soonest(rings)
        if now >= parameters[t.UP_AT]:
            due = look_up(tables, now)
            if parameters[t.QUEUED] and not flush(tables, rings, wires, now):
                return t.UNSENDABLE
            if due:
                return t.TIMER
        if result == t.TIMER or came == t.TIMER:
            spin_until, rests = now + max(least, parameters[t.SPIN]), False
            if len(rings.rings):
                continue
        elif coming - now < WAKING:  # to sleep and to wake up would take as long
            spin_until = max(spin_until, coming)
        now = spin(rings, place, min(spin_until, coming, parameters[t.LOOK_AT]), now)
        rests = now >= spin_until and now < coming
    return t.TIMER
