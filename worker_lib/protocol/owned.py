"""A round of owned segments on its way: what this worker gives, and what it gets.

A worker gives some segments and gets others, so it numbers both by itself (`plan.py`). The
aggregate of a segment that it both gives and gets shows that the switch has taken everything sent
before. Where none is to come, the answer to a Help shows it: a mark, as in `pacing.py`.

What others give cannot be sent again by this worker. So whatever seems to be lost it asks for by
Help, and the switch asks those whose contributions are missing.

A compiled kernel (`worker_lib/owned_kernel.py`) plays a round as long as nothing is lost or late.
It works on the memory of this object, lays blocks out as it sends them, and puts what comes where
the caller wants it. What it did is taken over in one step.
"""

from __future__ import annotations

from collections import deque
from math import inf

import numpy as np
import numpy.typing as npt

from iswitch.core.format.packets import Cutter, Indices, Rows, Stretch
from iswitch.core.format.wire import CLOSING_SIZE

from .aggregates import Aggregates
from .exchange import Exchange
from .lent import Exchanged, Lent
from .own import Blocks, OwnContribution
from .plan import Plan
from .ranges import ranges
from .recovery import Losses
from .transfer import NONE
from .window import mark_is_due

REMEMBERED_MARKS = 64


class OwnedTransfer(Exchange):
    """A round of owned segments under way.

    Args:
        contribution: holds the packets, laid out by `plan`.
        plan: the segments that this worker gives and gets.
        gets: receives the elements of each block that it gets.
        total: aggregates that the round must have beside the closing one; None: any number.
        patience: seconds that a round trip hardly ever exceeds.
    """

    def __init__(
        self,
        contribution: OwnContribution,
        plan: Plan,
        gets: Blocks,
        total: int | None,
        patience: float,
    ) -> None:
        super().__init__(contribution, Aggregates(plan.shape, plan.buffer))
        self.contribution: OwnContribution = contribution
        self._plan = plan
        self.gets = gets
        self._in_place = False  # what has come lies in `gets`, not in the plan's buffer alone
        self._had = self._has  # at the beginning of what a kernel does
        self._wanted_total = total
        self._patience = patience
        self.total: int | None = None  # aggregates of the round beside the closing one
        self.closed_at = inf
        self._restarted = False
        self._sent_at = np.full(len(plan.given), -inf)
        self._sent = 0  # places, from the first on
        self._taken = 0  # of these
        self._told = 0  # of these
        self._marks: deque[tuple[float, int]] = deque(maxlen=REMEMBERED_MARKS)
        self._marked = 0  # places up to which a Help will tell of
        self._again: deque[tuple[int, int]] = deque()  # places
        self._to_ask = np.zeros(self.shape.segments, bool)
        self._followed = np.zeros(self.shape.segments, bool)  # as they may be lost

    @property
    def plan(self) -> Plan:
        """Return which segments this worker gives and gets."""
        return self._plan

    @property
    def disagrees(self) -> bool:
        """Return whether the number of the round's aggregates is not what it must be."""
        return self.total is not None and self._wanted_total not in (None, self.total)

    # What is sent

    @property
    def sent(self) -> int:
        """Return how many packets were sent, from the first on."""
        return self._sent

    @property
    def in_flight(self) -> int:
        """Return the number of packets sent that are not known to be taken."""
        return self._sent - self._taken

    outstanding = in_flight

    @property
    def has_more(self) -> bool:
        """Return whether any packets are still to be sent, for the first time or again."""
        return bool(self._again) or self._sent < len(self._plan.given)

    @property
    def must_resend(self) -> bool:
        """Return whether packets must be sent again because they were asked for."""
        return bool(self._again)

    def next_lost(self, most: int, now: float) -> Indices:  # noqa: ARG002
        """Return nothing: what is lost is asked for."""
        return NONE

    def next_run(self, burst: int, bursts: int, now: float, again: bool) -> tuple[int, int] | None:
        """Take the next range (start, stop) of places to send; None: none of this kind is next."""
        if again:
            if not self._again:
                return None
            start, stop = self._again.popleft()
            if stop > start + burst * bursts:
                self._again.appendleft((start + burst * bursts, stop))
                stop = start + burst * bursts
        else:
            start, stop = self._sent, len(self._plan.given)
            if start == stop:
                return None
            stop = self._sent = min(stop, (start // burst + bursts) * burst)
        self.contribution.fill()
        self._note_sent(start, stop, self._has, now, again)
        return start, stop

    def _note_sent(
        self, start: int, stop: int, has: npt.NDArray[np.uint8], now: float, again: bool
    ) -> None:
        """Note that places start..stop-1 are sent.

        Args:
            start, stop: the places.
            has: 1 at positions that have come before.
            now: the time, in seconds.
            again: whether they were sent before.
        """
        self._sent_at[start:stop] = now
        awaited = self._plan.positions[start:stop]
        awaited = awaited[awaited >= 0]
        awaited = awaited[has[awaited] == 0]
        n = len(awaited)
        if n:
            first = int(awaited[0])
            in_a_row = not again and int(awaited[-1]) - first == n - 1
            self.losses.sent(slice(first, first + n) if in_a_row else awaited, n, now, again)

    def sent_among(self, start: int, stop: int) -> tuple[int, int]:
        """Return how many of segments start..stop-1 were sent, and the last one of them."""
        places = self._sent_of(start, stop)
        return len(places), int(self._plan.given[places.max()]) if len(places) else -1

    def _sent_of(self, start: int, stop: int) -> Indices:
        places = self._plan.places_of(start, stop)
        return places[places < self._sent]

    def is_younger(self, start: int, stop: int, when: float) -> bool:
        """Return whether some of segments start..stop-1 were last sent at or after a time."""
        return bool((self._sent_at[self._sent_of(start, stop)] >= when).any())

    def resend(self, start: int, stop: int) -> int:
        """Queue segments start..stop-1, as far as they were sent, for a repeat."""
        places = self._sent_of(start, stop)
        self._send_again(places)
        return len(places)

    def _send_again(self, places: Indices) -> None:
        self._again += [one for one in ranges(np.sort(places)) if one not in self._again]

    def restart(self) -> None:
        """Send everything again: the switch has lost what others need of it, too."""
        self._sent = self._taken = self._told = self._marked = 0
        self._marks.clear()
        self._again.clear()
        self.doubted.clear()
        self._to_ask[:] = self._followed[:] = False
        self.losses = Losses(self.shape.segments)
        # There the round lacks contributions, even if the closing aggregate still comes from above.
        self._restarted, self.closed_at = True, inf

    # What the switch has taken

    def needs_mark(self, window: float) -> bool:
        """Return whether a Help should be sent, since nothing else will tell what is taken."""
        known = max(self._marked, self._taken, int(self._plan.tells[self._sent]))
        return not self._marks and mark_is_due(self._sent, known, window)

    def asked(self, now: float) -> None:
        """Note that a Help is sent: its answer shows that the switch has taken what was sent."""
        self._marks.append((now, self._sent))
        self._marked = self._sent

    def answered(self, asked: float) -> None:
        """Note the answer to a Help that was sent at a time."""
        while self._marks and self._marks[0][0] <= asked:
            self._taken = max(self._taken, min(self._marks.popleft()[1], self._sent))

    def freed(self, fresh: int) -> int:  # noqa: ARG002
        """Return how many packets are known to be taken since the last call."""
        freed, self._told = self._taken - self._told, self._taken
        return freed

    # What comes

    def take(self, rows: Rows, tail: int, cutter: Cutter, now: float) -> tuple[int, int]:
        """Take aggregates; return how many were new, and how many useless."""
        before = self.remaining
        for stretch in cutter.cut(rows, tail):
            if stretch.round != self.round or not stretch.fits(self.contribution.shape):
                continue
            ours = self._plan.received(stretch)
            if ours is not None:
                self._store(ours, now)
        fresh = before - self.remaining
        if fresh and not self.remaining:
            self._lie_in_place()
        return fresh, len(rows) - fresh

    def _store(self, stretch: Stretch, now: float) -> None:
        which: slice | Indices = slice(stretch.start, stretch.stop)
        if stretch.indices is not None:
            which = stretch.indices
        place = int(self._plan.places[which].max())
        if place < self._sent:
            self._taken = max(self._taken, place + 1)
        in_order = stretch.indices is None and (
            self._plan.is_first[stretch.start] or self._has[stretch.start - 1]
        )
        for came in self._aggregates.take(stretch):
            if self._in_place:
                self._place(came)
            self._to_ask[came] = False
            self.losses.came(came, now)
        if self.losses.round_trip is None:
            self.losses.round_trip = self._patience
        if self.total is None and self._has[-1]:
            count = self._plan.buffer[-self.shape.last :].view(np.uint8)[:CLOSING_SIZE]
            self._close(int.from_bytes(count.tobytes(), "little"), now)
            in_order = False
        if not in_order:
            self._follow(now)

    def _close(self, total: int, now: float) -> None:
        """Note what the closing aggregate counts."""
        self.total, self.closed_at = total, inf if self._restarted else now

    def _follow(self, now: float) -> None:
        """Watch what was overtaken, unless it answers what this worker sent itself."""
        late = self._plan.overtaken(self._has) & ~self._followed & (self._plan.places < 0)
        found = np.flatnonzero(late)
        if len(found):
            self._followed[found] = True
            self.losses.sent(found, len(found), now, again=True)

    def _lie_in_place(self) -> None:
        """Have all that has come, and will come, in the blocks that the caller gave."""
        if not self._in_place:
            self._in_place = True
            if self.remaining < self.shape.segments:
                self._place(slice(0, self.shape.segments))

    def _place(self, came: slice | Indices) -> None:
        """Copy the elements of positions from the plan's buffer to the blocks."""
        size, buffer = self.shape.elements, self._plan.buffer
        runs = [(came.start, came.stop)] if isinstance(came, slice) else ranges(came)
        at = 0
        for block in self.gets:
            for start, stop in runs:
                a, b = max(start * size - at, 0), min(stop * size - at, len(block))
                if a < b:
                    block[a:b] = buffer[at + a : at + b]
            at += -(-len(block) // size) * size

    # What a kernel does

    @property
    def is_plain(self) -> bool:
        """Return whether aggregates are missing and nothing seems lost: a kernel may continue."""
        return not (
            self.done
            or self._again
            or self.doubted
            or self._told < self._taken
            or self.losses.doubtful
            or self._to_ask.any()
            or (self._has[self._plan.answers[: self._answered]] == 0).any()
        )

    @property
    def _answered(self) -> int:
        """Return how many aggregates have come of what this worker both gives and gets."""
        return int(np.count_nonzero(self._has[self._plan.answers]))

    def lend(self, apart: bool) -> Lent:
        """Let a kernel continue, which puts what comes into the caller's blocks, until `take_over`.

        Args:
            apart: whether these blocks lie apart from those that are given.
        """
        if not apart:
            self.contribution.fill()
        self._lie_in_place()
        self._had = self._has.copy()
        marks = len(self._marks)
        return Lent(self._has, self._sent, self._answered, self._taken, self._marked, marks)

    def sent_at(self, burst: int) -> npt.NDArray[np.float64]:
        """Return when the first packet of each burst was sent last, in seconds."""
        return self._sent_at[: self._sent : burst]

    def take_over(self, news: Exchanged) -> None:
        """Continue behind a kernel, as if all that it sent and took had been sent and taken here.

        The memory lent to it holds already what came.
        """
        self.contribution.filled_to(news.filled)
        self._aggregates.remaining = news.remaining
        self._taken = self._told = news.taken
        if not news.remaining:
            self._sent, _, now = news.progress[-1]
            if self.total is None:  # else it had come before
                self._close(news.total, now)
            return
        answered = int(np.count_nonzero(self._had[self._plan.answers]))
        for sent, came, now in news.progress:
            if sent > self._sent:
                start, self._sent = self._sent, sent
                self._note_sent(start, sent, self._had, now, again=False)
            for first, stop in ranges(self._plan.answers[answered:came]):
                self.losses.came(slice(first, stop), now)
            answered = came
        if self.losses.round_trip is None and self.remaining < self.shape.segments:
            self.losses.round_trip = self._patience

    # What is missing

    def lose(self, now: float) -> tuple[Indices, float | None]:
        """Mark what is lost by now to be asked for."""
        first, second, again_at = self.losses.overdue(now)
        self._to_ask[first] = self._to_ask[second] = True
        return first, again_at

    def _waiting(self) -> npt.NDArray[np.bool_]:
        """Return which positions may come: others give them, or this worker has sent them."""
        missing: npt.NDArray[np.bool_] = self._has == 0
        return missing & (self._plan.places < self._sent)

    def waited_for(self) -> tuple[Indices, Indices]:
        """Return the positions that may come and have not, and those that may be lost."""
        waiting = np.flatnonzero(self._waiting() & ~self._to_ask)
        overtaken = self._plan.overtaken(self._has)[waiting]
        return waiting, waiting[overtaken | self.losses.are_copies(waiting)]

    def probed(self, waiting: Indices, suspect: Indices) -> Indices:
        """Return what this worker has sent or what may be lost: others may not have begun yet."""
        return waiting[(self._plan.places[waiting] >= 0) | np.isin(waiting, suspect)]

    def probe(self, segments: Indices) -> None:
        """Mark some of these to be sent again, or asked for if others give them."""
        places = self._plan.places[segments]
        self._send_again(places[places >= 0])
        asked = segments[places < 0]
        self.losses.forget(asked)
        self._to_ask[asked] = True

    def questions(self, most: int, now: float) -> list[tuple[int, int]]:
        """Take up to `most` ranges (start, stop) of segments to ask for now."""
        found = np.flatnonzero(self._to_ask & (self._has == 0))
        asked = self.named(found)[:most]
        for start, stop in asked:
            which = np.arange(*np.searchsorted(self._plan.gets, (start, stop)))
            self._to_ask[which] = False
            self._followed[which] = True
            self.losses.sent(which, len(which), now, again=True)
        return asked

    def named(self, segments: Indices) -> list[tuple[int, int]]:
        """Return positions as ranges (start, stop) of segments."""
        return ranges(self._plan.gets[segments])

    def missing(self, sent_only: bool = False) -> list[tuple[int, int]]:
        """Return ranges (start, stop) of the segments whose aggregate has not arrived."""
        return self.named(np.flatnonzero(self._waiting() if sent_only else self._has == 0))
