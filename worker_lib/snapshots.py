"""Snapshots of a worker's state, from one worker to another over TCP.

A request is answered by one header, and the state if it is asked for. A checksum is at the end of
both, BLAKE2b of all before it; in a keyed job with the key, so that it is a MAC, and the answer's
covers the request's random bytes, so that no older answer passes for one. Nothing is encrypted.
"""

from __future__ import annotations

import secrets
import socket
import struct
import threading
from collections.abc import Callable
from contextlib import closing, suppress
from hashlib import blake2b
from hmac import compare_digest
from typing import NamedTuple

from .standing import Standing

MAGIC = b"iSst"
REQUEST = struct.Struct(">4sHBx16s")  # magic, job, whether the state is wanted, random bytes
ANSWER = struct.Struct(">4sBBHQIIQ")  # magic, has a state, behind, 0, identity, version, and
# the bytes that follow: of addresses, and of the state
DIGEST = 16
PATIENCE = 2.0  # seconds for a peer to do something
AT_ONCE = 8  # requests that are answered at a time


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
        threading.Thread(target=self._serve, daemon=True, name="iswitch snapshots").start()

    def close(self) -> None:
        """Answer nobody any more."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # wakes the thread
        self._socket.close()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return  # closed
            self._room.acquire()
            threading.Thread(target=self._attend, args=(connection,), daemon=True).start()

    def _attend(self, connection: socket.socket) -> None:
        try:
            with closing(connection), suppress(OSError):
                connection.settimeout(PATIENCE)
                self._answer(connection)
        finally:
            self._room.release()

    def _answer(self, connection: socket.socket) -> None:
        request = _receive(connection, REQUEST.size)
        given = _receive(connection, DIGEST)
        magic, job, wanted, _ = REQUEST.unpack(request)
        right = compare_digest(_digest(self._key, request), given)
        if magic != MAGIC or job != self._job or not right:
            return  # no worker of this job
        (identity, version, behind), addresses, state = self._offer(bool(wanted))
        has = version is not None
        sizes = len(addresses), len(state)
        header = ANSWER.pack(MAGIC, has, behind, 0, identity, version or 0, *sizes)
        for part in (header, addresses, state):
            connection.sendall(part)
        connection.sendall(_digest(self._key, request, header, addresses, state))


def ask(where: tuple[str, int], job: int, key: bytes | None, state: bool) -> Offer:
    """Ask the worker at an address where it stands, and for its state if that is wanted.

    Raises:
        NotThere: no worker of this job is there.
        Unreachable: no answer, or a wrong one.
    """
    request = REQUEST.pack(MAGIC, job, state, secrets.token_bytes(16))
    try:
        with socket.create_connection(where, PATIENCE) as connection:
            connection.sendall(request + _digest(key or b"", request))
            try:
                header = _receive(connection, ANSWER.size)
            except EOFError:
                raise NotThere(f"no worker of job {job} at {where}") from None
            magic, has_state, behind, _, identity, version, *sizes = ANSWER.unpack(header)
            if magic != MAGIC:
                raise NotThere(f"{where} is no worker")
            held = [_receive(connection, size) for size in sizes]
            given = _receive(connection, DIGEST)
    except ConnectionRefusedError:
        raise NotThere(f"no process at {where}") from None
    except (OSError, EOFError) as error:
        raise Unreachable(f"{where}: {error}") from None
    if not compare_digest(_digest(key or b"", request, header, *held), given):
        raise Unreachable(f"{where}: the checksum is wrong")
    return Offer(Standing(identity, version if has_state else None, bool(behind)), *held)


def _digest(key: bytes, *parts: bytes) -> bytes:
    total = blake2b(digest_size=DIGEST, key=key)
    for part in parts:
        total.update(part)
    return total.digest()


def _receive(connection: socket.socket, size: int) -> bytes:
    """Exactly so many bytes.

    Raises:
        EOFError: the connection ended before any came.
        OSError: it ended in their midst.
    """
    held = bytearray(size)
    view, at = memoryview(held), 0
    while at < size:
        count = connection.recv_into(view[at:])
        if not count:
            if not at:
                raise EOFError
            raise ConnectionResetError("the connection ended early")
        at += count
    return bytes(held)
