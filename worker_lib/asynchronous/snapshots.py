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
import time
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
MOST_ADDRESSES = 1 << 16  # bytes


class NotThere(Exception):
    """The process that was asked is no more, or another one is there now."""


class Unreachable(Exception):
    """No answer: nobody knows whether the process is there."""


class Offer(NamedTuple):
    """What a worker answers: where it stands, and if asked for, whom it knows, and its state.

    `mark` is another number for another state; it is not sent.
    """

    standing: Standing
    addresses: bytes | bytearray = b""
    state: bytes | bytearray = b""
    mark: int = 0


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
    """The checksum of these, with the key of a keyed job."""
    total = blake2b(digest_size=DIGEST, key=key)
    for part in parts:
        total.update(part)
    return total.digest()


def _receive(connection: socket.socket, size: int, until: float) -> bytearray:
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
    return held
