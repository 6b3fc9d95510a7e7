"""Repeat requests until they are answered: one engine for workers, controllers and switches.

An Ack names the action and the Request that it answers. A Join's Request is the incarnation of its
sender; all other requests are numbered on from there. So a Join and another request may have one
number, and are told apart by the action.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from iswitch.core.format.packets import Address, Outgoing
from iswitch.core.format.wire import (
    FLAG_HEARTBEAT,
    FLAG_NEW,
    ROUND_MASK,
    Ack,
    Action,
    Control,
    Join,
    Value,
    later,
)

Key = tuple[bool, int]  # whether it is a Join, and its Request


@dataclass(frozen=True, slots=True)
class Backoff:
    """When an unanswered request is sent again, and when it is given up.

    Attributes:
        first: seconds before the first repeat; each pause is twice as long as the one before.
        longest: seconds that no pause exceeds.
        sends: the request is given up when it was sent this often; None: never.
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
        """Count from `last` on, if it is later than the own last number."""
        self.last = later(self.last, last)


@dataclass(slots=True)
class Unanswered:
    """A request under way.

    Attributes:
        packet: the request.
        due: when it is to be sent again.
        pause: seconds between the last time it was sent and `due`.
        asked: the number that it had at first, by which its asker knows it.
        sends: how often it was sent.
    """

    packet: Control
    due: float
    pause: float
    asked: int
    sends: int = 1

    @property
    def key(self) -> Key:
        """Its place among the requests of one asker."""
        return self.packet.action is Action.JOIN, self.packet.request


class Requests:
    """The unanswered requests of one asker to one peer.

    Args:
        peer: where they go.
        numbers: of the requests; several askers may share them.
        backoff: when they are repeated.
    """

    def __init__(self, peer: Address, numbers: Numbers, backoff: Backoff) -> None:
        self.peer = peer
        self.numbers = numbers
        self.backoff = backoff
        self._unanswered: dict[Key, Unanswered] = {}

    def __len__(self) -> int:
        return len(self._unanswered)

    def packets(self) -> list[Control]:
        """The unanswered requests, the oldest first."""
        return [one.packet for one in self._unanswered.values()]

    def has(self, number: int) -> bool:
        """Whether a request of this number, a Join or another, is unanswered."""
        return (True, number) in self._unanswered or (False, number) in self._unanswered

    def ask(self, packet: Control, now: float) -> Outgoing:
        """Send a request now, and again until it is answered.

        It takes the place of an unanswered one that has its number.
        """
        return self._send(packet, packet.request, now)

    def ask_next(self, job: int, action: Action, value: Value, now: float) -> tuple[int, Outgoing]:
        """Ask with the next number; that number, and what to send."""
        packet = Control(action, job, self.numbers.next(), value)
        return packet.request, self.ask(packet, now)

    def ask_once(self, job: int, action: Action, value: Value) -> tuple[int, Outgoing]:
        """Have a request with the next number sent, which is never repeated."""
        packet = Control(action, job, self.numbers.next(), value)
        return packet.request, self._out(packet)

    def ask_anew(self, one: Unanswered, now: float) -> Outgoing:
        """Ask with the next number what was asked with one that the peer calls too small."""
        self.close(one)
        return self._send(one.packet._replace(request=self.numbers.next()), one.asked, now)

    def find(self, number: int, is_join: bool = False) -> Unanswered | None:
        """The unanswered request of this number, or None."""
        return self._unanswered.get((is_join, number))

    def answered_by(self, packet: Control) -> Unanswered | None:
        """The unanswered request that an Ack answers, or None; it stays unanswered until `close`.

        A first Join can have a late answer to the first Join of an earlier process at this address,
        if that began in the same second. Such an Ack says that the sender has been a member.
        """
        ack = packet.value
        assert isinstance(ack, Ack)
        one = self.find(packet.request, ack.action == Action.JOIN)
        if one is None or (one.packet.action, one.packet.job) != (ack.action, packet.job):
            return None
        return None if ack.known and is_first_join(one.packet) else one

    def close(self, one: Unanswered) -> None:
        """Repeat a request no more."""
        self._unanswered.pop(one.key, None)

    def forget(self, number: int) -> None:
        """Repeat the request of this number, which is no Join, no more."""
        self._unanswered.pop((False, number), None)

    def clear(self) -> None:
        """Repeat nothing."""
        self._unanswered.clear()

    def forget_joins(self) -> None:
        """Repeat no Join."""
        self._unanswered = {key: one for key, one in self._unanswered.items() if not key[0]}

    def forget_job(self, job: int) -> None:
        """Repeat nothing that concerns this job."""
        self._unanswered = {k: one for k, one in self._unanswered.items() if one.packet.job != job}

    def deadline(self) -> float | None:
        """When the next repeat is due; None: nothing is unanswered."""
        return min((one.due for one in self._unanswered.values()), default=None)

    def give_up(self, now: float) -> int:
        """Forget what is due once more but was sent often enough; how many these were."""
        most = self.backoff.sends or inf
        over = [one for one in self._unanswered.values() if one.due <= now and one.sends >= most]
        for one in over:
            self.close(one)
        return len(over)

    def repeat(self, now: float) -> list[Outgoing]:
        """Send again what is due."""
        sends = []
        for one in self._unanswered.values():
            if one.due <= now:
                one.sends += 1
                one.pause = min(2 * one.pause, self.backoff.longest)
                one.due = now + one.pause
                sends.append(self._out(one.packet))
        return sends

    def _send(self, packet: Control, asked: int, now: float) -> Outgoing:
        one = Unanswered(packet, now + self.backoff.first, self.backoff.first, asked)
        self._unanswered[one.key] = one
        return self._out(packet)

    def _out(self, packet: Control) -> Outgoing:
        return Outgoing.control(self.peer, packet.build())


def is_heartbeat(packet: Control) -> bool:
    """Whether it is the Join of a member, which asks to remain one."""
    return isinstance(packet.value, Join) and bool(packet.value.flags & FLAG_HEARTBEAT)


def is_first_join(packet: Control) -> bool:
    """Whether it is the Join of a process that has not been a member yet."""
    return isinstance(packet.value, Join) and bool(packet.value.flags & FLAG_NEW)
