"""A place in a network of virtual time: a process, its socket, and the packets that wait in it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

import numpy as np

from iswitch.core.format.packets import Address, Burst, Outgoing
from iswitch.core.format.wire import TOS_DATA

from .host import HostStack

ROOM = 212_992  # bytes that wait in a socket: Linux' net.core.rmem_default
OVERHEAD = 576  # bytes that a datagram takes there beside its own (struct sk_buff, rounded up)


class Process(Protocol):
    """A machine at a node: a `Switch`, or a `Session`, which is asked for its packets."""

    def receive(self, burst: Burst, now: float, /) -> Sequence[Outgoing] | None:
        """Take packets; return what is to be sent because of them."""

    def deadline(self) -> float | None:
        """Tell when `handle_timer` has to be called."""

    def handle_timer(self, now: float, /) -> Sequence[Outgoing] | None:
        """Do what is due; return what is to be sent."""


@runtime_checkable
class Speaker(Protocol):
    """A machine that is asked for its packets."""

    def transmissions(self, now: float, /) -> Sequence[Outgoing]:
        """Give what is to be sent now; called until there is nothing."""


class Witness(Protocol):
    """Looks on: is told before a machine takes packets, and what it sends then."""

    def comes(self, node: Node, burst: Burst | None) -> None:
        """Note that a machine is about to take these packets; None: its timer rings."""

    def says(self, node: Node, burst: Burst | None, sends: Sequence[Outgoing]) -> None:
        """Note what a machine sends: because of these packets, or (None) by itself."""


@dataclass
class Node:
    """A place in the network.

    Attributes:
        machine: the process there; None: there is none.
        room: bytes that wait in its socket while the process is stopped.
        heed: called when the machine may have something new to tell its owner.
        stack: takes the frames that come, where those are bridged.
        taken, overflow, dead, given: packets that the processes here took, that found no room in
            the socket, that came while no process was there; and that they gave to be sent.
        unread: packets in the sockets of processes that crashed.
        unreachable: packets for whom no link leads to.
    """

    name: str
    address: Address
    machine: Process | None = None
    room: int = ROOM
    heed: Callable[[], None] | None = None
    stack: HostStack | None = None
    paused: bool = False
    taken: int = 0
    overflow: int = 0
    dead: int = 0
    unread: int = 0
    given: int = 0
    unreachable: int = 0
    waiting: deque[Burst] = field(default_factory=deque)
    waiting_bytes: int = 0
    timer: float | None = None

    def waiting_packets(self) -> int:
        """Count the packets that wait in the socket."""
        return sum(len(burst.rows) for burst in self.waiting)

    def make_room(self, burst: Burst) -> int:
        """Take room in the socket; return how many of these packets, from the first, fit."""
        each: int = burst.rows.shape[1] + OVERHEAD
        fits = min(len(burst.rows), max(0, (self.room - self.waiting_bytes) // each))
        self.waiting_bytes += fits * each
        return fits


def gathered(waiting: Iterable[Burst]) -> Iterator[Burst]:
    """Put packets that waited in a socket together as one system call would: by sender.

    Only packets of one size fit into one burst.
    """
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
    """Make one burst of several whose packets have one size."""
    if len(bursts) == 1:
        return bursts[0]
    return bursts[-1]._replace(rows=np.concatenate([burst.rows for burst in bursts]))


def is_uniform(burst: Burst) -> bool:
    """Whether its packets are data of one size, so that others of that size can go before them."""
    return burst.tos == TOS_DATA and burst.tail == burst.rows.shape[1]


def payload(burst: Burst, i: int) -> bytes:
    """Give one packet of a burst as bytes."""
    last = i == len(burst.rows) - 1
    data: bytes = burst.rows[i, : burst.tail if last else None].tobytes()
    return data
