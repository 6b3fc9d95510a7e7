"""What a process in virtual time knows of the world around it: the clock and the network."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from iswitch.core.format.packets import Burst, Outgoing

ANY = "0.0.0.0"
LOCALHOST = "127.0.0.1"
MEETING = 29500  # port at which workers meet
LOCAL = "127."  # a program that names this machine means the switch of its host, or who listens


class Place(NamedTuple):
    """An IP address and a UDP port."""

    host: str
    port: int


class Home(NamedTuple):
    """A host in the network.

    Attributes:
        name: its name.
        address: its IP address.
        mtu: bytes of the largest IP packet of its link.
        hosts: addresses of all hosts by name, "localhost" included.
        ports: ports of the network by those that programs name for them.
    """

    name: str
    address: str
    mtu: int
    hosts: dict[str, str]
    ports: dict[int, int] = {}  # noqa: RUF012  (never changed)

    def place(self, address: tuple[str, int]) -> Place:
        """Return an address whose host may have a name; no name: any."""
        host, port = address
        return Place(self.hosts.get(host, host) or ANY, self.ports.get(port, port))


class Idle(NamedTuple):
    """Tells the world that all threads of a process wait.

    Attributes:
        until: the time in seconds at which the first thread wants to run; None: none does.
        program: that time of the program's own threads.
        hears: by number of the port, the bytes that end a thread's wait; negative: so many once the
            line is idle on which the process then sends.
    """

    until: float | None
    program: float | None
    hears: dict[int, int]


class World(Protocol):
    """Owns the clock and the network.

    Attributes:
        keeps: whether packets that it brings stay valid after the next `idle`.
    """

    keeps: bool

    def open(self, host: str, port: int, peer: Place) -> tuple[int, Place]:
        """Open a port for packets to and from a peer; return its number and address."""

    def listen(self, host: str, port: int) -> tuple[int, Place]:
        """Open a port at which connections come; return its number and address."""

    def connect(self, host: str, port: int, peer: Place) -> tuple[int, Place]:
        """Prepare a connection (`streams.py`); return its number and address."""

    def close(self, port: int) -> None:
        """Close a port, or an end of a connection."""

    def put(self, port: int, out: Outgoing) -> None:
        """Send packets, which are copied, at the current time; or do something to a stream."""

    def idle(self, idle: Idle) -> tuple[float, list[tuple[int, Burst]]]:
        """Wait in virtual time; return the time, and the packets that have come, by port.

        Raises:
            SystemExit: the run is over.
        """
