"""Wraps a port of datagrams, and writes those that the switch gets and sends to a capture.

It stands next to the switch: the capture lacks packets that impaired ports lose on their way in,
and has those that they lose on their way out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from iswitch.core.format.arbiter import Traffic, classify
from iswitch.core.format.lines import port_of
from iswitch.core.format.packets import Address, Burst, Outgoing
from iswitch.core.format.pcapng import Direction

from .capture import Capture
from .port import Port


def cut(burst: Burst) -> Iterable[Burst]:
    """Return a burst as it is recorded: control packets singly, before their answers."""
    return burst.singles() if classify(burst.tos) is Traffic.CONTROL else (burst,)


class RecordedDatagrams:
    """A port of datagrams, recorded.

    Args:
        port: the port.
        own: the port's address in the frames of the capture.
        capture: takes the datagrams; it is closed with the port.
    """

    def __init__(self, port: Port[Burst, Outgoing], own: Address, capture: Capture) -> None:
        self.port = port
        self.own = own
        self.capture = capture

    def fileno(self) -> int:
        """Return the port's file descriptor."""
        return self.port.fileno()

    def deadline(self) -> float | None:
        """Return the time of the port's deadline, in seconds; None: it has none."""
        return self.port.deadline()

    def pull(self) -> Iterator[Burst]:
        """Record and yield packets that have come."""
        for burst in self.port.pull():
            for part in cut(burst):
                packets = (part.rows, part.tail)
                own = self._own(part.peer)
                self.capture.datagrams(Direction.IN, part.peer, own, part.tos, packets)
                yield part

    def push(self, sends: Iterable[Outgoing]) -> None:
        """Record packets, and send them."""
        for out in sends:
            for peer in out.peers:
                packets = (out.rows, out.tail)
                self.capture.datagrams(Direction.OUT, self._own(peer), peer, out.tos, packets)
            self.port.push([out])

    def _own(self, peer: Address) -> Address:
        """Return our address towards a peer: a line's for the parent, else the listening one."""
        return self.own._replace(port=port_of(peer.line, self.own.port))

    def close(self) -> None:
        """Close the port, and finish the capture.

        Raises:
            OSError: a part of the capture could not be written.
        """
        self.port.close()
        self.capture.close()
