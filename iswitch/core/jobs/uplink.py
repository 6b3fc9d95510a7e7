"""A job's membership at the switch above, as that switch sees it: one contributor among others.

An uplink asks and repeats what it asks until it is answered; what the answers mean for the job is
the business of `hierarchy.py`. Lost data is no concern of it: the workers below ask for Help, and
what only the parent can help with is passed on.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field, replace

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
    later,
    round_distance,
)

from .job import Window
from .ranks import Statement

FIRST_PAUSE = 0.02  # seconds before an unanswered request is repeated; doubles
LONGEST_PAUSE = 1.0
GATHER_PAUSE = 0.02  # seconds between two questions whether all workers are there
HELP_PAUSE = 0.01  # seconds in which the same segments are not asked for again
REMEMBERED = 64  # of what the parent relayed


@dataclass(slots=True)
class _Pending:
    packet: Control
    due: float
    pause: float


@dataclass
class Uplink:
    """Talks to the parent for one job.

    Args:
        parent: where it is.
        job: the job's number.
        incarnation: Request of the Join.
    """

    parent: Address
    job: int
    incarnation: int
    member: bool = False
    settled: bool = False  # has been a member, if it is none now
    leaving: bool = False
    named: int | None = None  # the round that our first Join named
    first_round: int = 0  # where we take part from
    waiting: dict[Address, Control] = field(default_factory=dict)  # Joins that wait for ours
    forwarded: dict[int, tuple[Address, Control]] = field(default_factory=dict)  # by our Request
    told: int = 0  # workers, by our last Join
    statement: Statement = field(default_factory=Statement)  # of ranks
    next_join: float | None = None  # when to ask who is there, or to be a member still
    _pending: dict[tuple[bool, int], _Pending] = field(default_factory=dict)  # a Join? Request
    _seen: deque[int] = field(default_factory=lambda: deque(maxlen=REMEMBERED))
    _helped: dict[Segments, float] = field(default_factory=dict)
    _asked: dict[int, Who] = field(default_factory=dict)  # by our Request
    _last: int = 0
    _halt: int | None = None  # Request of the newest Halt

    def __post_init__(self) -> None:
        self._last = self.incarnation

    def join(self, value: SwitchJoin, gathered: bool, now: float) -> list[Outgoing]:
        """Join, be a member still, or tell how many workers there are now."""
        if not self.settled:
            value = replace(value, flags=value.flags | FLAG_NEW)
        self.forget_join()
        self.told = value.workers
        settled = gathered and self.statement.decided
        self.next_join = now + (HEARTBEAT if settled else GATHER_PAUSE)
        return self._ask(Control(Action.JOIN, self.job, self.incarnation, value), now)

    def lacks(self, rank: int) -> bool:
        """Whether the parent has not confirmed a rank that a newcomer asks for."""
        return rank != NO_RANK and not self.statement.granted >> rank & 1

    def asked(self) -> list[int]:
        """Ranks that newcomers wait for."""
        joins = (packet.value for packet in self.waiting.values())
        return [j.wanted for j in joins if isinstance(j, Join) and j.wanted != NO_RANK]

    def outdo(self, last: int, value: SwitchJoin, now: float) -> list[Outgoing]:
        """Join with a number above `last`: the process before at this address had used it."""
        self.be_called((last + 1) & ROUND_MASK)
        return self.join(value, False, now)

    def be_called(self, incarnation: int) -> None:
        """Join with another Request from now on; those of other requests are beyond it."""
        self.incarnation = incarnation
        self._last = later(self._last, incarnation)

    def window(self) -> Window:
        """Where the job begins here: if the parent was moved on meanwhile, no earlier."""
        moved = self.named is not None and round_distance(self.first_round, self.named) > 0
        lowest = self.first_round if moved else None
        return Window(self.first_round, self.first_round, lowest, named=True)

    def request(self, action: Action, value: Value, now: float) -> tuple[int, list[Outgoing]]:
        """Have the parent do something; the Request, and what to send."""
        self._last = (self._last + 1) & ROUND_MASK
        return self._last, self._ask(Control(action, self.job, self._last, value), now)

    def help(self, named: Segments, now: float) -> list[Outgoing]:
        """Ask for aggregates, once: who waits for them asks again."""
        self._helped = {n: when for n, when in self._helped.items() if now - when < HELP_PAUSE}
        if named in self._helped:
            return []
        self._helped[named] = now
        self._last = (self._last + 1) & ROUND_MASK
        return [self._out(Control(Action.HELP, self.job, self._last, named))]

    def ask_for_whom(self, who: Who) -> list[Outgoing]:
        """Ask for whom segments wait, once: who wants to know asks again."""
        while len(self._asked) >= REMEMBERED:
            del self._asked[next(iter(self._asked))]
        self._last = (self._last + 1) & ROUND_MASK
        self._asked[self._last] = who
        return [self._out(Control(Action.HELP, self.job, self._last, who))]

    @property
    def last_request(self) -> int:
        """The largest number that a Request of ours has had."""
        return self._last

    def was_asked(self, request: int) -> Who | None:
        """Which question a Request of ours asked, if it was one and is not answered yet."""
        return self._asked.pop(request, None)

    def answered(self, packet: Control, ack: Ack) -> Control | None:
        """What an Ack answers; None: nothing that is open. (An answer to Help has no request.)"""
        key = ack.action == Action.JOIN, packet.request
        pending = self._pending.get(key)
        if pending is None or pending.packet.action != ack.action:
            return None
        asked = pending.packet.value
        if ack.known and isinstance(asked, Join) and asked.flags & FLAG_NEW:
            return None  # to a former process, which began in the same second
        del self._pending[key]
        return pending.packet

    def ask_anew(self, request: int, last: int, now: float) -> list[Outgoing]:
        """The parent wants a number above `last`: our process before had used up so many."""
        self._last = later(self._last, last)
        pending = self._pending.pop((False, request), None)
        if pending is None:  # Help: who waits asks again
            return []
        number, sends = self.request(pending.packet.action, pending.packet.value, now)
        if request in self.forwarded:
            self.forwarded[number] = self.forwarded.pop(request)
        return sends

    def acknowledge(self, packet: Control, value: Ack | None = None) -> tuple[Outgoing, bool]:
        """The Ack to what the parent relayed, and whether it is new."""
        ack = Control(Action.ACK, self.job, packet.request, value or Ack(packet.action))
        new = packet.request not in self._seen
        if packet.action is Action.HALT:  # an old one must not come again: nothing here ends it
            new = self._halt is None or round_distance(packet.request, self._halt) > 0
            self._halt = packet.request if new else self._halt
        if new:
            self._seen.append(packet.request)
        return self._out(ack), new

    def begin_anew(self) -> None:
        """The parent does not know us: it was restarted, or our lease ran out."""
        self.member = False
        self._halt = None
        self._seen.clear()  # a switch that was restarted numbers from the start again
        self.forget_join()

    def forget_join(self) -> None:
        """Repeat no Join that is under way."""
        self.next_join = None
        self._pending = {key: p for key, p in self._pending.items() if not key[0]}

    def deadline(self) -> float | None:
        """When something is due."""
        due = [pending.due for pending in self._pending.values()]
        if self.next_join is not None and self.member:
            due.append(self.next_join)
        return min(due, default=None)

    def repeat(self, now: float) -> list[Outgoing]:
        """Repeat what was not answered in time."""
        sends = []
        for pending in self._pending.values():
            if pending.due <= now:
                pending.pause = min(2 * pending.pause, LONGEST_PAUSE)
                pending.due = now + pending.pause
                sends.append(self._out(pending.packet))
        return sends

    def _ask(self, packet: Control, now: float) -> list[Outgoing]:
        key = packet.action is Action.JOIN, packet.request
        self._pending[key] = _Pending(packet, now + FIRST_PAUSE, FIRST_PAUSE)
        return [self._out(packet)]

    def _out(self, packet: Control) -> Outgoing:
        return Outgoing.control(self.parent, packet.build())
