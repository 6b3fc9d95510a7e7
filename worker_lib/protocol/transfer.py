"""One vector on its way through the switch: packets to send, and aggregates that came back."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from iswitch.core.format.packets import Cutter, Indices, Rows
from iswitch.core.format.wire import SEG_SIZE, Shape, Vector

from .aggregates import Aggregates
from .exchange import Exchange, Packets
from .recovery import Losses

ROUND_SIZE = 4  # bytes of the round in a packet's header
NONE: Indices = np.empty(0, np.int64)


class Progress(NamedTuple):
    """How far a round in order was at a time.

    Attributes:
        sent: segments sent, from the first on.
        came: aggregates that had arrived, from the first on.
        at: the time, in seconds.
    """

    sent: int
    came: int
    at: float


class Contribution(Packets):
    """A worker's vector of one round; packet i is segment i.

    If the allreduce is tried again, filled segments stay, even if the vector has changed (an
    allreduce in place writes sums over it).
    """

    def __init__(self, shape: Shape) -> None:
        super().__init__(shape, shape.segments)
        self.filled = 0  # segments, from the first on
        self.packets["seg"] = shape.headers(0)  # of which only the round will change
        self._rounds = self._rows[:, :ROUND_SIZE].view(">u4")[:, 0]

    def begin(self, round_: int) -> None:
        """Start over as the contribution to another round, with no packets until `fill`."""
        self.filled = 0
        self.round = round_  # last, in case that a signal's handler raises an error meanwhile

    def fill(self, vector: Vector, stop: int) -> None:
        """Lay out the segments before `stop` of the flat vector as packets."""
        shape, start = self.shape, self.filled
        if stop <= start:
            return
        assert self.round is not None
        self._rounds[start:stop] = self.round
        size = shape.elements
        self._lay(start * size, vector[start * size : stop * size])
        if stop * size > len(vector):
            self._data[stop - 1, len(vector) % size :] = 0  # it is shorter than the job's
        self.filled = stop  # last, as in `begin`

    def fill_whole(self, *parts: Vector) -> None:
        """Lay out all segments as packets, of a vector that comes in flat parts."""
        assert self.round is not None
        self._rounds[:] = self.round
        at = 0
        for part in parts:
            self._lay(at, part)
            at += len(part)
        self.filled = self.shape.segments

    def _lay(self, at: int, vector: Vector) -> None:
        """Lay out a part of the vector, which begins at its element `at`."""
        size = self.shape.elements
        row, column = divmod(at, size)
        if column:  # the row has begun
            head, vector = vector[: size - column], vector[size - column :]
            self._data[row, column : column + len(head)] = head
            row += 1
        whole, rest = divmod(len(vector), size)
        if whole:
            self._data[row : row + whole] = vector[: whole * size].reshape(whole, size)
        if rest:
            self._data[row + whole, :rest] = vector[whole * size :]

    def _tail(self, stop: int) -> int:
        return self.shape.tail(stop)

    def again(self, start: int, stop: int, most: int, burst: int) -> Iterator[tuple[Rows, int]]:
        """Yield the packets of those of segments start..stop-1 that were sent, at most `most`."""
        stop = min(stop, start + most, self.filled)
        for at in range(start, stop, burst):
            yield self.rows(at, min(at + burst, stop))

    def headers(self, start: int, stop: int) -> bytes:
        """Return the headers of filled segments start..stop-1; their aggregates' are equal."""
        return self._rows[start:stop, :SEG_SIZE].tobytes()


