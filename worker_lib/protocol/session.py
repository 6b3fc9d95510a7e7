"""The worker's side of the protocol as a pure object: packets and the time go in and out.

A world moves the packets: it sends what `transmissions` gives, hands in what comes with `receive`,
calls `handle_timer` at `deadline`, and looks at `next_event`. Rules: docs/protocol.md.
`repairing.py` says how lost segments are repaired.
"""

from __future__ import annotations

from math import inf

import numpy as np

from iswitch.core.format.packets import Cutter, Outgoing, Rows
from iswitch.core.format.times import earlier
from iswitch.core.format.wire import (
    FLAG_FIRST,
    FLAG_STANDS_AT,
    ROUND_MASK,
    TOS_DATA,
    Ack,
    Action,
    Segments,
    Status,
    Vector,
    round_distance,
)

from .events import Answered, Dropped, Event, Gone, Halted, WasReset
from .exchange import Exchange, Packets
from .expressing import Expressing
from .member import RANGES_PER_HELP
from .reception import Reception
from .terms import RoundTerms
from .transfer import Contribution, Transfer
from .window import bursts_allowed

__all__ = [  # what those that deal with a session need
    "RANGES_PER_HELP",
    "Answered",
    "Dropped",
    "Event",
    "Gone",
    "Halted",
    "Session",
    "WasReset",
]

BURSTS_AT_ONCE = 16  # super-datagrams given out between two looks at what has come


