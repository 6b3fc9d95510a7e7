"""Repeats requests until they are answered: one engine for workers, controllers and switches.

An Ack names the action and the Request number that it answers. A Join's number is the incarnation
of its sender; other requests count up from there. So a Join and another request may share a number,
and are told apart by the action.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import inf

from iswitch.core.format.packets import Address, Outgoing
from iswitch.core.format.wire import (
    FLAG_HEARTBEAT,
    FLAG_NEW,
    IN_TURNS,
    ROUND_MASK,
    Ack,
    Action,
    Control,
    Join,
    Value,
    later,
)

Key = tuple[bool, int]  # whether the request is a Join, and its number


@dataclass(frozen=True, slots=True)
class Backoff:
    """Sets when an unanswered request is repeated, and when it is given up.

    Attributes:
        first: seconds before the first repeat; each further pause doubles.
        longest: the longest pause, in seconds.
        sends: number of sendings after which a request is given up; None: never.
    """

    first: float
    longest: float = inf
    sends: int | None = None


@dataclass(slots=True)
class Numbers:
    """Numbers for requests, counting up from `last`, the largest that was used."""

    last: int

    def next(self) -> int:
        """Count up by one."""
        self.last = (self.last + 1) & ROUND_MASK
        return self.last

    def exceed(self, last: int) -> None:
        """Continue from `last` if it is later than the last number used."""
        self.last = later(self.last, last)


@dataclass(slots=True)
class Unanswered:
    """A request under way.

    Attributes:
        packet: the request.
        due: the time of the next repeat, in seconds.
        pause: seconds from the last sending to `due`.
        asked: Request number of the first sending, by which the asker knows the request.
        sends: how often the request was sent so far.
    """

    packet: Control
    due: float
    pause: float
    asked: int
    sends: int = 1

    @property
    def key(self) -> Key:
        """Return a key that no other unanswered request of the asker has."""
        return self.packet.action is Action.JOIN, self.packet.request


class Alarm:
    """Keeps the earliest of many deadlines.

    Attributes:
        stale: one of them may have changed since they were looked at.
    """

    def __init__(self) -> None:
        self.stale = True
        self._due: float | None = None

    def due(self, deadlines: Iterable[float | None]) -> float | None:
        """Return the earliest, in seconds; None: there is none. They are read only if it is stale.

        Args:
            deadlines: all of them.
        """
        if self.stale:
            self.stale = False
            self._due = min((at for at in deadlines if at is not None), default=None)
        return self._due


class Requests:
    """The unanswered requests of one asker to one peer.

    Args:
        peer: the address to which they go.
        numbers: numbers the requests; several askers may share them.
        backoff: sets the times of repeats.
        alarm: is stale after every call that may change the deadline; several may share it.
    """

    def __init__(
        self, peer: Address, numbers: Numbers, backoff: Backoff, alarm: Alarm | None = None
    ) -> None:
        self.peer = peer
        self.numbers = numbers
        self.backoff = backoff
        self.alarm = alarm or Alarm()
        self._unanswered: dict[Key, Unanswered] = {}

    def __len__(self) -> int:
        return len(self._unanswered)

    @property
    def sends(self) -> int:
        """Return how often the unanswered request was sent that was sent most; 0: there is none."""
        return max((one.sends for one in list(self._unanswered.values())), default=0)

    def packets(self) -> list[Control]:
        """Return the unanswered requests, the oldest first."""
        return [one.packet for one in self._unanswered.values()]

    def has(self, number: int) -> bool:
        """Return whether any request with this number, a Join or another, is unanswered."""
        return (True, number) in self._unanswered or (False, number) in self._unanswered

    def ask(self, packet: Control, now: float) -> Outgoing:
        """Return a request to send now; it is repeated until it is answered.

        It replaces an unanswered request with an equal key.
        """
        return self._send(packet, packet.request, now)

    def ask_next(self, job: int, action: Action, value: Value, now: float) -> tuple[int, Outgoing]:
        """Make a request with the next number; return the number and the packet to send.

        Args:
            job: the job's number.
            action: the request's action.
            value: the request's value.
            now: the time, in seconds.
        """
        packet = Control(action, job, self.numbers.next(), value)
        return packet.request, self.ask(packet, now)

    def ask_once(self, job: int, action: Action, value: Value) -> tuple[int, Outgoing]:
        """Make a request that is never repeated; return its number and the packet to send.

        Args:
            job: the job's number.
            action: the request's action.
            value: the request's value.
        """
        packet = Control(action, job, self.numbers.next(), value)
        return packet.request, self._out(packet)

    def ask_anew(self, one: Unanswered, now: float) -> Outgoing:
        """Repeat a request under the next number, after the peer called its number too small."""
        self.close(one)
        return self._send(one.packet._replace(request=self.numbers.next()), one.asked, now)

    def find(self, number: int, is_join: bool = False) -> Unanswered | None:
        """Return the unanswered request with this number, or None."""
        return self._unanswered.get((is_join, number))

    def answered_by(self, packet: Control) -> Unanswered | None:
        """Return the unanswered request that an Ack answers, or None; `close` ends its repeats.

        An Ack with `known` never answers a first Join: it is a late answer to the first Join of an
        earlier process at this address, which began in the same second.
        """
        ack = packet.value
        assert isinstance(ack, Ack)
        one = self.find(packet.request, ack.action == Action.JOIN)
        if one is None or (one.packet.action, one.packet.job) != (ack.action, packet.job):
            return None
        return None if ack.known & ~IN_TURNS and is_first_join(one.packet) else one

    def close(self, one: Unanswered) -> None:
        """Stop repeating a request."""
        self.alarm.stale = True
        self._unanswered.pop(one.key, None)

    def forget(self, number: int) -> None:
        """Stop repeating the request with this number, unless it is a Join."""
        self.alarm.stale = True
        self._unanswered.pop((False, number), None)

    def clear(self) -> None:
        """Stop repeating all requests."""
        self.alarm.stale = True
        self._unanswered.clear()

    def forget_joins(self) -> None:
        """Stop repeating Joins."""
        self.alarm.stale = True
        self._unanswered = {key: one for key, one in self._unanswered.items() if not key[0]}

    def forget_job(self, job: int) -> None:
        """Stop repeating the requests of this job."""
        self.alarm.stale = True
        self._unanswered = {k: one for k, one in self._unanswered.items() if one.packet.job != job}

    def deadline(self) -> float | None:
        """Return the time of the next repeat, in seconds; None: nothing is unanswered."""
        return min((one.due for one in self._unanswered.values()), default=None)

    def give_up(self, now: float) -> int:
        """Give up the due requests that were sent often enough; return their number."""
        most = self.backoff.sends or inf
        over = [one for one in self._unanswered.values() if one.due <= now and one.sends >= most]
        for one in over:
            self.close(one)
        return len(over)

    def repeat(self, now: float) -> list[Outgoing]:
        """Return the requests to repeat now."""
        self.alarm.stale = True
        sends = []
        for one in self._unanswered.values():
            if one.due <= now:
                one.sends += 1
                one.pause = min(2 * one.pause, self.backoff.longest)
                one.due = now + one.pause
                sends.append(self._out(one.packet))
        return sends

    def _send(self, packet: Control, asked: int, now: float) -> Outgoing:
        self.alarm.stale = True
        one = Unanswered(packet, now + self.backoff.first, self.backoff.first, asked)
        self._unanswered[one.key] = one
        return self._out(packet)

    def _out(self, packet: Control) -> Outgoing:
        return Outgoing.control(self.peer, packet.build())


def is_heartbeat(packet: Control) -> bool:
    """Return whether a packet is the Join of a member, which asks to remain one."""
    return isinstance(packet.value, Join) and bool(packet.value.flags & FLAG_HEARTBEAT)


def is_first_join(packet: Control) -> bool:
    """Return whether a packet is the Join of a process that has not been a member yet."""
    return isinstance(packet.value, Join) and bool(packet.value.flags & FLAG_NEW)