class Transfer(Exchange):
    """An allreduce under way.

    Its vector may be shorter than the job's longest. Then it is sent as the first segments of the
    job, the last one in full size. Each segment completes by itself, so the switch need not know.

    Args:
        contribution: holds the packets (its `begin` has been called).
        vector: this worker's vector, flat.
        out: receives the aggregate, of the vector's shape.
        reach: how far a segment may be ahead of the first whose aggregate has not come.
        opening: segments to send before the first aggregate comes, or `open` is called; None: all.
    """

    def __init__(
        self,
        contribution: Contribution,
        vector: Vector,
        out: Vector,
        reach: int | None = None,
        opening: int | None = None,
    ) -> None:
        self._sent_as = sent_as = contribution.shape
        shorter = len(vector) < sent_as.numel
        shape = sent_as.shortened(len(vector)) if shorter else sent_as
        super().__init__(contribution, Aggregates(shape, out))
        self.contribution: Contribution = contribution
        self._vector = vector
        self._reach = self.shape.segments if reach is None else reach
        self._opening = opening
        self._todo: deque[tuple[int, int, bool]] = deque([(0, self.shape.segments, False)])
        self._lost = np.zeros(self.shape.segments, bool)  # to be sent again
        self._some_lost = False  # whether any may be set

    @property
    def in_flight(self) -> int:
        """Return the number of segments sent, not known to be lost, and without an aggregate."""
        return self.losses.in_flight

    def take_over(self, steps: Sequence[Progress]) -> None:
        """Continue an express round, as if all that it sent and took had been sent and taken here.

        Args:
            steps: how far it was after each step, in order.
        """
        sent = came = 0
        for step in steps:
            if step.sent > sent:
                self.losses.sent(slice(sent, step.sent), step.sent - sent, step.at, again=False)
                sent = step.sent
            if step.came > came:
                self.losses.came(slice(came, step.came), step.at)
                came = step.came
        self._todo.clear()
        if sent < self.shape.segments:
            self._todo.append((sent, self.shape.segments, False))
        self._aggregates.note(came)

    def resume(self, former: Transfer) -> None:
        """Copy the aggregates that a former transfer of this round had before it was abandoned."""
        self._aggregates.copy(former._aggregates)

    @property
    def filled(self) -> int:
        """Return how many segments, from the first on, have been given out to be sent."""
        return self.contribution.filled

    @property
    def outstanding(self) -> int:
        """Return the number of segments sent, lost or not, whose aggregate has not arrived."""
        return self.filled - (self.shape.segments - self.remaining)

    @property
    def has_more(self) -> bool:
        """Return whether any segments are still to be sent, for the first time or again."""
        return self._some_lost or bool(self._todo)

    @property
    def must_resend(self) -> bool:
        """Return whether segments must be sent again because they were lost or asked for."""
        return self._some_lost or bool(self._todo and self._todo[0][2])

    def next_lost(self, most: int, now: float) -> Indices:
        """Return up to `most` lost segments, to send them again now."""
        if not self._some_lost:
            return NONE
        some = np.flatnonzero(self._lost & (self._has == 0))[:most]
        self._lost[: some[-1] + 1 if len(some) else None] = False
        self._some_lost = len(some) == most
        if len(some):
            self.losses.sent(some, len(some), now, again=True)
        return some

    def next_run(self, burst: int, bursts: int, now: float, again: bool) -> tuple[int, int] | None:
        """Take the next range (start, stop) of segments to send; None: none of this kind is next.

        Segments that have their aggregates already are left out.
        """
        while self._todo:
            if again and not self._todo[0][2] and self._todo[0][0] >= self.filled:
                return None
            start, stop, asked = self._todo.popleft()
            if not asked:  # what has its aggregate already need not be sent
                start = self._aggregates.find(0, start, stop)
                if start < 0:
                    continue
                known = self._aggregates.find(1, start, stop)
                if known >= 0:
                    self._todo.appendleft((known, stop, False))
                    stop = known
                end = self._end()
                if stop > end:
                    self._todo.appendleft((max(start, end), stop, False))
                    stop = end
                if start >= stop:
                    return None
            filled = self.filled
            if again != (asked or start < filled):
                self._todo.appendleft((start, stop, asked))
                return None
            if again and not asked and stop > filled:
                self._todo.appendleft((filled, stop, False))
                stop = filled
            boundary = (start // burst + bursts) * burst
            if stop > boundary:
                self._todo.appendleft((boundary, stop, asked))
                stop = boundary
            self.contribution.fill(self._vector, stop)
            if asked:
                lacking = start + np.flatnonzero(self._has[start:stop] == 0)
                self.losses.sent(lacking, len(lacking), now, again=True)
            else:
                self.losses.sent(slice(start, stop), stop - start, now, again)
            return start, stop
        return None

    def _end(self) -> int:
        """Return the segment before which the switch has a place for all that is sent."""
        segments = self.shape.segments
        if self._opening is not None and self.remaining == segments:
            return min(self._opening, segments)
        if self._reach >= segments:
            return segments
        return min(self._aggregates.find(0, 0, segments) + self._reach, segments)

    def lacks(self, index: int) -> bool:
        """Return whether the aggregate of a segment has not come."""
        return self._aggregates.find(0, index, index + 1) == index

    @property
    def out(self) -> Vector:
        """Return the array that receives the aggregate."""
        return self._aggregates.out

    def lose(self, now: float) -> tuple[Indices, float | None]:
        """Mark segments lost by now to be sent again."""
        first, second, again_at = self.losses.overdue(now)
        self._lost[first] = self._lost[second] = True
        self._some_lost |= bool(len(first) or len(second))
        return first, again_at

    def waited_for(self) -> tuple[Indices, Indices]:
        """Return the sent segments without an aggregate, and those of them that may be lost."""
        filled = slice(self.filled)
        waiting = np.flatnonzero((self._has[filled] == 0) & ~self._lost[filled])
        overtaken = waiting < self._aggregates.last
        return waiting, waiting[overtaken | self.losses.are_copies(waiting)]

    def probe(self, segments: Indices) -> None:
        """Mark segments to be sent again, as a probe."""
        self.losses.forget(segments)
        self._lost[segments] = True
        self._some_lost |= bool(len(segments))

    def resend(self, start: int, stop: int) -> int:
        """Queue segments start..stop-1, if sent before, to be sent again; return their number."""
        stop = min(stop, self.filled)
        if start >= stop or any(a <= start and stop <= b for a, b, asked in self._todo if asked):
            return 0
        self.losses.forget(slice(start, stop))
        self._lost[start:stop] = False
        self._todo.appendleft((start, stop, True))
        return stop - start

    def open(self) -> int:
        """Send all, and what was sent again, now that it is our turn; return how much that is."""
        self._opening = None
        return self.resend(0, self.filled)

    def restart(self) -> None:
        """Send all segments without an aggregate again, since the switch has lost its state."""
        self._todo.clear()
        self._todo.append((0, self.shape.segments, False))
        self.doubted.clear()
        self._lost[:] = False
        self._some_lost = False
        self.losses = Losses(self.shape.segments)

    def take(self, rows: Rows, tail: int, cutter: Cutter, now: float) -> tuple[int, int]:
        """Take aggregates; return how many were new, and how many useless."""
        shape = self.shape
        before = self.remaining
        for stretch in cutter.cut(rows, tail):
            if stretch.round != self.round or not stretch.fits(self._sent_as):
                continue
            if stretch.stop > shape.segments:
                continue
            self.contribution.fill(self._vector, stretch.stop)  # `out` may be the vector
            for came in self._aggregates.take(stretch):
                self.losses.came(came, now)
        fresh = before - self.remaining
        return fresh, len(rows) - fresh

    def freed(self, fresh: int) -> int:
        """Return how many segments are newly known to be taken: those with new aggregates."""
        return fresh

    def sent_among(self, start: int, stop: int) -> tuple[int, int]:
        """Return how many of segments start..stop-1 were sent, and the last one of them."""
        stop = min(stop, self.filled)
        return stop - start, stop - 1

    def is_younger(self, start: int, stop: int, when: float) -> bool:
        """Return whether some of segments start..stop-1 were last sent at or after a time."""
        return self.losses.is_younger(slice(start, min(stop, self.filled)), when)

    def missing(self, sent_only: bool = False) -> list[tuple[int, int]]:
        """Return ranges (start, stop) of the segments whose aggregate has not arrived."""
        stop = self.filled if sent_only else self.shape.segments
        return list(self._aggregates.lacking(0, stop))
