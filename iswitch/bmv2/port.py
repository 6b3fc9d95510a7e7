"""The CPU port: brings frames to the control plane, and sends frames at the switch's ports."""

from __future__ import annotations

import select
import socket
from collections.abc import Callable, Iterable, Iterator, Sequence

from iswitch.ethernet.frame import ETH, Frames, Transmission
from iswitch.ports.interface import ETH_P_ALL, PACKET_IGNORE_OUTGOING, SOL_PACKET
from iswitch.ports.kernel.mmsg import size_buffers

from .cpu import CpuHeader, CpuOp
from .link import CpuLink

BUFFER = 8 << 20  # bytes; a hold may last long where a job has many segments
LARGEST = 1 << 16
AT_ONCE = 64  # frames, before timers are looked at


class CpuWire:
    """An interface whose other end is the CPU port of the switch.

    Raises:
        OSError: the interface cannot be opened.
    """

    def __init__(self, ifname: str) -> None:
        self.socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL))
        self.socket.setsockopt(SOL_PACKET, PACKET_IGNORE_OUTGOING, 1)
        size_buffers(self.socket, BUFFER)
        self.socket.bind((ifname, ETH_P_ALL))

    def send(self, frame: bytes) -> None:
        """Send a frame into the data plane; wait for room."""
        self.socket.send(frame)

    def receive(self, seconds: float) -> bytes | None:
        """Return the next frame from the data plane; None: none came within `seconds`."""
        try:
            return self.socket.recv(LARGEST, socket.MSG_DONTWAIT)
        except BlockingIOError:
            pass
        if not seconds or not select.select((self.socket,), (), (), seconds)[0]:
            return None
        return self.socket.recv(LARGEST, socket.MSG_DONTWAIT)

    def close(self) -> None:
        """Close the interface."""
        self.socket.close()


class CpuPort:
    """Moves frames between a `PipelineChassis` and the ports of the data plane.

    Args:
        link: link to the data plane.
        fileno: readable when a frame has come.
        close: called at the end.
    """

    def __init__(self, link: CpuLink, fileno: int, close: Callable[[], None]) -> None:
        self.link = link
        self._fileno = fileno
        self._close = close

    def fileno(self) -> int:
        """Return a descriptor that is readable when a frame has come."""
        return self._fileno

    def deadline(self) -> float | None:
        """Return a past time if frames have come or orders may be open; None otherwise."""
        return 0.0 if self.link.has_frames else None

    def pull(self) -> Iterator[Frames]:
        """Yield the frames that have come, without waiting."""
        for port, frame in self.link.pull(AT_ONCE):
            yield Frames.single(port, frame)

    def push(self, steps: Iterable[Sequence[Transmission]]) -> None:
        """Send frames at ports of the switch."""
        for step in steps:
            for transmission in step:
                for row in transmission.whole():
                    self.link.tell(CpuHeader(CpuOp.SEND, port=transmission.port), row[ETH:])

    def close(self) -> None:
        """Close the CPU port and the switch."""
        self._close()
