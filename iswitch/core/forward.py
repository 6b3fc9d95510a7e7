"""A switch that adds nothing: what it costs to pass the same frames, to compare with."""

from __future__ import annotations

from iswitch.core.format.arbiter import Traffic, classify
from iswitch.core.format.packets import Burst, Outgoing
from iswitch.core.format.wire import TOS_DATA

from .switch import Switch


class CopySwitch(Switch):
    """Sends data back to where it came from, as it is; control as ever."""

    def receive(self, burst: Burst, now: float) -> list[Outgoing]:
        """Return contributions to their senders."""
        if classify(burst.tos) is Traffic.DATA:
            return [Outgoing((burst.peer,), TOS_DATA, burst.rows, burst.tail)]
        return super().receive(burst, now)
