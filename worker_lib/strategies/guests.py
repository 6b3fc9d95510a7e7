"""Accepts connections and reads their first messages, so that a silent one delays no other."""

from __future__ import annotations

import errno
import selectors
import socket
import time
from collections.abc import Callable, Generator

NO_ROOM = (errno.EMFILE, errno.ENFILE)
GUESTS = 256  # most connections without a complete message; beyond it the oldest are closed


def greeted(
    listener: socket.socket, unsaid: Callable[[bytearray], int], deadline: float
) -> Generator[tuple[socket.socket, bytes], None, None]:
    """Yield (connection, first message) whenever a first message is complete, until the deadline.

    A yielded connection is non-blocking and belongs to the caller. The generator reads nothing
    beyond the first message; when it ends, it closes connections whose messages are incomplete.

    Args:
        listener: socket to which peers connect.
        unsaid: returns how many bytes a partial message still lacks; raises ValueError if it cannot
            be a message.
        deadline: time of time.monotonic() at which to end.
    """
    listener.setblocking(False)
    guests: dict[socket.socket, bytearray] = {}  # bytes received so far; oldest connection first
    with selectors.DefaultSelector() as selector:
        selector.register(listener, selectors.EVENT_READ)

        def part_from(sock: socket.socket) -> bytearray:
            selector.unregister(sock)
            return guests.pop(sock)

        try:
            while (left := deadline - time.monotonic()) > 0:
                is_full = False  # whether the process may open no more descriptors
                for sock in [key.fileobj for key, _ in selector.select(left)]:
                    assert isinstance(sock, socket.socket)
                    if sock is listener:
                        try:
                            guest = _accepted(listener)
                        except OSError as error:
                            if error.errno not in NO_ROOM or not guests:
                                raise
                            is_full = True
                            continue
                        if guest is not None:
                            guests[guest] = bytearray()
                            selector.register(guest, selectors.EVENT_READ)
                        continue
                    try:
                        whole = filled(sock, guests[sock], unsaid)
                    except (OSError, ValueError):  # the peer has gone, or is a stranger
                        part_from(sock)
                        sock.close()
                        continue
                    if whole:
                        yield sock, bytes(part_from(sock))
                if guests and (is_full or len(guests) > GUESTS):
                    first = next(iter(guests))
                    part_from(first)
                    first.close()
        finally:
            for guest in guests:
                guest.close()


def _accepted(listener: socket.socket) -> socket.socket | None:
    """Accept a connection and make it non-blocking; None: the peer has gone already."""
    try:
        guest, _ = listener.accept()
    except (BlockingIOError, ConnectionAbortedError):
        return None
    guest.setblocking(False)
    return guest


def filled(sock: socket.socket, said: bytearray, unsaid: Callable[[bytearray], int]) -> bool:
    """Receive more of a message without blocking; return whether it is complete.

    Args:
        sock: a non-blocking socket.
        said: bytes received so far; extended.
        unsaid: returns how many bytes a partial message still lacks, see `greeted`.

    Raises:
        OSError: the connection has ended.
        ValueError: `unsaid` found that this is no message.
    """
    while (size := unsaid(said)) > 0:
        try:
            more = sock.recv(size)
        except BlockingIOError:
            return False
        if not more:
            raise ConnectionResetError("closed before the message's end")
        said += more
    return True
