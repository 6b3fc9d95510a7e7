"""Control packets from the switch to its workers, repeated until acked.

Help, Halt and Reset are relayed with request numbers of the switch's own, and repeated with a
growing pause, at most ten times in all.
"""

from __future__ import annotations

from dataclasses import dataclass

from iswitch.core.format.counters import Counters
from iswitch.core.format.packets import Address, Outgoing
from iswitch.core.format.wire import ROUND_MASK, Action, Control, Value

FIRST_PAUSE = 0.02  # seconds; doubles with every repeat
MAX_SENDS = 10
MAX_PER_MEMBER = 64  # outstanding; a Help beyond is not relayed, its asker will ask again


@dataclass(slots=True)
class _Outstanding:
    packet: Control
    due: float
    pause: float
    sends: int


class Relays:
    """What has been relayed and not been acked yet."""

    def __init__(self, counters: Counters) -> None:
        self.counters = counters
        self._outstanding: dict[Address, dict[int, _Outstanding]] = {}
        self._request = 0

    def send(
        self, peer: Address, action: Action, job: int, value: Value, now: float
    ) -> list[Outgoing]:
        """Relay a control packet, unless the very same is under way to this member already."""
        pending = self._outstanding.setdefault(peer, {})
        same = any(
            o.packet.action is action and o.packet.job == job and o.packet.value == value
            for o in pending.values()
        )
        if same or (action is Action.HELP and len(pending) >= MAX_PER_MEMBER):
            return []
        self._request = (self._request + 1) & ROUND_MASK
        packet = Control(action, job, self._request, value)
        pending[self._request] = _Outstanding(packet, now + FIRST_PAUSE, FIRST_PAUSE, 1)
        return [Outgoing.control(peer, packet.build())]

    def acked(self, peer: Address, request: int) -> Control | None:
        """What an Ack that came answers; None: nothing with this number is outstanding."""
        pending = self._outstanding.get(peer, {})
        found = pending.pop(request, None)
        if not pending:
            self._outstanding.pop(peer, None)
        return found.packet if found else None

    def cancel(self, peer: Address, job: int) -> None:
        """Stop repeating what is under way to a member of this job."""
        pending = self._outstanding.get(peer, {})
        for request in [r for r, o in pending.items() if o.packet.job == job]:
            del pending[request]
        if not pending:
            self._outstanding.pop(peer, None)

    def deadline(self) -> float | None:
        """When the next repeat is due."""
        return min(
            (o.due for pending in self._outstanding.values() for o in pending.values()),
            default=None,
        )

    def handle_timer(self, now: float) -> list[Outgoing]:
        """Repeat what is due."""
        sends = []
        for peer, pending in list(self._outstanding.items()):
            for request, o in list(pending.items()):
                if o.due > now:
                    continue
                if o.sends >= MAX_SENDS:
                    del pending[request]
                    self.counters["relays_given_up"] += 1
                    if not pending:
                        del self._outstanding[peer]
                    continue
                o.sends += 1
                o.pause *= 2
                o.due = now + o.pause
                sends.append(Outgoing.control(peer, o.packet.build()))
        return sends
