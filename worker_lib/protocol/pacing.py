"""Paces contributions by marks, in asynchronous jobs, where no aggregate answers each of them.

A mark is a Help that names no segments, sent after every few bursts. Its answer shows that the
switch has taken all packets sent before it, and how long that took. So at most a window of segments
waits at a slow switch, whatever becomes of the contributions.
"""

from __future__ import annotations

from collections import deque
from math import inf

from iswitch.core.format.packets import Rows
from iswitch.core.format.wire import ROUND_MASK, Shape, Vector

from .transfer import Contribution
from .window import RoundTrip, SendWindow

IN_FLIGHT = 2  # contributions that are not all taken by the switch: one is sent, one waits
BURSTS_AT_ONCE = 8  # super-datagrams given out between two looks at what has come
BURSTS_PER_MARK = 4
MARK_PAUSE = 0.001  # seconds between two marks: a switch takes 2000 requests a second of a member
REMEMBERED_MARKS = 64


class Outbox:
    """Sends contributions to the switch, at most a window at a time.

    Args:
        shape: layout of the vectors.
        burst: segments of a super-datagram.
        window: limits the segments under way.
        round_trip: measures the round trips of marks.
    """

    def __init__(self, shape: Shape, burst: int, window: SendWindow, round_trip: RoundTrip) -> None:
        self.shape = shape
        self.window = window
        self.round_trip = round_trip
        self.mark_at: float | None = None  # time to send the next mark
        self._due: float | None = None  # time by which the last mark must be answered
        self._burst = burst
        self._idle = [Contribution(shape) for _ in range(IN_FLIGHT)]
        self._queue: deque[Contribution] = deque()
        self._position = 0  # the first segment of the first in the queue that has not been sent
        self._sent = 0  # segments, since the start
        self._taken = 0  # segments of these that the switch has taken, or that are lost
        self._marked = 0
        self._marks: deque[tuple[int, int]] = deque(maxlen=REMEMBERED_MARKS)  # number, segments
        self._ends: deque[int] = deque()  # segments up to the end of each contribution sent
        self._number = 0
        self._last_mark = -inf
        self._unanswered = 0  # marks in a row

    @property
    def in_flight(self) -> int:
        """Return the number of contributions that the switch has not completely taken."""
        return len(self._queue) + len(self._ends)

    def put(self, number: int, *parts: Vector) -> None:
        """Queue a copy of a contribution in flat parts; fewer than IN_FLIGHT may be in flight."""
        contribution = self._idle.pop()
        contribution.begin(number)
        contribution.fill_whole(*parts)
        self._queue.append(contribution)

    def clear(self) -> None:
        """Remove all unsent contributions."""
        self._idle += self._queue
        self._queue.clear()
        self._position = 0

    def forget(self) -> None:
        """Forget all marks and count all sent segments as taken: no mark will be answered."""
        self._marks.clear()
        self._ends.clear()
        self._taken = self._marked = self._sent
        self.mark_at = self._due = None
        self._unanswered = 0

    def give_out(self, now: float) -> tuple[list[tuple[Rows, int]], bool]:
        """Return the rows and tail of the packets to send now, and whether more may follow now."""
        under_way = self._sent - self._taken
        room = int(self.window.size - under_way) // self._burst or (not under_way)
        bursts = min(room, BURSTS_AT_ONCE)
        packets = []
        while bursts > 0 and self._queue:
            start = self._position
            stop = min((start // self._burst + bursts) * self._burst, self.shape.segments)
            packets.append(self._queue[0].rows(start, stop))
            bursts -= -(-(stop - start) // self._burst)
            self._sent += stop - start
            self._position = stop
            if stop == self.shape.segments:
                self._idle.append(self._queue.popleft())
                self._ends.append(self._sent)
                self._position = 0
        unmarked = self._sent - self._marked
        if unmarked >= BURSTS_PER_MARK * self._burst or (unmarked and not self._queue):
            self.mark_at = max(now, self._last_mark + MARK_PAUSE)
        return packets, bool(self._queue) and room > BURSTS_AT_ONCE and bursts <= 0

    # Marks

    def deadline(self) -> float | None:
        """Return the time at which to check `is_due`; None: no mark is pending."""
        if self.mark_at is None or self._due is None:
            return self._due if self.mark_at is None else self.mark_at
        return min(self.mark_at, self._due)

    def is_due(self, now: float) -> bool:
        """Return whether to send a mark now: one is due, or the last one was not answered."""
        if self._due is not None and self._due <= now:
            self._unanswered += 1
            if self._unanswered == 2:  # one mark may be lost by chance; two suggest a full queue
                self.window.lost()
            return True
        return self.mark_at is not None and self.mark_at <= now

    def mark(self, now: float) -> int:
        """Record that a mark is sent now; return its number."""
        self._number = (self._number + 1) & ROUND_MASK
        self._marked = self._sent
        self._marks.append((self._number, self._sent))
        self._last_mark = now
        self.mark_at = None
        patience = self.round_trip.timeout * 2.0 ** min(self._unanswered, 8)
        self._due = now + min(patience, self.round_trip.ceiling)
        return self._number

    def answered(self, number: int, asked: float, now: float) -> None:
        """Take the answer to a mark.

        Args:
            number: number of the mark.
            asked: time at which it was sent.
            now: the time, in seconds.
        """
        if not any(number == mark for mark, _ in self._marks):
            return
        self._unanswered = 0
        self.round_trip.sample(now - asked)
        while self._marks:
            mark, upto = self._marks.popleft()
            if upto > self._taken:
                self.window.returned(upto - self._taken)
                self._taken = upto
            if mark == number:
                break
        if not self._marks:
            self._due = None
        while self._ends and self._ends[0] <= self._taken:
            self._ends.popleft()
