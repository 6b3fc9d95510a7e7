"""Messages between a process in virtual time and its coordinator, over a UNIX socket.

A message is a length (4 bytes, little-endian) and a JSON list whose first item names its kind. The
bytes of packets lie in files in memory that both ends have mapped (`memory.py`); the list says
where. The ends take turns, so what lies in a room stays until the answer. What lies on a process's
shelf stays until the answer that says it is free; on the coordinator's, which all processes read,
until the process is idle again. Those that open something are answered in order of rank, once no
process computes:

    ["hello", rank, host]             -> ["welcome", settings]; with it come the files of two rooms,
                                         up and down, and of a shelf; with the answer a shelf's
    ["open", host, port, [peer]]      -> ["opened", number, host, port]
    ["listen", host, port]            -> ["opened", number, host, port]
    ["connect", host, port, [peer]]   -> ["opened", number, host, port]
    ["close", number]                    (no answer)
    ["put", sends]                    -> ["ok"]     the file is full before the process waits
    ["idle", until, program, hears, sends, printed] -> ["now", time, bursts, free places]
    ["ended", rank]                      (no answer; the launcher says so of a process)
    ["shown", all]                       (no answer; the launcher has shown what processes printed;
                                         all: it waits no longer for what they print)

A send or burst is [port, tos, bytes of the last packet, offset, whether it lies on a shelf,
packets, bytes of a packet]; of a stream (`streams.py`) it is one packet.
"""

from __future__ import annotations

import json
import socket
from typing import TYPE_CHECKING, Any

from .memory import Memory, Room, Shelf
from .world import Idle, Place

if TYPE_CHECKING:
    from iswitch.core.format.packets import Burst, Outgoing

LENGTH = 4


class Lost(ConnectionError):
    """The other end of a channel has ended."""


def say(sock: socket.socket, message: list[Any], files: list[int] | None = None) -> None:
    """Send a message, with file descriptors beside it."""
    data = json.dumps(message, separators=(",", ":")).encode()
    whole = len(data).to_bytes(LENGTH, "little") + data
    try:
        if files:
            socket.send_fds(sock, [whole], files)
        else:
            sock.sendall(whole)
    except OSError as error:
        raise Lost(str(error)) from None


def hear(sock: socket.socket) -> list[Any]:
    """Wait for a message.

    Raises:
        Lost: there will be none.
    """
    return hear_rest(sock, _exactly(sock, LENGTH))


def hear_rest(sock: socket.socket, head: bytes) -> list[Any]:
    """Wait for the rest of a message whose length has come.

    Raises:
        Lost: there will be none.
    """
    message: list[Any] = json.loads(_exactly(sock, int.from_bytes(head, "little")))
    return message


def _exactly(sock: socket.socket, count: int) -> bytes:
    parts = []
    while count:
        try:
            part = sock.recv(count)
        except OSError as error:
            raise Lost(str(error)) from None
        if not part:
            raise Lost("it has ended")
        parts.append(part)
        count -= len(part)
    return b"".join(parts)


class Channel:
    """The process's end; it is the `World` of its process."""

    keeps = False

    def __init__(self, path: str, rank: int, host: str) -> None:
        self._sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._sock.connect(path)
        self._up, self._down, self._shelf = Room(), Room(), Shelf()
        files = [self._up.fd, self._down.fd, self._shelf.fd]
        say(self._sock, ["hello", rank, host], files)
        head, (shelf,), *_ = socket.recv_fds(self._sock, LENGTH, 1, socket.MSG_WAITALL)
        self._theirs = Memory(shelf, is_read=True)
        self.settings: dict[str, Any] = hear_rest(self._sock, head)[1]
        self._sends: list[list[int]] = []
        self._peers: dict[int, Any] = {}
        self._printed = False  # since the last wait

    def open(self, host: str, port: int, peer: Place) -> tuple[int, Place]:
        """Open a port for packets to and from a peer; return its number and address."""
        from iswitch.core.format.packets import Address

        number, place = self._opened(["open", host, port, list(peer)])
        self._peers[number] = Address(*peer)
        return number, place

    def listen(self, host: str, port: int) -> tuple[int, Place]:
        """Open a port at which connections come; return its number and address."""
        return self._opened(["listen", host, port])

    def connect(self, host: str, port: int, peer: Place) -> tuple[int, Place]:
        """Prepare a connection; return its number and address."""
        return self._opened(["connect", host, port, list(peer)])

    def close(self, port: int) -> None:
        """Close a port, after what was sent from it."""
        self._flush()
        say(self._sock, ["close", port])

    def put(self, port: int, out: Outgoing) -> None:
        """Send packets, which are copied, at the current time."""
        at = self._shelf.write(out.rows)
        on_shelf = at is not None
        if at is None:
            if not self._up.fits(out):
                self._flush()
            at = self._up.write(out.rows)
        self._sends.append([port, out.tos, out.tail, at, on_shelf, *out.rows.shape])

    def idle(self, idle: Idle) -> tuple[float, list[tuple[int, Burst]]]:
        """Wait in virtual time; return the time, and the packets that have come, by port."""
        sends, self._sends, self._up.used = self._sends, [], 0
        printed, self._printed = self._printed, False
        asked = ["idle", *idle[:2], list(idle.hears.items()), sends, printed]
        _, now, bursts, free = self._ask(asked)
        for at in free:
            self._shelf.free(at)
        return now, [self._read(burst) for burst in bursts]

    def _read(self, message: list[Any]) -> tuple[int, Burst]:
        """Return packets that have come, and their port."""
        from iswitch.core.format.packets import Burst

        port, tos, tail, at, on_shelf, *shape = message
        rows = (self._theirs if on_shelf else self._down).rows(at, shape)
        return port, Burst(self._peers.get(port), tos, rows, tail)  # type: ignore[arg-type]

    def prints(self) -> None:
        """Note that the process prints something."""
        self._printed = True

    def hang_up(self) -> None:
        """Close the socket, after a fork."""
        self._sock.close()

    def _flush(self) -> None:
        if self._sends:
            sends, self._sends, self._up.used = self._sends, [], 0
            self._ask(["put", sends])

    def _opened(self, message: list[Any]) -> tuple[int, Place]:
        _, number, *place = self._ask(message)
        if number < 0:
            raise OSError(*place)
        return number, Place(*place)

    def _ask(self, message: list[Any]) -> list[Any]:
        say(self._sock, message)
        return hear(self._sock)
