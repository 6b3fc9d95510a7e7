"""Snapshots of a worker's state, sent from one worker to another over TCP.

An answer is a header, then the state if the request asks for it. Request and answer each end in a
checksum, BLAKE2b of all bytes before it. The answer's checksum also covers the request with its
random bytes, so an older answer is not accepted. In a keyed job both use the key, which makes them
MACs. Nothing is encrypted.

A worker counts as gone only if its port refuses the connection, or if the process there says that
it is no worker of the job. A slow worker is not gone: its state may be the furthest of all.
"""

from __future__ import annotations

import socket
import struct
import time
from hashlib import blake2b
from hmac import compare_digest
from typing import NamedTuple

from iswitch.virtual.process import fresh_bytes

from .standing import Standing

MAGIC = b"iSst"
NO_WORKER = b"iSno"  # in place of MAGIC: the request has another job or key
REQUEST = struct.Struct(">4sHBx16s")  # magic, job, whether the state is wanted, random bytes
ANSWER = struct.Struct(">4sBBHQIIQ")  # magic, has a state, behind, 0, identity, version, and
# the sizes in bytes of what follows: addresses, state
DIGEST = 16
PATIENCE = 2.0  # seconds for a request, and for the header of its answer
STATE_PATIENCE = 30.0  # seconds for a state
MOST_ADDRESSES = 1 << 16  # bytes


class NotThere(Exception):
    """No worker of the job is at an address: nothing listens there, or another process does."""


class Unreachable(Exception):
    """A worker gave no valid answer; it may still be running."""


class Offer(NamedTuple):
    """A worker's answer.

    Attributes:
        standing: progress of the worker.
        addresses: the packed addresses that it knows.
        state: its packed state; empty if not asked for.
        mark: a number that differs between states; not sent.
    """

    standing: Standing
    addresses: bytes | bytearray = b""
    state: bytes | bytearray = b""
    mark: int = 0


def ask(where: tuple[str, int], job: int, key: bytes | None, most: int | None = None) -> Offer:
    """Ask the worker at an address for its standing, and for its state unless `most` is None.

    Args:
        where: (host, port) of the worker.
        job: the job's number.
        key: the key of a keyed job; None: no key.
        most: largest state to accept, in bytes; None: do not ask for the state.

    Raises:
        NotThere: no worker of this job is there.
        Unreachable: there was no answer in time, or an invalid one.
    """
    request = REQUEST.pack(MAGIC, job, most is not None, fresh_bytes(16))
    until = time.monotonic() + PATIENCE
    try:
        with socket.create_connection(where, PATIENCE) as connection:
            connection.sendall(request + digest(key or b"", request))
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
    except MemoryError:
        raise Unreachable(f"{where}: no memory for a state of {sizes[1]:,} bytes") from None
    if not compare_digest(digest(key or b"", request, header, *held), given):
        raise Unreachable(f"{where}: the checksum is wrong")
    standing = Standing(identity, version if has_state else None, bool(behind))
    return Offer(standing, addresses=held[0], state=held[1])


def digest(key: bytes, *parts: bytes | bytearray) -> bytes:
    """Return the BLAKE2b checksum of the parts, a MAC unless the key is empty."""
    total = blake2b(digest_size=DIGEST, key=key)
    for part in parts:
        total.update(part)
    return total.digest()


def _receive(connection: socket.socket, size: int, until: float) -> bytearray:
    """Receive exactly `size` bytes.

    Raises:
        OSError: the connection ended early, or the monotonic clock reached `until`.
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
    return held
