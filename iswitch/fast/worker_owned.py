"""Takes aggregates of owned segments in compiled code: a worker's, as long as all goes well.

They are plain if each is new, fits, and follows the one before it in its block, and if the closing
one comes last. So none of them shows that something is lost. Which segments this worker gets, and
where they belong, `worker_lib.protocol.plan` says; what has come is noted in the memory of
`worker_lib.protocol.aggregates`.
"""

from __future__ import annotations

from typing import Any

from numba import carray

from .compiling import inlined
from .copying import place
from .libc import as_i64, as_u8, load32
from .places import SEG_SIZE, big_endian
from .worker_table import At

NONE = -1


@inlined
def position_of(table: Any, segment: Any, likely: Any) -> Any:
    """Return the position of a segment, which may be the `likely` one; NONE: others get it."""
    n = table[At.POSITIONS]
    gets = carray(as_i64(table[At.GETS]), (n,))
    if likely < n and gets[likely] == segment:
        return likely
    low, high = 0, n
    while low < high:
        middle = (low + high) // 2
        if gets[middle] < segment:
            low = middle + 1
        else:
            high = middle
    return low if low < n and gets[low] == segment else NONE


@inlined
def found_all(table: Any, data: Any, at: Any, packets: Any, step: Any, tail: Any) -> Any:
    """Note that packets have come, and their positions in FOUND; False: they are not plain.

    The arguments are those of `take_owned`.
    """
    n, size, left = table[At.POSITIONS], table[At.SIZE], table[At.REMAINING]
    if packets > left:
        return False
    first, has = carray(as_u8(table[At.FIRST]), (n,)), carray(as_u8(table[At.HAS]), (n,))
    places, found = carray(as_i64(table[At.PLACES]), (n,)), carray(as_i64(table[At.FOUND]), (n,))
    position = NONE
    for i in range(packets):
        packet, ends = data.ctypes.data + at + i * step, i == packets - 1
        length = tail if ends else step
        plain = length >= SEG_SIZE and big_endian(packet) == table[At.ROUND]
        if plain:
            position = position_of(table, big_endian(packet + 4), position + 1)
            plain = position != NONE
        if plain and position == n - 1:
            plain = length == table[At.LAST] and ends and left == packets
        elif plain:
            plain = length == size and (first[position] != 0 or has[position - 1] != 0)
        if not plain or has[position] != 0 or places[position] >= table[At.SENT]:
            for k in range(i):
                has[found[k]] = 0
            return False
        has[position] = 1
        found[i] = position
    return True


@inlined
def take_owned(table: Any, data: Any, at: Any, packets: Any, step: Any, tail: Any) -> Any:
    """Put packets in their place; False: they are not plain, and nothing is done.

    Args:
        table: the round.
        data: bytes.
        at: where in these the first packet begins.
        packets: number of packets.
        step: bytes of each.
        tail: bytes of the last.
    """
    if not found_all(table, data, at, packets, step, tail):
        return False
    n, size = table[At.POSITIONS], table[At.OUT_BYTES]
    found, places = carray(as_i64(table[At.FOUND]), (n,)), carray(as_i64(table[At.PLACES]), (n,))
    out, to = carray(as_u8(table[At.OUT]), (size,)), carray(as_i64(table[At.TO]), (n - 1, 2))
    for i in range(packets):
        position, start = found[i], at + i * step + SEG_SIZE
        if position < n - 1:
            place(out, to[position, 0], data, start, to[position, 1], size >= table[At.LARGE])
        else:
            table[At.TOTAL] = load32(data.ctypes.data + start) & 0xFFFFFFFF
        if places[position] >= 0:
            table[At.CAME] += 1
            table[At.TAKEN] = max(table[At.TAKEN], places[position] + 1)
    table[At.REMAINING] -= packets
    return True
