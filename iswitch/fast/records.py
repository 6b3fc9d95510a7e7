"""Records of rings in compiled code: the layout is in the page of `iswitch.ports.rings`.

What another process can write is loaded once; the number loaded is checked and used. WRITTEN is
stored behind the record, and TAKEN behind the last load from it. `libc.fence` stands between a
record and the look at SLEEPS, as in `ports.rings.ring`: taking a lock is an atomic instruction
there, and here it is one, too.

Packets are written through the caches if these are near the readers', else past them. How far that
is may change at any time, as systems move processes between cores, and a hypervisor cores between
dies. So each writer follows it: `show` takes the time of a store that it has to wait for anyway.
"""

from __future__ import annotations

from iswitch.core.format.packets import MAX_SUPER
from iswitch.ports.rings import memory, ring

from .compiling import inlined
from .copying import copy_lines
from .libc import (
    F_SETFL,
    O_NONBLOCK,
    fcntl,
    fence,
    load_acquire,
    nanoseconds,
    store_release,
    write,
)

HEAD, LINE = memory.HEAD, memory.LINE
WRITTEN, SLEEPS, TAKEN, GROUP = (
    8 * word for word in (ring.WRITTEN, ring.SLEEPS, ring.TAKEN, ring.GROUP)
)
GROUP_SHIFT = ring.GROUP_SHIFT
LARGEST = MAX_SUPER  # bytes of a packet
PIECE = ring.PIECE
EMPTY, FOUND, BROKEN = range(3)
group_word, group_taken = inlined(ring.group_word), inlined(ring.group_taken)
LONGEST = 200  # nanoseconds of a store that count: if it took longer, something came between
RISES, FADES = 4, 64  # stores in which a longer time counts, and in which it is forgotten


@inlined
def next_record(base: int, size: int, taken: int) -> tuple[int, int, int, int, int, int, int]:
    """Find the next record that counts packets, as `Reader.next` does.

    Args:
        base: address of the memory.
        size: bytes of its ring.
        taken: bytes that were taken from it.

    Returns:
        EMPTY, FOUND or BROKEN; bytes taken now, without the record; its bytes; its packets, the
        bytes of each, and of the last one; its ToS byte.
    """
    while True:
        there = load_acquire(base + WRITTEN) - taken
        if there == 0:
            return EMPTY, taken, 0, 0, 0, 0, 0
        at = taken % size
        if there < LINE or there > size or taken % LINE:
            return BROKEN, taken, 0, 0, 0, 0, 0
        head = base + HEAD + at
        length, packets = load_acquire(head), load_acquire(head + 8)
        if length % LINE or length < LINE or length > min(there, size - at):
            return BROKEN, taken, 0, 0, 0, 0, 0
        if packets:
            break
        if not at or length != size - at:
            return BROKEN, taken, 0, 0, 0, 0, 0
        taken += length
    step, tail, tos = load_acquire(head + 16), load_acquire(head + 24), load_acquire(head + 32)
    if not (0 < tail <= step <= LARGEST and 0 < packets <= length and 0 <= tos <= 0xFF):
        return BROKEN, taken, 0, 0, 0, 0, 0
    if packets * step > length - LINE:
        return BROKEN, taken, 0, 0, 0, 0, 0
    return FOUND, taken, length, packets, step, tail, tos


@inlined
def put(  # noqa: PLR0913 (a kernel has no objects)
    base: int,
    size: int,
    written: int,
    taken: int,
    source: int,
    packets: int,
    step: int,
    tail: int,
    tos: int,
    past: bool,
    again: int,
    apart: int,
    place: int,
) -> tuple[int, int]:
    """Write a record, as `Writer.put` does; the others can see it, and then a `call`.

    The arguments are those of `lay` and `show`.

    Returns:
        the bytes written now: as before, if the ring is full; and the result of `show`.
    """
    before = written
    written = lay(base, size, written, taken, source, packets, step, tail, tos, past, again)
    if written != before:
        apart = show(base, written, apart, place)
    return written, apart


