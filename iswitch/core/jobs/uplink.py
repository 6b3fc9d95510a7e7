"""A job's membership at the switch above, as that switch sees it: one contributor among others.

An uplink repeats each request until it is answered; `parent.py` applies the answers to the job. An
uplink does not handle lost data: the workers below ask for Help, and the switch asks the parent for
results that only the parent has.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from iswitch.core.exchange.relayed import Relayed
from iswitch.core.exchange.requests import Alarm, Backoff, Numbers, Requests
from iswitch.core.format.packets import Address, Outgoing
from iswitch.core.format.wire import (
    FLAG_NEW,
    HEARTBEAT,
    NO_RANK,
    ROUND_MASK,
    Ack,
    Action,
    Control,
    Join,
    Segments,
    SwitchJoin,
    Value,
    Who,
    round_distance,
)
from iswitch.core.sums.runs import Run

from .phases import UPLINK, Named, UplinkPhase, follow
from .ranks import Statement
from .window import Window

FIRST_PAUSE = 0.02  # seconds before an unanswered request is repeated; doubles
LONGEST_PAUSE = 1.0
BACKOFF = Backoff(FIRST_PAUSE, LONGEST_PAUSE)
GATHER_PAUSE = 0.02  # seconds between two questions whether all workers are there
HELP_PAUSE = 0.01  # seconds before Help for equal segments may be asked again
REMEMBERED = 64  # open questions and requests for Help

Asked = Who | Segments | Run  # whom segments wait for; for aggregates; how many sums were counted


@dataclass
class Uplink:
    """Talks to the parent for one job.

    Args:
        parent: the parent's address.
        job: the job's number.
        incarnation: Request number of the Join.
        alarm: is stale after every call that may change the deadline; several may share it.
    """

    parent: Address
    job: int
    incarnation: int
    alarm: Alarm = field(default_factory=Alarm)
    phase: UplinkPhase = UplinkPhase.JOINING
    named: int | None = None  # the round that our first Join named
    sends_parts: bool = False  # our first Join has said that our contributions come in parts
    first_round: int = 0  # in which we take part
    waiting: dict[Address, Control] = field(default_factory=dict)  # Joins that wait for ours
    forwarded: dict[int, tuple[Address, Control]] = field(default_factory=dict)  # by our Request
    told: int = 0  # number of workers that our last Join named
    expected: int = 0  # number of workers that it expected
    statement: Statement = field(default_factory=Statement)  # of ranks
    next_join: float | None = None  # when to ask whether all are there, or renew the membership
    relayed: Relayed = field(default_factory=Relayed)  # by the parent
    _helped: dict[Segments, float] = field(default_factory=dict)
    _asked: dict[int, Asked] = field(default_factory=dict)  # by our Request

    def __post_init__(self) -> None:
        self.requests = Requests(self.parent, Numbers(self.incarnation), BACKOFF, self.alarm)

    @property
    def is_member(self) -> bool:
        """Return whether this switch is a member at the parent."""
        return self.phase is UplinkPhase.MEMBER

    @property
    def is_joining(self) -> bool:
        """Return whether this switch waits for the answer to a Join that makes it a member."""
        return self.phase in (UplinkPhase.JOINING, UplinkPhase.REJOINING)

    @property
    def is_leaving(self) -> bool:
        """Return whether a Leave is under way."""
        return self.phase is UplinkPhase.LEAVING

    def enter(self, phase: UplinkPhase) -> None:
        """Enter a phase.

        Raises:
            WrongStep: the phase cannot follow the present one.
        """
        self.phase = follow(UPLINK, self.phase, phase)
        self.alarm.stale = True

    def join(self, value: SwitchJoin, gathered: bool, now: float) -> list[Outgoing]:
        """Send a Join: to become or remain a member, or to tell the number of workers.

        Args:
            value: the Join.
            gathered: whether all workers have come.
            now: the time, in seconds.
        """
        if self.phase is UplinkPhase.JOINING:
            value = replace(value, flags=value.flags | FLAG_NEW)
        self.forget_join()
        self.told, self.expected = value.workers, value.expected
        settled = gathered and self.statement.decided
        self.join_at(now + (HEARTBEAT if settled else GATHER_PAUSE))
        return [self.requests.ask(Control(Action.JOIN, self.job, self.incarnation, value), now)]

    def join_at(self, when: float | None) -> None:
        """Set the time of the next Join, in seconds; None: there is none."""
        self.next_join = when
        self.alarm.stale = True

    def lacks(self, rank: int) -> bool:
        """Return whether a newcomer asks for a rank that the parent has not confirmed."""
        return rank != NO_RANK and not self.statement.granted >> rank & 1

    def asked(self) -> list[int]:
        """Return the ranks for which newcomers wait."""
        joins = (packet.value for packet in self.waiting.values())
        return [j.wanted for j in joins if isinstance(j, Join) and j.wanted != NO_RANK]

    def withdraw(self, peer: Address, leave: Control) -> None:
        """Forget the waiting Join of a process that leaves, if there is one."""
        join = self.waiting.get(peer)
        if join is not None and round_distance(leave.request, join.request) >= 0:
            del self.waiting[peer]

    def outdo(self, last: int, value: SwitchJoin, now: float) -> list[Outgoing]:
        """Join with a number above those of the previous process at this address.

        Args:
            last: the largest Request number of that process.
            value: the Join.
            now: the time, in seconds.
        """
        self.be_called((last + 1) & ROUND_MASK)
        return self.join(value, False, now)

    def be_called(self, incarnation: int) -> None:
        """Change the Request number of our Joins; other requests have numbers beyond it."""
        self.incarnation = incarnation
        self.requests.numbers.exceed(incarnation)

    def window(self) -> Window:
        """Return the job's first window at this switch, around `first_round`."""
        moved = self.named is not None and round_distance(self.first_round, self.named) > 0
        lowest = self.first_round if moved else None
        return Window(self.first_round, self.first_round, lowest, named=Named.SURE)

    def request(self, action: Action, value: Value, now: float) -> tuple[int, list[Outgoing]]:
        """Make a request to the parent; return its number and the packets to send.

        Args:
            action: the request's action.
            value: the request's value.
            now: the time, in seconds.
        """
        number, out = self.requests.ask_next(self.job, action, value, now)
        return number, [out]

    def help(self, named: Segments, now: float) -> list[Outgoing]:
        """Ask for aggregates without repeating it: the worker that waits for them asks again."""
        self._helped = {n: when for n, when in self._helped.items() if now - when < HELP_PAUSE}
        if named in self._helped:
            return []
        self._helped[named] = now
        return self._ask(named, named)

    def asked_until(self, named: Segments) -> float:
        """Return the time from which on Help for these segments is asked again, in seconds."""
        return self._helped.get(named, -HELP_PAUSE) + HELP_PAUSE

    def ask_for_whom(self, who: Who) -> list[Outgoing]:
        """Ask for whom segments wait, without repeating it: the worker that asked asks again."""
        return self._ask(who, who)

    def mark(self, run: Run) -> list[Outgoing]:
        """Ask, behind a partial sum of this number, how many of its segments were counted."""
        return self._ask(Segments(run.round, run.start, 0), run)

    def _ask(self, value: Segments | Who, asked: Asked) -> list[Outgoing]:
        number, out = self.requests.ask_once(self.job, Action.HELP, value)
        self.remember(number, asked)
        return [out]

    def remember(self, request: int, asked: Asked) -> None:
        """Remember an open question; the oldest makes room if there are too many."""
        while len(self._asked) >= REMEMBERED:
            del self._asked[next(iter(self._asked))]
        self._asked[request] = asked

    @property
    def newest_question(self) -> tuple[int, Asked | None]:
        """Return the Request number of the newest open question, and what it asks; -1: none is."""
        return next(reversed(self._asked.items()), (-1, None))

    @property
    def last_request(self) -> int:
        """Return the largest Request number used so far."""
        return self.requests.numbers.last

    def was_asked(self, request: int) -> Asked | None:
        """Return the question with this Request number, and forget it; None: none is open."""
        return self._asked.pop(request, None)

    def answered(self, packet: Control) -> Control | None:
        """Return the request that an Ack answers, and stop repeating it; None: none is open.

        Help is never among them, since it is not repeated.
        """
        one = self.requests.answered_by(packet)
        if one is None:
            return None
        self.requests.close(one)
        return one.packet

    def ask_anew(self, request: int, last: int, now: float) -> list[Outgoing]:
        """Send a request again with a number above those of an earlier process at this address.

        Args:
            request: the number that was too small.
            last: the number to exceed.
            now: the time, in seconds.
        """
        self.requests.numbers.exceed(last)
        one = self.requests.find(request)
        if one is None:  # Help: the worker that waits asks again
            return []
        out = self.requests.ask_anew(one, now)
        if request in self.forwarded:
            self.forwarded[self.last_request] = self.forwarded.pop(request)
        return [out]

    def acknowledge(self, packet: Control, value: Ack | None = None) -> tuple[Outgoing, bool]:
        """Return the Ack to a command that the parent relayed, and whether the command is new."""
        ack = Control(Action.ACK, self.job, packet.request, value or Ack(packet.action))
        return Outgoing.control(self.parent, ack.build()), self.relayed.is_new(packet)

    def begin_anew(self) -> None:
        """Begin to join again: the parent was restarted, or our lease ran out."""
        self.enter(UplinkPhase.REJOINING)
        self.relayed.begin_anew()
        self.forget_join()

    def forget_join(self) -> None:
        """Stop repeating Joins, and forget the time of the next one."""
        self.join_at(None)
        self.requests.forget_joins()

    def deadline(self) -> float | None:
        """Return the time of the next repeat or Join, in seconds; None: there is none."""
        due = self.requests.deadline()
        if self.next_join is not None and self.is_member:
            due = self.next_join if due is None else min(due, self.next_join)
        return due
