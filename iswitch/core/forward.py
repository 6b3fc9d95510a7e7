"""A switch that adds nothing: benchmarks compare with its cost of passing frames."""

from __future__ import annotations

from iswitch.core.format.arbiter import Traffic, classify
from iswitch.core.format.packets import Burst, Outgoing
from iswitch.core.format.wire import TOS_DATA

from .switch import Switch


class CopySwitch(Switch):
    """Sends data back to its sender unchanged; handles control packets like a `Switch`."""

    def receive(self, burst: Burst, now: float) -> list[Outgoing]:
        """Return contributions to their senders."""
        if classify(burst.tos) is Traffic.DATA:
            return [Outgoing((burst.peer,), TOS_DATA, burst.rows, burst.tail)]
        return super().receive(burst, now)
