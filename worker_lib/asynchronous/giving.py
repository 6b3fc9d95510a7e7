"""Sends a worker's state to its peers, from one packed copy for all of them.

A separate thread serves all connections and never blocks on any. It packs a state once for all
peers that ask for it while it is current; each reads that copy at its own pace. A newer state is
packed only when the last of these peers is done or dropped, so there are never two copies. Slow
peers are dropped: those that read nothing, that would not be done within `STATE_PATIENCE`, or that
make others wait for a newer state.
"""

from __future__ import annotations

import os
import selectors
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from hashlib import blake2b
from hmac import compare_digest

from .snapshots import (
    ANSWER,
    DIGEST,
    MAGIC,
    NO_WORKER,
    PATIENCE,
    REQUEST,
    STATE_PATIENCE,
    Offer,
    digest,
)

AT_ONCE = 64  # connections; a job has no more members
ACCEPT_PAUSE = 0.1  # seconds to wait after accept failed, for lack of descriptors, say
CHUNK = 1 << 16  # bytes sent to one connection before the next has its turn
BUFFER = 1 << 17  # bytes of send buffer requested from the kernel, per connection
STALL = 1.0  # seconds that a peer may take no byte while others wait for a newer state
TENURE = 5.0  # seconds that a peer may take for a state while others wait for a newer one
LOOK_PAUSE = 0.1  # seconds between checks for slow connections
KEPT = 1.0  # seconds to keep a packed state that no peer takes


class Connection:
    """A peer's connection: its request, and the bytes still to be sent to it."""

    def __init__(self, to: socket.socket, now: float) -> None:
        self.socket = to
        self.began = self.moved = now  # when it connected or sending began; when a byte was taken
        self.request = b""
        self.parts: list[memoryview] = []
        self.hash: blake2b | None = None  # of request and bytes sent; None: no checksum follows
        self.takes_state = False
        self.size = self.sent = 0

    @property
    def asks(self) -> bool:
        """Return whether the peer's request is still incomplete."""
        return len(self.request) < REQUEST.size + DIGEST

    def give(self, now: float, takes_state: bool, *parts: bytes | bytearray) -> None:
        """Start sending an answer.

        Args:
            now: seconds.
            takes_state: whether the answer holds the packed state.
            parts: the answer's bytes, sent one part after the other.
        """
        self.began = self.moved = now
        self.takes_state = takes_state
        self.parts = [memoryview(part) for part in parts if part]
        self.size = sum(map(len, self.parts))

    def push(self, now: float) -> bool:
        """Send up to a chunk without blocking; return whether the answer is complete.

        Raises:
            OSError: the peer has gone.
        """
        while self.parts:
            part = self.parts[0][:CHUNK]
            try:
                count = self.socket.send(part)
            except BlockingIOError:
                return False
            if self.hash is not None:
                self.hash.update(part[:count])
            self.moved = now
            self.sent += count
            self.parts[0] = self.parts[0][count:]
            if not self.parts[0]:
                del self.parts[0]
            if not self.parts and self.hash is not None:  # only the checksum is left
                self.parts, self.hash = [memoryview(self.hash.digest())], None
            elif len(part) == CHUNK:
                return False
        return True

    def is_too_slow(self, now: float, contended: bool) -> bool:
        """Return whether to drop it for slowness; `contended`: others wait until it is done."""
        since = now - self.began
        if not self.parts:  # its request is incomplete, or it waits for a newer state
            return since > PATIENCE
        if now - self.moved > PATIENCE or (contended and now - self.moved > STALL):
            return True
        due = self.size * (since - PATIENCE) / STATE_PATIENCE
        return self.sent < due or (contended and since > TENURE)


