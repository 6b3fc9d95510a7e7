"""Messages between a process in virtual time and its coordinator, over a UNIX socket.

A message is a length (4 bytes, little-endian) and a JSON list whose first item names its kind. The
bytes of packets lie in two files in memory that both ends have mapped, one for each direction; the
list says where. The ends take turns, so whatever a message names stays until its answer:

    ["hello", rank, host]             -> ["welcome", settings]; the two files come with the hello
    ["open", host, port, [peer]]      -> ["opened", number, host, port]
    ["listen", host, port]            -> ["opened", number, host, port]
    ["connect", host, port, [peer]]   -> ["opened", number, host, port]
    ["close", number]                    (no answer)
    ["put", sends]                    -> ["ok"]     the file is full before the process waits
    ["idle", until, program, hears, sends, printed] -> ["now", time, bursts]
    ["ended", rank]                      (no answer; the launcher says so of a process)
    ["shown", all]                       (no answer; the launcher has shown what processes printed;
                                         all: it waits no longer for what they print)

A send or burst is [port, tos, packets, bytes of a packet, bytes of the last one, offset]; of a
stream (`streams.py`) it is one packet.
"""

from __future__ import annotations

import json
import mmap
import os
import socket
from typing import TYPE_CHECKING, Any

from .world import Idle, Place

if TYPE_CHECKING:
    from iswitch.core.format.packets import Burst, Outgoing

ROOM = 32 << 20  # bytes in memory for packets of one direction
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
    length = int.from_bytes(_exactly(sock, LENGTH), "little")
    message: list[Any] = json.loads(_exactly(sock, length))
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


class Room:
    """A file in memory for packets of one direction."""

    def __init__(self, fd: int | None = None) -> None:
        if fd is None:
            fd = os.memfd_create("iswitch packets", os.MFD_CLOEXEC)
            os.ftruncate(fd, ROOM)
        self.fd = fd
        self._map = mmap.mmap(fd, ROOM)
        self.used = 0

    def fits(self, out: Outgoing | Burst) -> bool:
        """Return whether there is room for these packets."""
        return self.used + out.rows.size <= ROOM

    def write(self, port: int, out: Outgoing | Burst) -> list[int]:
        """Copy packets; return where they are, as a message says it."""
        import numpy as np

        n, size = out.rows.shape
        view = np.ndarray((n, size), np.uint8, self._map, self.used)
        view[:] = out.rows
        found = [port, out.tos, n, size, out.tail, self.used]
        self.used += n * size
        return found

    def read(self, where: list[int], peer: Any) -> Burst:
        """Return packets of a peer, which stay there until the next message."""
        import numpy as np

        from iswitch.core.format.packets import Burst

        _, tos, n, size, tail, offset = where
        rows = np.ndarray((n, size), np.uint8, self._map, offset)
        return Burst(peer, tos, rows, tail)


class Channel:
    """The process's end; it is the `World` of its process."""

    keeps = False

    def __init__(self, path: str, rank: int, host: str) -> None:
        self._sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._sock.connect(path)
        self._up, self._down = Room(), Room()
        say(self._sock, ["hello", rank, host], [self._up.fd, self._down.fd])
        self.settings: dict[str, Any] = hear(self._sock)[1]
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
        if not self._up.fits(out):
            self._flush()
        self._sends.append(self._up.write(port, out))

    def idle(self, idle: Idle) -> tuple[float, list[tuple[int, Burst]]]:
        """Wait in virtual time; return the time, and the packets that have come, by port."""
        sends, self._sends, self._up.used = self._sends, [], 0
        printed, self._printed = self._printed, False
        _, now, bursts = self._ask(["idle", *idle[:2], list(idle.hears.items()), sends, printed])
        return now, [(at[0], self._down.read(at, self._peers.get(at[0]))) for at in bursts]

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
