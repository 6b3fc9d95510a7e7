"""The switches that replay a trace, and how they are set up."""

from __future__ import annotations

from dataclasses import dataclass, field

from iswitch.core.format.arbiter import Traffic, classify
from iswitch.core.format.keys import Keys
from iswitch.core.format.packets import Burst, Outgoing
from iswitch.core.format.wire import PART, SEG_SIZE
from iswitch.core.jobs.limits import Limits
from iswitch.core.sums.paper import Counting
from iswitch.core.switch import Switch
from iswitch.ethernet.chassis import Chassis
from iswitch.ethernet.forwarding import Forwarder, Sends
from iswitch.ethernet.frame import Frames
from iswitch.ethernet.guard import SourceGuard

from .compare import ROUNDED
from .observed import ObservedSwitch


@dataclass
class ReplayOptions:
    """The options of the replaying switch; they should be those of the captured switch."""

    keys: Keys = field(default_factory=Keys)
    limits: Limits = field(default_factory=Limits)
    reproducible: bool = False
    counting: Counting = Counting.EXACT


class MagnitudesSwitch(Switch):
    """A switch that adds, or multiplies, the absolute values of contributions."""

    def receive(self, burst: Burst, now: float) -> list[Outgoing]:
        """Handle packets as a switch does, after clearing the signs of floats."""
        if classify(burst.tos) is Traffic.DATA and (found := self.record.by_source.get(burst.peer)):
            job, member = found
            shape = job.shape
            if shape is not None and shape.op in ROUNDED and shape.dtype.is_float:
                rows = burst.rows.copy()
                top = SEG_SIZE + PART.itemsize * member.sends_parts + shape.dtype.itemsize - 1
                rows[:, top :: shape.dtype.itemsize] &= 0x7F
                burst = burst._replace(rows=rows)
        return super().receive(burst, now)


class PairedSwitch(ObservedSwitch):
    """An observed switch that also passes all packets to a switch of magnitudes."""

    magnitudes: MagnitudesSwitch | None = None

    def receive(self, burst: Burst, now: float) -> list[Outgoing]:
        """Handle packets in both switches; return the answers of this one."""
        if self.magnitudes is not None:
            self.magnitudes.receive(burst, now)
        return super().receive(burst, now)

    def handle_timer(self, now: float) -> list[Outgoing]:
        """Act on expired timers in both switches; return the packets of this one."""
        if self.magnitudes is not None:
            self.magnitudes.handle_timer(now)
        return super().handle_timer(now)


class Unguarded(SourceGuard):
    """A source guard that allows every address, as on a switch with a socket."""

    def is_spoofed(self, mac: bytes, ip: bytes, ingress: int) -> bool:  # noqa: ARG002
        """Return False: every address is allowed."""
        return False

    def spoofed(self, group: Frames) -> None:  # noqa: ARG002
        """Return None: no frame is spoofed."""
        return


class UnwrittenForwarder(Forwarder):
    """Writes broadcast frames for the first port, and only counts them for the other ports.

    So the cost of a broadcast does not depend on the number of ports.
    """

    def spread(
        self, ports: tuple[int, ...], group: Frames, counts: list[int], largest: list[int]
    ) -> Sends:
        """Return the frames that leave at the first port, and count them for the other ports."""
        counters, others = self.counters, len(ports) - 1
        before = counters["too_large"]
        sends = super().spread(ports[:1], group, counts, largest)
        counters["too_large"] += others * (counters["too_large"] - before)
        counters["tx_frames"] += others * sum(sum(sent.counts) for sent in sends)
        return sends


class UnwrittenChassis(Chassis):
    """A chassis whose frames are counted and not written."""

    forwarder = UnwrittenForwarder
