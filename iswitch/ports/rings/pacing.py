"""Links with a rate in front of rings: packets are seen when such a link would have brought them.

    worker -> its ring -> Inlet: rows are read when they are due -----------> switch
    worker <- its ring <- HeldWriter: WRITTEN includes records once due <---- switch

Nothing is copied for that: packets under way lie in the rings. `faults/line.py` decides when each
is due, and which find no room in the link's queue. What is due is looked at once a `GRAIN`, so no
packet costs a timer of its own.
"""

from __future__ import annotations

import mmap
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from iswitch.core.format.counters import Counters
from iswitch.core.format.packets import Outgoing, Rows
from iswitch.ethernet.frame import HEADERS
from iswitch.faults.fifo import Times
from iswitch.faults.impairment import DIRECTIONS, Impairment
from iswitch.faults.line import Line

from .ring import PIECE, WRITTEN, Packets, Reader, Writer

GRAIN = 1e-4  # seconds of a link's time after which packets that it has brought are handed on
SHARE = 16  # 1/16 of the packets under way at a time: fewer turns, and no delay at the end
CUTS = 4  # records of a burst that is sent, if they are longer than a grain
AT_ONCE = 64  # records of a worker that are looked at in a turn


class Paced(NamedTuple):
    """Packets that found room in a link's queue: how many, and when each comes out, (n,)."""

    packets: int
    due: Times

    def due_of(self, at: int, packets: Packets) -> float:
        """Return when the last of these packets comes out, the first of which is number `at`."""
        return float(self.due[at + len(packets.rows) - 1])

    def behind(self, at: int) -> Paced:
        """Return the packets from number `at` on."""
        return Paced(self.packets - at, self.due[at:])

    def kept(self, out: Outgoing) -> Outgoing:
        """Return the packets that found room."""
        if self.packets == len(out.rows):
            return out
        return out._replace(rows=out.rows[: self.packets], tail=out.rows.shape[1])


def latest(ways: Sequence[Paced]) -> Paced | None:
    """Return when packets have come out of all links; None: there is no link."""
    if not ways:
        return None
    return Paced(ways[0].packets, np.maximum.reduce([way.due for way in ways]))


class Lane:
    """One direction of a link with a rate.

    Args:
        link: its rate and its queue.
        direction: `in` or `out`, seen from the switch.
        counters: counts what finds no room in the queue.
    """

    def __init__(self, link: Impairment, direction: str, counters: Counters) -> None:
        assert link.rate is not None
        self._line = Line(link, (DIRECTIONS.index(direction),))
        self._full = f"queue_{direction}"
        self._counters = counters
        self._grain = int(link.rate * GRAIN / 8)  # bytes

    def send(self, rows: Rows, tail: int, now: float) -> Paced:
        """Send packets into the link; those that find no room are the last, and are counted."""
        sizes = np.full(len(rows), rows.shape[1] + HEADERS)
        sizes[-1] = tail + HEADERS
        fates = self._line.fates(sizes, now)
        if fates.full:
            self._counters[self._full] += fates.full
        return Paced(len(fates.which), fates.due)

    def piece(self, rows: Rows) -> int:
        """Return the bytes of a record for these packets."""
        return min(PIECE, max(self._grain, rows.size // CUTS))


class Lanes:
    """Both directions of a link."""

    def __init__(self, link: Impairment, counters: Counters) -> None:
        self.rate = link.rate
        self.inward, self.outward = (Lane(link, way, counters) for way in DIRECTIONS)


Links = Mapping[int, Lanes]  # by the number of the switch's port


@dataclass
class Coming:
    """A record under way.

    Attributes:
        packets: those that found room.
        tail: bytes of the last packet of all.
        due: when each packet comes out, (n,).
        end: where the record ends in its ring.
        given: packets that have come out.
    """

    packets: Rows
    tos: int
    tail: int
    due: Times
    end: int
    given: int = 0

    def deadline(self, grain: float) -> float:
        """Return when to look at it again: a grain is there then, or all is."""
        return min(float(self.due[self.given]) + grain, float(self.due[-1]))


class Inlet:
    """Hands on the packets of a worker's ring when its link has brought them.

    Args:
        reader: reads the ring.
        lane: the link.
    """

    def __init__(self, reader: Reader, lane: Lane) -> None:
        self._reader = reader
        self._lane = lane
        self._coming: deque[Coming] = deque()
        self._grain = GRAIN
        self.taken = 0  # bytes whose packets have all come out

    @property
    def under_way(self) -> int:
        """Return how many packets are under way."""
        return sum(len(one.packets) - one.given for one in self._coming)

    def look(self, now: float) -> bool:
        """Send new records into the link; return whether more may be there.

        Raises:
            BrokenRing: the worker does not keep to the layout.
        """
        reader = self._reader
        for _ in range(AT_ONCE):
            packets = reader.next()
            if packets is None:
                return False
            reader.take()
            tos, rows, tail = packets
            count, due = self._lane.send(rows, tail, now)
            if count < len(rows):
                rows, tail = rows[:count], rows.shape[1]
            if count:
                self._coming.append(Coming(rows, tos, tail, due, reader.taken))
            elif self._coming:
                self._coming[-1].end = reader.taken
            else:
                self.taken = reader.taken
        return True

    def read(self, now: float) -> Iterator[Packets]:
        """Yield the packets that have come out by now; `taken` includes them afterwards."""
        if self._coming:
            self._grain = max(GRAIN, (float(self._coming[-1].due[-1]) - now) / SHARE)
        while self._coming:
            one = self._coming[0]
            count = len(one.packets)
            stop = int(one.due.searchsorted(now, "right"))
            if stop < count and (stop == one.given or now < one.due[one.given] + self._grain / 2):
                return
            rows, one.given = one.packets[one.given : stop], stop
            if stop < count:
                yield Packets(one.tos, rows, rows.shape[1])
                return
            self._coming.popleft()
            try:
                yield Packets(one.tos, rows, one.tail)
            finally:  # if they could not be handled, they are lost
                self.taken = one.end

    def deadline(self) -> float | None:
        """Return when to `read` again, in seconds; None: nothing is under way."""
        return self._coming[0].deadline(self._grain) if self._coming else None


class HeldWriter(Writer):
    """Writes records that count only when they are due."""

    def __init__(self, memory: mmap.mmap) -> None:
        super().__init__(memory)
        self._held: deque[tuple[float, int, int]] = deque()  # due, where they end, packets

    @property
    def under_way(self) -> int:
        """Return how many packets are under way."""
        return sum(packets for *_, packets in self._held)

    def hold(self, packets: Packets, taken: int, due: float) -> bool:
        """Write a record that counts from `due` on; False: there is no room for it."""
        if not self.lay(packets, taken):
            return False
        self._held.append((due, self.written, len(packets.rows)))
        return True

    def release(self, now: float) -> bool:
        """Let the records that are due count; return whether there were any."""
        held, end = self._held, 0
        while held and held[0][0] <= now:
            end = held.popleft()[1]
        if end:
            self.words[WRITTEN] = end
        return end > 0

    def deadline(self) -> float | None:
        """Return when the next record is due, in seconds; None: none is under way."""
        return self._held[0][0] if self._held else None
