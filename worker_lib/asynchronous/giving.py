"""Gives a worker's state to others: one packed copy for all who take it at a time.

A thread of its own serves all connections, none of which it waits for. A state is packed once for
those that ask while it is the current one; they take it from the same memory, each at its own pace.
Only when the last of them is done or dropped is a newer state packed, so that there are never two
copies. Whoever takes too little is dropped: one that takes nothing, one that would not be done
within `STATE_PATIENCE`, and one that keeps others waiting for a newer state.
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

AT_ONCE = 64  # connections; as many peers as there can be
ACCEPT_PAUSE = 0.1  # seconds, if no connection can be taken, for want of descriptors, say
CHUNK = 1 << 16  # bytes of a state that one connection is given before the next has its turn
BUFFER = 1 << 17  # bytes that the kernel is asked to keep for a connection
STALL = 1.0  # seconds without a byte taken, while others wait for a newer state
TENURE = 5.0  # seconds in which a state is to be taken, while others wait for a newer one
LOOK_PAUSE = 0.1  # seconds between two looks at who is too slow
KEPT = 1.0  # seconds that a packed state is kept for the next who asks


class Connection:
    """One that asks, and what it is still to be given."""

    def __init__(self, to: socket.socket, now: float) -> None:
        self.socket = to
        self.began = self.moved = now  # when it came or was first given; when it last took a byte
        self.request = b""
        self.parts: list[memoryview] = []
        self.hash: blake2b | None = None  # of what it has been given
        self.takes_state = False
        self.size = self.sent = 0

    @property
    def asks(self) -> bool:
        """Whether its request has not come in full."""
        return len(self.request) < REQUEST.size + DIGEST

    def give(self, now: float, takes_state: bool, *parts: bytes | bytearray) -> None:
        """Have it given these."""
        self.began = self.moved = now
        self.takes_state = takes_state
        self.parts = [memoryview(part) for part in parts if part]
        self.size = sum(map(len, self.parts))

    def push(self, now: float) -> bool:
        """Give as much as it takes of a chunk; whether it has all.

        Raises:
            OSError: it is gone.
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
            if not self.parts and self.hash is not None:  # all but what the checksum is of
                self.parts, self.hash = [memoryview(self.hash.digest())], None
            elif len(part) == CHUNK:
                return False
        return True

    def is_too_slow(self, now: float, contended: bool) -> bool:
        """Whether it is to be dropped; `contended`: others wait for it to be done."""
        since = now - self.began
        if not self.parts:  # it asks, or waits for a newer state
            return since > PATIENCE
        if now - self.moved > PATIENCE or (contended and now - self.moved > STALL):
            return True
        due = self.size * (since - PATIENCE) / STATE_PATIENCE
        return self.sent < due or (contended and since > TENURE)


class Server:
    """Answers peers, from a thread of its own.

    Args:
        host: local address to listen at.
        port: the same as the worker's UDP port, if it is free.
        job: the job's number.
        key: of a keyed job.
        offer: called with whether the state is to be packed; it is told from others by its mark.

    Attributes:
        given: states that were given to the end.
        dropped: connections that were too slow, or too many, or for which there was no memory.
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
        self._waiting: list[Connection] = []  # for a newer state than the packed one
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
        """How many there are."""
        return len(self._there)

    @property
    def packed(self) -> int:
        """Bytes of the copy that is given."""
        return len(self._packed)

    def close(self) -> None:
        """Answer nobody any more."""
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
            # One that has not asked, or else that takes nothing, makes room; the first of them.
            idle = [one for one in self._there.values() if one.asks]
            idle += [one for one in self._there.values() if one.parts and now - one.moved > STALL]
            self.dropped += 1
            if not idle:
                to.close()  # who asked will ask again
                return
            self._drop(idle[0])
        to.setblocking(False)
        to.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER)
        self._there[to.fileno()] = Connection(to, now)
        self._selector.register(to, selectors.EVENT_READ)

    def _attend(self, connection: Connection, now: float) -> None:
        """Take what has come of a request, or go on giving."""
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
        """Begin to give what was asked for, or have it wait until the packed state is free."""
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
        """What is answered; None: not yet, others take a state that is no longer the current one.

        Raises:
            OSError: there is no memory for it.
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
        if offer.standing.version is None:  # it was given up between
            return offer
        if offer.mark != self._mark:
            self._packed, self._mark = offer.state, offer.mark
        self._used = time.monotonic()
        return offer._replace(state=self._packed)

    def _look(self, now: float) -> None:
        """Drop who is too slow, answer who waits, and free a state that nobody takes."""
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
        with suppress(KeyError):  # one that waits is not registered
            self._selector.unregister(connection.socket)
        connection.socket.close()
