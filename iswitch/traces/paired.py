"""The switches that replay a trace, and how they are set up."""

from __future__ import annotations

from dataclasses import dataclass, field

from iswitch.core.format.arbiter import Traffic, classify
from iswitch.core.format.keys import Keys
from iswitch.core.format.packets import Burst, Outgoing
from iswitch.core.format.wire import SEG_SIZE, DType, Op
from iswitch.core.jobs.limits import Limits
from iswitch.core.sums.paper import Counting
from iswitch.core.switch import Switch
from iswitch.ethernet.chassis import Chassis
from iswitch.ethernet.forwarding import Forwarder, Sends
from iswitch.ethernet.frame import Frames
from iswitch.ethernet.guard import SourceGuard

from .observed import ObservedSwitch


@dataclass
class ReplayOptions:
    """How the switch that replays is set up, as the one of the trace was."""

    keys: Keys = field(default_factory=Keys)
    limits: Limits = field(default_factory=Limits)
    reproducible: bool = False
    counting: Counting = Counting.EXACT


class MagnitudesSwitch(Switch):
    """A switch that adds up the absolute values of what it is sent."""

    def receive(self, burst: Burst, now: float) -> list[Outgoing]:
        """As a switch does."""
        if classify(burst.tos) is Traffic.DATA and (found := self.record.by_source.get(burst.peer)):
            shape = found[0].shape
            if shape is not None and shape.op is Op.SUM and shape.dtype is not DType.INT32:
                rows = burst.rows.copy()
                top = SEG_SIZE + shape.dtype.itemsize - 1
                rows[:, top :: shape.dtype.itemsize] &= 0x7F
                burst = burst._replace(rows=rows)
        return super().receive(burst, now)


class PairedSwitch(ObservedSwitch):
    """An observed switch that passes all it is sent to a switch of magnitudes, too."""

    magnitudes: MagnitudesSwitch | None = None

    def receive(self, burst: Burst, now: float) -> list[Outgoing]:
        """As a switch does."""
        if self.magnitudes is not None:
            self.magnitudes.receive(burst, now)
        return super().receive(burst, now)

    def handle_timer(self, now: float) -> list[Outgoing]:
        """Do what is due, in both switches."""
        if self.magnitudes is not None:
            self.magnitudes.handle_timer(now)
        return super().handle_timer(now)


class Unguarded(SourceGuard):
    """Lets everybody have any address, like a switch on a socket."""

    def is_spoofed(self, mac: bytes, ip: bytes, ingress: int) -> bool:  # noqa: ARG002
        """Say no: every address is allowed."""
        return False

    def spoofed(self, group: Frames) -> None:  # noqa: ARG002
        """Name none of the frames."""
        return


class UnwrittenForwarder(Forwarder):
    """Counts the frames for all ports, which are alike, and writes those for the first.

    So a broadcast costs the same at any number of ports.
    """

    def spread(
        self, ports: tuple[int, ...], group: Frames, counts: list[int], largest: list[int]
    ) -> Sends:
        """Give what leaves at the first port, and count it for the others."""
        counters, others = self.counters, len(ports) - 1
        before = counters["too_large"]
        sends = super().spread(ports[:1], group, counts, largest)
        counters["too_large"] += others * (counters["too_large"] - before)
        counters["tx_frames"] += others * sum(sum(sent.counts) for sent in sends)
        return sends


class UnwrittenChassis(Chassis):
    """A chassis whose frames are counted and not written."""

    forwarder = UnwrittenForwarder
