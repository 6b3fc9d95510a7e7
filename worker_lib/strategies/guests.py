"""Hear who connects: each says first who it is, and a silent one holds up nobody."""

from __future__ import annotations

import errno
import selectors
import socket
import time
from collections.abc import Callable, Generator

NO_ROOM = (errno.EMFILE, errno.ENFILE)
GUESTS = 256  # who have not said yet who they are; of more the first are sent away


def greeted(
    listener: socket.socket, unsaid: Callable[[bytearray], int], deadline: float
) -> Generator[tuple[socket.socket, bytes], None, None]:
    """Yield connections with their first messages, as these become whole, until the deadline.

    A connection that is yielded does not block, and belongs to the caller. Those whose messages are
    not whole are closed with the generator. Nothing that follows a message is received.

    Args:
        listener: where they connect.
        unsaid: how many bytes a message that begins so lacks; ValueError if it is none.
        deadline: of time.monotonic().
    """
    listener.setblocking(False)
    guests: dict[socket.socket, bytearray] = {}  # what they have said, in the order of coming
    with selectors.DefaultSelector() as selector:
        selector.register(listener, selectors.EVENT_READ)

        def part_from(sock: socket.socket) -> bytearray:
            selector.unregister(sock)
            return guests.pop(sock)

        try:
            while (left := deadline - time.monotonic()) > 0:
                is_full = False  # the process may open no more
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
                    except (OSError, ValueError):  # it has gone, or is a stranger
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
    """Accept a connection, which does not block; None: it has gone."""
    try:
        guest, _ = listener.accept()
    except (BlockingIOError, ConnectionAbortedError):
        return None
    guest.setblocking(False)
    return guest


def filled(sock: socket.socket, said: bytearray, unsaid: Callable[[bytearray], int]) -> bool:
    """Receive what is there of a message; whether it is whole now. The socket must not block.

    Raises:
        OSError: no more will come.
        ValueError: it is no message, as `unsaid` finds.
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
