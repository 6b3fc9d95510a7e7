"""A switch's ports, with rings for the workers of its machine."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Generic, TypeVar

from iswitch.core.format.packets import Address, Burst, Outgoing
from iswitch.core.format.pcapng import Direction
from iswitch.core.format.times import earlier
from iswitch.ethernet.chassis import Chassis
from iswitch.ethernet.frame import Frames, Transmission
from iswitch.ethernet.issuing import Issuer
from iswitch.faults.parts import Payloads, transmission
from iswitch.ports.capture import Capture
from iswitch.ports.impaired import ImpairedPorts
from iswitch.ports.port import Port
from iswitch.ports.recorded import cut

from .hub import Rings
from .ring import Packets

Step = Transmission | Outgoing  # what a switch with ports and rings sends

In = TypeVar("In")
Out = TypeVar("Out")


class Ringed(ABC, Generic[In, Out]):
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
        if self.rings.has_more:
            return 0.0
        return earlier(self.rings.deadline(), self.port.deadline())

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
        rings.release()
        rings.get_up()
        for burst in rings.read():
            came = True
            yield burst
        if rings.is_due(came):
            due = self.port.deadline()
            if rings.look() or (due is not None and due <= rings.clock()):
                for other in self.port.pull():
                    if isinstance(other, Burst):
                        rings.comes_beside(other)
                    yield other
        rings.lie_down()
        yield from rings.read()

    @abstractmethod
    def push(self, sends: Iterable[Out]) -> None:
        """Send packets."""


class RingPort(Ringed[Burst, Outgoing]):
    """A switch's port of datagrams, and rings."""

    def push(self, sends: Iterable[Outgoing]) -> None:
        """Send packets, through rings to those who have some."""
        for out in sends:
            if rest := self.rings.send(out):
                self.port.push(rest)


class RingPorts(Ringed[Frames, Sequence[Any]]):
    """The ports of a switch with interfaces, and rings.

    Args:
        port: the interfaces.
        rings: the rings.
        issuer: makes frames of packets that find no room in a ring.
        recorder: records the packets in rings; None: nothing does. It is not closed here.
    """

    def __init__(
        self,
        port: Port[Frames, Sequence[Transmission]],
        rings: Rings,
        issuer: RingIssuer,
        recorder: Capture | None = None,
    ) -> None:
        super().__init__(port, rings)
        self.issuer = issuer
        self.recorder = recorder
        rings.note = self._note

    def pull(self) -> Iterator[Frames | Burst]:
        """Yield frames and packets that have come, as `Ringed` does; record those of rings."""
        recorder, at = self.recorder, self.rings.at
        for came in super().pull():
            if recorder is None or isinstance(came, Frames):
                yield came
                continue
            for part in cut(came):
                packets, port = (part.rows, part.tail), part.peer.ingress
                recorder.datagrams(Direction.IN, part.peer, at, part.tos, packets, port)
                yield part

    def push(self, steps: Iterable[Sequence[Step]]) -> None:
        """Send frames and packets, step by step."""
        self.port.push(map(self._left_of, steps))

    def _left_of(self, step: Sequence[Step]) -> Sequence[Step]:
        """Write packets into rings; return the frames, and those of packets that found no room."""
        if not any(isinstance(one, Outgoing) for one in step):
            return step  # the very object, about which a port keeps notes
        frames: list[Transmission] = []
        for one in step:
            if isinstance(one, Outgoing):
                frames += self.issuer.frames(self.rings.send(one), self.rings.clock())
            else:
                frames.append(one)
        return frames

    def _note(self, peers: tuple[Address, ...], packets: Packets) -> None:
        """Count and record packets that were written into rings; each counts as a frame."""
        tos, rows, tail = packets
        self.issuer.counters["tx_frames"] += len(rows) * len(peers)
        if self.recorder is not None:
            at = self.rings.at
            for peer in peers:
                self.recorder.datagrams(Direction.OUT, at, peer, tos, (rows, tail), peer.ingress)


class RingIssuer(Issuer):
    """Leaves packets for rings as they are; makes frames that carry the others."""

    rings: Rings

    def issue(self, sends: Sequence[Outgoing], now: float) -> list[Step]:  # type: ignore[override]
        """Split packets into those for rings, and frames."""
        ringed: list[Step] = []
        others: list[Outgoing] = []
        for out in sends:
            mine, rest = self.rings.split(out)
            ringed += mine
            others += rest
        return [*ringed, *self.frames(others, now)] if ringed else self.frames(sends, now)  # type: ignore[return-value]

    def frames(self, sends: Sequence[Outgoing], now: float) -> list[Transmission]:
        """Make frames that carry packets."""
        return super().issue(sends, now) if sends else []


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
        return (self.issuer.issue(sends, now),) if sends else ()  # type: ignore[return-value]


def sendable(piece: Frames | Outgoing) -> Step:
    """Make what ports send of a piece that has come out of a line."""
    return piece if isinstance(piece, Outgoing) else transmission(piece)


class ImpairedRingPorts(ImpairedPorts):
    """Impairs packets in rings like the frames of their ports: with the same lines and chances."""

    sendable = staticmethod(sendable)

    def _entering(self, came: Frames | Burst, now: float) -> list[Any] | None:
        if isinstance(came, Frames):
            return super()._entering(came, now)
        return self._in.send(came.ingress, [Payloads(came)], now)

    def _leaving(self, step: Sequence[Any]) -> Sequence[Any]:
        """Return what leaves at once; keep what is delayed."""
        if not any(isinstance(one, Outgoing) for one in step):
            return super()._leaving(step)
        leaving: list[Step] = []
        for out in step:
            if isinstance(out, Outgoing):
                leaving += self._packets(out)
        frames = [one for one in step if isinstance(one, Transmission)]
        return [*leaving, *super()._leaving(frames)]

    def _packets(self, out: Outgoing) -> list[Outgoing]:
        """Return the packets that leave at once, for as many receivers together as can be."""
        now, alike, others = self.clock(), [], []
        for peer in out.peers:
            left = None
            if peer.ingress in self._out.lines:
                alone = Payloads(out._replace(peers=(peer,)))
                left = self._out.send(peer.ingress, [alone], now)
            if left is None:
                alike.append(peer)
            else:
                others += left
        return [out._replace(peers=tuple(alike)), *others] if alike else others
