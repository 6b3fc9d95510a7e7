"""The way up of an asynchronous job's partial sums: when they go, and until when they are kept.

A partial sum goes up when H contributions are in it. What is in an open one longer than `hold`
goes as it is; by default that is about the time that a version takes. The switch counts its
partial sums, and the count is their round number above. Behind them it sends a mark, a Help without
segments that names a number and a first segment: the Ack tells how many segments from there on have
been counted above. Those are given up here, what is missing is sent again. Marks are repeated until
all is counted, or until the switch above turns out to have lost its state.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from iswitch.core.format.packets import Outgoing, Stretch
from iswitch.core.format.wire import (
    COUNTED,
    ROUND_MASK,
    Ack,
    Segments,
    Status,
    later,
    round_distance,
)
from iswitch.core.sums.partial import PartialAccelerator
from iswitch.core.sums.runs import Run

from .job import Job
from .phases import JobPhase
from .uplink import Asked, Uplink

HOLD = 0.05  # seconds that a partial sum is held before it is known how long a version takes
LONGEST_HOLD = 1.0
MARK_PAUSE = 0.001  # seconds between two marks at least; doubles while nothing gets counted
MARKS = 16.0  # while a version is made, at most: each costs as much as many partial sums
RARELY = 10.0  # times MARK_PAUSE, at most, however long versions take: sums may come faster now
ROUND_TRIP = 0.01  # seconds that the answer to a mark takes, before it is known
TRIPS = 2.0  # round trips after which a mark counts as lost
LONGEST_PAUSE = 1.0
AT_ONCE = 4  # runs of segments that are asked about at once


@dataclass
class Upward:
    """Sees that each partial sum of one job is counted once by the switch above.

    Args:
        job: the job.
        uplink: its membership there.
        sums: its sums.
        fixed: seconds that a partial sum is held; None: as long as a version takes.
    """

    job: Job
    uplink: Uplink
    sums: PartialAccelerator
    fixed: float | None = None
    hold_at: float | None = None  # when to send what is open
    mark_at: float | None = None
    marked: float = 0.0  # when the last marks were sent
    pause: float = MARK_PAUSE
    overdue: bool = False  # what is open goes up as soon as the sum before it is counted
    trip: float = ROUND_TRIP  # seconds that the answer to a mark takes
    took: float = HOLD  # seconds that a version takes
    to_ask: deque[Run] = field(default_factory=deque)  # about which marks are to ask, in turn
    asked_to: int = 0  # segment up to which the last marks asked
    seen: tuple[int, float] | None = None  # a version, and when it was the newest
    watched: bool = False  # a kernel checks these times, so `deadline` leaves them out

    @property
    def hold(self) -> float:
        """Return how long a partial sum is held, in seconds."""
        return self.took if self.fixed is None else self.fixed

    @property
    def least_pause(self) -> float:
        """Return the least time between two marks, in seconds."""
        return min(max(MARK_PAUSE, self.took / MARKS), RARELY * MARK_PAUSE)

    @property
    def asks_at(self) -> float:
        """Return the time from which on marks may ask about what has gone up, in seconds."""
        return self.marked + self.least_pause

    def deadline(self) -> float | None:
        """Return the time at which to call `handle_timer`, in seconds; None: not needed."""
        if not self.uplink.is_member or self.watched:
            return None
        if self.sums.opened and self.hold_at is None:
            return 0.0  # as soon as the time is known
        due = [self.hold_at, self.mark_at]
        if self.sums.unasked:
            due.append(self.asks_at)
        return min((at for at in due if at is not None), default=None)

    def handle_timer(self, now: float) -> list[Outgoing]:
        """Send what has been held long enough, and ask what has been counted."""
        if not self.uplink.is_member:
            return []
        self._measure(now)
        self.sums.opened = False
        if not self.sums.is_open():
            self.hold_at = None
            self.overdue = False
        elif self.hold_at is None:
            self.hold_at = now + self.hold
        elif self.hold_at <= now:
            self.hold_at = now + max(self.hold, HOLD)
            self.overdue = True
        sends = self._go()
        again = self.mark_at is not None and self.mark_at <= now
        if again or (self.sums.unasked and self.asks_at <= now):
            sends += self._mark(now)
        return sends

    def _measure(self, now: float) -> None:
        """Note how long the last versions took."""
        version = self.sums.version
        if self.seen is not None:
            made = round_distance(version, self.seen[0])
            if not made:
                return
            if made > 0:
                took = min((now - self.seen[1]) / made, LONGEST_HOLD)
                self.took += (took - self.took) / 4
        self.seen = version, now

    def _go(self) -> list[Outgoing]:
        """Send what is overdue, once all workers have come."""
        if not self.overdue or self.job.halted or self.job.phase is not JobPhase.RUNNING:
            return []
        sends = self.job.deliver(self.sums.let_go())
        self.overdue = self.sums.is_open()
        return sends

    def _mark(self, now: float) -> list[Outgoing]:
        """Ask which of the partial sums have been counted."""
        self.sums.unasked = False
        runs = self.sums.uncounted()
        self.mark_at = now + max(TRIPS * self.trip, self.pause) if runs else None
        self.marked = now
        if not runs:
            self.pause = self.least_pause
            return []
        self.pause = min(2 * self.pause, LONGEST_PAUSE)
        first = next((i for i, run in enumerate(runs) if run.start >= self.asked_to), 0)
        self.to_ask = deque(runs[first:] + runs[:first])
        return [out for _ in range(AT_ONCE) for out in self._ask_on()]

    def _ask_on(self) -> list[Outgoing]:
        """Ask about the next of the partial sums about which these marks are to ask."""
        if not self.to_ask:
            return []
        run = self.to_ask.popleft()
        self.asked_to = run.stop
        return self.uplink.mark(run)

    def note_marks(self, sent: float, request: int | None, answered: bool) -> None:
        """Note that a kernel sent marks, and that answers came which say that all is counted.

        Args:
            sent: when the last mark, about all segments, was sent, in seconds.
            request: its number; None: it is answered.
            answered: whether an earlier one was.
        """
        self.marked, self.asked_to = sent, self.sums.shape.segments
        if answered or request is None:
            self.pause, self.mark_at = self.least_pause, None
        if request is not None:
            first = self.sums.uncounted()[0]  # contributions may have come to some segments since
            self.uplink.remember(request, first._replace(stop=self.sums.shape.segments))
            self.mark_at = sent + max(TRIPS * self.trip, self.pause)
            self.pause = min(2 * self.pause, LONGEST_PAUSE)

    def answered(
        self, asked: Asked | None, answer: tuple[Status, Ack], now: float
    ) -> list[Outgoing]:
        """Apply the answer to a mark, or to Help with versions.

        Args:
            asked: the partial sums or versions that the request named.
            answer: the status and the Ack.
            now: the time, in seconds.
        """
        status, ack = answer
        if status not in (Status.OK, Status.GONE):
            return []
        self.job.window.name(ack.round, False)
        self.sums.name(ack.round)
        if isinstance(asked, Run) and ack.known == COUNTED:
            return self._counted(asked, ack, now)
        if isinstance(asked, Segments) and status is Status.GONE:
            self.sums.lose(asked.round, asked.index, asked.index + asked.count)
        return []

    def _counted(self, asked: Run, ack: Ack, now: float) -> list[Outgoing]:
        """Give up what has been counted, send again what is missing, and ask about the rest."""
        self.trip += (now - self.marked - self.trip) / 4
        _, number, start, stop = asked
        counted = min(start + ack.contributors, stop)
        missing = min(counted + ack.threshold, stop)
        self.sums.was_counted(number, start, counted)
        uncounted = [run for run in self.sums.uncounted() if run.round == number]
        again = [
            run._replace(start=max(run.start, counted), stop=min(run.stop, missing))
            for run in uncounted
            if run.start < missing and run.stop > counted
        ]
        sends = self.job.contribute_again(again)
        if counted > start:
            self.pause = self.least_pause
        if missing < stop:
            sends += self.uplink.mark(asked._replace(start=missing))
        else:
            sends += self._ask_on()
        if again:
            at = now + self.pause
            self.mark_at = at if self.mark_at is None else min(at, self.mark_at)
        elif not self.sums.uncounted():
            self.mark_at = None
        # What completed meanwhile, or is overdue, can go now.
        return sends + self.job.reevaluate() + self._go()

    def begin(self) -> None:
        """Begin with a membership above, in which no partial sum has been counted."""
        self.sums.begin_above(self.uplink.last_request)
        self.mark_at = None
        self.pause = self.least_pause

    def hand_over(self) -> list[Outgoing]:
        """Send all that has not been counted above: the last contributor here has left."""
        if not self.uplink.is_member:
            return []
        self.overdue = True
        again = self.job.contribute_again(self.sums.uncounted())
        return again + self._go()

    def cut_off(self) -> int:
        """Send nothing until this switch is a member again; return the Request of its next Join.

        No number of a partial sum so far is beyond that: what comes late of the old membership
        does not count in the new one.
        """
        self.sums.cut_off = True
        self.uplink.be_called((later(self.sums.number, self.uplink.last_request) + 1) & ROUND_MASK)
        return self.uplink.incarnation

    def take(self, stretch: Stretch) -> list[Outgoing]:
        """Keep versions that come from the switch above, and broadcast the new ones."""
        if self.job.halted:
            self.job.counters["halted"] += len(stretch.rows)
            return []
        new = [run for some in stretch.consecutive() for run in self.sums.take(some)]
        self.job.window.name(self.sums.version, False)
        self.job.rounds.completed_any |= self.job.members.gathered
        return self.job.sent.pass_on(new)


def begin(job: Job, uplink: Uplink, hold: float | None) -> dict[int, Upward]:
    """Begin to send up the partial sums of a job, if it is asynchronous and has just begun here.

    Args:
        job: the job.
        uplink: its membership at the switch above.
        hold: seconds that a partial sum is held; None: as long as a version takes.

    Returns:
        Their way, by the number of the job; nothing if none has begun.
    """
    sums = job.accelerator
    if not isinstance(sums, PartialAccelerator) or sums.number is not None:
        return {}
    upward = Upward(job, uplink, sums, hold)
    upward.begin()
    return {job.number: upward}
