"""Finds repeats of relayed packets, so that each is executed once."""

from __future__ import annotations

from collections import deque

from iswitch.core.format.wire import Action, Control, round_distance

REMEMBERED = 64  # Requests of the last packets that were relayed


class Relayed:
    """Remembers the packets that the switch above has relayed.

    A switch repeats a relayed packet until it is acknowledged, so a packet comes again if its Ack
    was lost. A Halt that is older than the newest one must not be executed at all, as nothing would
    end it.
    """

    def __init__(self) -> None:
        self._seen: deque[int] = deque(maxlen=REMEMBERED)
        self._halt: int | None = None  # Request of the newest Halt

    def is_new(self, packet: Control) -> bool:
        """Return whether to execute a packet, and remember it."""
        if packet.request in self._seen:
            return False
        self._seen.append(packet.request)
        if packet.action is not Action.HALT:
            return True
        if self._halt is not None and round_distance(packet.request, self._halt) <= 0:
            return False
        self._halt = packet.request
        return True

    def begin_anew(self) -> None:
        """Forget everything: a switch that was restarted numbers from the start again."""
        self._halt = None
        self._seen.clear()
