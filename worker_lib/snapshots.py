"""Snapshots of a worker's state, from one worker to another over TCP.

A request is answered by one header, and the state if it is asked for. A checksum is at the end of
both, BLAKE2b of all before it; in a keyed job with the key, so that it is a MAC, and the answer's
covers the request's random bytes, so that no older answer passes for one. Nothing is encrypted.

Only a process that says that it is no worker of the job, or a port that refuses the connection, is
taken for gone: whoever is merely slow may have a state that is further than anybody's.
"""

from __future__ import annotations

import secrets
import socket
import struct
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from hashlib import blake2b
from hmac import compare_digest
from typing import NamedTuple

from .standing import Standing

MAGIC = b"iSst"
NO_WORKER = b"iSno"  # instead: the request is for another job, or of another key
REQUEST = struct.Struct(">4sHBx16s")  # magic, job, whether the state is wanted, random bytes
ANSWER = struct.Struct(">4sBBHQIIQ")  # magic, has a state, behind, 0, identity, version, and
# the bytes that follow: of addresses, and of the state
DIGEST = 16
PATIENCE = 2.0  # seconds for a request, and for the head of its answer
STATE_PATIENCE = 30.0  # seconds for a state
AT_ONCE = 64  # requests that are answered at a time; as many peers as there can be
MOST_ADDRESSES = 1 << 16  # bytes
ACCEPT_PAUSE = 0.1  # seconds, if no connection can be taken, for want of descriptors, say


class NotThere(Exception):
    """The process that was asked is no more, or another one is there now."""


class Unreachable(Exception):
    """No answer: nobody knows whether the process is there."""


class Offer(NamedTuple):
    """What a worker answers: where it stands, and if asked for, whom it knows, and its state."""

    standing: Standing
    addresses: bytes = b""
    state: bytes = b""


class Server:
    """Answers peers, from a thread of its own.

    Args:
        host: local address to listen at.
        port: the same as the worker's UDP port, if it is free.
        job: the job's number.
        key: of a keyed job.
        offer: called with whether the state is wanted.
    """

    def __init__(
        self, host: str, port: int, job: int, key: bytes | None, offer: Callable[[bool], Offer]
    ) -> None:
        self._job, self._key, self._offer = job, key or b"", offer
        try:
            self._socket = socket.create_server((host, port), backlog=AT_ONCE)
        except OSError:
            self._socket = socket.create_server((host, 0), backlog=AT_ONCE)
        self.where: tuple[str, int] = self._socket.getsockname()
        self._room = threading.BoundedSemaphore(AT_ONCE)
        self._closed = threading.Event()
        threading.Thread(target=self._serve, daemon=True, name="iswitch snapshots").start()

    def close(self) -> None:
        """Answer nobody any more."""
        self._closed.set()
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # wakes the thread
        self._socket.close()

    def _serve(self) -> None:
        while not self._closed.is_set():
            try:
                connection, _ = self._socket.accept()
            except OSError:
                self._closed.wait(ACCEPT_PAUSE)
                continue
            if self._room.acquire(blocking=False):
                threading.Thread(target=self._attend, args=(connection,), daemon=True).start()
            else:
                connection.close()  # who asked will ask again

    def _attend(self, connection: socket.socket) -> None:
        try:
            with connection, suppress(OSError):
                self._answer(connection)
        finally:
            self._room.release()

    def _answer(self, connection: socket.socket) -> None:
        until = time.monotonic() + PATIENCE
        request = _receive(connection, REQUEST.size, until)
        given = _receive(connection, DIGEST, until)
        connection.settimeout(STATE_PATIENCE)
        magic, job, wanted, _ = REQUEST.unpack(request)
        right = compare_digest(_digest(self._key, request), given)
        if magic != MAGIC or job != self._job or not right:
            connection.sendall(NO_WORKER.ljust(ANSWER.size, b"\0"))
            return
        (identity, version, behind), addresses, state = self._offer(bool(wanted))
        has = version is not None
        sizes = len(addresses), len(state)
        header = ANSWER.pack(MAGIC, has, behind, 0, identity, version or 0, *sizes)
        for part in (header, addresses, state):
            connection.sendall(part)
        connection.sendall(_digest(self._key, request, header, addresses, state))


def ask(where: tuple[str, int], job: int, key: bytes | None, most: int | None = None) -> Offer:
    """Ask the worker at an address where it stands, and for its state if that is wanted.

    Args:
        where: its address.
        job: the job's number.
        key: of a keyed job.
        most: bytes that its state can have; None: it is not wanted.

    Raises:
        NotThere: no worker of this job is there.
        Unreachable: no answer, or a wrong one.
    """
    request = REQUEST.pack(MAGIC, job, most is not None, secrets.token_bytes(16))
    until = time.monotonic() + PATIENCE
    try:
        with socket.create_connection(where, PATIENCE) as connection:
            connection.sendall(request + _digest(key or b"", request))
            header = _receive(connection, ANSWER.size, until)
            magic, has_state, behind, _, identity, version, *sizes = ANSWER.unpack(header)
            if magic != MAGIC:
                raise NotThere(f"{where} is no worker of job {job}")
            if sizes[0] > MOST_ADDRESSES or sizes[1] > (most or 0):
                raise Unreachable(f"{where}: an answer of {sum(sizes)} bytes")
            until += STATE_PATIENCE
            held = [_receive(connection, size, until) for size in sizes]
            given = _receive(connection, DIGEST, until)
    except ConnectionRefusedError:
        raise NotThere(f"no process at {where}") from None
    except OSError as error:
        raise Unreachable(f"{where}: {error}") from None
    if not compare_digest(_digest(key or b"", request, header, *held), given):
        raise Unreachable(f"{where}: the checksum is wrong")
    return Offer(Standing(identity, version if has_state else None, bool(behind)), *held)


def _digest(key: bytes, *parts: bytes) -> bytes:
    total = blake2b(digest_size=DIGEST, key=key)
    for part in parts:
        total.update(part)
    return total.digest()


def _receive(connection: socket.socket, size: int, until: float) -> bytes:
    """Exactly so many bytes.

    Raises:
        OSError: the connection ended before they had come, or the time is up.
    """
    held = bytearray(size)
    view, at = memoryview(held), 0
    while at < size:
        left = until - time.monotonic()
        if left <= 0:
            raise TimeoutError("the time is up")
        connection.settimeout(left)
        count = connection.recv_into(view[at:])
        if not count:
            raise ConnectionResetError("the connection ended early")
        at += count
    return bytes(held)
