"""A switch's ports, with rings for the workers of its machine."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Generic, TypeVar

from iswitch.core.format.packets import Burst, Outgoing
from iswitch.ethernet.chassis import Chassis
from iswitch.ethernet.frame import Frames, Transmission
from iswitch.ethernet.issuing import Issuer
from iswitch.ports.port import Port

from .hub import Rings

In = TypeVar("In")
Out = TypeVar("Out")


class Ringed(Generic[In, Out]):
    """A port of a switch, and rings beside it.

    Args:
        port: serves all workers without rings, and gets what finds no room in a ring.
        rings: the rings; closed with the port.
    """

    def __init__(self, port: Port[In, Out], rings: Rings) -> None:
        self.port = port
        self.rings = rings

    def fileno(self) -> int:
        """Return a descriptor that is readable when packets have come since the last `pull`."""
        return self.rings.fileno()

    def deadline(self) -> float | None:
        """Return the time at which to `pull` though nothing can be read, in seconds, or None."""
        return 0.0 if self.rings.has_more else self.port.deadline()

    def close(self) -> None:
        """Close all sockets."""
        self.rings.close()
        self.port.close()

    def pull(self) -> Iterator[In | Burst]:
        """Yield the packets that have come, without waiting; each is valid until the next.

        Afterwards workers ring, so that `fileno` tells of the next, even if the caller sees none of
        these packets (impaired ports lose some). If workers write as fast as we read, it ends all
        the same, and `deadline` asks for the next call.
        """
        rings, came = self.rings, False
        rings.get_up()
        for burst in rings.read():
            came = True
            yield burst
        if rings.is_due(came):
            due = self.port.deadline()
            if rings.look() or (due is not None and due <= time.monotonic()):
                yield from self.port.pull()
        rings.lie_down()
        yield from rings.read()


class RingPort(Ringed[Burst, Outgoing]):
    """A switch's port of datagrams, and rings."""

    def push(self, sends: Iterable[Outgoing]) -> None:
        """Send packets, through rings to those who have some."""
        for out in sends:
            if rest := self.rings.send(out):
                self.port.push(rest)


class RingPorts(Ringed[Frames, Sequence[Transmission]]):
    """The ports of a switch with interfaces, and rings; a `RingChassis` sends through these."""

    def push(self, steps: Iterable[Sequence[Transmission]]) -> None:
        """Send frames, step by step."""
        self.port.push(steps)


class RingIssuer(Issuer):
    """Sends packets through rings where it can; makes frames for the others."""

    rings: Rings

    def issue(self, sends: Sequence[Outgoing], now: float) -> list[Transmission]:
        """Write packets into rings, and make frames that carry the rest."""
        left = [rest for out in sends for rest in self._sent(out)]
        return super().issue(left, now) if left else []

    def _sent(self, out: Outgoing) -> list[Outgoing]:
        """Write packets into rings; return the rest. A packet counts as a frame."""
        left = self.rings.send(out)
        rest = sum(len(some.rows) * len(some.peers) for some in left)
        self.counters["tx_frames"] += len(out.rows) * len(out.peers) - rest
        return left


class RingChassis(Chassis):
    """A chassis whose hosts may have rings besides their cables."""

    issuing = RingIssuer
    issuer: RingIssuer

    def receive(self, came: Frames | Burst, now: float) -> Iterable[list[Transmission]]:
        """Handle frames of one port, or packets of a ring; yield the frames to send."""
        if isinstance(came, Frames):
            return super().receive(came, now)
        self.counters["rx_frames"] += len(came.rows)
        sends = self.switch.receive(came, now)
        return (self.issuer.issue(sends, now),) if sends else ()