class Server:
    """Answers peers' requests, in its own thread.

    Args:
        host: local address to listen at.
        port: TCP port to listen at, the worker's UDP port; if it is taken, any free port.
        job: the job's number.
        key: the key of a keyed job; None: no key.
        offer: returns this worker's offer, with the packed state if called with True; another mark
            means another state.

    Attributes:
        given: number of states sent completely.
        dropped: number of connections cut off because they were too slow or too many, or because
            memory ran out.
    """

    def __init__(
        self, host: str, port: int, job: int, key: bytes | None, offer: Callable[[bool], Offer]
    ) -> None:
        self._job, self._key, self._offer = job, key or b"", offer
        try:
            self._socket = socket.create_server((host, port), backlog=AT_ONCE)
        except OSError:
            self._socket = socket.create_server((host, 0), backlog=AT_ONCE)
        self._socket.setblocking(False)
        self.where: tuple[str, int] = self._socket.getsockname()
        self.given = self.dropped = 0
        self._there: dict[int, Connection] = {}  # by descriptor; the one that came first is first
        self._waiting: list[Connection] = []  # until a newer state than the packed one is packed
        self._packed: bytes | bytearray = b""
        self._mark = -1  # of the packed state
        self._used = 0.0  # when it was last taken
        self._selector = selectors.DefaultSelector()
        self._wake = os.eventfd(0)
        self._selector.register(self._wake, selectors.EVENT_READ)
        self._selector.register(self._socket, selectors.EVENT_READ)
        self._closed = threading.Event()
        threading.Thread(target=self._serve, daemon=True, name="iswitch snapshots").start()

    @property
    def connections(self) -> int:
        """Return the number of open connections."""
        return len(self._there)

    @property
    def packed(self) -> int:
        """Return the size of the packed state in bytes; 0: there is none."""
        return len(self._packed)

    def close(self) -> None:
        """Stop answering; the thread closes all connections."""
        if not self._closed.is_set():
            with suppress(OSError):  # it has ended by itself
                os.eventfd_write(self._wake, 1)  # before the thread may close it
            self._closed.set()
            with suppress(OSError):  # the thread was quick to close it
                self._socket.shutdown(socket.SHUT_RDWR)

    def _serve(self) -> None:
        try:
            while not self._closed.is_set():
                with suppress(MemoryError):
                    self._step()
        finally:
            for connection in list(self._there.values()):
                self._drop(connection)
            self._selector.close()
            self._socket.close()
            os.close(self._wake)

    def _step(self) -> None:
        idle = not self._there and not self._packed
        ready = self._selector.select(None if idle else LOOK_PAUSE)
        now = time.monotonic()
        for key, _ in ready:
            if key.fd == self._socket.fileno():
                self._accept(now)
            elif key.fd in self._there:
                self._attend(self._there[key.fd], now)
        self._look(now)

    def _accept(self, now: float) -> None:
        try:
            to, _ = self._socket.accept()
        except BlockingIOError:
            return
        except OSError:
            self._closed.wait(ACCEPT_PAUSE)
            return
        if len(self._there) >= AT_ONCE:
            # Make room: drop the first connection without a full request, or else the first that
            # takes nothing.
            idle = [one for one in self._there.values() if one.asks]
            idle += [one for one in self._there.values() if one.parts and now - one.moved > STALL]
            self.dropped += 1
            if not idle:
                to.close()  # the peer will ask again
                return
            self._drop(idle[0])
        to.setblocking(False)
        to.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER)
        self._there[to.fileno()] = Connection(to, now)
        self._selector.register(to, selectors.EVENT_READ)

    def _attend(self, connection: Connection, now: float) -> None:
        """Read more of a connection's request, or send more of its answer."""
        try:
            if connection.asks:
                self._hear(connection, now)
            elif connection.push(now):
                self.given += connection.takes_state
                self._drop(connection)
        except BlockingIOError:
            return
        except OSError:
            self._drop(connection)

    def _hear(self, connection: Connection, now: float) -> None:
        wanted = REQUEST.size + DIGEST - len(connection.request)
        more = connection.socket.recv(wanted)
        if not more:
            raise ConnectionResetError("it went before it had asked")
        connection.request += more
        if not connection.asks:
            self._selector.unregister(connection.socket)
            self._answer(connection, now)

    def _answer(self, connection: Connection, now: float) -> None:
        """Start the answer to a request, or let it wait until the packed state is free."""
        request, given = connection.request[: REQUEST.size], connection.request[REQUEST.size :]
        magic, job, wanted, _ = REQUEST.unpack(request)
        right = compare_digest(digest(self._key, request), given)
        if magic != MAGIC or job != self._job or not right:
            connection.give(now, False, NO_WORKER.ljust(ANSWER.size, b"\0"))
        else:
            offer = self._offered(bool(wanted))
            if offer is None:
                self._waiting.append(connection)
                return
            (identity, version, behind), addresses, state, _ = offer
            sizes = len(addresses), len(state)
            has = version is not None
            header = ANSWER.pack(MAGIC, has, behind, 0, identity, version or 0, *sizes)
            connection.hash = blake2b(request, digest_size=DIGEST, key=self._key)
            connection.give(now, bool(state), header, addresses, state)
        self._selector.register(connection.socket, selectors.EVENT_WRITE)

    def _offered(self, wanted: bool) -> Offer | None:
        """Return the offer to answer with, and the packed state if `wanted`.

        None: wait, since others still take a packed state that is no longer current.

        Raises:
            OSError: there is no memory for a packed state.
        """
        try:
            offer = self._offer(False)
            if not wanted or offer.standing.version is None:
                return offer._replace(addresses=b"")
            if offer.mark != self._mark:
                if any(one.takes_state for one in self._there.values()):
                    return None
                self._packed, self._mark = b"", -1  # before there is another
                offer = self._offer(True)
        except MemoryError as error:
            self.dropped += 1
            raise OSError("no memory for a packed state") from error
        if offer.standing.version is None:  # the state was given up between the two calls
            return offer
        if offer.mark != self._mark:
            self._packed, self._mark = offer.state, offer.mark
        self._used = time.monotonic()
        return offer._replace(state=self._packed)

    def _look(self, now: float) -> None:
        """Drop slow connections, answer waiting ones, and free a packed state that none takes."""
        for one in list(self._there.values()):
            if one.is_too_slow(now, one.takes_state and bool(self._waiting)):
                self.dropped += 1
                self._drop(one)
        if any(one.takes_state for one in self._there.values()):
            self._used = now
            return
        waiting, self._waiting = self._waiting, []
        for one in waiting:
            try:
                self._answer(one, now)
            except OSError:
                self._drop(one)
        if now - self._used > KEPT and not any(one.takes_state for one in self._there.values()):
            self._packed, self._mark = b"", -1

    def _drop(self, connection: Connection) -> None:
        del self._there[connection.socket.fileno()]
        if connection in self._waiting:
            self._waiting.remove(connection)
        with suppress(KeyError):  # a waiting connection is not registered
            self._selector.unregister(connection.socket)
        connection.socket.close()
