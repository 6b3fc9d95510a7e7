"""What is under way behind links with a rate: tables, and the rules of when it is handed on.

`pacing` works on these tables in Python, and `fast.ring_pacing` in compiled code, of which the
functions here are a part. Each table is a queue: row n lies at n modulo its length, and NEXT and
STOP of its `ends` count the rows that left it and that came. Its int64 hold numbers, or the bits of
a float64: a time in seconds.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Table = npt.NDArray[np.int64]

GRAIN = 1e-4  # seconds of a link's time after which packets that it has brought are handed on
SHARE = 16  # 1/16 of the packets under way at a time: fewer turns, and no delay at the end
CUTS = 4  # records of a burst that is sent, if they are longer than a grain

MOST_COMING, MOST_HELD = 1024, 1024  # records under way in a ring; more have to wait

# A worker's record under way to the switch
(
    AT,  # where its packets begin in the ring, in bytes
    PACKETS,  # that found room in the link's queue
    SIZE,  # bytes of each
    TAIL,  # bytes of the last of these
    TOS,
    GIVEN,  # packets that have come out
    END,  # bytes of the ring's stream up to its end
    FIRST,  # when the first packet comes out
    EACH,  # seconds from one packet to the next
    LAST,  # when the last one comes out
    COMING,
) = range(11)

# A record that waits in a ring to count
DUE, HELD_END, HELD_PACKETS, HELD = range(4)  # when it counts; as END and PACKETS

# The ends of a queue; the last two are those of records to the switch
NEXT, STOP, TAKEN, PAUSE, ENDS = range(5)  # bytes whose packets have all come out; the grain now


def due_of(first: float, each: float, last: float, packets: int, i: int) -> float:
    """Return when packet `i` of a record comes out, in seconds.

    Args:
        first: when the first one does.
        each: seconds from one packet to the next.
        last: when the last one does, which may be shorter.
        packets: their number.
        i: the packet, from 0 on.
    """
    return last if i == packets - 1 else first + i * each


def due_by(first: float, each: float, last: float, packets: int, now: float) -> int:
    """Return how many packets of a record have come out by now; the arguments are of `due_of`."""
    if now >= last:
        return packets
    if now < first:
        return 0
    return min(packets - 1, 1 + int((now - first) / each))


def grain_of(last: float, now: float) -> float:
    """Return the grain while packets are under way of which the last comes out at `last`."""
    return max(GRAIN, (last - now) / SHARE)


def is_too_few(stop: int, packets: int, given: int, due: float, now: float, grain: float) -> bool:
    """Return whether to wait for more packets of a record before some are handed on.

    Args:
        stop: packets that have come out.
        packets: of the record.
        given: packets that were handed on.
        due: when the first of the others came out, in seconds.
        now: the time.
        grain: the grain now.
    """
    return stop < packets and (stop == given or now < due + grain / 2)


def next_look(due: float, last: float, grain: float) -> float:
    """Return when to look at a record again: a grain is there then, or all is.

    Args:
        due: when its next packet comes out, in seconds.
        last: when its last one does.
        grain: the grain now.
    """
    return min(due + grain, last)


def piece_of(nbytes: int, grain: int, most: int) -> int:
    """Return the bytes of a record in which packets are sent.

    Args:
        nbytes: bytes of all packets.
        grain: bytes that the link brings in a grain.
        most: bytes of the longest record.
    """
    return min(most, max(grain, nbytes // CUTS))
