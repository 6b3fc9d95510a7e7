"""A worker of an asynchronous job without I/O: numbered contributions out, versions in.

A world moves the packets, as for a `Session`. Rules: docs/protocol.md, "Versions".

A version of a vector is whole when that version of every segment has come. Whole versions are given
out one after the other, none left out. A missing segment shows in two ways: a later version of it
arrives (a gap), or nothing arrives (silence). Then this worker asks for it by Help. If the switch
no longer keeps it, this worker is *behind*: it continues to collect the newest versions, and its
owner must find a state to which these are the next (`resume_at`).

Contributions are not sent again: where one is lost, others make up the version. So no aggregate
says how fast to send; see `pacing.py`.
"""

from __future__ import annotations

from math import inf

import numpy as np

from iswitch.core.format.packets import (
    Cutter,
    Outgoing,
    Rows,
)
from iswitch.core.format.times import earlier
from iswitch.core.format.wire import (
    FLAG_STANDS_AT,
    ROUND_MASK,
    TOS_DATA,
    VERSIONS_AHEAD,
    Ack,
    Action,
    Segments,
    Status,
    Threshold,
    Vector,
    round_distance,
)

from .collecting import Collecting
from .events import Behind, Halted, Told, WasReset
from .pacing import IN_FLIGHT, Outbox
from .terms import VersionTerms

NUMBERS = 4096  # contributions a second of a process, so that the next begins after them
GATHER_PAUSE = 0.05  # seconds between two Joins until all are there
SLACK = 0.5  # round trips by which one segment may be later than others
SLACK_FLOOR = 250e-6  # seconds
PATIENCE = 2.0  # round trips after which to ask again for versions that exist
PATIENCE_FLOOR = 0.001  # seconds


