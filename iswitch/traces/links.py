"""Reads frames of several link types: their Ethernet, IPv4 and UDP headers, and which are tagged.

It reads Ethernet, Linux' cooked captures (SLL, SLL2) and bare IP, and skips VLAN tags. Packets
without Ethernet addresses get made-up ones, as in the simulated world: 02:69 and the IPv4 address.
`tcpdump.org/linktypes.html` has the layouts.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from iswitch.core.format import arbiter
from iswitch.core.format.packets import Rows
from iswitch.ethernet import frame
from iswitch.ethernet.made_up import MAC_PREFIX

from .batch import IN, OUT, Bytes, Ints, PacketBatch, field, gather
from .reader import Reader

ETHERNET, RAW, RAW_OLD, COOKED, IPV4, IPV6, COOKED2 = 1, 101, 12, 113, 228, 229, 276
LINKS = {  # size of the link header in bytes, and offset of the network layer's type in it
    ETHERNET: (14, 12),
    COOKED: (16, 14),
    COOKED2: (20, 0),
    RAW: (0, None),
    RAW_OLD: (0, None),
    IPV4: (0, None),
    IPV6: (0, None),
}
TYPE_IP, TYPES_VLAN = 0x0800, (0x8100, 0x88A8, 0x9100)
MOST_TAGS = 4
MOST_PLACES = 1 << 16  # places of capture that are told apart
BEYOND = (-1, -1)  # stands for all further places
SENT = 4  # sll_pkttype: PACKET_OUTGOING
# Bytes of the headers of Ethernet, IPv4 without options, and UDP, and where they begin: as in a row
# of `frame`, but without the virtio_net_hdr in front.
HEAD, IP, UDP = frame.HEAD - frame.ETH, frame.IP - frame.ETH, frame.UDP - frame.ETH

# Kinds of packets: others; frames for switches with ports; tagged; tagged, but cut off.
OTHER, ORDINARY, TAGGED, CUT = range(4)


class Packets(NamedTuple):
    """The n packets of a batch with their headers, up to UDP's.

    Attributes:
        batch: the batch.
        numbers: [n], number of each packet in the file.
        kinds: [n], OTHER, ORDINARY, TAGGED or CUT.
        heads: uint8 [n, HEAD], the headers; undefined where the kind is OTHER.
        payload: [n], offset of each UDP payload in the file.
        ports: [n], indices into `LinkLayer.ports`.
        directions: [n], from the batch, or from the headers if the link type has directions.
    """

    batch: PacketBatch
    numbers: Ints
    kinds: Bytes
    heads: Rows
    payload: Ints
    ports: Ints
    directions: Bytes

    def by_time(self) -> Packets:
        """Return the packets, sorted by time."""
        return self.taken(np.argsort(self.batch.times, kind="stable"))

    def taken(self, order: Ints) -> Packets:
        """Return the packets with the indices `order`, in this order."""
        ordered: list[Any] = [array[order] for array in self[1:]]
        batch: list[Any] = [array[order] for array in self.batch[1:]]
        return Packets(PacketBatch(self.batch.number, *batch), *ordered)


class LinkLayer:
    """Reads batches of one trace.

    Attributes:
        ports: names of the places of capture: one for each interface, several for one that holds a
            cooked capture of version 2.
        unknown: number of packets of each unknown link type.
    """

    def __init__(self, reader: Reader) -> None:
        self.reader = reader
        self.ports: list[str] = []
        self.unknown: dict[int, int] = {}
        self._numbers: dict[tuple[int, int], int] = {}  # by interface, and index in SLL2
        self._known = 0  # interfaces

    def read(self, batch: PacketBatch) -> Packets:
        """Read the headers of a batch."""
        data, n = self.reader.data, len(batch.at)
        interfaces = self.reader.interfaces
        names = (np.flatnonzero(np.bincount(batch.interfaces + 1)) - 1).tolist()
        kinds = {interfaces[i].link for i in names if i >= 0}
        if kinds == {ETHERNET} and -1 not in names:
            heads = gather(data, batch.at, HEAD)
            start = np.full(n, 14)
            network = field(heads, 12, 2)
            directions = batch.directions
            if (network != TYPE_IP).any() and np.isin(network, TYPES_VLAN).any():
                network = self._past_tags(batch, network, start)
                heads[:, IP:] = gather(data, batch.at + start, HEAD - IP)
                heads[:, 12:14] = (8, 0)
            of_ethernet = np.ones(n, bool)
        else:
            heads = np.zeros((n, HEAD), np.uint8)
            start, network = np.zeros(n, np.int64), np.zeros(n, np.int64)
            directions = batch.directions.copy()
            links = np.array([*(i.link for i in interfaces), -1])[batch.interfaces]
            found, counts = np.unique(links, return_counts=True)
            for link, count in zip(found.tolist(), counts.tolist(), strict=True):
                if link in LINKS:
                    self._mixed(batch, link, links == link, heads, start, network, directions)
                else:
                    self.unknown[link] = self.unknown.get(link, 0) + count
            heads[:, IP:] = gather(data, batch.at + start, HEAD - IP)
            self._make_up(heads, links)
            of_ethernet = links == ETHERNET
        return Packets(
            batch,
            batch.number + np.arange(n),
            self._kinds(batch, heads, start, network, of_ethernet),
            heads,
            batch.at + start + HEAD - IP,
            self._ports(batch, kinds),
            directions,
        )

    def _mixed(
        self,
        batch: PacketBatch,
        link: int,
        which: npt.NDArray[np.bool_],
        heads: Rows,
        start: Ints,
        network: Ints,
        directions: Bytes,
    ) -> None:
        """Read the link headers of a batch's packets of one link type."""
        size, type_at = LINKS[link]
        at = batch.at[which]
        first = gather(self.reader.data, at, max(size, 1))
        start[which] = size
        if type_at is None:
            network[which] = np.where(first[:, 0] >> 4 == 4, TYPE_IP, 0)
            return
        network[which] = field(first, type_at, 2)
        if link == ETHERNET:
            heads[which, :12] = first[:, :12]
        else:
            # sll_pkttype is the low byte of two; in version 2 one byte.
            kind = first[:, 1] if link == COOKED else first[:, 10]
            directions[which] = np.where(kind == SENT, OUT, IN)
            address, said = (6, 5) if link == COOKED else (12, 11)
            real = (first[:, said] == 6).astype(np.uint8)[:, None]
            heads[which, 6:12] = first[:, address : address + 6] * real
        some = batch._replace(at=at, sizes=batch.sizes[which])
        behind = start[which]
        network[which] = self._past_tags(some, network[which], behind)
        start[which] = behind

    def _past_tags(self, batch: PacketBatch, network: Ints, start: Ints) -> Ints:
        """Skip VLAN tags: move `start` behind them; return the network layer's types."""
        for _ in range(MOST_TAGS):
            tagged = np.flatnonzero(np.isin(network, TYPES_VLAN))
            if not len(tagged):
                break
            tags = gather(self.reader.data, batch.at[tagged] + start[tagged], 4)
            network[tagged] = field(tags, 2, 2)
            start[tagged] += 4
        return network

    @staticmethod
    def _make_up(heads: Rows, links: Ints) -> None:
        """Make up Ethernet addresses for packets from other links."""
        bare = np.flatnonzero(links != ETHERNET)
        heads[bare, 12:14] = (8, 0)
        for at, ip in (0, IP + 16), (6, IP + 12):
            lacking = bare[~heads[bare, at : at + 6].any(axis=1)]
            heads[lacking, at : at + 2] = tuple(MAC_PREFIX)
            heads[lacking, at + 2 : at + 6] = heads[lacking, ip : ip + 4]

    @staticmethod
    def _kinds(
        batch: PacketBatch, heads: Rows, start: Ints, network: Ints, ethernet: npt.NDArray[np.bool_]
    ) -> Bytes:
        there = batch.sizes - start
        tagged = (network == TYPE_IP) & (heads[:, IP] == 0x45) & (there >= HEAD - IP)
        tagged &= (heads[:, IP + 9] == 17) & arbiter.TAGGED[heads[:, IP + 1]]
        tagged &= (heads[:, IP + 6] & 0x3F == 0) & (heads[:, IP + 7] == 0)
        cut = tagged & (batch.sizes < batch.lengths) & (field(heads, IP + 2, 2) > there)
        kinds = np.where(ethernet & (batch.sizes == batch.lengths), ORDINARY, OTHER).astype(
            np.uint8
        )
        kinds[tagged] = TAGGED
        kinds[cut] = CUT
        return kinds

    def _ports(self, batch: PacketBatch, links: set[int]) -> Ints:
        if COOKED2 not in links:
            table = [self._number(i << 32) for i in range(len(self.reader.interfaces))]
            return np.array([*table, 0], np.int64)[batch.interfaces]
        indices = np.zeros(len(batch.at), np.int64)
        cooked = np.array([*(i.link == COOKED2 for i in self.reader.interfaces), False])
        which = cooked[batch.interfaces]
        indices[which] = field(gather(self.reader.data, batch.at[which], 8), 4, 4)
        keys = (batch.interfaces << 32) | indices
        found, inverse = np.unique(keys, return_inverse=True)
        return np.array([self._number(key) for key in found.tolist()])[inverse]

    def _number(self, key: int) -> int:
        interface, index = key >> 32, key & 0xFFFFFFFF
        interfaces = self.reader.interfaces
        for known in range(self._known, len(interfaces)):  # in the order of the file
            if interfaces[known].link != COOKED2:
                self._numbers[known, 0] = len(self.ports)
                self.ports.append(interfaces[known].name or f"{known}")
        self._known = len(interfaces)
        place = (interface, index)
        if place not in self._numbers and len(self.ports) >= MOST_PLACES:
            place = BEYOND
        number = self._numbers.setdefault(place, len(self.ports))
        if number == len(self.ports):
            self.ports.append("further places" if place == BEYOND else f"index {index}")
        return number
