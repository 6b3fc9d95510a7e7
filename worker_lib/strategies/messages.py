"""Messages between the processes of a group, told apart from the data of strangers.

A message has three parts: a magic number, which strangers lack; the length, four bytes big-endian;
and JSON.
"""

from __future__ import annotations

import errno
import json
import selectors
import socket
import struct
import time
from collections.abc import Generator
from contextlib import closing
from typing import Any

HEAD = struct.Struct(">4sI")
MAGIC = b"iSmt"
MOST = 1 << 24  # bytes of a message
TOLD = 1 << 16  # most bytes of a stranger's message
NO_ROOM = (errno.EMFILE, errno.ENFILE)
GONE = (BlockingIOError, ConnectionAbortedError)  # of accept: the peer has left already
GUESTS = 256  # most connections without a complete message; beyond it the oldest are closed


class Incoming:
    """A message that arrives over a connection, of at most `most` bytes of JSON."""

    def __init__(self, sock: socket.socket, most: int = MOST) -> None:
        self.sock = sock
        self._most = most
        self._data = bytearray()
        self._size = HEAD.size  # of the head; once that is there, of head and JSON

    def read(self) -> bool:
        """Receive more of the message, and nothing after it; return whether it is complete.

        Raises:
            OSError: the connection has ended, or the socket's timeout is over.
            ValueError: the data is not a member's message, or the message is too long.
        """
        while len(self._data) < self._size:
            try:
                more = self.sock.recv(self._size - len(self._data))
            except BlockingIOError:
                return False
            if not more:
                raise ConnectionResetError("closed before the message's end")
            self._data += more
            if len(self._data) == HEAD.size:
                magic, size = HEAD.unpack(self._data)
                if magic != MAGIC or size > self._most:
                    raise ValueError("no message of a member")
                self._size += size
        return True

    def meaning(self) -> Any:
        """Parse the JSON of the complete message.

        Raises:
            ValueError: the message is not JSON, or is nested too deeply.
        """
        try:
            return json.loads(self._data[HEAD.size :])
        except RecursionError:
            raise ValueError("a message that nests too deep") from None


def say(sock: socket.socket, message: Any) -> None:
    """Send a message; on a non-blocking socket it must fit in the kernel's send buffer."""
    data = json.dumps(message).encode()
    sock.sendall(HEAD.pack(MAGIC, len(data)) + data)


def hear(sock: socket.socket) -> Any:
    """Receive the next message.

    Raises:
        OSError: no complete message arrived before the socket's timeout.
        ValueError: the bytes received are no message of ours.
    """
    message = Incoming(sock)
    message.read()
    return message.meaning()


def greeted(
    listener: socket.socket, deadline: float
) -> Generator[tuple[socket.socket, Any], None, None]:
    """Yield (connection, first message) whenever a first message is complete, until the deadline.

    A yielded connection is non-blocking and belongs to the caller. A silent connection delays no
    other. Those that send no message of ours are closed, at the end also those whose messages are
    incomplete.

    Args:
        listener: socket to which peers connect.
        deadline: time of time.monotonic() at which to end.
    """
    listener.setblocking(False)
    guests: dict[socket.socket, Incoming] = {}  # oldest connection first
    with selectors.DefaultSelector() as selector:
        selector.register(listener, selectors.EVENT_READ)

        def send_away(sock: socket.socket) -> None:
            selector.unregister(sock)
            del guests[sock]
            sock.close()

        try:
            while (left := deadline - time.monotonic()) > 0:
                is_full = False  # whether the process may open no more descriptors
                for sock in [key.fileobj for key, _ in selector.select(left)]:
                    assert isinstance(sock, socket.socket)
                    try:
                        if sock is listener:
                            guest, _ = listener.accept()
                            guest.setblocking(False)
                            guests[guest] = Incoming(guest, TOLD)
                            selector.register(guest, selectors.EVENT_READ)
                        elif guests[sock].read():
                            said = guests[sock].meaning()
                            selector.unregister(sock)
                            del guests[sock]
                            yield sock, said
                    except (OSError, ValueError) as error:
                        if sock is not listener:  # the peer has gone, or is a stranger
                            send_away(sock)
                        elif guests and getattr(error, "errno", 0) in NO_ROOM:
                            is_full = True
                        elif not isinstance(error, GONE):
                            raise
                if guests and (is_full or len(guests) > GUESTS):
                    send_away(next(iter(guests)))
        finally:
            for guest in guests:
                guest.close()


def expected(
    listener: socket.socket, wanted: set[tuple[int, int]], timeout: float
) -> tuple[dict[tuple[int, int], socket.socket], set[int]]:
    """Accept connections whose first message is [rank, purpose]; close strangers' connections.

    Args:
        listener: socket to which peers connect.
        wanted: (rank, purpose) of each connection to wait for.
        timeout: seconds to wait.

    Returns:
        the connections by (rank, purpose), and the ranks of those that did not come in time.
    """
    found: dict[tuple[int, int], socket.socket] = {}
    with closing(greeted(listener, time.monotonic() + timeout)) as coming:
        while missing := wanted - found.keys():
            sock, said = next(coming, (None, None))
            if sock is None:
                break
            match said:
                case [int(rank), int(purpose)] if (rank, purpose) in missing:
                    found[rank, purpose] = sock
                case _:
                    sock.close()
    return found, {rank for rank, _ in missing}