class AsynchronousSession(Collecting):
    """One worker's membership in one asynchronous job.

    It begins behind, at no version, until the owner calls `resume_at`.

    Args:
        terms: terms of the membership; the mode of its shape is asynchronous.
        incarnation: Request of the Join; larger in a new process at the same address.
    """

    terms: VersionTerms

    def __init__(self, terms: VersionTerms, incarnation: int) -> None:
        super().__init__(terms, incarnation)
        shape = self.shape
        self.number = incarnation * NUMBERS & ROUND_MASK  # of the next contribution
        self.stats = dict.fromkeys(
            ("contributed", "sent", "received", "useless", "helps", "marks", "behind", "rejoins"), 0
        )
        self._wanted = terms.threshold
        self._watch = terms.watch
        self._tail = shape.segments  # the first segment of those that are watched
        if terms.watch is not None:
            self._tail = min(terms.watch // shape.elements, shape.segments - 1)
        self._cutter = Cutter(shape)
        self._placed = False  # it is known which versions there are
        self._some_made = False  # since it has joined, or joined again
        self._timer: float | None = None
        self._repair_at: float | None = None
        self._halted_at = -inf
        self._silences = 0  # in a row
        self._outbox = Outbox(shape, self._burst, self.window, self.round_trip)

    def _be_called(self, incarnation: int) -> None:
        super()._be_called(incarnation)
        self.number = incarnation * NUMBERS & ROUND_MASK

    # What the application asks for

    def join(self, now: float) -> None:
        """Send a Join; a member's is a heartbeat, and soon repeated until all are there."""
        super().join(now)
        if not self.gathered:
            self._next_heartbeat = min(self._next_heartbeat, now + GATHER_PAUSE)

    @property
    def gathered(self) -> bool:
        """Return whether all expected workers have joined.

        Until then the switch makes no versions and would add all contributions into one, so this
        worker contributes nothing.
        """
        return self.joined >= self.terms.expected or self._some_made

    @property
    def in_flight(self) -> int:
        """Return the number of contributions that the switch has not completely taken."""
        return self._outbox.in_flight

    @property
    def can_contribute(self) -> bool:
        """Return whether another contribution may be given."""
        return self._may_send and self.in_flight < IN_FLIGHT

    @property
    def _may_send(self) -> bool:
        return self.member and self.gathered and not self.halted

    @property
    def has_threshold(self) -> bool:
        """Return whether the switch has set the H of the terms."""
        return self.member and not self.asks(Action.SETH)

    def contribute(self, *parts: Vector) -> None:
        """Send a vector in flat parts of numel elements, copied; `can_contribute` must hold."""
        if not self.can_contribute:
            raise ValueError(
                f"{self.in_flight} contributions are under way; wait for can_contribute"
            )
        # The next process here begins above the last Request that the switch has seen, and with
        # its contributions above ours.
        following = (self.requests.numbers.last + 1) * NUMBERS & ROUND_MASK
        if round_distance(self.number + IN_FLIGHT, following) >= 0:
            self.requests.numbers.next()
        self._outbox.put(self.number, *parts)
        self.number = (self.number + 1) & ROUND_MASK
        self.stats["contributed"] += 1

    def resume_at(self, version: int, now: float) -> None:
        """Collect the versions after `version`, the version of the owner's state."""
        self.version = version
        self.behind = False
        self._since = version
        if round_distance(version, self.newest) > 0:
            self.newest = version
        for old in [v for v in self._versions if round_distance(v, version) <= 0]:
            self._drop(old)
        self._repair_at = now
        self._timer = now + self.round_trip.timeout

    def ask_tails(self, now: float) -> None:
        """Ask for the watched elements of the newest versions."""
        for back in range(VERSIONS_AHEAD):
            version = (self.newest - back) & ROUND_MASK
            held = self._open(version)
            if held is not None and not held.told and self._tail < self.shape.segments:
                self._help(Segments(version, self._tail, self.shape.segments - self._tail), now)
                self.stats["helps"] += 1

    def abandon(self) -> None:
        """Give up what has not been sent."""
        self._outbox.clear()

    # What the world does

    def transmissions(self, now: float) -> list[Outgoing]:
        """Return what to send now: control packets, and as much data as the window allows."""
        out = self._given_out()
        self.may_send = False
        if not self._may_send:
            return out
        packets, self.may_send = self._outbox.give_out(now)
        for rows, tail in packets:
            out.append(Outgoing((self.switch,), TOS_DATA, rows, tail))
            self.stats["sent"] += len(rows)
        if self._outbox.is_due(now):
            self._mark(now)
            out += self._given_out()
        return out

    def deadline(self) -> float | None:
        """Return the time at which to call `handle_timer` next; None: not needed."""
        own = earlier(self._timer, self._repair_at)
        return earlier(super().deadline(), earlier(own, self._outbox.deadline()))

    def _do_what_is_due(self, now: float) -> None:
        """Ask for missing segments and send a mark, where these are due."""
        if self._repair_at is not None and self._repair_at <= now:
            self._repair(now)
        if self._timer is not None and self._timer <= now:
            self._break_silence(now)
        if self._outbox.is_due(now):
            self._mark(now)

    # Membership

    def _standing(self) -> tuple[int, int]:
        return FLAG_STANDS_AT, self.newest

    def _take_place(self, ack: Ack, now: float) -> None:
        if not self._placed or round_distance(ack.round, self.newest) > 0:
            self._begin_at(ack.round)
            self._placed = True
        self._begin(now)

    def _take_place_again(self, ack: Ack, now: float) -> None:
        self._note(ack.round)
        self._begin(now)

    def _begin(self, now: float) -> None:
        self._timer = now + self.round_trip.timeout
        if self._wanted:
            self.request(Action.SETH, Threshold(self._wanted), now)

    def _lost_place(self) -> None:
        self.joined = 0
        self._some_made = False
        self._timer = self._repair_at = None
        self._outbox.forget()

    def _was_halted(self, now: float) -> None:
        self._timer = now + self.round_trip.ceiling
        self._outbox.forget()
        if not self.halted:
            self.halted = True
            self._halted_at = now
            self._events.append(Halted())

    def _was_reset(self, round_: int) -> None:
        self.halted = False
        self._outbox.forget()
        if self._placed and round_distance(round_, self.newest) <= 0:
            return  # a repeat, an old Reset, or one known by its later versions
        self._placed = True
        self.abandon()
        self._help_requests.clear()  # a late answer, HALTED say, is of no interest
        self._begin_at(round_)
        self._events.append(WasReset(round_))

    def _has_reset(self, round_: int) -> None:
        self._was_reset(round_)

    def _help_the_switch(self, named: Segments, now: float) -> None:
        """Do nothing: the switch asks no worker for contributions to a version."""

    def _mark(self, now: float) -> None:
        self._help(Segments(self._outbox.mark(now), 0, 0), now)
        self.stats["marks"] += 1

    # What comes

    def _take(self, rows: Rows, tail: int, now: float) -> None:
        fresh = 0
        # Without a membership, packets are of another switch, or of this one before its restart.
        for stretch in self._cutter.cut(rows, tail) if self.member else ():
            if not stretch.fits(self.shape):
                continue
            self._note(stretch.round)
            held = self._open(stretch.round)
            if held is None:
                continue
            before = held.remaining
            held.take(stretch)
            fresh += before - held.remaining
            if not held.told and held.find(0, self._tail, self.shape.segments) < 0:
                held.told = True
                if self._watch is not None:
                    self._events.append(Told(stretch.round, held.out[self._watch :].copy()))
        self.stats["received"] += fresh
        self.stats["useless"] += len(rows) - fresh
        if fresh:
            self._some_made = True
            self._silences = 0
            self._timer = now + self.round_trip.timeout
            if self.behind or self._has_gap():
                soon = now + self._slack
                self._repair_at = soon if self._repair_at is None else min(soon, self._repair_at)

    def _has_gap(self) -> bool:
        """Return whether a version is not complete of which a later one has begun to come."""
        versions = self._versions
        if not versions:
            return False
        last = max(versions, key=self._ahead)
        lacks = (held.remaining for version, held in versions.items() if version != last)
        return self._ahead(last) > len(versions) or any(lacks)

    @property
    def _slack(self) -> float:
        return max(SLACK * (self.round_trip.smoothed or 0.0), SLACK_FLOOR)

    @property
    def _patience(self) -> float:
        trip = self.round_trip
        if trip.smoothed is None:
            return trip.timeout
        return max(PATIENCE * trip.smoothed + 2 * trip.deviation, PATIENCE_FLOOR)

    # What lacks

    def _repair(self, now: float) -> None:
        """Ask for missing segments of which a later version has arrived."""
        self._repair_at = None
        if not self.member or self.halted:
            return
        later = np.zeros(self.shape.segments, bool)
        gaps = []
        for version in reversed(
            self._wanted_versions(max(self._versions, key=self._ahead, default=self.version))
        ):
            held = self._open(version)
            if held is None:
                continue
            gaps.append((version, held, later.copy()))
            later |= held.has == 1
        if self._ask_for(gaps[::-1], now, now - self._patience):
            self._repair_at = now + self._patience

    def _break_silence(self, now: float) -> None:
        """After a long silence, ask for incomplete versions; if there are none, send a mark."""
        self._silences += 1
        pause = self.round_trip.timeout * 2.0 ** min(self._silences, 8)
        self._timer = now + min(pause, self.round_trip.ceiling)
        if not self.member:
            return
        anything = np.ones(self.shape.segments, bool)
        opened = ((version, self._open(version)) for version in self._wanted_versions(self.newest))
        lacking = [(version, held, anything) for version, held in opened if held is not None]
        if self.halted or not self._ask_for(lacking, now, inf):
            self._mark(now)
        if self.behind and not self.halted:
            self.ask_tails(now)

    def _help_answered(
        self, named: Segments, asked: float, status: Status, ack: Ack, now: float
    ) -> None:
        if self.halted and status is Status.OK and asked > self._halted_at:  # a Reset was not heard
            self._was_reset(ack.round)
            return
        self._note(ack.round)
        if not named.count:
            self._outbox.answered(named.round, asked, now)
            return
        held = self._versions.get(named.round)
        if status is not Status.GONE or held is None or self.behind:
            return
        lacking = list(held.lacking(named.index, named.index + named.count))
        if not lacking:
            return
        start, stop = lacking[0]
        if (start, stop) == (named.index, named.index + named.count):
            self.behind = True
            self._floor = self._since = self.version
            self.stats["behind"] += 1
            self._events.append(Behind(self.version, ack.round))
            return
        self._help(Segments(named.round, start, stop - start), now)  # perhaps others are gone