class Session(Expressing):
    """One worker's membership in one synchronous job.

    Args:
        terms: terms of the membership.
        incarnation: Request of the Join; larger in a new process at the same address.
    """

    terms: RoundTerms

    def __init__(self, terms: RoundTerms, incarnation: int) -> None:
        super().__init__(terms, incarnation)
        self.partial = terms.partial
        self.stats = dict.fromkeys(
            ("sent", "sent_again", "received", "useless", "probes", "helps", "helped", "rejoins"),
            0,
        )
        self.stats["no_memory"] = 0  # bursts that could not be handled for want of it
        self._cutter = Cutter(self.shape)
        self._measured_at = float("-inf")
        self._copy_to: Vector | None = None  # receives the sum of a round, once it is complete
        self._moved_to: int | None = None  # the round by which the switch last moved us

    def _packets(self) -> Packets:
        """Return an empty contribution."""
        return Contribution(self.shape)

    # What the application asks for

    def begin(self, vector: Vector, out: Vector, now: float, own: bool = False) -> None:
        """Begin the allreduce of the current round, or begin it again after it was given up.

        `vector` and `out` are flat, (numel,). The second time `vector` counts only in segments that
        were not sent yet. `own` says that nothing else writes to `out`: then aggregates that it
        holds need not be received again.
        """
        self._begin_round()
        self._choose_slots()
        self._come_back(now)
        self._copy_to = None
        if self.slots and not own:  # what has come is not kept at the switch until the round ends
            own, self._copy_to, out = True, out, np.empty_like(out)
        opening = self._burst if self.in_turns else None
        self.transfer = Transfer(self._contribution, vector, out, self.reach, opening)
        given_up, self._given_up = self._given_up, None
        if given_up is not None and given_up.round == self.round:
            self.transfer.resume(given_up)
        self._own = own
        self.forget_who_is_missing()
        self._moves(now)

    def listen(self, out: Vector, now: float) -> Reception:
        """Begin to receive the aggregates of the current round, to which nothing is contributed.

        Args:
            out: flat, `numel` elements or fewer.
            now: the time, in seconds.
        """
        self._begin_round()
        self._come_back(now)
        self._copy_to = None
        self.transfer = reception = Reception(self._contribution, out)
        self.forget_who_is_missing()
        self._moves(now)
        return reception

    def _choose_slots(self) -> None:
        """Decide through how many slots the current round goes."""
        before = self.slots
        self._slots.begin(self.round)
        if self.slots != before:
            self._share(self.joined)

    def ask_soon(self, now: float) -> None:
        """Ask for missing aggregates as soon as the world looks at the time."""
        self._timer = now

    def _come_back(self, now: float) -> None:
        """Join again if need be: a switch that refused us may take us now."""
        if self._rejoining and not self.requests:
            self.join(now)

    def finish(self) -> None:
        """End the round, whose transfer is done, and go to the next."""
        if self._copy_to is not None and isinstance(self.transfer, Transfer):
            self._copy_to[...] = self.transfer.out
            self._copy_to = None
        self.abandon()
        self._given_up = None
        self.forget_who_is_missing()
        self.finished = self.round
        self.ended += 1
        self.round = (self.round + 1) & ROUND_MASK

    @property
    def left(self) -> int:
        """Return how many rounds this worker has still to do, 1 or more; 0: it does not know."""
        return max(1, self.terms.rounds - self.ended) if self.terms.rounds else 0

    def skip_to(self, round_: int) -> bool:
        """Go to this round of the program, and leave out those before it; False: it is over.

        The program's number is the number on the wire, whatever the switch has said of rounds: so
        contributions to different rounds of the program never meet.
        """
        if round_distance(round_, self.round) < 0:
            return False
        if round_ != self.round:
            self.abandon()
            self._given_up = None
            self.round = round_
        return True

    def abandon(self) -> None:
        """Give the transfer up; the round stays the current one."""
        if self._own and isinstance(self.transfer, Transfer):
            self._given_up = self.transfer
        self.transfer = self.express = self._whole = None
        self._timer = self._repair_at = None

    # What the world does

    def transmissions(self, now: float) -> list[Outgoing]:
        """Return what to send now: control packets, and as much data as the window allows."""
        out = self._given_out()
        transfer = self.transfer
        self.may_send = False
        if self._whole is not None:
            out.append(self._whole)
            self._whole = None
        if transfer is None or self.halted or not self.member:
            return out
        # Lost segments may go even if the window is now narrower than what is under way.
        room = max(self._room(transfer.in_flight), transfer.must_resend)
        bursts = min(room, BURSTS_AT_ONCE)
        while bursts > 0 and len(lost := transfer.next_lost(self._burst, now)):
            packets = transfer.contribution.pick(lost)
            out.append(Outgoing((self.switch,), TOS_DATA, *packets))
            self.stats["sent_again"] += len(lost)
            self._repair_at = min(self._repair_at or inf, now + transfer.losses.patience)
            bursts -= 1
        bursts = self._give_out(transfer, bursts, now, True, out)
        # A loss makes no room for new segments: nobody is further ahead of others than a window.
        room_for_new = self._room(transfer.outstanding)
        new = min(room_for_new or not transfer.outstanding, BURSTS_AT_ONCE)
        left = self._give_out(transfer, new, now, False, out)
        self.may_send = (room > BURSTS_AT_ONCE and not bursts) or (
            room_for_new > BURSTS_AT_ONCE and left <= 0
        )
        return out

    def _room(self, segments: int) -> int:
        """Return how many bursts the window has room for, with `segments` under way."""
        return bursts_allowed(self.window.size, segments, self._burst)

    def _give_out(
        self, transfer: Exchange, bursts: int, now: float, again: bool, out: list[Outgoing]
    ) -> int:
        """Add the next segments, at most `bursts`, to `out`; return how many bursts are left."""
        while bursts > 0:
            run = transfer.next_run(self._burst, bursts, now, again)
            if run is None:
                break
            start, stop = run
            out.append(self._data(transfer.contribution, start, stop))
            self.stats["sent"] += stop - start
            bursts -= -(-(stop - start) // self._burst)
        return bursts

    def deadline(self) -> float | None:
        """Return the time at which to call `handle_timer` next; None: not needed."""
        return earlier(super().deadline(), earlier(self._timer, self._repair_at))

    def _do_what_is_due(self, now: float) -> None:
        """Ask for Help with missing segments, or send them again, where timers have expired."""
        self.go_slow()
        if self._repair_at is not None and self._repair_at <= now:
            self._repair(now)
        if self._timer is not None and self._timer <= now:
            self._break_silence(now)

    # Membership

    def _standing(self) -> tuple[int, int]:
        took_part_before = self.finished == (self.round - 1) & ROUND_MASK
        return FLAG_STANDS_AT if took_part_before else FLAG_STANDS_AT | FLAG_FIRST, self.round

    def _take_place(self, ack: Ack, now: float) -> None:  # noqa: ARG002
        moved = self._moved_to  # by a Reset that has overtaken the Ack, or an old one
        if moved is None or round_distance(ack.round, moved) > 0:
            self.round = ack.round

    def _take_place_again(self, ack: Ack, now: float) -> None:
        if round_distance(ack.round, self.round) > 0:
            self._events.append(Dropped(self.round, ack.round))
            self.abandon()
            self.round = self._moved_to = ack.round
        elif self.transfer is not None:
            self.transfer.restart()
            self._repair_at = None
            self._moved = now
            self._timer = now + self.round_trip.timeout

    def _lost_place(self) -> None:
        self._moved_to = None

    def _was_halted(self, now: float) -> None:
        if self._timer is not None:
            self._timer = now + self.round_trip.ceiling
        if not self.halted:
            self.halted = True
            self._events.append(Halted())

    def _was_reset(self, round_: int) -> None:
        if round_ == self._moved_to:
            return  # a repeat; or the answer GONE has told it before
        if not self.partial and round_distance(round_, self.round) <= 0:
            return  # a late copy or a replay, or for the process before at this address
        ours = self.asks(Action.RESET)
        self.resume_at(round_)
        if not ours:
            self._events.append(WasReset(round_))

    def _has_reset(self, round_: int) -> None:
        # Else its relay has come before. (A newcomer may stand at that round already.)
        if round_ != self._moved_to and round_distance(round_, self.round) >= 0:
            self.resume_at(round_)

    def resume_at(self, round_: int) -> None:
        """Forget all earlier rounds after a reset of the job; the next round is `round_`."""
        self._moved_to = round_
        self.halted = False
        self.abandon()
        self._given_up = None
        self.round = round_
        self.forget_who_is_missing()  # a late answer, HALTED say, is of no interest
        for contribution in self._contributions:
            contribution.round = None

    # Help, in both directions

    def _help_answered(
        self,
        named: Segments,
        asked: float,
        status: Status,
        ack: Ack,
        now: float,  # noqa: ARG002
    ) -> None:
        if status is Status.GONE and self.halted:  # the Reset that ended it was lost
            self._was_reset(ack.round)
        elif status is Status.GONE and self.transfer is not None and not self._has_since(named):
            self._events.append(Gone(self.round, ack.round))
            self.abandon()
            self.forget_who_is_missing()
            self._moved_to = ack.round
            # The next round that a program names may still be kept.
            self.round = (self.round + 1) & ROUND_MASK if self.partial else ack.round
        elif status is Status.OK:
            self.halted = False
            self._taken = max(self._taken, asked)
            transfer = self.transfer
            if transfer is not None and transfer.round == named.round:
                self._settle(transfer, lacks=bool(ack.known))
            before = 0 if self._asked_anew else self.waiting_for or 0
            self.waiting_for = before | ack.missing  # each range has an answer of its own
            self._asked_anew = False

    def _has_since(self, named: Segments) -> bool:
        """Return whether a slot or round is gone because we got it after we had asked for it.

        All segments before the first that we lack may be gone, and none after it.
        """
        if self.transfer is not None and named.round != self.transfer.round:
            return True
        if not self.slots or not isinstance(self.transfer, Transfer):
            return False
        return not self.transfer.lacks(named.index)

    def _help_the_switch(self, named: Segments, now: float) -> None:
        """Send our contribution to these segments again, since the switch lacks it."""
        if named.index + named.count > self.shape.segments:
            return
        start, stop = named.index, named.index + named.count
        self.stats["helped"] += 1
        self.go_slow()
        transfer = self.transfer
        if transfer is not None and transfer.round == named.round:
            if self._has_turn(transfer, named):
                return
            self._send_what_is_lost(transfer, start, stop, now)
            return
        # At most a window at once; the switch asks again for what is beyond.
        most = max(int(self.window.size), self._burst)
        for contribution in self._contributions:
            if contribution.round == named.round:
                for rows, tail in contribution.again(start, stop, most, self._burst):
                    self.stats["sent_again"] += len(rows)
                    self._out.append(Outgoing((self.switch,), TOS_DATA, rows, tail))

    def _has_turn(self, transfer: Exchange, named: Segments) -> bool:
        """Send all if the switch asks for a whole round, of which nothing has come: it is our turn.

        What was sent before that has found no memory.
        """
        whole = self.in_turns and named.count == self.shape.segments
        if not whole or not isinstance(transfer, Transfer):
            return False
        if transfer.remaining < transfer.shape.segments:
            return False
        self.stats["sent_again"] += transfer.open()
        return True

    # Data

    def _data(self, contribution: Packets, start: int, stop: int) -> Outgoing:
        return Outgoing((self.switch,), TOS_DATA, *contribution.rows(start, stop))

    def _take(self, rows: Rows, tail: int, now: float) -> None:
        if self.express is not None and not self.express.done:
            if self.express.take(rows, tail):
                self.window.returned(len(rows))
                self._progress(self.express, len(rows), self.express.note(now))
                return
            self.go_slow()
        transfer = self.transfer
        if transfer is None:
            self.stats["useless"] += len(rows)
            return
        fresh, useless = transfer.take(rows, tail, self._cutter, now)
        self.stats["received"] += fresh
        self.stats["useless"] += useless
        if not fresh:
            return
        self.window.returned(transfer.freed(fresh))
        measured = transfer.losses.measured
        if measured is not None and now - measured >= self._measured_at:  # one for each round trip
            self._measured_at = now
            self.round_trip.sample(measured)
            transfer.losses.measured = None
        self._moves(now)
