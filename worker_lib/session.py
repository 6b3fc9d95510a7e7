"""The worker's side of the protocol as a pure object: packets and the time go in and out.

A world moves the packets: it sends what `transmissions` gives, hands in what comes with `receive`,
calls `handle_timer` at `deadline`, and looks at `next_event`. Rules: docs/protocol.md.

Loss is repaired by asking, not by sending again at a guess: when nothing comes for the time of the
retransmission timer, the worker asks for Help with the segments it lacks. The switch sends again
what is complete, and asks in turn exactly those workers whose contribution is missing.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace

from iswitch.packets import Address, Burst, Cutter, Outgoing, Rows, super_packets
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
        ceiling: most bytes to have under way.
        heartbeat: seconds between heartbeats.
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
        ceiling: int = CEILING,
        heartbeat: float = HEARTBEAT,
    ) -> None:
        self.switch = switch
        self.job = job
        self.shape = shape
        self.incarnation = incarnation
        self.expected = expected
        self.heartbeat = heartbeat
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
            ("sent", "sent_again", "received", "useless", "helps", "helped", "rejoins"), 0
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
        self._request = incarnation
        self._flags = FLAG_REPRODUCIBLE * reproducible | FLAG_WHOLE * whole
        self._next_heartbeat = float("inf")
        self._timer: float | None = None
        self._timed: tuple[int, float] | None = None  # a segment and when it was sent
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

    def begin(self, vector: Vector, out: Vector, now: float) -> None:
        """Begin the allreduce of the current round, or begin it again after it was given up.

        `vector` and `out` are flat, (numel,). The second time the vector counts only where it had
        not been sent yet.
        """
        if self._contributions[0].round != self.round:
            self._contributions.rotate(1)
            self._contributions[0].begin(self.round)
        if self._rejoining and not self._pending:  # a switch that refused us may take us now
            self.join(now)
        self.transfer = Transfer(self._contributions[0], vector, out)
        self.forget_who_is_missing()
        self._timed = None
        self.round_trip.backoff = 1.0
        self._timer = now + self.round_trip.timeout

    def forget_who_is_missing(self) -> None:
        """Only answers to a Help that is still to be asked say for whom the round waits."""
        self.waiting_for = None
        self._asked_anew = True
        self._help_requests.clear()

    def finish(self) -> None:
        """The transfer is done: go on to the next round."""
        self.abandon()
        self._finished = self.round
        self.round = (self.round + 1) & ROUND_MASK

    def abandon(self) -> None:
        """Give the transfer up; the round stays the current one."""
        self.transfer = None
        self._timer = None

    # What the world does

    def transmissions(self, now: float) -> list[Outgoing]:
        """What is to be sent now: control, and as much data as the window allows."""
        out = list(self._out)
        self._out.clear()
        transfer = self.transfer
        self.may_send = False
        if transfer is None or self.halted or not self.member:
            return out
        # Whole bursts only: fragments would cost as much as bursts.
        room = int(self.window.size - transfer.in_flight) // self._burst
        bursts = min(room or not transfer.in_flight, BURSTS_AT_ONCE)
        while bursts > 0:
            sent_before = transfer.filled
            run = transfer.next_run(self._burst, bursts)
            if run is None:
                break
            start, stop = run
            if self._timed is None and stop > sent_before:  # Karn: not of what is sent again
                self._timed = (stop - 1, now)
            out.append(self._data(transfer.contribution, start, stop))
            self.stats["sent"] += stop - start
            bursts -= -(-(stop - start) // self._burst)
        else:
            self.may_send = room > BURSTS_AT_ONCE
        return out

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
        if self._timer is not None and self._timer <= now:
            self._ask_for_help(now)
        if self.member and not self.leaving and self._next_heartbeat <= now:
            self.join(now)

    # Requests and answers

    def _number(self) -> int:
        self._request = (self._request + 1) & ROUND_MASK
        return self._request

    def _ask(self, packet: Control, now: float) -> None:
        self._pending[packet.request] = _Pending(packet, now + REPEAT_PAUSE, REPEAT_PAUSE)
        self._out.append(Outgoing.control(self.switch, packet.build()))

    def _control(self, payload: bytes, now: float) -> None:
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
            self._was_halted(now)
        elif isinstance(packet.value, Round):
            self._was_reset(packet.value.round)
        elif isinstance(packet.value, Segments):
            self._help_the_switch(packet.value, now)

    def _answered(self, packet: Control, ack: Ack, now: float) -> None:
        status = Status.of(packet.status)
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
        self._events.append(Answered(packet.request, pending.packet.action, status, ack))

    def _joined(self, ack: Ack, now: float) -> None:
        self.rank = ack.rank
        self.joined = ack.contributors
        self.threshold = ack.threshold
        self.told = now
        if self.member:
            return
        self.member = True
        if not self._rejoining:
            if self._moved_to is None:  # else a Reset has overtaken the Ack
                self.round = ack.round
            return
        self._rejoining = False
        if round_distance(ack.round, self.round) > 0:
            self._events.append(Dropped(self.round, ack.round))
            self.abandon()
            self.round = self._moved_to = ack.round
        elif self.transfer is not None:
            self.transfer.restart()
            self._timer = now + self.round_trip.timeout

    def _rejoin(self, now: float) -> None:
        """The switch does not know us: it was restarted, or our lease ran out."""
        if self.member and not self.leaving:
            self.member = False
            self._rejoining = True
            self._relays.clear()  # a switch that was restarted numbers from the start again
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
        ours = any(pending.packet.action is Action.RESET for pending in self._pending.values())
        self.resume_at(round_)
        if not ours:
            self._events.append(WasReset(round_))

    def resume_at(self, round_: int) -> None:
        """The job was reset: nothing from before counts, the next round is `round_`."""
        self._moved_to = round_
        self.halted = False
        self.abandon()
        self.round = round_
        self._help_requests.clear()  # a late answer, HALTED say, is of no interest
        for contribution in self._contributions:
            contribution.round = None

    # Help, in both directions

    def _ask_for_help(self, now: float) -> None:
        transfer = self.transfer
        if transfer is None or not self.member:
            self._timer = now + self.round_trip.timeout
            return
        self._timed = None  # Karn: what is asked for is not measured
        self._asked_anew = True
        ranges = transfer.missing(sent_only=True)
        if self.halted:  # nothing will come; but the Reset that ends it may have been lost
            ranges = [(0, 1)]
        elif not ranges:
            transfer.in_flight = 0
        for start, stop in ranges[:RANGES_PER_HELP]:
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
            if again and now - self._last_loss > self.round_trip.timeout:
                self._last_loss = now
                self.window.lost()
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
        fresh, useless = transfer.take(rows, tail, self._cutter)
        self.stats["received"] += fresh
        self.stats["useless"] += useless
        if not fresh:
            return
        self.window.returned(fresh)
        self.round_trip.backoff = 1.0
        if self._timed is not None and transfer.has(self._timed[0]):
            self.round_trip.sample(now - self._timed[1])
            self._timed = None
        self._timer = now + self.round_trip.timeout
