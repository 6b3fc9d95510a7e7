"""A process in virtual time, as its coordinator knows it, and what is kept for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from iswitch.core.format.packets import Address, Burst, Outgoing
from iswitch.core.format.wire import TOS_DATA
from iswitch.virtual.words import DATA
from iswitch.virtual.world import Idle

URGENT = 1 << 62  # more bytes than any process waits for
LONGEST = 0.0005  # seconds for which data waits for a line: a quarter of a worker's shortest timer


class Endpoint:
    """A port of a process, as the network sees it: keeps packets until the process runs."""

    def __init__(self, member: Member, number: int, address: Address, peer: Address) -> None:
        self.member = member
        self._number = number
        self.address = address
        self.peer = peer
        self.busy: float | None = None  # until when packets of its own leave; None: never mind
        self.since: float | None = None  # when the first data came that it keeps

    def due(self, enough: bool) -> float:
        """Return until when its data may wait; `enough`: for a line that is busy alone."""
        if self.busy is None or self.since is None:
            return 0.0
        limit = self.since + LONGEST
        return min(self.busy, limit) if enough else limit

    def receive(self, burst: Burst, now: float) -> Sequence[Outgoing]:
        """Keep packets."""
        self.since = now if self.since is None else self.since
        self.member.take(self._number, burst)
        return ()

    def awaits_room(self) -> bool:
        """Return whether the process waits for data that makes room to send more."""
        idle = self.member.idle
        return idle is not None and idle.hears.get(self._number, 0) < 0

    def deadline(self) -> float | None:
        """Return that nothing is to be done at any time."""
        return None

    def handle_timer(self, now: float) -> Sequence[Outgoing]:  # noqa: ARG002
        """Do nothing."""
        return ()


@dataclass(eq=False)
class Member:
    """A process in virtual time.

    Attributes:
        idle: what it waits for; None: it runs.
        inbox: packets that it has not got yet, by number of the port.
        sends: packets that it has sent since it woke.
        ports: its ports, by number.
        streams: its ends of connections, and what listens for some, by number.
        has_news: something has come for it; reset by who looks.
    """

    rank: int
    host: str
    idle: Idle | None = None
    inbox: list[tuple[int, Burst]] = field(default_factory=list)
    sends: list[tuple[int, Outgoing]] = field(default_factory=list)
    ports: dict[int, Endpoint] = field(default_factory=dict)
    streams: dict[int, Any] = field(default_factory=dict)
    has_news: bool = False
    _come: dict[int, int] = field(default_factory=dict)  # bytes in `inbox`, by number

    def is_due(self, now: float) -> bool:
        """Return whether a waiting process wakes now."""
        if self.idle is None:
            return False
        if self.idle.until is not None and self.idle.until <= now:
            return True
        come = self._come
        for number, least in self.idle.hears.items():
            there = come.get(number, 0)
            if there >= (least if least > 0 else URGENT):
                return True
            if least < 0 and there and self.ports[number].due(there >= -least) <= now:
                return True
        return False

    @property
    def wakes(self) -> float | None:
        """Return the time in seconds at which it wakes at the latest; None: none is known."""
        assert self.idle is not None
        times = [
            self.ports[number].due(there >= -least)
            for number, least in self.idle.hears.items()
            if least < 0 and (there := self._come.get(number, 0))
        ]
        if self.idle.until is not None:
            times.append(self.idle.until)
        return min(times, default=None)

    def take(self, number: int, burst: Burst) -> None:
        """Keep packets for a port, or bytes or news of a stream, until the process runs."""
        self.has_news = True
        self.inbox.append((number, burst))
        size = burst.rows.size if burst.tos in (DATA, TOS_DATA) else URGENT
        self._come[number] = self._come.get(number, 0) + size

    def forget(self, number: int) -> None:
        """Drop what was kept for a port or a stream."""
        self.inbox = [(at, burst) for at, burst in self.inbox if at != number]
        self._come.pop(number, None)

    def give(self, most: int) -> list[tuple[int, Burst]]:
        """Return what was kept: `most` bytes at most, but at least a burst."""
        count = total = 0
        for _, burst in self.inbox:
            total += burst.rows.size
            if count and total > most:
                break
            count += 1
        given, rest = self.inbox[:count], self.inbox[count:]
        self.inbox, self._come = [], {}
        for port in self.ports.values():
            port.since = None
        for number, burst in rest:
            self.take(number, burst)
        return given
