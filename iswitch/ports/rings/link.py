"""The worker's end of its rings."""

from __future__ import annotations

import mmap
import os
import socket
from collections import deque
from collections.abc import Iterator
from contextlib import suppress

from iswitch.core.format.packets import Outgoing

from . import meeting
from .memory import BrokenRing, attach, create
from .ring import GROUP, TAKEN, Bell, Packets, Reader, Sleeper, Writer, fence, group_word, pieces

SIZE = 1 << 21  # bytes of a ring


class Link:
    """The rings between this worker and its switch, once the switch has answered.

    Args:
        connection: to the switch's UNIX socket.
        udp: this worker's UDP socket.
        size: bytes of its ring; None: as usual.

    Raises:
        OSError: there is no memory or descriptor for it, or the switch is gone.
    """

    def __init__(self, connection: socket.socket, udp: int, size: int | None = None) -> None:
        self.connection = connection
        self.bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        fd = -1
        try:
            fd, memory = create(size or SIZE)
            meeting.say(connection, meeting.HELLO, [udp, fd, self.bell])
        except BaseException:
            os.close(self.bell)
            raise
        finally:
            if fd >= 0:
                os.close(fd)
        self.up = Writer(memory)
        self.sleeper = Sleeper(self.up.words)
        self.down: Reader | None = None  # None: the switch has not answered yet
        self.group: Reader | None = None
        self._invitations: deque[tuple[int, Reader]] = deque()  # groups, with their numbers
        self.number = 0
        self.theirs: Bell | None = None

    def hang_up(self) -> None:
        """Part from the switch, which hears of it even if forked processes have the descriptors."""
        with suppress(OSError):  # the switch is gone
            self.connection.shutdown(socket.SHUT_RDWR)
        self.close()

    def close(self) -> None:
        """Close the descriptors."""
        self.connection.close()
        os.close(self.bell)
        if self.theirs is not None:
            os.close(self.theirs.fd)

    def listen(self) -> None:
        """Take what the switch has handed over.

        Raises:
            BrokenRing: the switch is gone, or does not keep to the layout.
        """
        while (heard := meeting.hear(self.connection)) is not None:
            text, fds = heard
            if text == meeting.HELLO and len(fds) == 2 and self.down is None:
                self.down = Reader(_attached(fds))
                self.theirs = Bell(self.down.words, fds[0])
            elif text.isdigit() and len(fds) == 1:
                self._invitations.append((int(text), Reader(_attached(fds))))
            else:
                meeting.close_all(fds)
                raise BrokenRing("a message that no switch sends")

    def put(self, out: Outgoing) -> list[Outgoing]:
        """Write packets for the switch; return those that find no room."""
        assert self.down is not None
        assert self.theirs is not None
        for packets, rows in pieces(out):
            if not self.up.put(packets, self.down.words[TAKEN]):
                return [out._replace(rows=rows)]
            fence()
            self.theirs.ring()
        return []

    def has_more(self) -> bool:
        """Return whether packets are in the rings."""
        down, group = self.down, self.group
        return (down is not None and down.has_more()) or (group is not None and group.has_more())

    @property
    def is_invited(self) -> bool:
        """Return whether the switch has handed over a group's ring that `read` has not begun."""
        return bool(self._invitations)

    def read(self) -> Iterator[Packets]:
        """Yield the packets that are in the rings; each is given up when the next is asked for.

        Raises:
            BrokenRing: the switch does not keep to the layout.
        """
        down, words = self.down, self.up.words
        if down is None:
            return
        while (packets := down.next()) is not None:
            try:
                yield packets
            finally:  # if they could not be handled, they are lost
                down.take()
                words[TAKEN] = down.taken
        while True:
            group = self.group  # nothing is added to it once the next invitation is here
            while group is not None and (packets := group.next()) is not None:
                try:
                    yield packets
                finally:
                    group.take()
                    words[GROUP] = group_word(self.number, group.taken)
            if not self._invitations:
                return
            self.number, self.group = self._invitations.popleft()
            words[GROUP] = group_word(self.number, 0)


def _attached(fds: list[int]) -> mmap.mmap:
    """Map the memory whose descriptor is the last of these; close all if that fails."""
    try:
        return attach(fds.pop())
    except BrokenRing:
        meeting.close_all(fds)
        raise
