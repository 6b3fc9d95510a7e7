"""Makes frames of the packets that the switch sends, for the ports that lead to their receivers.

A run of packets becomes super-frames of up to 64 kB whose payload is the run itself. For a port
without super-frames, each packet becomes a frame of its own, with its checksum.

The frames of a peer tell its port and its MAC. For a peer that was never heard (a parent), ARP asks
at its port; packets for it are dropped and counted meanwhile.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from iswitch.core.format.counters import Counters
from iswitch.core.format.lines import port_of
from iswitch.core.format.memo import Memo, Notes
from iswitch.core.format.packets import (
    MAX_SEGMENTS,
    Address,
    Outgoing,
    Recurring,
    Rows,
    SuperDatagrams,
    by_size,
    super_datagrams,
)

from .frame import (
    ARP_REQUEST,
    ETH_HEADER,
    HEADERS,
    RecurringFrames,
    Route,
    Sums,
    Transmission,
    arp,
    sums,
)

ASK_AGAIN = 1.0  # seconds between two ARP requests for one address
MOST = 4096  # neighbours and heads kept; strangers may keep coming with new addresses


class Jack(NamedTuple):
    """The abilities of a port: the largest IP packet, and whether it accepts super-frames."""

    mtu: int = 1500
    offload: bool = True
    most: int = MAX_SEGMENTS  # packets in a super-frame, at most


class Issuer:
    """Turns packets that a `Switch` sends into frames.

    Args:
        jacks: the abilities of each port.
        address: the switch's IPv4 address, four bytes.
        mac: its MAC, six bytes.
        port: its UDP port.
        counters: counts frames that cannot be sent.
    """

    def __init__(
        self, jacks: Sequence[Jack], address: bytes, mac: bytes, port: int, counters: Counters
    ) -> None:
        self.jacks = jacks
        self.address = address
        self.mac = mac
        self.port = port
        self.counters = counters
        self._neighbours: dict[tuple[str, int], bytes] = {}  # by address and port
        self._heads: Memo[tuple[Address, bytes, int, int, int, int], Rows] = Memo(MOST)
        self._asked: Memo[tuple[str, int], float] = Memo(MOST)  # time of the last ARP request
        self._ready: Notes[tuple[int, RecurringFrames]] = Notes()  # and their version
        self.version = 0  # grows when a neighbour's MAC changes or is forgotten

    def learn(self, host: str, ingress: int, mac: bytes) -> bool:
        """Note the MAC of an address behind a port; return whether it is new."""
        known = self._neighbours.get((host, ingress))
        if known == mac:
            return False
        if known is not None:
            self.version += 1
        elif len(self._neighbours) >= MOST:
            del self._neighbours[next(iter(self._neighbours))]
            self.version += 1
        self._neighbours[host, ingress] = mac
        return True

    def mac_of(self, host: str, ingress: int) -> bytes | None:
        """Return the MAC of an address behind a port; None: it was never heard."""
        return self._neighbours.get((host, ingress))

    def issue(self, sends: Sequence[Outgoing], now: float) -> list[Transmission]:
        """Make frames that carry these packets: super-frames for ports that accept them."""
        if len(sends) == 1 and type(sends[0]) is Recurring:
            return self._recurring(sends[0], now)
        return self._frames(sends, now)

    def _recurring(self, out: Recurring, now: float) -> list[Transmission]:
        """Make the frames of recurring packets; reuse them if all receivers accept super-frames."""
        known = self._ready.get(out.rows)
        if known is not None and known[0] == self.version:
            return known[1]
        frames = self._frames((out,), now)
        if all(self._takes_supers(peer, out.rows.shape[1]) for peer in out.peers):
            recurring = RecurringFrames(frames)
            return self._ready.keep(out.rows, (self.version, recurring))[1]
        return frames

    def _takes_supers(self, peer: Address, size: int) -> bool:
        """Return whether packets of `size` bytes can go to a peer in super-frames."""
        jack = self.jacks[peer.ingress]
        known = (peer.host, peer.ingress) in self._neighbours
        return known and jack.offload and size + HEADERS - ETH_HEADER <= jack.mtu

    def _frames(self, sends: Sequence[Outgoing], now: float) -> list[Transmission]:
        transmissions: list[Transmission] = []
        for out in sends:
            n, size = out.rows.shape
            able: dict[int, list[tuple[Address, bytes]]] = {}  # peers with offload, and their MACs
            single: list[tuple[Rows, Sums]] = []  # packets for peers without
            for peer in out.peers:
                jack = self.jacks[peer.ingress]
                mac = self._neighbours.get((peer.host, peer.ingress))
                if mac is None:
                    self.counters["unresolved"] += n
                    transmissions += self._ask(peer, now)
                elif size + HEADERS - ETH_HEADER > jack.mtu:
                    self.counters["too_large"] += n
                elif jack.offload:
                    able.setdefault(jack.most, []).append((peer, mac))
                else:
                    single = single or [(rows, sums(rows)) for rows in by_size(out.rows, out.tail)]
                    route = self._route(peer, mac, out.tos)
                    transmissions += [_singles(route, peer, *some) for some in single]
            for most, alike in able.items():
                for some in super_datagrams(out.rows, out.tail, most):
                    transmissions += [
                        self._super_frames(out, peer, mac, some) for peer, mac in alike
                    ]
        return transmissions

    def _super_frames(
        self, out: Outgoing, peer: Address, mac: bytes, whole: SuperDatagrams
    ) -> Transmission:
        size = out.rows.shape[1]
        lengths = whole.lengths
        key = (peer, mac, out.tos, size, len(lengths), lengths[-1])
        heads = self._heads.get(key)
        if heads is None:
            route = self._route(peer, mac, out.tos)
            heads = np.repeat(route.head(lengths[0], size), len(lengths), axis=0)
            heads[-1] = route.head(lengths[-1], size)
            self._heads.keep(key, heads)
        return Transmission(peer.ingress, heads, *whole)

    def route(self, peer: Address, tos: int) -> Route | None:
        """Return the way to a peer; None: its MAC is not known."""
        mac = self.mac_of(peer.host, peer.ingress)
        return None if mac is None else self._route(peer, mac, tos)

    def copies(self, out: Outgoing) -> list[Transmission]:
        """Make the frames for peers whose MACs are known."""
        return self._frames((out,), 0.0)

    def _route(self, peer: Address, mac: bytes, tos: int) -> Route:
        destination = bytes(map(int, peer.host.split(".")))
        own = port_of(peer.line, self.port)
        return Route(self.mac, mac, self.address, destination, own, peer.port, tos)

    def _ask(self, peer: Address, now: float) -> list[Transmission]:
        """Make an ARP request for a peer, unless one was sent just now."""
        key = (peer.host, peer.ingress)
        if now - self._asked.get(key, -ASK_AGAIN) < ASK_AGAIN:
            return []
        self._asked.keep(key, now)
        self.counters["own_frames"] += 1
        destination = bytes(map(int, peer.host.split(".")))
        frame = arp(ARP_REQUEST, self.mac, self.address, bytes(6), destination)
        return [Transmission.single(peer.ingress, frame)]


def _singles(route: Route, peer: Address, rows: Rows, total: Sums) -> Transmission:
    n, size = rows.shape
    return Transmission(peer.ingress, route.heads(size, total), rows, [size] * n, [1] * n)
