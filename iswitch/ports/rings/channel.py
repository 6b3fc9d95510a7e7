"""The worker's port: a UDP socket, and rings where its switch offers them."""

from __future__ import annotations

import select
import socket
import time
from collections.abc import Iterable, Iterator

from iswitch.core.format.packets import Address, Burst, Outgoing
from iswitch.ports.udp import BUFFER, UdpPort

from . import meeting
from .link import SIZE, Link
from .memory import BrokenRing, supported
from .ring import fence

WINDOW = SIZE // 2  # bytes that a worker may have under way, so that its rings do not overflow
PATIENCE = 1.0  # seconds for the switch's answer when a worker begins
PAUSE = 0.5  # seconds between two looks for a switch that offers rings
LOOK = 0.01  # seconds after which to look at the sockets, though the rings bring packets


class LocalPort(UdpPort):
    """Receives and sends at a UDP socket, and through the rings of a switch on this machine.

    Whatever finds no room in the rings goes by UDP; so does everything while there are none.

    Args:
        listen, connect, offload, buffer: as for `UdpPort`.

    Raises:
        OSError: the address cannot be bound.
    """

    def __init__(
        self,
        listen: tuple[str, int],
        connect: tuple[str, int],
        offload: bool = True,
        buffer: int = BUFFER,
    ) -> None:
        super().__init__(listen, connect, offload, buffer)
        self._switch = Address(*self.socket.getpeername())
        self.link: Link | None = None
        self._epoll = select.epoll()
        self._epoll.register(self.socket, select.EPOLLIN)
        self._ready: list[tuple[int, int]] = []  # sockets found readable since the last `pull`
        self._look_at = self._try_at = 0.0
        self._meet()
        if self.link is not None:
            self._await_answer()
        if self.has_rings:
            self.buffer = min(self.buffer, WINDOW)

    @property
    def has_rings(self) -> bool:
        """Return whether packets go through rings now."""
        return self.link is not None and self.link.down is not None

    @property
    def way(self) -> str:
        """Return how packets travel: "shm" or "udp"."""
        return "shm" if self.has_rings else "udp"

    def fileno(self) -> int:
        """Return a descriptor that is readable when packets have come, if `holds` was False."""
        return self._epoll.fileno()

    def close(self) -> None:
        """Close the sockets."""
        self._part()
        self._epoll.close()
        super().close()

    def detach(self) -> None:
        """Close this process's copies of the descriptors, of which another process has its own."""
        super().detach()
        if self.link is not None:
            self.link.close()
        self._epoll.close()  # without changing it, since that process has the very one

    # The meeting

    def _meet(self) -> None:
        """Ask for rings, if a switch offers them at a UNIX socket."""
        self._try_at = time.monotonic() + PAUSE
        for path in meeting.paths(*self._switch[:2]):
            connection = meeting.connect(path)
            if connection is None:
                continue
            try:
                self.link = Link(connection, self.socket.fileno())
            except OSError:
                connection.close()
                continue
            self._epoll.register(connection, select.EPOLLIN)
            self._epoll.register(self.link.bell, select.EPOLLIN | select.EPOLLET)
            return

    def _await_answer(self) -> None:
        """Wait for the switch's answer; without one in time, go on without rings for now."""
        limit = time.monotonic() + PATIENCE
        while self.link is not None and not self.has_rings:
            seconds = limit - time.monotonic()
            if seconds <= 0:
                return
            poller = select.poll()
            poller.register(self.link.connection, select.POLLIN)
            poller.poll(seconds * 1000)
            self._listen()

    def _listen(self) -> None:
        """Take what the switch hands over; part from it if it is gone."""
        try:
            if self.link is not None:
                self.link.listen()
        except BrokenRing:
            self._part()

    def _part(self) -> None:
        """Give the rings up; packets go by UDP again."""
        link, self.link = self.link, None
        if link is not None:
            for fd in (link.connection.fileno(), link.bell):
                self._epoll.unregister(fd)
            link.hang_up()
            self._try_at = time.monotonic() + PAUSE

    # Packets

    def holds(self) -> bool:
        """Return whether the rings have packets; if not, `fileno` tells when they have."""
        link = self.link
        if link is None:
            return False
        if link.has_more():
            return True
        link.sleeper.lie_down()
        fence()
        return link.has_more()

    def wait(self, seconds: float, more: int = 0) -> bool:  # noqa: ARG002
        """Wait until packets come, for `seconds` at most; return whether some may have."""
        if self.holds():
            return True
        self._ready += self._epoll.poll(seconds)
        return bool(self._ready)

    def pull(self) -> Iterator[Burst]:
        """Yield the packets that have come, without waiting; each is valid until the next."""
        now, came = time.monotonic(), False
        for burst in self._read():
            came = True
            yield burst
        ready, self._ready = self._ready, []
        if now >= self._look_at or not (came or ready):
            self._look_at = now + LOOK
            ready = self._epoll.poll(0)
        for fd, _ in ready:
            if fd == self.socket.fileno():
                yield from super().pull()
            elif self.link is not None and fd == self.link.connection.fileno():
                self._listen()
        if self.link is not None and self.link.is_invited:  # no bell tells of what is there
            yield from self._read()
        if self.link is None and now >= self._try_at:
            self._meet()

    def _read(self) -> Iterator[Burst]:
        """Yield the packets in the rings."""
        link = self.link
        if link is None:
            return
        link.sleeper.get_up()
        try:
            for packets in link.read():
                yield Burst(self._switch, *packets)
        except BrokenRing:
            self._part()

    def push(self, sends: Iterable[Outgoing]) -> None:
        """Send packets to the switch."""
        for out in sends:
            link = self.link
            super().push((out,) if link is None or link.down is None else link.put(out))


def port(listen: tuple[str, int], connect: tuple[str, int], offload: bool = True) -> UdpPort:
    """Open a worker's socket, with rings where they can be.

    Args:
        listen: local address.
        connect: the switch's address.
        offload: use UDP_SEGMENT and UDP_GRO.

    Raises:
        OSError: the address cannot be bound, or no route leads to the switch.
    """
    if meeting.is_wanted() and supported() and may_be_here(connect[0]):
        return LocalPort(listen, connect, offload)
    return UdpPort(listen, connect, offload)


def may_be_here(host: str) -> bool:
    """Return whether a switch at this host can be on this machine."""
    if meeting.given():
        return True
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind((host, 0))  # any address of ours can be bound
        except OSError:
            return False
    return True
