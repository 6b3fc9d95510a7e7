"""Links with a rate in front of rings: packets are seen when such a link would have brought them.

    worker -> its ring -> Inlet: rows are read when they are due -----------> switch
    worker <- its ring <- HeldWriter: WRITTEN includes records once due <---- switch

Nothing is copied for that: packets under way lie in the rings, and what is known of them in tables
(`due.py`). `faults/line.py` decides when each is due, and which find no room in the link's queue.
What is due is looked at once a grain, so no packet costs a timer of its own.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from iswitch.core.format.counters import Counters
from iswitch.core.format.packets import Outgoing, Rows
from iswitch.ethernet.frame import HEADERS
from iswitch.faults.impairment import DIRECTIONS, Impairment
from iswitch.faults.line import Ints, Line

from . import due
from .ring import PIECE, WRITTEN, Packets, Reader, Writer

AT_ONCE = 64  # records of a worker that are looked at in a turn


class Paced(NamedTuple):
    """Packets that found room in a link's queue.

    Attributes:
        packets: their number.
        first: when the first one comes out, in seconds.
        each: seconds from one to the next.
        last: when the last one comes out.
    """

    packets: int
    first: float
    each: float
    last: float

    def due_of(self, at: int, packets: Packets) -> float:
        """Return when the last of these packets comes out, the first of which is number `at`."""
        i = at + len(packets.rows) - 1
        return due.due_of(self.first, self.each, self.last, self.packets, i)

    def behind(self, at: int) -> Paced:
        """Return the packets from number `at` on."""
        return Paced(self.packets - at, self.first + at * self.each, self.each, self.last)

    def kept(self, out: Outgoing) -> Outgoing:
        """Return the packets that found room."""
        if self.packets == len(out.rows):
            return out
        return out._replace(rows=out.rows[: self.packets], tail=out.rows.shape[1])


def latest(ways: Sequence[Paced]) -> Paced | None:
    """Return when packets have come out of all of these equal links; None: there is no link."""
    if not ways:
        return None
    first, last = max(way.first for way in ways), max(way.last for way in ways)
    return Paced(ways[0].packets, first, ways[0].each, last)


class Lane:
    """One direction of a link with a rate.

    Args:
        link: its rate and its queue.
        direction: `in` or `out`, seen from the switch.
        counters: counts what finds no room in the queue.
    """

    def __init__(self, link: Impairment, direction: str, counters: Counters) -> None:
        assert link.rate is not None
        self.link = link
        self.line = Line(link, (DIRECTIONS.index(direction),))
        self._full = f"queue_{direction}"
        self._counters = counters
        self.grain = int(link.rate * due.GRAIN / 8)  # bytes

    def send(self, rows: Rows, tail: int, now: float) -> Paced:
        """Send packets into the link; those that find no room are the last, and are counted."""
        sizes = sizes_of(len(rows), rows.shape[1], tail)
        fates = self.line.fates(sizes, now)
        if fates.full:
            self._counters[self._full] += fates.full
        if not len(fates.due):
            return Paced(0, now, 0.0, now)
        each = 0.0 if len(fates.due) == 1 else (rows.shape[1] + HEADERS) * (8 / self.rate)
        return Paced(len(fates.which), float(fates.due[0]), each, float(fates.due[-1]))

    @property
    def rate(self) -> int:
        """Return its rate, in bit/s."""
        assert self.link.rate is not None
        return self.link.rate

    def piece(self, rows: Rows) -> int:
        """Return the bytes of a record for these packets."""
        return due.piece_of(rows.size, self.grain, PIECE)


def sizes_of(packets: int, size: int, tail: int) -> Ints:
    """Return the bytes of packets as frames, (packets,)."""
    sizes = np.full(packets, size + HEADERS)
    sizes[-1] = tail + HEADERS
    return sizes


class Lanes:
    """Both directions of a link."""

    def __init__(self, link: Impairment, counters: Counters) -> None:
        self.rate = link.rate
        self.inward, self.outward = (Lane(link, way, counters) for way in DIRECTIONS)


Links = Mapping[int, Lanes]  # by the number of the switch's port


class Queue:
    """What is under way through a ring, as a table (`due.py`).

    Args:
        rows: how much there can be.
        columns: of the table.
    """

    def __init__(self, rows: int, columns: int) -> None:
        self.table: due.Table = np.zeros((rows, columns), np.int64)
        self.times = self.table.view(np.float64)
        self.ends: due.Table = np.zeros(due.ENDS, np.int64)

    def __len__(self) -> int:
        """Return the number of rows."""
        return int(self.ends[due.STOP] - self.ends[due.NEXT])

    @property
    def is_full(self) -> bool:
        """Return whether there is no room for another row."""
        return len(self) == len(self.table)

    def first(self) -> int:
        """Return where the oldest row lies."""
        return int(self.ends[due.NEXT]) % len(self.table)

    def last(self) -> int:
        """Return where the newest row lies."""
        return int(self.ends[due.STOP] - 1) % len(self.table)

    def add(self) -> int:
        """Add a row; return where it lies."""
        self.ends[due.STOP] += 1
        return self.last()

    def rows(self) -> due.Table:
        """Return a copy of all rows, the oldest first."""
        numbers = np.arange(self.ends[due.NEXT], self.ends[due.STOP]) % len(self.table)
        rows: due.Table = self.table[numbers]
        return rows


class Inlet(Queue):
    """Hands on the packets of a worker's ring when its link has brought them.

    Args:
        reader: reads the ring.
        lane: the link.
    """

    def __init__(self, reader: Reader, lane: Lane) -> None:
        super().__init__(due.MOST_COMING, due.COMING)
        self._reader = reader
        self.lane = lane
        self._pause = self.ends.view(np.float64)
        self._pause[due.PAUSE] = due.GRAIN

    @property
    def taken(self) -> int:
        """Return the bytes whose packets have all come out."""
        return int(self.ends[due.TAKEN])

    @property
    def under_way(self) -> int:
        """Return how many packets are under way."""
        rows = self.rows()
        return int((rows[:, due.PACKETS] - rows[:, due.GIVEN]).sum())

    def look(self, now: float) -> bool:
        """Send new records into the link; return whether more may be there.

        Raises:
            BrokenRing: the worker does not keep to the layout.
        """
        reader = self._reader
        for _ in range(AT_ONCE):
            if self.is_full:
                return False
            packets = reader.next()
            if packets is None:
                return False
            at, (tos, rows, tail) = reader.place, packets
            reader.take()
            count, first, each, last = self.lane.send(rows, tail, now)
            if count < len(rows):
                tail = rows.shape[1]
            if count:
                i = self.add()
                self.table[i, : due.FIRST] = at, count, rows.shape[1], tail, tos, 0, reader.taken
                self.times[i, due.FIRST :] = first, each, last
            elif len(self):
                self.table[self.last(), due.END] = reader.taken
            else:
                self.ends[due.TAKEN] = reader.taken
        return True

    def read(self, now: float) -> Iterator[Packets]:
        """Yield the packets that have come out by now; `taken` includes them afterwards."""
        if len(self):
            self._pause[due.PAUSE] = due.grain_of(self.times[self.last(), due.LAST], now)
        while len(self):
            i = self.first()
            at, count, size, tail, tos, given, end, *_ = self.table[i].tolist()
            first, each, last = self.times[i, due.FIRST :].tolist()
            stop = due.due_by(first, each, last, count, now)
            begins = due.due_of(first, each, last, count, given)
            if due.is_too_few(stop, count, given, begins, now, float(self._pause[due.PAUSE])):
                return
            rows = self._reader.rows(at, count, size)[given:stop]
            self.table[i, due.GIVEN] = stop
            if stop < count:
                yield Packets(tos, rows, size)
                return
            self.ends[due.NEXT] += 1
            try:
                yield Packets(tos, rows, tail)
            finally:  # if they could not be handled, they are lost
                self.ends[due.TAKEN] = end

    def deadline(self) -> float | None:
        """Return when to `read` again, in seconds; None: nothing is under way."""
        if not len(self):
            return None
        i = self.first()
        first, each, last = self.times[i, due.FIRST :].tolist()
        count, given = self.table[i, [due.PACKETS, due.GIVEN]].tolist()
        at = due.due_of(first, each, last, count, given)
        return due.next_look(at, last, float(self._pause[due.PAUSE]))


class HeldWriter(Writer):
    """Writes records that count only when they are due."""

    def __init__(self, memory: mmap.mmap) -> None:
        super().__init__(memory)
        self.held = Queue(due.MOST_HELD, due.HELD)
        self.apart = 0  # nanoseconds that a kernel's store has taken to the readers

    @property
    def under_way(self) -> int:
        """Return how many packets are under way."""
        return int(self.held.rows()[:, due.HELD_PACKETS].sum())

    def hold(self, packets: Packets, taken: int, at: float) -> bool:
        """Write a record that counts from `at` on; False: there is no room for it."""
        held = self.held
        if held.is_full or not self.lay(packets, taken):
            return False
        i = held.add()
        held.times[i, due.DUE] = at
        held.table[i, due.HELD_END :] = self.written, len(packets.rows)
        return True

    def release(self, now: float) -> bool:
        """Let the records that are due count; return whether there were any."""
        held, end = self.held, 0
        while len(held) and held.times[held.first(), due.DUE] <= now:
            end = int(held.table[held.first(), due.HELD_END])
            held.ends[due.NEXT] += 1
        if end:
            self.words[WRITTEN] = end
        return end > 0

    def deadline(self) -> float | None:
        """Return when the next record is due, in seconds; None: none is under way."""
        held = self.held
        return float(held.times[held.first(), due.DUE]) if len(held) else None
