"""TCP connections between workers, which can send and receive at the same time.

There is no framing and no copying: both ends know what comes next and how long it is, and arrays
are sent and received in place.
"""

from __future__ import annotations

import select
import socket
import struct
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import islice
from typing import Any

import numpy.typing as npt

from iswitch.virtual.process import called

from .base import Strategy
from .errors import PeerLost, PeerSilent
from .messages import expected, say
from .rendezvous import Meeting, meet

Array = npt.NDArray[Any]

PIECE = 1 << 18  # bytes that are added and forwarded at a time: they stay in the cache
DONTWAIT = socket.MSG_DONTWAIT
AT_ONCE = 64  # buffers in one sendmsg call; the kernel takes up to 1024


class Connection:
    """A TCP connection to one peer, with a queue of data to send.

    Args:
        sock: the connected socket.
        peer: name of the peer in errors.
        timeout: seconds of silence after which operations fail.

    Attributes:
        sent, received: bytes so far.
    """

    def __init__(self, sock: socket.socket, peer: str, timeout: float) -> None:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.settimeout(None)  # with a timeout Python would poll before every call
        self.sock = sock
        self.peer = peer
        self.endure(timeout)
        self.queue: deque[memoryview] = deque()
        self.sent = self.received = 0  # bytes

    def endure(self, timeout: float) -> None:
        """Set the seconds of silence after which operations fail."""
        self.timeout = timeout
        whole = int(timeout)
        limit = struct.pack("ll", whole, int((timeout - whole) * 1e6))
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)

    def send(self, data: Array) -> None:
        """Queue a contiguous array and send as much of the queue as possible without blocking.

        The array must not change until all of it is sent, as after `drain`.
        """
        self.queue.append(data.data.cast("B"))
        self.flush()

    def queue_bytes(self, data: bytes) -> None:
        """Queue bytes to be sent with the next data, in one packet if they fit."""
        self.queue.append(memoryview(data))

    def flush(self) -> bool:
        """Send as much of the queue as possible without blocking; return whether it is empty.

        Raises:
            PeerLost: the connection broke.
        """
        while self.queue:
            try:
                done = self.sock.sendmsg(islice(self.queue, AT_ONCE), (), DONTWAIT)
            except BlockingIOError:
                return False
            except OSError as error:
                raise PeerLost(self.peer, str(error)) from None
            self.sent += done
            while self.queue and done >= self.queue[0].nbytes:
                done -= self.queue.popleft().nbytes
            if done:
                self.queue[0] = self.queue[0][done:]
        return True

    def take(self, view: memoryview, flags: int = DONTWAIT) -> int:
        """Receive available bytes into `view`; return their number, 0 if there are none yet.

        Raises:
            PeerLost: the connection has ended.
            PeerSilent: `flags` allow blocking, and nothing arrived for `timeout` seconds.
        """
        try:
            got = self.sock.recv_into(view, 0, flags)
        except BlockingIOError:
            if flags & DONTWAIT:
                return 0
            raise PeerSilent(self.peer, self.timeout) from None
        except OSError as error:
            raise PeerLost(self.peer, str(error)) from None
        if got == 0:
            raise PeerLost(self.peer)
        self.received += got
        return got

    def receive(self, data: Array, outgoing: Connection) -> None:
        """Fill a contiguous array, while `outgoing` sends what it has queued.

        Raises:
            PeerLost: this connection or `outgoing` broke.
            PeerSilent: nothing could be received or sent for `timeout` seconds.
        """
        view = data.data.cast("B")
        while view:
            if outgoing.flush():  # nothing left to send: block until all data has arrived
                view = view[self.take(view, socket.MSG_WAITALL) :]
            elif got := self.take(view):
                view = view[got:]
            else:
                wait((self,), (outgoing,), self.timeout)

    def drain(self) -> None:
        """Wait until the whole queue is sent.

        Raises:
            PeerLost: the connection broke.
            PeerSilent: nothing could be sent for `timeout` seconds.
        """
        while not self.flush():
            wait((), (self,), self.timeout)

    def close(self) -> None:
        """Close the connection; queued data is not sent."""
        self.sock.close()