@inlined
def lay(  # noqa: PLR0913 (as for `put`)
    base: int,
    size: int,
    written: int,
    taken: int,
    source: int,
    packets: int,
    step: int,
    tail: int,
    tos: int,
    past: bool,
    again: int,
) -> int:
    """Write a record that does not count yet, as `Writer.lay`; return the bytes written now.

    Args:
        base: address of the memory.
        size: bytes of its ring.
        written: bytes that were written into it.
        taken: bytes that all readers have taken.
        source: address of the packets.
        packets: number of packets.
        step: bytes of each.
        tail: bytes of the last.
        tos: the ToS byte.
        past: whether its packets go past the caches.
        again: as for `open_record`.
    """
    head, written = open_record(base, size, written, taken, length_of(packets, step), again)
    if head:
        copy_lines(head + LINE, source, packets * step, past)
        fence()
        describe(head, packets, step, tail, tos)
    return written


@inlined
def show(base: int, written: int, apart: int, place: int) -> int:
    """Let the records before `written` count; return how far the readers are apart from here.

    It is about the longest time, in nanoseconds, that such stores have taken lately. The readers
    look at the line that it goes to, so their caches hold it. Many stores take less, since they
    have not looked since the last one, or are on this core: hence it rises faster than it falls. A
    single store may take more for another reason.

    Args:
        base: address of the memory.
        written: bytes that were written into its ring.
        apart: what this returned last; 0: nothing.
        place: address of room for a struct timespec.
    """
    fence()
    before = nanoseconds(place)
    store_release(base + WRITTEN, written)
    fence()
    took = min(nanoseconds(place) - before, LONGEST)
    return apart + (took - apart) // RISES if took > apart else apart - apart // FADES


@inlined
def again_from(size: int, vector: int) -> int:
    """Return from which byte on a ring is to begin again at its start once all is taken.

    A ring for small vectors stays in the caches then, though others used them meanwhile. What is
    left empty counts as full until it is taken: so it must be less than large vectors leave.

    Args:
        size: bytes of the ring.
        vector: bytes of the packets of a round.

    Returns:
        `size`: only at its end.
    """
    return 2 * PIECE if vector <= PIECE else size


@inlined
def open_record(
    base: int, size: int, written: int, taken: int, length: int, again: int
) -> tuple[int, int]:
    """Find room for a record.

    Args:
        base: address of the memory.
        size: bytes of its ring.
        written: bytes that were written into it.
        taken: bytes that all readers have taken.
        length: bytes of the record.
        again: from this byte on a ring begins again at its start, if all is taken.

    Returns:
        the address of its head, 0 if there is no room, and the bytes written with it.
    """
    at = written % size
    is_again = taken == written and at >= max(again, length)
    gap = size - at if is_again or length > size - at else 0
    if written + gap + length - taken > size:
        return 0, written
    if gap:
        store_release(base + HEAD + at, gap)
        store_release(base + HEAD + at + 8, 0)
        at = 0
    return base + HEAD + at, written + gap + length


@inlined
def describe(head: int, packets: int, step: int, tail: int, tos: int) -> None:
    """Write the head of a record; the arguments are as for `lay`."""
    store_release(head, length_of(packets, step))
    store_release(head + 8, packets)
    store_release(head + 16, step)
    store_release(head + 24, tail)
    store_release(head + 32, tos)


@inlined
def length_of(packets: int, step: int) -> int:
    """Return the bytes of a record."""
    return -(-(LINE + packets * step) // LINE) * LINE


@inlined
def call(theirs: int, bell: int, rung: int, one: int) -> int:
    """Ring the other side's bell if it sleeps; call this after `show`.

    Args:
        theirs: address of its memory.
        bell: descriptor of its bell.
        rung: the sleep for which the bell was rung last.
        one: address of an int64 that is 1.

    Returns:
        the sleep for which the bell was rung last.
    """
    number = load_acquire(theirs + SLEEPS)
    if number and number != rung:
        fcntl(bell, F_SETFL, O_NONBLOCK)  # the other side can change that
        write(bell, one, 8)  # if it is full, whoever fills it need not be woken
        rung = number
    return rung


@inlined
def lie_down(ours: int, sleeps: int, number: int) -> tuple[int, int]:
    """Ask for the bell; `fence` and look into the rings before the sleep.

    Args:
        ours: address of our memory.
        sleeps: the number in SLEEPS; 0: awake.
        number: the number of the last sleep.

    Returns:
        SLEEPS, and the number of the last sleep.
    """
    if not sleeps:
        number += 1
        sleeps = number
        store_release(ours + SLEEPS, number)
    return sleeps, number


@inlined
def get_up(ours: int, sleeps: int) -> int:
    """Ask for no bell; return the number in SLEEPS now: 0."""
    if sleeps:
        store_release(ours + SLEEPS, 0)
    return 0
