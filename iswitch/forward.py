"""A switch that adds nothing: what it costs to pass the same frames, to compare with."""

from __future__ import annotations

from .arbiter import Traffic, classify
from .packets import Burst, Outgoing
from .switch import Switch
from .wire import TOS_DATA


class CopySwitch(Switch):
    """Sends data back to where it came from, as it is; control as ever."""

    def receive(self, burst: Burst, now: float) -> list[Outgoing]:
        """Return contributions to their senders."""
        if classify(burst.tos) is Traffic.DATA:
            return [Outgoing((burst.peer,), TOS_DATA, burst.rows, burst.tail)]
        return super().receive(burst, now)
