"""A coordinator's connection with a process in virtual time, and the memory that they share."""

from __future__ import annotations

import socket
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from iswitch.core.format.packets import Burst, Outgoing
from iswitch.virtual.channel import say
from iswitch.virtual.memory import Lent, Memory, Room, Shelf

from .member import Member


class Shared(NamedTuple):
    """Memory shared with a process: rooms for what it sends and gets, and what it lends."""

    up: Memory
    down: Room
    lent: Lent


class Line:
    """A process's connection.

    Attributes:
        member: the process; None: it has not said who it is.
        looks: how often in a row it slept when it was looked at.
    """

    def __init__(self, sock: socket.socket, pid: int) -> None:
        self.sock = sock
        self.pid = pid
        self.member: Member | None = None
        self.looks = 0
        self._shared: Shared | None = None
        self._free: list[int] = []  # places on its shelf, of which it does not know yet
        self._reads: list[Burst] = []  # on the coordinator's shelf, until its next message
        self._former: list[str] = []

    def share(self, up: int, down: int, shelf: int) -> None:
        """Share memory with the process, given as files."""
        self._shared = Shared(Memory(up), Room(down), Lent(Memory(shelf), self._let_go))

    def _let_go(self, at: int) -> None:
        self._free.append(at)

    def keep(self, member: Member, sends: list[list[int]]) -> None:
        """Keep what a process sends: as a copy, unless it lies on its shelf."""
        assert self._shared is not None
        up, _, lent = self._shared
        for number, tos, tail, at, on_shelf, *shape in sends:
            rows = lent.rows(at, shape) if on_shelf else up.rows(at, shape).copy()
            port = member.ports.get(number)
            peers = () if port is None else (port.peer,)
            member.sends.append((number, Outgoing(peers, tos, rows, tail)))

    def wake(self, now: float, bursts: list[tuple[int, Burst]], shelf: Shelf) -> None:
        """Let the process run at a time, and read packets by port.

        `shelf` is the coordinator's: what lies there is not copied.

        Raises:
            Lost: the process has ended.
        """
        assert self._shared is not None
        down = self._shared.down
        down.used = 0
        told = []
        for port, burst in bursts:
            at = shelf.where(burst.rows)
            on_shelf = at is not None
            if at is None:
                at = down.write(burst.rows)
            else:
                self._reads.append(burst)
            told.append([port, burst.tos, burst.tail, at, on_shelf, *burst.rows.shape])
        free, self._free = self._free, []
        say(self.sock, ["now", now, told, free])

    def has_read(self) -> None:
        """Note that the process has read what was lent."""
        self._reads.clear()

    def look(self) -> None:
        """Look whether the process and its children sleep, and have computed nothing since.

        What waits until the launcher reads its lines does not sleep.
        """
        seen = []
        pids = [self.pid]
        for pid in pids:
            with suppress(OSError):
                for task in sorted(Path(f"/proc/{pid}/task").iterdir()):
                    state, *fields = (task / "stat").read_text().rpartition(")")[2].split()
                    prints = "pipe_write" in (task / "wchan").read_text()
                    seen.append(f"{'R' if prints else state} {fields[10]} {fields[11]}")  # CPU time
                    pids += map(int, (task / "children").read_text().split())
        asleep = seen == self._former and all(each.startswith("S") for each in seen)
        self.looks = self.looks + 1 if asleep else 0
        self._former = seen