class Connected(Strategy):
    """A member of a group that has connections of its own.

    Args:
        meeting: the result of the rendezvous.
        numel: elements of every vector.
        connections: all connections of this worker.
        steps: steps of an allreduce.
    """

    def __init__(
        self, meeting: Meeting, numel: int, connections: Sequence[Connection], steps: int
    ) -> None:
        super().__init__(meeting.rank, meeting.num_workers, numel)
        self._connections = connections
        self._steps = steps
        called()

    def close(self) -> None:
        """Leave the group by closing all connections, which breaks it for the others."""
        for connection in self._connections:
            connection.close()

    def stats(self) -> dict[str, Any]:
        """Return the number of rounds, and their total steps, bytes sent and bytes received."""
        return {
            **super().stats(),
            "steps": self.rounds * self._steps,
            "bytes_sent": sum(connection.sent for connection in self._connections),
            "bytes_received": sum(connection.received for connection in self._connections),
        }


def exchange(parts: Sequence[tuple[Connection, Array]]) -> None:
    """Fill each array from its connection, while all connections send their queues.

    Raises:
        PeerLost: a connection broke.
        PeerSilent: nothing could be received or sent for the connections' `timeout` seconds.
    """
    if len(parts) == 1:
        ((connection, data),) = parts
        if data.size:
            connection.receive(data, connection)
        connection.drain()
        return
    views = {c: data.data.cast("B") for c, data in parts if data.size}
    while True:
        moved = False
        for connection, view in list(views.items()):
            if got := connection.take(view):
                moved = True
                views[connection] = view[got:]
                if got == view.nbytes:
                    del views[connection]
        unsent = [connection for connection, _ in parts if not connection.flush()]
        if not views and not unsent:
            return
        if not moved:
            wait(views, unsent, parts[0][0].timeout)


def wait(receiving: Iterable[Connection], sending: Iterable[Connection], timeout: float) -> None:
    """Wait until a connection is ready.

    Args:
        receiving: connections to wait for data from.
        sending: connections to wait for send space on.
        timeout: seconds to wait.

    Raises:
        PeerSilent: no connection was ready in time.
    """
    events = dict.fromkeys(receiving, select.POLLIN)
    for connection in sending:
        events[connection] = events.get(connection, 0) | select.POLLOUT
    poller = select.poll()
    for connection, event in events.items():
        poller.register(connection.sock, event)
    if not poller.poll(timeout * 1000):
        peers = sorted({connection.peer for connection in events})
        raise PeerSilent(" and ".join(peers), timeout)


@contextmanager
def doors(group: str, backlog: int, timeout: float) -> Iterator[tuple[Meeting, socket.socket]]:
    """Open a listening socket and exchange its address with all workers; close it at the end.

    Args:
        group: description of the group, equal in all workers.
        backlog: most connections that wait to be accepted.
        timeout: seconds for all workers to come.

    Raises:
        ValueError, RendezvousError: see `meet`.
    """
    own: list[socket.socket] = []

    def tell(here: str) -> Any:
        own.append(socket.create_server((here, 0), backlog=backlog))
        return own[0].getsockname()

    try:
        yield meet(group, tell, timeout), own[0]
    finally:
        for door in own:
            door.close()


def connect(where: Iterable[Any], rank: int, purpose: int, peer: str, timeout: float) -> Connection:
    """Connect to a listening peer and send a greeting.

    Args:
        where: host and port of the peer.
        rank: this worker's rank.
        purpose: number of the connection's purpose, as the peer expects it.
        peer: name of the peer in errors.
        timeout: seconds to connect, and then of silence.

    Raises:
        PeerLost: the peer does not accept connections.
    """
    host, port = where
    try:
        with ExitStack() as failing:
            sock = failing.enter_context(socket.create_connection((host, port), timeout=timeout))
            say(sock, [rank, purpose])
            failing.pop_all()
    except OSError as error:
        raise PeerLost(peer, str(error)) from None
    return Connection(sock, peer, timeout)


def accept(
    listener: socket.socket, wanted: set[tuple[int, int]], timeout: float
) -> dict[tuple[int, int], Connection]:
    """Accept all expected connections and close strangers'; return them by (rank, purpose).

    Args:
        listener: socket to which peers connect.
        wanted: (rank, purpose) of each connection.
        timeout: seconds for all to connect, and then of silence.

    Raises:
        PeerSilent: a peer did not connect in time.
    """
    found, missing = expected(listener, wanted, timeout)
    if missing:
        raise PeerSilent(" and ".join(f"rank {rank}" for rank in sorted(missing)), timeout)
    return {
        (rank, i): Connection(sock, f"rank {rank}", timeout) for (rank, i), sock in found.items()
    }
