"""The worker's side of the protocol as a pure object: packets and the time go in and out.

A world moves the packets: it sends what `transmissions` gives, hands in what comes with `receive`,
calls `handle_timer` at `deadline`, and looks at `next_event`. Rules: docs/protocol.md.

What is lost is repaired in three ways, each for what the one before cannot mend:

- When later segments have their aggregates, those that do not are sent again (`recovery.py`). It is
  the same whether the contribution was lost or the aggregate: the switch counts the one, and
  answers the other with the aggregate it keeps. If another worker's was lost, that does as we do.
- When nothing comes for two round trips, there is nothing later: some of what is missing is sent
  again, to see.
- When nothing comes for the time of the retransmission timer, the worker asks for Help. The switch
  asks in turn exactly those workers whose contribution is missing, which may be at work on another
  round; and says for whom we wait, or that it has forgotten us.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace
from itertools import pairwise
from math import inf

from iswitch.keys import Key
from iswitch.packets import Address, Burst, Cutter, Outgoing, Rows, spans, super_packets
from iswitch.wire import (
    FLAG_FIRST,
    FLAG_HEARTBEAT,
    FLAG_REPRODUCIBLE,
    FLAG_STANDS_AT,
    FLAG_WHOLE,
    HEARTBEAT,
    ROUND_MASK,
    SEG_SIZE,
    TOS_CONTROL,
    TOS_DATA,
    TOS_MASK,
    Ack,
    Action,
    Control,
    Join,
    MemberType,
    Round,
    Segments,
    Shape,
    Status,
    Value,
    Vector,
    WireError,
    round_distance,
)

from .transfer import Contribution, Transfer
from .window import CEILING, RoundTrip, SendWindow

BURSTS_AT_ONCE = 8  # super-datagrams given out between two looks at what has come
RANGES_PER_HELP = 16  # Help requests sent at one expiry of the timer
PROBE = 2.0  # round trips without a sign after which to send something again, to see
PROBE_FLOOR = 0.002  # seconds
REPEAT_PAUSE = 0.05  # seconds before an unanswered request is repeated; doubles
REPEAT_CEILING = 1.0
REMEMBERED_RELAYS = 64


@dataclass(frozen=True)
class Answered:
    """The switch answered a request."""

    request: int
    action: Action
    status: Status
    ack: Ack


@dataclass(frozen=True)
class Halted:
    """The job is suspended until it is reset."""


@dataclass(frozen=True)
class WasReset:
    """The job was reset and goes on from `round`; an allreduce under way is void."""

    round: int


@dataclass(frozen=True)
class Gone:
    """The round under way is no longer kept at the switch, which is at `now_at`."""

    round: int
    now_at: int


@dataclass(frozen=True)
class Dropped:
    """The job went on without this worker; it takes part again from `now_at`."""

    round: int
    now_at: int


Event = Answered | Halted | WasReset | Gone | Dropped


@dataclass(slots=True)
class _Pending:
    packet: Control
    due: float
    pause: float
    asked: int  # the Request it had at first

    @property
    def heartbeat(self) -> bool:
        """Whether it is a Join that asks to be a member still."""
        join = self.packet.value
        return isinstance(join, Join) and bool(join.flags & FLAG_HEARTBEAT)


class Session:
    """One worker's membership in one job.

    Args:
        switch: where packets go.
        job: the job's number.
        shape: layout of the vectors.
        incarnation: Request of the Join; larger in a new process at the same address.
        expected: how many members the job is known to have; 0: any number.
        whole: ask that no sum hold fewer than `expected` contributions.
        reproducible: ask for sums in rank order.
        restart_safe: keep the last contribution until the round after it is under way, so that a
            switch that loses its state can be given it again (one more copy of the vector).
        resends: send again, as data, what seems to be lost; if not, the worker only asks for Help,
            as the paper's does.
        ceiling: most bytes to have under way.
        heartbeat: seconds between heartbeats.
        key: of a keyed job.
    """

    def __init__(
        self,
        switch: Address,
        job: int,
        shape: Shape,
        incarnation: int,
        *,
        expected: int = 0,
        whole: bool = False,
        reproducible: bool = False,
        restart_safe: bool = True,
        resends: bool = True,
        ceiling: int = CEILING,
        heartbeat: float = HEARTBEAT,
        key: bytes | None = None,
    ) -> None:
        self.switch = switch
        self.job = job
        self.shape = shape
        self.incarnation = incarnation
        self.expected = expected
        self.heartbeat = heartbeat
        self.resends = resends
        self.key = None if key is None else Key(key)
        self.denied = False  # somebody without the key says that the switch has another, or none
        self.member = False
        self.leaving = False
        self.rank = 0
        self.round = 0  # of the allreduce under way, or the next
        self.joined = 0  # workers that have joined, or are members since all had; by the last Ack
        self.threshold = 0  # H in force, by the last Ack
        self.told = float("-inf")  # when that Ack came
        self.halted = False
        self.transfer: Transfer | None = None
        self.may_send = False  # more than the last `transmissions` gave out
        self.heard = float("-inf")  # when the last packet came
        self.waiting_for: int | None = None  # bitmap of ranks, by the last answers to Help
        self._asked_anew = True  # no answer has come to the last Help
        self.stats = dict.fromkeys(
            ("sent", "sent_again", "received", "useless", "probes", "helps", "helped", "rejoins"),
            0,
        )
        self.round_trip = RoundTrip()
        burst = super_packets(shape.packet_size)
        self.window = SendWindow(burst, max(burst, ceiling // shape.packet_size))
        self._burst = burst
        self._cutter = Cutter(shape)
        self._contributions = deque(
            Contribution(shape, self._cutter) for _ in range(1 + restart_safe)
        )
        self._out: deque[Outgoing] = deque()
        self._events: deque[Event] = deque()
        self._pending: dict[int, _Pending] = {}
        self._help_requests: set[int] = set()
        self._relays: deque[int] = deque(maxlen=REMEMBERED_RELAYS)
        self._halt: int | None = None  # Request of the newest Halt
        self._request = incarnation
        self._flags = FLAG_REPRODUCIBLE * reproducible | FLAG_WHOLE * whole
        self._next_heartbeat = float("inf")
        self._own = False  # nobody else writes to the transfer's `out`
        self._given_up: Transfer | None = None
        self._timer: float | None = None
        self._moved = 0.0  # when something came last, or the transfer began
        self._repair_at: float | None = None  # when something may have to be called lost
        self._measured_at = float("-inf")
        self._last_loss = float("-inf")
        self._rejoining = False
        self._finished: int | None = None  # the last round that was
        self._moved_to: int | None = None  # the round by which the switch last moved us

    # What the application asks for

    def join(self, now: float) -> None:
        """Send a Join; a member's is a heartbeat."""
        flags = self._flags
        if self._rejoining:
            took_part_before = self._finished == (self.round - 1) & ROUND_MASK
            flags |= FLAG_STANDS_AT if took_part_before else FLAG_STANDS_AT | FLAG_FIRST
        elif self.member:
            flags |= FLAG_HEARTBEAT
        join = Join.for_shape(self.shape, MemberType.WORKER, self.expected, flags)
        if self._rejoining:
            join = replace(join, round=self.round)
        self._next_heartbeat = now + self.heartbeat
        self._ask(Control(Action.JOIN, self.job, self.incarnation, join), now)

    def request(self, action: Action, value: Value, now: float) -> int:
        """Send a request, repeated until it is answered; returns its number."""
        if action is Action.LEAVE:
            self.leaving = True
            self.abandon()
        number = self._number()
        self._ask(Control(action, self.job, number, value), now)
        return number

    def forget(self, request: int) -> None:
        """Stop repeating a request."""
        self._pending.pop(request, None)

    def begin(self, vector: Vector, out: Vector, now: float, own: bool = False) -> None:
        """Begin the allreduce of the current round, or begin it again after it was given up.

        `vector` and `out` are flat, (numel,). The second time the vector counts only where it had
        not been sent yet. `own` says that nobody else writes to `out`: then what has come need not
        come again.
        """
        if self._contributions[0].round != self.round:
            self._contributions.rotate(1)
            self._contributions[0].begin(self.round)
        if self._rejoining and not self._pending:  # a switch that refused us may take us now
            self.join(now)
        self.transfer = Transfer(self._contributions[0], vector, out)
        given_up, self._given_up = self._given_up, None
        if given_up is not None and given_up.round == self.round:
            self.transfer.resume(given_up)
        self._own = own
        self.forget_who_is_missing()
        self._moves(now)

    def forget_who_is_missing(self) -> None:
        """Only answers to a Help that is still to be asked say for whom the round waits."""
        self.waiting_for = None
        self._asked_anew = True
        self._help_requests.clear()

    def finish(self) -> None:
        """The transfer is done: go on to the next round."""
        self.abandon()
        self._given_up = None
        self._finished = self.round
        self.round = (self.round + 1) & ROUND_MASK

    def abandon(self) -> None:
        """Give the transfer up; the round stays the current one."""
        if self._own and self.transfer is not None:
            self._given_up = self.transfer
        self.transfer = None
        self._timer = self._repair_at = None

    # What the world does

    def transmissions(self, now: float) -> list[Outgoing]:
        """What is to be sent now: control, and as much data as the window allows."""
        out = [self.key.sealed(one) for one in self._out] if self.key else list(self._out)
        self._out.clear()
        transfer = self.transfer
        self.may_send = False
        if transfer is None or self.halted or not self.member:
            return out
        # If the window has become narrower than what is under way, what is lost may still go.
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
        """Bursts that the window has room for beside these segments: whole ones.

        Fragments would cost as much.
        """
        return int(self.window.size - segments) // self._burst

    def _give_out(
        self, transfer: Transfer, bursts: int, now: float, again: bool, out: list[Outgoing]
    ) -> int:
        """Add what is next, at most so many bursts; how many are left."""
        while bursts > 0:
            run = transfer.next_run(self._burst, bursts, now, again)
            if run is None:
                break
            start, stop = run
            out.append(self._data(transfer.contribution, start, stop))
            self.stats["sent"] += stop - start
            bursts -= -(-(stop - start) // self._burst)
        return bursts

    def receive(self, burst: Burst, now: float) -> None:
        """Take packets from the switch."""
        self.heard = now
        kind = burst.tos & TOS_MASK
        if kind == TOS_DATA:
            rows, tail = burst.not_below(SEG_SIZE)
            if len(rows):
                self._take(rows, tail, now)
        elif kind == TOS_CONTROL:
            for rows in burst.pieces():
                for row in rows:
                    self._control(row.tobytes(), now)

    def next_event(self) -> Event | None:
        """What has happened, oldest first; None: nothing more."""
        return self._events.popleft() if self._events else None

    def deadline(self) -> float | None:
        """When `handle_timer` wants to be called."""
        due = self._timer
        if self._repair_at is not None and (due is None or self._repair_at < due):
            due = self._repair_at
        if self.member and not self.leaving and (due is None or self._next_heartbeat < due):
            due = self._next_heartbeat
        for pending in self._pending.values():
            if due is None or pending.due < due:
                due = pending.due
        return due

    def handle_timer(self, now: float) -> None:
        """Repeat unanswered requests; ask for Help with what does not come; be a member still."""
        for pending in self._pending.values():
            if pending.due <= now:
                pending.pause = min(2 * pending.pause, REPEAT_CEILING)
                pending.due = now + pending.pause
                self._out.append(Outgoing.control(self.switch, pending.packet.build()))
        if self._repair_at is not None and self._repair_at <= now:
            self._repair(now)
        if self._timer is not None and self._timer <= now:
            self._break_silence(now)
        if self.member and not self.leaving and self._next_heartbeat <= now:
            self.join(now)

    # Requests and answers

    def _number(self) -> int:
        self._request = (self._request + 1) & ROUND_MASK
        return self._request

    def _ask(self, packet: Control, now: float, asked: int | None = None) -> None:
        asked = packet.request if asked is None else asked
        self._pending[packet.request] = _Pending(packet, now + REPEAT_PAUSE, REPEAT_PAUSE, asked)
        self._out.append(Outgoing.control(self.switch, packet.build()))

    def _control(self, payload: bytes, now: float) -> None:
        if self.key is not None:
            packet_in_it = self.key.opened(payload)
            if packet_in_it is None:
                self._note_denial(payload)
                return
            payload, self.denied = packet_in_it, False
        try:
            packet = Control.parse(payload)
        except WireError:
            return
        if packet.job != self.job:
            return
        if isinstance(packet.value, Ack):
            self._answered(packet, packet.value, now)
            return
        if packet.action not in (Action.HELP, Action.HALT, Action.RESET):
            return
        ack = Control(Action.ACK, self.job, packet.request, Ack(packet.action, rank=self.rank))
        self._out.append(Outgoing.control(self.switch, ack.build()))
        if packet.request in self._relays:  # repeated: our Ack was lost
            return
        self._relays.append(packet.request)
        if packet.action is Action.HALT:
            if self._halt is None or round_distance(packet.request, self._halt) > 0:
                self._halt = packet.request
                self._was_halted(now)
        elif isinstance(packet.value, Round):
            self._was_reset(packet.value.round)
        elif isinstance(packet.value, Segments):
            self._help_the_switch(packet.value, now)

    def _note_denial(self, payload: bytes) -> None:
        """Without a MAC, so nothing to act upon; but why nothing else comes, perhaps."""
        try:
            packet = Control.parse(payload)
        except WireError:
            return
        refused = packet.action is Action.ACK and packet.status in (
            Status.DENIED,
            Status.BAD_REQUEST,
        )
        asked = packet.request in self._pending or packet.request in self._help_requests
        self.denied |= refused and asked and packet.job == self.job

    def _ask_anew(self, request: int, last: int, now: float) -> None:
        """The switch wants a Request above `last`: a process before used up so many here."""
        self._request = max(self._request, last)
        self._help_requests.discard(request)
        pending = self._pending.pop(request, None)
        if pending is not None:
            self._ask(pending.packet._replace(request=self._number()), now, pending.asked)

    def _answered(self, packet: Control, ack: Ack, now: float) -> None:
        status = Status.of(packet.status)
        if self.key and status is Status.DENIED and ack.action != Action.JOIN:
            self._ask_anew(packet.request, ack.round, now)
            return
        if packet.request in self._help_requests:
            self._help_requests.discard(packet.request)
            self._help_answered(status, ack, now)
            return
        pending = self._pending.get(packet.request)
        if pending is None or pending.packet.action != ack.action:
            return  # to a request answered already, or of a former process at this address
        if ack.action == Action.JOIN and status is Status.NOT_MEMBER:
            if pending.heartbeat:  # else it is a late answer to one, and joining anew under way
                del self._pending[packet.request]
                self._rejoin(now)
            return
        if pending.heartbeat and self.key and status is not Status.OK:
            return  # answered long ago: a heartbeat is not refused
        del self._pending[packet.request]
        if pending.packet.action is Action.JOIN:
            if status is Status.OK:
                self._joined(ack, now)
            else:
                self.member = False
        elif status is Status.NOT_MEMBER and pending.packet.action is not Action.LEAVE:
            self._rejoin(now)
        elif (
            pending.packet.action is Action.RESET
            and status is Status.OK
            and round_distance(ack.round, self.round) > 0  # else its relay has come before
        ):
            self.resume_at(ack.round)
        self._events.append(Answered(pending.asked, pending.packet.action, status, ack))

    def _joined(self, ack: Ack, now: float) -> None:
        self.rank = ack.rank
        self.joined = ack.contributors
        self.threshold = ack.threshold
        self.told = now
        if self.member:
            return
        self.member = True
        if not self._rejoining:
            moved = self._moved_to  # by a Reset that has overtaken the Ack, or an old one
            if moved is None or round_distance(ack.round, moved) > 0:
                self.round = ack.round
            return
        self._rejoining = False
        if self.key is not None:  # no request of before may be repeated to it by others
            nothing = Segments(self.round, 0, 0)
            self._ask(Control(Action.HELP, self.job, self._number(), nothing), now)
        if round_distance(ack.round, self.round) > 0:
            self._events.append(Dropped(self.round, ack.round))
            self.abandon()
            self.round = self._moved_to = ack.round
        elif self.transfer is not None:
            self.transfer.restart()
            self._repair_at = None
            self._moved = now
            self._timer = now + self.round_trip.timeout

    def _rejoin(self, now: float) -> None:
        """The switch does not know us: it was restarted, or our lease ran out."""
        if self.member and not self.leaving:
            self.member = False
            self._rejoining = True
            self._relays.clear()  # a switch that was restarted numbers from the start again
            self._halt = None
            self._moved_to = None
            self.stats["rejoins"] += 1
            self.join(now)

    def _was_halted(self, now: float) -> None:
        if self._timer is not None:
            self._timer = now + self.round_trip.ceiling
        if not self.halted:
            self.halted = True
            self._events.append(Halted())

    def _was_reset(self, round_: int) -> None:
        if round_ == self._moved_to:
            return  # a repeat; or the answer GONE has told it before
        if self.key and round_distance(round_, self.round) <= 0:
            return  # a replay: a Reset leads onwards
        ours = any(pending.packet.action is Action.RESET for pending in self._pending.values())
        self.resume_at(round_)
        if not ours:
            self._events.append(WasReset(round_))

    def resume_at(self, round_: int) -> None:
        """The job was reset: nothing from before counts, the next round is `round_`."""
        self._moved_to = round_
        self.halted = False
        self.abandon()
        self._given_up = None
        self.round = round_
        self._help_requests.clear()  # a late answer, HALTED say, is of no interest
        for contribution in self._contributions:
            contribution.round = None

    # What is lost

    def _moves(self, now: float) -> None:
        """Something has come, or a transfer begins: have the timer wait anew."""
        self._moved = now
        self.round_trip.backoff = 1.0
        transfer = self.transfer
        if transfer is None:
            return
        self._timer = now + self.round_trip.timeout
        if not self.resends:
            return
        if transfer.losses.round_trip is not None:
            pause = max(PROBE * transfer.losses.expected, PROBE_FLOOR)
            self._timer = min(self._timer, now + pause)
        if transfer.losses.doubtful:
            if self._repair_at is None:
                self._repair_at = now + transfer.losses.slack
        else:
            self._repair_at = None

    def _repair(self, now: float) -> None:
        """Send again what is lost by the evidence of what came later."""
        transfer = self.transfer
        self._repair_at = None
        if transfer is None or self.halted or not self.member:
            return
        lost, self._repair_at = transfer.lose(now)
        self._narrow(max((b - a for a, b in spans(lost, 1)), default=0), now)

    def _narrow(self, lost: int, now: float) -> None:
        """So many contributions in a row are lost: a link loses packets, a full queue bursts."""
        if 2 * lost > self._burst and now - self._last_loss > self.round_trip.timeout:
            self._last_loss = now
            self.window.lost()

    def _break_silence(self, now: float) -> None:
        """Nothing has come for long."""
        transfer = self.transfer
        patience = self._moved + self.round_trip.timeout
        asks = not self.resends or now >= patience
        if transfer is None or not self.member or self.halted or asks:
            self._ask_for_help(now)
            return
        transfer.probe(self._burst)
        self.stats["probes"] += 1
        self._timer = min(patience, now + 2 * (now - self._moved))

    # Help, in both directions

    def _ask_for_help(self, now: float) -> None:
        transfer = self.transfer
        if transfer is None or not self.member:
            self._timer = now + self.round_trip.timeout
            return
        self._asked_anew = True
        transfer.losses.land()
        ranges = _bridged(transfer.missing(sent_only=True), RANGES_PER_HELP)
        if self.halted:  # nothing will come; but the Reset that ends it may have been lost
            ranges = [(0, 1)]
        for start, stop in ranges:
            number = self._number()
            if len(self._help_requests) > 4 * RANGES_PER_HELP:
                self._help_requests.clear()
            self._help_requests.add(number)
            named = Segments(transfer.round, start, stop - start)
            packet = Control(Action.HELP, self.job, number, named)
            self._out.append(Outgoing.control(self.switch, packet.build()))
            self.stats["helps"] += 1
        self.round_trip.backoff = min(self.round_trip.backoff * 2, 64.0)
        pause = self.round_trip.ceiling if self.halted else self.round_trip.timeout
        self._timer = now + pause

    def _help_answered(self, status: Status, ack: Ack, now: float) -> None:
        if status is Status.NOT_MEMBER:
            self._rejoin(now)
        elif status is Status.HALTED:
            self._was_halted(now)
        elif status is Status.GONE and self.halted:  # the Reset that ended it was lost
            self._was_reset(ack.round)
        elif status is Status.GONE and self.transfer is not None:
            self._events.append(Gone(self.round, ack.round))
            self.abandon()
            self.round = self._moved_to = ack.round
        elif status is Status.OK:
            self.halted = False
            before = 0 if self._asked_anew else self.waiting_for or 0
            self.waiting_for = before | ack.missing  # each range has an answer of its own
            self._asked_anew = False

    def _help_the_switch(self, named: Segments, now: float) -> None:
        """The switch lacks our contribution to these segments."""
        if named.index + named.count > self.shape.segments:
            return
        start, stop = named.index, named.index + named.count
        self.stats["helped"] += 1
        transfer = self.transfer
        if transfer is not None and transfer.round == named.round:
            again = transfer.resend(start, stop)
            self.stats["sent_again"] += again
            self._narrow(again, now)
            return
        for contribution in self._contributions:
            if contribution.round == named.round:
                self.stats["sent_again"] += stop - start
                for at in range(start, stop, self._burst):
                    self._out.append(self._data(contribution, at, min(at + self._burst, stop)))

    # Data

    def _data(self, contribution: Contribution, start: int, stop: int) -> Outgoing:
        return Outgoing((self.switch,), TOS_DATA, *contribution.rows(start, stop))

    def _take(self, rows: Rows, tail: int, now: float) -> None:
        transfer = self.transfer
        if transfer is None:
            self.stats["useless"] += len(rows)
            return
        fresh, useless = transfer.take(rows, tail, self._cutter, now)
        self.stats["received"] += fresh
        self.stats["useless"] += useless
        if not fresh:
            return
        self.window.returned(fresh)
        measured = transfer.losses.measured
        if measured is not None and now - measured >= self._measured_at:  # one for each round trip
            self._measured_at = now
            self.round_trip.sample(measured)
            transfer.losses.measured = None
        self._moves(now)


def _bridged(ranges: list[tuple[int, int]], most: int) -> list[tuple[int, int]]:
    """Ranges in ascending order, joined over the smallest gaps until there are few enough."""
    if len(ranges) <= most:
        return ranges
    gaps = [after - stop for (_, stop), (after, _) in pairwise(ranges)]
    wide = sorted(range(len(gaps)), key=gaps.__getitem__)[len(gaps) + 1 - most :]
    firsts = [0, *(i + 1 for i in sorted(wide))]
    return [(ranges[a][0], ranges[b - 1][1]) for a, b in pairwise([*firsts, len(ranges)])]
