"""A switch with ports in a simulated network: packets become frames at its door, and back.

    burst --> frames of the sender's port --> Chassis --> frames --> packets for a receiver

So histories also test the code that sorts, guards, issues and cuts frames. Every second port has no
offload: there each packet is a frame of its own, with its checksum. Other ports use super-frames.

In a network `Address.ingress` is 0 for packets that come from the real address. Packets with a
forged address have SPARE, and come in at the last port, which only they use. A packet that is a
FRAME is bridged.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from iswitch.core.format.lines import line_at, port_of
from iswitch.core.format.packets import Address, Burst, Outgoing, Rows, super_datagrams, unpacked
from iswitch.core.switch import Switch
from iswitch.ethernet.chassis import Chassis
from iswitch.ethernet.frame import (
    ARP_REQUEST,
    ETH,
    GSO_NONE,
    HEAD,
    IP,
    UDP,
    Frames,
    Transmission,
    arp,
    sums,
)
from iswitch.ethernet.issuing import Jack
from iswitch.ethernet.made_up import ip, mac, route
from iswitch.ethernet.sorting import read_lengths

from .host import FRAME

SPARE = 1  # ingress of packets with a forged address


class Plugged:
    """A `Switch` in a `Chassis`.

    Args:
        switch: the switch inside; the ingress of its parent's address is the port `uplink`.
        address: the switch's address.
        neighbours: the address behind each port.
        uplink: the port of the parent; None: there is no parent.
    """

    def __init__(
        self, switch: Switch, address: Address, neighbours: Sequence[Address], uplink: int | None
    ) -> None:
        self.switch = switch
        self.address = address
        self._neighbours = neighbours
        self._ports = {neighbour.host: port for port, neighbour in enumerate(neighbours)}
        self.spare = len(neighbours)
        self._jacks = [Jack(9000, offload=port % 2 == 0) for port in range(self.spare + 1)]
        self.chassis = Chassis(switch, ip(address), mac(address), self._jacks, address.port)
        if uplink is not None:  # tell the parent's MAC, since the parent never speaks first
            above = neighbours[uplink]
            asks = arp(ARP_REQUEST, mac(above), ip(above), bytes(6), ip(address))
            self._outgoing(self.chassis.receive(Frames.single(uplink, asks), 0.0))

    def receive(self, burst: Burst, now: float) -> list[Outgoing]:
        """Handle packets of one sender as frames; return the packets to send in response."""
        if burst.tos == FRAME:
            return self._bridged(burst, now)
        sends: list[Outgoing] = []
        for frames in self._frames(burst):
            sends += self._outgoing(self.chassis.receive(frames, now))
        return sends

    def deadline(self) -> float | None:
        """Return the time at which to call `handle_timer`, in seconds; None: not at all."""
        return self.chassis.deadline()

    def handle_timer(self, now: float) -> list[Outgoing]:
        """Do the work that is due now; return the packets to send."""
        return self._outgoing(self.chassis.handle_timer(now))

    def _port_of(self, peer: Address) -> int:
        return self.spare if peer.ingress == SPARE else self._ports[peer.host]

    def _bridged(self, burst: Burst, now: float) -> list[Outgoing]:
        """Handle frames for other stations; they leave unchanged, or are dropped."""
        sends: list[Outgoing] = []
        rows = [bytes(ETH) + row.tobytes() for row in burst.rows]
        for step in self.chassis.receive(Frames.of(self._port_of(burst.peer), rows), now):
            for frames in step:
                self.switch.counters["tx_frames"] += sum(frames.counts)
                at_spare = frames.port == self.spare
                peer = Address("", 0, SPARE) if at_spare else self._neighbours[frames.port]
                for row in frames.whole():
                    frame = np.frombuffer(row[ETH:], np.uint8).reshape(1, -1)
                    sends.append(Outgoing((peer,), FRAME, frame, frame.shape[1]))
        return sends

    def _frames(self, burst: Burst) -> Iterator[Frames]:
        peer = burst.peer
        port = self._port_of(peer)
        own = self.address._replace(port=port_of(peer.line, self.address.port))
        its = route(peer, own, burst.tos)
        size = burst.rows.shape[1]
        if self._jacks[port].offload:
            for some in super_datagrams(np.ascontiguousarray(burst.rows), burst.tail):
                heads = np.concatenate([its.head(length, size) for length in some.lengths])
                yield Frames(port, heads, some.payloads, [HEAD + n for n in some.lengths])
            return
        for rows in burst.by_size():
            heads = its.heads(rows.shape[1], sums(rows))
            yield Frames(port, heads, rows, [HEAD + rows.shape[1]] * len(rows))

    def _outgoing(self, steps: Iterable[list[Transmission]]) -> list[Outgoing]:
        sends: list[Outgoing] = []
        for step in steps:
            for frames in step:
                self.switch.counters["tx_frames"] += sum(frames.counts)
                if frames.heads is not None:  # else it is an answer to ARP
                    sends += self._packets(frames, frames.heads)
        return sends

    def _packets(self, frames: Transmission, heads: Rows) -> Iterator[Outgoing]:
        """Copy the packets that frames carry to one receiver."""
        head = heads[0].tobytes()
        host = ".".join(map(str, head[IP + 16 : UDP]))
        own, port = (int.from_bytes(head[at : at + 2], "big") for at in (UDP, UDP + 2))
        peer = Address(host, port, 0, line_at(own, self.address.port) or 0)
        if frames.port == self.spare:
            peer = peer._replace(ingress=SPARE)
        found = read_lengths(head)
        size, last = frames.lengths[0], frames.lengths[-1]
        step = size if found.gso_type == GSO_NONE else found.gso_size
        for rows, tail in unpacked(frames.bodies, size, step, last):
            yield Outgoing((peer,), head[IP + 1], rows.copy(), tail)
