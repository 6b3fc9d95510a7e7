"""Relay Help, Halt and Reset to members, and repeat them until they are acknowledged."""

from __future__ import annotations

from iswitch.core.exchange.requests import Backoff, Numbers, Requests
from iswitch.core.format.counters import Counters
from iswitch.core.format.packets import Address, Outgoing
from iswitch.core.format.wire import Action, Control, Value

FIRST_PAUSE = 0.02  # seconds; doubles with every repeat
MAX_SENDS = 10
MAX_PER_MEMBER = 64  # unanswered packets; no Help is relayed beyond, its sender asks again
BACKOFF = Backoff(FIRST_PAUSE, sends=MAX_SENDS)


class Relays:
    """Keeps the packets relayed to each member until they are acknowledged.

    One counter numbers the packets to all members.
    """

    def __init__(self, counters: Counters) -> None:
        self.counters = counters
        self._unanswered: dict[Address, Requests] = {}
        self._numbers = Numbers(0)

    def send(
        self, peer: Address, action: Action, job: int, value: Value, now: float
    ) -> list[Outgoing]:
        """Relay a control packet, unless an equal one to this member is unanswered.

        Args:
            peer: the member.
            action: Help, Halt or Reset.
            job: its job's number.
            value: the packet's value.
            now: the time, in seconds.
        """
        asked = self._unanswered.get(peer) or Requests(peer, self._numbers, BACKOFF)
        relayed = ((one.action, one.job, one.value) for one in asked.packets())
        full = action is Action.HELP and len(asked) >= MAX_PER_MEMBER
        if full or (action, job, value) in relayed:
            return []
        self._unanswered[peer] = asked
        return [asked.ask_next(job, action, value, now)[1]]

    def acked(self, peer: Address, request: int) -> Control | None:
        """Take an Ack from a member; return the packet that it answers, or None."""
        asked = self._unanswered.get(peer)
        one = asked.find(request) if asked is not None else None
        if asked is None or one is None:
            return None
        asked.close(one)
        self._drop_if_empty(asked)
        return one.packet

    def cancel(self, peer: Address, job: int) -> None:
        """Stop repeating the packets relayed to a member of this job."""
        if (asked := self._unanswered.get(peer)) is not None:
            asked.forget_job(job)
            self._drop_if_empty(asked)

    def deadline(self) -> float | None:
        """Return the time of the next repeat, in seconds; None: there is none."""
        due = (asked.deadline() for asked in self._unanswered.values())
        return min((when for when in due if when is not None), default=None)

    def handle_timer(self, now: float) -> list[Outgoing]:
        """Repeat the packets that are due; give up those sent `MAX_SENDS` times."""
        sends = []
        for asked in list(self._unanswered.values()):
            self.counters["relays_given_up"] += asked.give_up(now)
            sends += asked.repeat(now)
            self._drop_if_empty(asked)
        return sends

    def _drop_if_empty(self, asked: Requests) -> None:
        if not asked:
            del self._unanswered[asked.peer]
