"""A worker's port in virtual time; it stands where a `UdpPort` does."""

from __future__ import annotations

import errno
from collections.abc import Iterable, Iterator

from iswitch.core.format.counters import Counters
from iswitch.core.format.packets import MAX_SEGMENTS, Address, Burst, Outgoing

from .process import Process, current

BUFFER = 16 << 20  # bytes: as much as a worker's socket asks for


class VirtualPort:
    """Receives and sends at one address of a simulated host.

    Args:
        process: the process that opens it.
        bind: local (host, port); 0.0.0.0 and port 0: any.
        connect: the only peer.

    Attributes:
        virtual: its number in the process, by which `select.poll` knows it.

    Raises:
        OSError: the address is not the host's, or taken; or nothing has the peer's address.
    """

    def __init__(self, process: Process, bind: tuple[str, int], connect: tuple[str, int]) -> None:
        self._process = process
        self.counters = Counters()
        peer = process.home.place(connect)
        self.virtual, place = process.open(*process.home.place(bind), peer)
        self.address = Address(*place)
        self.socket = Name(self.address, Address(*peer))
        self.buffer = BUFFER
        self.offload = True
        self.most = MAX_SEGMENTS
        self.mtu = process.home.mtu
        self.refused = False

    def fileno(self) -> int:
        """Refuse: only `poll` and `pull` know what comes."""
        raise OSError(errno.EBADF, "a port in virtual time has no descriptor")

    @property
    def way(self) -> str:
        """Return how packets travel."""
        return "virtual"

    def holds(self) -> bool:
        """Return whether packets have come."""
        return bool(self._process.inbox.get(self.virtual))

    def wait(self, seconds: float, more: int = 0) -> bool:
        """Wait until packets come, for `seconds` at most; return whether some have.

        Args:
            seconds: how long.
            more: bytes of data after which more can be sent, and which may wait until the line is
                idle; 0: any packet may matter.
        """
        limit = self._process.now + seconds
        while not self.holds() and self._process.now < limit:
            self._process.wait(limit, {self.virtual: -more or 1})
        return self.holds()

    def detach(self) -> None:
        """Do nothing: after a fork the port is the other process's."""

    def deadline(self) -> float | None:
        """Return that nothing is to be done at any time."""
        return None

    def count_dropped(self) -> None:
        """Do nothing: no packet is dropped here."""

    def close(self) -> None:
        """Close the port; what waits there is lost."""
        if current() is not None:
            self._process.close(self.virtual)

    def pull(self) -> Iterator[Burst]:
        """Yield the packets that have come; valid until the process waits."""
        inbox = self._process.inbox.get(self.virtual)
        while inbox:
            yield inbox.popleft()

    def push(self, sends: Iterable[Outgoing]) -> None:
        """Send packets to the peer."""
        for out in sends:
            self._process.world.put(self.virtual, out)


class Name:
    """The two addresses of a port, as its `socket` tells them."""

    def __init__(self, own: Address, peer: Address) -> None:
        self._own, self._peer = own, peer

    def getsockname(self) -> tuple[str, int]:
        """Return the port's own address."""
        return self._own.host, self._own.port

    def getpeername(self) -> tuple[str, int]:
        """Return the peer's address."""
        return self._peer.host, self._peer.port
