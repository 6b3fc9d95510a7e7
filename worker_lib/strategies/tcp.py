"""TCP connections between workers: what is to go out goes out while something else comes in.

Nothing is framed and nothing copied: both ends know what comes next and how long it is, arrays are
sent from where they lie and received where they belong.
"""

from __future__ import annotations

import select
import socket
import struct
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from itertools import islice
from typing import Any

import numpy.typing as npt

from .errors import PeerLost, PeerSilent
from .guests import greeted
from .rendezvous import Meeting, meet

Array = npt.NDArray[Any]

PIECE = 1 << 18  # bytes that are added, and passed on, at a time: they stay in the cache
DONTWAIT = socket.MSG_DONTWAIT
AT_ONCE = 64  # parts of a call; the kernel takes 1024
GREETING = struct.Struct(">4sII")  # magic, the rank that connects, what for
MAGIC = b"iSrk"


class Connection:
    """To one peer.

    Args:
        sock: connected.
        peer: what messages call it.
        timeout: seconds of silence to endure.
    """

    def __init__(self, sock: socket.socket, peer: str, timeout: float) -> None:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.settimeout(None)  # or Python would poll before every call
        self.sock = sock
        self.peer = peer
        self.endure(timeout)
        self.queue: deque[memoryview] = deque()
        self.sent = self.received = 0  # bytes

    def endure(self, timeout: float) -> None:
        """Bear `timeout` seconds of silence from now on."""
        self.timeout = timeout
        whole = int(timeout)
        limit = struct.pack("ll", whole, int((timeout - whole) * 1e6))
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)

    def send(self, data: Array) -> None:
        """Send a contiguous array, as much as goes at once; the rest is queued.

        It must not be changed before it is out (`drain`).
        """
        self.queue.append(data.data.cast("B"))
        self.flush()

    def queue_bytes(self, data: bytes) -> None:
        """Have these go out before what is sent next, in one packet if that fits."""
        self.queue.append(memoryview(data))

    def flush(self) -> bool:
        """Send of the queue what goes at once; whether that was all."""
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
        """Receive into `view` what is there; how many bytes, 0: nothing now.

        Raises:
            PeerLost: no more will come.
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
            PeerLost: this peer or the other is gone.
            PeerSilent: neither took or sent anything for `timeout` seconds.
        """
        view = data.data.cast("B")
        while view:
            if outgoing.flush():  # nothing else to do: sleep until all is there
                view = view[self.take(view, socket.MSG_WAITALL) :]
            elif got := self.take(view):
                view = view[got:]
            else:
                wait((self,), (outgoing,), self.timeout)

    def drain(self) -> None:
        """Wait until the queue is out."""
        while not self.flush():
            wait((), (self,), self.timeout)

    def close(self) -> None:
        """Part; what is queued does not go out any more."""
        self.sock.close()


def exchange(parts: Sequence[tuple[Connection, Array]]) -> None:
    """Fill each array from its connection, while all of the connections send what they have queued.

    Raises:
        PeerLost: one is gone.
        PeerSilent: none took or sent anything for its `timeout` seconds.
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


def wait(
    receiving: Iterable[Connection], sending: Iterable[Connection], timeout: float
) -> list[tuple[int, int]]:
    """Wait until one of these can be received from or sent to; (descriptor, event) of each.

    Raises:
        PeerSilent: that did not happen in time.
    """
    poller = select.poll()
    events: dict[int, int] = {}
    connections = {}
    for connection in receiving:
        number = connection.sock.fileno()
        events[number] = select.POLLIN
        connections[number] = connection
    for connection in sending:
        number = connection.sock.fileno()
        events[number] = events.get(number, 0) | select.POLLOUT
        connections[number] = connection
    for number, event in events.items():
        poller.register(number, event)
    ready = poller.poll(timeout * 1000)
    if not ready:
        raise PeerSilent(" and ".join(c.peer for c in connections.values()), timeout)
    return ready


def listen(here: str, backlog: int) -> socket.socket:
    """A listening socket at any free port of this address."""
    return socket.create_server((here, 0), backlog=backlog)


@contextmanager
def doors(group: str, backlog: int, timeout: float) -> Iterator[tuple[Meeting, socket.socket]]:
    """Meet, where each has a listening socket, and tells where; it is closed at the end.

    Args:
        group: as `meet` takes it; the same for all.
        backlog: connections that wait to be accepted.
        timeout: seconds for all to come.

    Raises:
        ValueError, RendezvousError: as of `meet`.
    """
    own: list[socket.socket] = []

    def tell(here: str) -> Any:
        own.append(listen(here, backlog))
        return own[0].getsockname()

    try:
        yield meet(group, tell, timeout), own[0]
    finally:
        for door in own:
            door.close()


def connect(where: Iterable[Any], rank: int, purpose: int, peer: str, timeout: float) -> Connection:
    """Connect to a peer that listens, and say who this is and what for.

    Raises:
        PeerLost: it does not listen there any more.
    """
    host, port = where
    try:
        sock = socket.create_connection((host, port), timeout=timeout)
        sock.sendall(GREETING.pack(MAGIC, rank, purpose))
    except OSError as error:
        raise PeerLost(peer, str(error)) from None
    return Connection(sock, peer, timeout)


def accept(
    listener: socket.socket, expected: set[tuple[int, int]], timeout: float
) -> dict[tuple[int, int], Connection]:
    """Take the connections of all who are expected, by (rank, purpose); strangers' are closed.

    Raises:
        PeerSilent: some did not connect.
    """
    found: dict[tuple[int, int], Connection] = {}
    deadline = time.monotonic() + timeout
    with closing(greeted(listener, lambda said: GREETING.size - len(said), deadline)) as coming:
        while missing := expected - found.keys():
            came = next(coming, None)
            if came is None:
                named = " and ".join(f"rank {rank}" for rank in sorted({r for r, _ in missing}))
                raise PeerSilent(named, timeout)
            sock, said = came
            magic, rank, purpose = GREETING.unpack(said)
            if magic != MAGIC or (rank, purpose) not in missing:
                sock.close()
                continue
            found[rank, purpose] = Connection(sock, f"rank {rank}", timeout)
    return found
