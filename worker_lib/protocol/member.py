"""A worker's membership in a job, without I/O: the base of sessions of rounds and of versions.

A member joins, sends heartbeats, joins again after the switch has forgotten it, repeats requests
until they are answered, acknowledges relayed packets, and seals and opens the packets of a keyed
job. The sessions on top of it say what data means and how losses are repaired: `Session` for
rounds, `AsynchronousSession` for versions.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from dataclasses import replace
from typing import Generic, TypeVar

from iswitch.core.exchange.relayed import Relayed
from iswitch.core.exchange.requests import Backoff, Numbers, Requests, Unanswered, is_heartbeat
from iswitch.core.format.keys import Key
from iswitch.core.format.packets import Burst, Outgoing, Rows, super_packets
from iswitch.core.format.times import earlier
from iswitch.core.format.wire import (
    FLAG_FIRST,
    FLAG_HEARTBEAT,
    FLAG_NEW,
    FLAG_STANDS_AT,
    IN_TURNS,
    LEAST_SLOTS,
    NO_RANK,
    PRIORITY_SHIFT,
    ROUND_MASK,
    SEG_SIZE,
    SLOTS_TOLD,
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
    Show,
    Shown,
    Status,
    Value,
    WireError,
    round_distance,
    slots_flags,
)

from .claim import Claim
from .events import Answered, Halted
from .slots import Slots
from .terms import Terms
from .window import RoundTrip, SendWindow

RANGES_PER_HELP = 16  # Help requests sent at one expiry of the timer
REPEAT_PAUSE = 0.05  # seconds before an unanswered request is repeated; doubles
REPEAT_CEILING = 1.0
BACKOFF = Backoff(REPEAT_PAUSE, REPEAT_CEILING)
BURSTS_IN_REACH = 4  # so that some are sent while the aggregates of others come back
MOST_OUTDONE = 16  # larger incarnations tried; a correct switch accepts the first

E = TypeVar("E")


class Member(ABC, Generic[E]):
    """One worker's membership; `E` are its events.

    Args:
        terms: terms of the membership.
        incarnation: Request of the Join; larger in a new process at the same address.
    """

    def __init__(self, terms: Terms, incarnation: int) -> None:
        self.terms = terms
        self.switch = switch = terms.switch
        self.job = terms.job
        self.shape = shape = terms.shape
        self.incarnation = incarnation
        self.key = None if terms.key is None else Key(terms.key)
        self.denied = False  # somebody without the key says that the switch has another, or none
        self.member = False
        self.leaving = False
        self.rank = NO_RANK
        self._slots = Slots()
        self.in_turns = False  # rounds of the job wait for its turn with the switch's memory
        self.waits: Ack | None = None  # the answer that our job waits for memory; None: it does not
        self._claim = Claim()
        self.joined = 0  # workers that have joined, or are members since all had; by the last Ack
        self.threshold = 0  # H in force, by the last Ack
        self.told = float("-inf")  # when that Ack came
        self.halted = False
        self.may_send = False  # more than the last `transmissions` gave out
        self.heard = float("-inf")  # when the last packet came
        self.stats: dict[str, int] = {}
        self.round_trip = RoundTrip()
        full = super_packets(shape.packet_size)
        self._ceiling = max(full, terms.ceiling // shape.packet_size)
        self.window = SendWindow(full, self._ceiling)
        self._burst = super_packets(shape.packet_size, terms.most)
        self._switch_room: int | None = None  # in bytes; 0: it does not tell; None: not asked
        self._out: deque[Outgoing] = deque()
        self._events: deque[E | Answered | Halted] = deque()
        self.requests = Requests(switch, Numbers(incarnation), BACKOFF)
        self._help_requests: dict[int, tuple[Segments, float]] = {}  # what, and when
        self._relayed = Relayed()
        self._next_heartbeat = float("inf")
        self._rejoining = False
        self._settled = False  # has been a member, if it is none now
        self._outdone = 0  # times that a process before was found to have a larger incarnation
        self.clock_behind: int | None = None  # seconds; None: not outdone

    # What the application asks for

    def join(self, now: float) -> None:
        """Send a Join; from a worker that is a member already it is a heartbeat."""
        flags, round_ = self.terms.flags | self.terms.priority << PRIORITY_SHIFT, self.left
        if self._rejoining:
            more, round_ = self._standing()
            flags |= more
        elif self.member:
            flags |= FLAG_HEARTBEAT
        elif not self._settled:
            flags |= FLAG_NEW
            if self.terms.begins_at:
                flags, round_ = flags | FLAG_STANDS_AT | FLAG_FIRST, self.terms.begins_at
        flags |= slots_flags(self._slots.largest)
        join = Join.for_shape(self.shape, MemberType.WORKER, self.terms.expected, flags)
        join = replace(join, round=round_)
        if not self.member:  # a returning member keeps its rank
            join = join.asking(self.terms.rank if self.rank == NO_RANK else self.rank)
        self._next_heartbeat = now + self.terms.heartbeat
        packet = Control(Action.JOIN, self.job, self.incarnation, join)
        self._out.append(self.requests.ask(packet, now))

    @property
    def left(self) -> int:
        """Return how many rounds this worker has still to do; 0: it does not know."""
        return 0

    def request(self, action: Action, value: Value, now: float) -> int:
        """Send a request, repeated until it is answered; return its number."""
        if action is Action.LEAVE:
            self.leaving = True
            self.requests.forget_joins()
            self.abandon()
        number, out = self.requests.ask_next(self.job, action, value, now)
        self._out.append(out)
        return number

    def asks(self, action: Action) -> bool:
        """Return whether a request of this action is unanswered."""
        return any(packet.action is action for packet in self.requests.packets())

    def forget(self, request: int) -> None:
        """Stop repeating a request of this number."""
        self.requests.forget(request)

    @abstractmethod
    def abandon(self) -> None:
        """Abandon the transfers under way."""

    # What the world does

    @abstractmethod
    def transmissions(self, now: float) -> list[Outgoing]:
        """Return what to send now: control packets, and as much data as the window allows."""

    def receive(self, burst: Burst, now: float) -> None:
        """Take packets from the switch."""
        self.heard = now
        kind = burst.tos & TOS_MASK
        if kind == TOS_DATA:
            rows, tail = burst.not_below(SEG_SIZE)
            if len(rows):
                self._take(rows, tail, now)
        elif kind == TOS_CONTROL:
            for rows in burst.by_size():
                for row in rows:
                    self._control(row.tobytes(), now)

    @property
    def taken(self) -> Ack | None:
        """Return the Ack that refused our rank because another worker, perhaps dead, has it."""
        return self._claim.taken

    @property
    def speaks(self) -> bool:
        """Return whether control packets wait for `transmissions`."""
        return bool(self._out)

    @property
    def has_events(self) -> bool:
        """Return whether an event waits for `next_event`."""
        return bool(self._events)

    def next_event(self) -> E | Answered | Halted | None:
        """Take the oldest event that was not taken yet; None: there is none."""
        return self._events.popleft() if self._events else None

    def deadline(self) -> float | None:
        """Return the time at which to call `handle_timer` next; None: not needed."""
        due = self._next_heartbeat if self.member and not self.leaving else None
        if self._claim.taken is not None:
            due = self._claim.ask_again
        repeat = self.requests.deadline() if self.requests else None
        return earlier(due, repeat)

    def handle_timer(self, now: float) -> None:
        """Repeat unanswered requests, act on expired timers, and send a heartbeat if it is due."""
        self._out += self.requests.repeat(now)
        self._do_what_is_due(now)
        if self._claim.is_due(now):
            self.join(now)
        if self.member and not self.leaving and self._next_heartbeat <= now:
            self.join(now)

    # What the sessions say

    @abstractmethod
    def _standing(self) -> tuple[int, int]:
        """Return the flags and the round for a Join that resumes the membership."""

    @abstractmethod
    def _take_place(self, ack: Ack, now: float) -> None:
        """Use the answer to the first Join."""

    @abstractmethod
    def _take_place_again(self, ack: Ack, now: float) -> None:
        """Use the answer to a Join that resumes the membership."""

    @abstractmethod
    def _take(self, rows: Rows, tail: int, now: float) -> None:
        """Handle data packets that have arrived: the `rows` and `tail` of a `Burst`."""

    @abstractmethod
    def _do_what_is_due(self, now: float) -> None:
        """Act on timers that have expired."""

    @abstractmethod
    def _was_halted(self, now: float) -> None:
        """Handle the suspension of the job."""

    @abstractmethod
    def _was_reset(self, round_: int) -> None:
        """Handle a Reset that the switch relays."""

    @abstractmethod
    def _has_reset(self, round_: int) -> None:
        """Handle the answer to our own Reset."""

    @abstractmethod
    def _help_the_switch(self, named: Segments, now: float) -> None:
        """Send the switch our contribution to these segments."""

    @abstractmethod
    def _help_answered(
        self, named: Segments, asked: float, status: Status, ack: Ack, now: float
    ) -> None:
        """Handle the answer to a Help.

        Args:
            named: the segments that the Help named.
            asked: time at which the Help was sent.
            status: status of the answer.
            ack: the answer.
            now: the time, in seconds.
        """

    # Requests and answers

    def _help(self, named: Segments, now: float) -> None:
        """Send one Help, which is not repeated: the caller asks again if need be."""
        if len(self._help_requests) > 4 * RANGES_PER_HELP:
            self._help_requests.clear()
        number, out = self.requests.ask_once(self.job, Action.HELP, named)
        self._help_requests[number] = named, now
        self._out.append(out)

    def _given_out(self) -> list[Outgoing]:
        """Take the control packets that wait to be sent."""
        out = [self.key.sealed(one) for one in self._out] if self.key else list(self._out)
        self._out.clear()
        return out

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
        if not self._relayed.is_new(packet):
            return
        if packet.action is Action.HALT:
            self._was_halted(now)
        elif isinstance(packet.value, Round):
            self._was_reset(packet.value.round)
        elif isinstance(packet.value, Segments) and not packet.value.count:
            self._ask_for_slots(now)
        elif isinstance(packet.value, Segments):
            self._help_the_switch(packet.value, now)

    def _ask_for_slots(self, now: float) -> None:
        """Ask how many slots rounds may have, and tell how many they keep to meanwhile."""
        if self.slots and self.member:
            begun = self._slots.begun(self._standing()[1])
            keeps = min(self._slots.keeps, self.shape.segments)
            named = Segments(begun, keeps, 0)
            self._slots.asked = self.request(Action.HELP, named, now)

    def _note_denial(self, payload: bytes) -> None:
        """Note a refusal without a MAC: untrusted, but it may tell why nothing else comes."""
        try:
            packet = Control.parse(payload)
        except WireError:
            return
        refused = packet.action is Action.ACK and packet.status in (
            Status.DENIED,
            Status.BAD_REQUEST,
        )
        asked = self.requests.has(packet.request) or packet.request in self._help_requests
        self.denied |= refused and asked and packet.job == self.job

    def _ask_anew(self, request: int, last: int, now: float) -> None:
        """Send a request again with a number above `last`, the largest of an earlier process.

        A Help is not sent again.
        """
        self.requests.numbers.exceed(last)
        self._help_requests.pop(request, None)
        one = self.requests.find(request)
        if one is not None:
            self._out.append(self.requests.ask_anew(one, now))

    def _answered(self, packet: Control, ack: Ack, now: float) -> None:
        status = Status.of(packet.status)
        if self.key and status is Status.DENIED and ack.action != Action.JOIN:
            self._ask_anew(packet.request, ack.round, now)
            return
        if packet.request in self._help_requests:
            named, asked = self._help_requests.pop(packet.request)
            if status is Status.NOT_MEMBER:
                self._rejoin(now)
            elif status is Status.HALTED:
                self._was_halted(now)
            else:
                self._help_answered(named, asked, status, ack, now)
            return
        one = self.requests.answered_by(packet)
        if one is None:
            return
        is_join = one.packet.action is Action.JOIN
        take = self._join_answered if is_join else self._request_answered
        if take(one, status, ack, now):
            self._events.append(Answered(one.asked, one.packet.action, status, ack))

    def _join_answered(self, one: Unanswered, status: Status, ack: Ack, now: float) -> bool:
        """Take the answer to a Join; False: the owner need not hear of it."""
        heartbeat = is_heartbeat(one.packet)
        if status is Status.NOT_MEMBER:
            if heartbeat:  # else it is a late answer, and another Join is under way
                self.requests.close(one)
                self._rejoin(now)
            return False
        denied = status is Status.DENIED
        if heartbeat and (denied or (self.key and status is not Status.OK)):
            return False  # answered long ago, or to a late copy: a heartbeat is not refused
        if denied and self._settled and ack.round and ack.threshold == self.incarnation:
            return False  # to a late copy of our first Join: no later process is there
        if denied and self._outdo(one, ack, now):
            return False
        if status is Status.SLOTS and self._takes_slots(one, ack.threshold, now):
            return False
        if status is Status.WAITING and not self.member:
            self.waits = ack  # the switch answers this Join again, once there is room
            return False
        self.requests.close(one)
        if status is Status.RANK_TAKEN and self._is_to_ask_again(ack, now):
            return False
        if status is Status.OK:
            self._joined(ack, now)
        else:
            self.member = False
        return True

    def _request_answered(self, one: Unanswered, status: Status, ack: Ack, now: float) -> bool:
        """Take the answer to a request that is no Join."""
        self.requests.close(one)
        asked = one.packet.value
        of_room = isinstance(asked, Show) and asked.what == Shown.ROOM
        of_slots = isinstance(asked, Segments) and asked.index > 0 and not asked.count
        of_slots &= one.packet.action is Action.HELP
        if status is Status.NOT_MEMBER and one.packet.action is not Action.LEAVE:
            self._rejoin(now)
        elif status is Status.OK and one.packet.action is Action.RESET:
            self._has_reset(ack.round)
        elif status is Status.OK and of_room:
            self._switch_room = ack.threshold << 10
            self._share(self.joined)
        elif status is Status.OK and of_slots and ack.known >> SLOTS_TOLD:
            slots = 1 << (ack.known >> SLOTS_TOLD)
            if self._slots.answered(one.asked, ack.round, slots):
                self._ask_for_slots(now)
        return not (of_room or of_slots)  # for which only this session asks

    def _is_to_ask_again(self, ack: Ack, now: float) -> bool:
        """Return whether to join once more, now or soon, although another worker has our rank."""
        if self.terms.rank == NO_RANK:  # ours had been given: any other will do
            self.rank = NO_RANK
            self.join(now)
            return True
        return self._claim.may_succeed(ack, self._settled, now)

    def _outdo(self, one: Unanswered, ack: Ack, now: float) -> bool:
        """Join with a larger incarnation than an earlier process had at this address.

        A worker that has been a member does not: the larger one belongs to its successor.
        """
        behind = round_distance(ack.round, self.incarnation)
        if self._settled or not ack.round or behind < 0 or self._outdone >= MOST_OUTDONE:
            return False
        self._outdone += 1
        self.requests.close(one)
        if self.clock_behind is None:
            self.clock_behind = round_distance(ack.threshold, self.incarnation)
        self._be_called((ack.round + 1) & ROUND_MASK)
        self.join(now)
        return True

    def _takes_slots(self, one: Unanswered, slots: int, now: float) -> bool:
        """Join again, to send through as few slots as the switch has; False: this worker cannot.

        The number is another, so that an OK shows that the switch knows these slots: one that a
        former process was sent could come to this one, which has named none yet. A worker that has
        been a member cannot: what it has sent may need more.
        """
        more = 0 < self.slots < slots
        if self._settled or more or not self.terms.may_have_slots or slots < LEAST_SLOTS:
            return False
        self.requests.close(one)
        self._slots.agree(1 << slots.bit_length() - 1)
        self._share(self.joined)
        self._be_called((self.incarnation + 1) & ROUND_MASK)
        self.join(now)
        return True

    def _be_called(self, incarnation: int) -> None:
        """Change the incarnation, while no request but a Join has been sent."""
        self.incarnation = self.requests.numbers.last = incarnation

    def _joined(self, ack: Ack, now: float) -> None:
        self.rank, self._claim.taken, self.waits = ack.rank, None, None
        self.in_turns = bool(ack.known & IN_TURNS)
        if ack.contributors != self.joined:
            self._share(ack.contributors)
        if self._switch_room is None and self.window.ceiling < self._ceiling:
            self._switch_room = 0
            self.request(Action.SHOW, Show(Shown.ROOM), now)
        self.joined = ack.contributors
        self.threshold = ack.threshold
        self.told = now
        if self.member:
            return
        self.member = self._settled = True
        if not self._rejoining:
            self._take_place(ack, now)
            return
        self._rejoining = False
        if self.key is not None:  # no request of before may be repeated to it by others
            nothing = Segments(self._standing()[1], 0, 0)
            self._out.append(self.requests.ask_next(self.job, Action.HELP, nothing, now)[1])
        self._take_place_again(ack, now)

    def _share(self, workers: int) -> None:
        """Narrow the window to this worker's share of the room at the switch."""
        size = self.shape.packet_size
        fair = max(1, (self._switch_room or self.terms.room) // max(workers, 1) // size)
        burst = fair
        if self.reach < self.shape.segments:
            fair = min(fair, self.reach)
            burst = max(1, fair // BURSTS_IN_REACH)
        self.window.limit(min(self._ceiling, fair), min(super_packets(size), burst))
        self._burst = min(super_packets(size, self.terms.most), burst)

    @property
    def slots(self) -> int:
        """Return the slots through which the segments of a round go; 0: each has one."""
        return self._slots.of_round

    @property
    def reach(self) -> int:
        """Return how far a segment may be ahead of the first whose aggregate has not come."""
        segments = self.shape.segments
        return self.slots // 2 if 0 < self.slots < segments else segments

    def _rejoin(self, now: float) -> None:
        """Join again: the switch was restarted, or our lease ran out."""
        if self.member and not self.leaving:
            self.member = False
            self._rejoining = True
            self._switch_room = None  # another switch may have come in its place
            self._share(self.joined)
            self._relayed.begin_anew()
            self._slots.come_back()
            self._lost_place()
            self.stats["rejoins"] += 1
            self.join(now)

    def _lost_place(self) -> None:
        """Forget the statements of the switch, which has lost this membership."""
