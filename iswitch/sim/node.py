"""A node of a simulated network: a process, its socket, and the packets that wait in it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

import numpy as np

from iswitch.core.format.packets import Address, Burst, Outgoing
from iswitch.core.format.wire import TOS_DATA

from .grain import SINGLE, Crossing
from .handling import Handling, Server
from .host import HostStack
from .runs import Lately, Run

ROOM = 212_992  # bytes that wait in a socket: Linux' net.core.rmem_default
# Called with sender, receiver, ToS and payload of a packet; True: it is lost.
Lose = Callable[[Address, Address, int, bytes], bool]
OVERHEAD = 576  # bytes that a datagram takes there on top (struct sk_buff, rounded up)


class Process(Protocol):
    """A machine at a node: a `Switch`, or a `Session`, which is also a `Speaker`."""

    def receive(self, burst: Burst, now: float, /) -> Sequence[Outgoing] | None:
        """Handle packets; return the packets to send in response."""

    def deadline(self) -> float | None:
        """Return the time at which to call `handle_timer`, in seconds; None: not at all."""

    def handle_timer(self, now: float, /) -> Sequence[Outgoing] | None:
        """Do the work that is due now; return the packets to send."""


@runtime_checkable
class Speaker(Protocol):
    """A machine that returns its packets when asked."""

    def transmissions(self, now: float, /) -> Sequence[Outgoing]:
        """Return packets to send now; called until there are none."""


@runtime_checkable
class Paced(Speaker, Protocol):
    """A machine that sends more when enough has come."""

    def patience(self) -> int:
        """Return how many packets must come, at least, before it sends more."""


class Witness(Protocol):
    """Observes machines: the packets they are about to handle, and those they send."""

    def comes(self, node: Node, burst: Burst | None) -> None:
        """Note that a machine is about to handle these packets; None: its timer."""

    def says(self, node: Node, burst: Burst | None, sends: Sequence[Outgoing]) -> None:
        """Note the packets that a machine sends in response to a burst, or (None) by itself."""


class Beside(Protocol):
    """A way of packets besides links.

    Attributes:
        leaving: packets that it has taken from senders and not put on links.
        entering: packets that it has taken from links and not handed over.
    """

    leaving: int
    entering: int

    def sends(self, source: Address, out: Outgoing, /) -> Iterable[Outgoing]:
        """Take packets that a node sends; return those that go over links."""

    def comes(self, node: Node, burst: Burst, /) -> bool:
        """Take packets that have come over a link; False: hand them over now."""


@dataclass
class Node:
    """A node of the network.

    Attributes:
        machine: the process there; None: there is none.
        room: bytes that may wait in its socket while the process is stopped.
        heed: called when the machine may have news for its owner.
        stack: handles bridged frames; None: the machine does.
        inward, outward: take their time for packets that arrive, and that are sent; None: no time.
        speaker: the machine, if it is a `Speaker`.
        paced: the machine, if it is `Paced`.
        crossing: tells how much the runs may hold that come here.
        lately: the data that came lately, if runs may have a span.
        told: the latest time that the machine was told, in seconds.
        taken: packets that the processes here have handled.
        overflow: packets that found no room in the socket.
        dead: packets that came while no process was there.
        unread: packets in the sockets of processes that crashed.
        given: packets that were sent from here.
        unreachable: packets to addresses without a link.
        inside: packets for which the node takes its time just now.
    """

    name: str
    address: Address
    machine: Process | None = None
    room: int = ROOM
    heed: Callable[[], None] | None = None
    stack: HostStack | None = None
    inward: Server | None = None
    outward: Server | None = None
    speaker: Speaker | None = None
    paced: Paced | None = None
    told: float = 0.0
    lately: Lately | None = None
    crossing: Crossing = field(default_factory=lambda: Crossing(SINGLE))
    paused: bool = False
    taken: int = 0
    overflow: int = 0
    dead: int = 0
    unread: int = 0
    given: int = 0
    unreachable: int = 0
    inside: int = 0
    waiting: deque[Burst] = field(default_factory=deque)
    waiting_bytes: int = 0
    timer: float | None = None

    def takes(self, inward: Handling, outward: Handling) -> None:
        """Let packets that arrive, and packets that are sent, take some time here."""
        self.inward = Server(inward) if inward else None
        self.outward = Server(outward) if outward else None

    def waiting_packets(self) -> int:
        """Return the number of packets that wait in the socket."""
        return sum(len(burst.rows) for burst in self.waiting)

    def make_room(self, burst: Burst) -> int:
        """Reserve room in the socket; return how many of the packets, from the first on, fit."""
        each: int = burst.rows.shape[1] + OVERHEAD
        fits = min(len(burst.rows), max(0, (self.room - self.waiting_bytes) // each))
        self.waiting_bytes += fits * each
        return fits


def gathered(waiting: Iterable[Burst]) -> Iterator[Burst]:
    """Merge packets that waited in a socket into bursts, by sender and packet size."""
    together: dict[tuple[Address, int], list[Burst]] = {}  # by sender and size, which stay in order
    for burst in waiting:
        size = burst.rows.shape[1]
        if not is_uniform(burst):
            yield from map(joined, together.values())
            together.clear()
            yield burst
        else:
            together.setdefault((burst.peer, size), []).append(burst)
    yield from map(joined, together.values())


def joined(bursts: Sequence[Burst]) -> Burst:
    """Merge bursts of one sender and packet size into one."""
    if len(bursts) == 1:
        return bursts[0]
    return bursts[-1]._replace(rows=np.concatenate([burst.rows for burst in bursts]))


def is_uniform(burst: Burst) -> bool:
    """Return whether a burst is data in which even the last packet is full."""
    return burst.tos == TOS_DATA and burst.tail == burst.rows.shape[1]


def not_lost(run: Run, peer: Address, lose: Lose) -> Run | None:
    """Remove from a run to a peer the packets that are lost; None: none is left."""
    source, tos = run.burst.peer, run.burst.tos
    packets = range(len(run.burst.rows))
    return run.without([lose(source, peer, tos, payload(run.burst, i)) for i in packets])


def payload(burst: Burst, i: int) -> bytes:
    """Return packet `i` of a burst as bytes."""
    last = i == len(burst.rows) - 1
    data: bytes = burst.rows[i, : burst.tail if last else None].tobytes()
    return data
