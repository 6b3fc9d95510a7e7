"""The UDP sockets of a switch with a parent: the one it listens at, and one for each job above.

A line's socket is connected to the parent, so that the kernel drops what others send there.
"""

from __future__ import annotations

import select
from collections.abc import Iterable, Iterator
from contextlib import suppress

from iswitch.core.format.counters import Counters
from iswitch.core.format.lines import port_of
from iswitch.core.format.packets import Address, Burst, Outgoing
from iswitch.core.jobs.sources import Sources

from .udp import UdpPort


class LinedPort:
    """Receives and sends at the socket of a switch, and at those of its lines.

    Args:
        port: the port at which the switch listens; it is closed with this one.
        sources: has the parent's address once for each line in use.
        counters: counts the packets that cannot be sent.

    Attributes:
        lines: the sockets of the lines in use.
    """

    def __init__(self, port: UdpPort, sources: Sources, counters: Counters) -> None:
        self.port = port
        self.sources = sources
        self.counters = counters
        self.lines: dict[int, UdpPort] = {}
        self._seen = sources.changes
        self._epoll = select.epoll()
        self._epoll.register(port.fileno(), select.EPOLLIN)
        self._by_fd: dict[int, int] = {}  # lines, by the descriptors of their sockets

    def fileno(self) -> int:
        """Return a descriptor that is ready when one of the sockets is."""
        return self._epoll.fileno()

    def deadline(self) -> float | None:
        """Return the time of the listening port's deadline, in seconds; None: it has none."""
        return self.port.deadline()

    def close(self) -> None:
        """Close all sockets."""
        self._epoll.close()
        for line in self.lines.values():
            line.close()
        self.port.close()

    def pull(self) -> Iterator[Burst]:
        """Yield the packets that have come, without waiting."""
        yield from self.port.pull()
        if not self.lines:
            return
        for fd, _ in self._epoll.poll(0):
            line = self._by_fd.get(fd)
            if line is not None:
                for burst in self.lines[line].pull():
                    yield burst._replace(peer=burst.peer._replace(line=line))
        if self._seen != self.sources.changes:
            self._close_unused()

    def push(self, sends: Iterable[Outgoing]) -> None:
        """Send packets; count those that the system refuses (`tx_failed`)."""
        for out in sends:
            port = self._towards(out.peers[0])
            if port is None:
                self.counters["tx_failed"] += len(out.rows)
            else:
                port.push((out,))

    def _towards(self, peer: Address) -> UdpPort | None:
        """Return the port that sends to a peer, opened if needed; None: it cannot be opened."""
        if not peer.line:
            return self.port
        if peer.line not in self.lines and peer in self.sources:
            with suppress(OSError):  # too many open files, say; a request is repeated
                self._open(peer)
        return self.lines.get(peer.line)

    def _open(self, peer: Address) -> None:
        host, listening = self.port.socket.getsockname()
        offload, buffer = self.port.offload, self.port.buffer
        at = port_of(peer.line, listening)
        try:
            port = UdpPort((host, at), peer[:2], offload, buffer, self.counters)
        except OSError:  # another program has that port
            port = UdpPort((host, 0), peer[:2], offload, buffer, self.counters)
        try:
            self._epoll.register(port.fileno(), select.EPOLLIN)
        except BaseException:
            port.close()
            raise
        self.lines[peer.line] = port
        self._by_fd[port.fileno()] = peer.line

    def _close_unused(self) -> None:
        """Close the sockets of the lines that the switch no longer uses."""
        self._seen = self.sources.changes
        used = {peer.line for peer in self.sources}
        for line in self.lines.keys() - used:
            port = self.lines.pop(line)
            self._epoll.unregister(port.fileno())
            del self._by_fd[port.fileno()]
            port.close()
