"""Puts interleaved packets of several flows into runs, so that they need not be handled one by one.

Where several workers send at a time, nearly every packet is of another flow than the one before.
What a switch holds of a segment depends on the packets of that segment only, in their order, as
long as members are in the middle of the round that the job is in. So packets are put in layers: the
first packet of each segment, the second of each, and so on; within a layer by flow and segment. The
order of each segment's packets, contributions and aggregates alike, remains that of the trace: sums
are rounded as ever, and each aggregate is compared with what the switch holds at that moment.

A window of packets that may be put so ends before anything else than data (a control packet, a
frame that passes), where a member goes back to an earlier segment (a packet sent again, another
round), and where a round begins. Those are handled in the order of the trace.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ..arbiter import DATA
from ..control import ControlPlane
from ..packets import Address
from ..wire import SEG_SIZE
from .batch import Bytes, Ints, field, gather
from .links import IP, UDP, Packets

LEAST = 32  # packets of a window; below, the sorting costs more than it spares
MOST = 8192
MOST_PORTS = 1 << 15  # that flows are told apart by

Flags = npt.NDArray[np.bool_]


class Layered(NamedTuple):
    """A window: its packets in another order, and where in that a layer begins."""

    order: Ints
    begins: Flags


class Layers:
    """Finds windows in the packets of a batch.

    Args:
        data: the file.
        packets: those for the switch, from it, or passing, in the order of the trace.
        to, of: which are for the switch, and from it.

    Attributes:
        indices: of their segments, where they are data.
    """

    def __init__(self, data: Bytes, packets: Packets, to: Flags, of: Flags) -> None:
        heads = packets.heads
        self._to = to
        self._sizes = field(heads, UDP + 4, 2) - 8
        plain = (to | of) & DATA[heads[:, IP + 1]] & (self._sizes >= SEG_SIZE)
        segs = gather(data, packets.payload, SEG_SIZE).view(">u8")[:, 0].astype(np.uint64)
        self._rounds = (segs >> np.uint64(32)).astype(np.int64)
        self.indices = (segs & np.uint64(0xFFFFFFFF)).astype(np.int64)
        ip = np.where(to, field(heads, IP + 12, 4), field(heads, IP + 16, 4))
        port = np.where(to, field(heads, UDP, 2), field(heads, UDP + 2, 2))
        hosts = (ip << 16 | port).astype(np.uint64)
        places = (packets.ports << 1 | to).astype(np.uint64)
        found, flows = np.unique(hosts << np.uint64(16) | places, return_inverse=True)
        self._flows = flows.astype(
            np.int16 if len(found) <= MOST_PORTS else np.int64
        )  # to sort faster
        self._peers = [
            Address(
                ".".join(map(str, (key >> 32).to_bytes(4, "big"))),
                key >> 16 & 0xFFFF,
                (key & 0xFFFF) >> 1,
            )
            for key in found.tolist()
        ]
        behind = np.zeros(len(to), bool)
        by_flow = np.argsort(self._flows, kind="stable")
        flows, indices = self._flows[by_flow], self.indices[by_flow]
        behind[by_flow[1:]] = (flows[1:] == flows[:-1]) & (indices[1:] <= indices[:-1])
        self._plain = plain
        self._ends = np.flatnonzero(~plain | (behind & to))

    def window(self, start: int, stop: int, control: ControlPlane) -> int:
        """Where a window that begins at packet `start` ends, `stop` at most."""
        if not self._plain[start]:
            return start
        end = int(np.searchsorted(self._ends, start, "right"))
        stop = min(stop, start + MOST, *self._ends[end : end + 1].tolist())
        which = slice(start, stop)
        flows, sizes = self._flows[which], self._sizes[which]
        traits = self._traits(flows, control)[flows]
        fits = (sizes == traits[:, 1]) | (sizes == traits[:, 2])
        fits &= (self._rounds[which] == traits[:, 3]) | ~self._to[which]
        return stop if fits.all() else start + int(fits.argmin())

    def layered(self, start: int, stop: int, control: ControlPlane) -> Layered:
        """The packets of a window in layers."""
        flows, indices = self._flows[start:stop], self.indices[start:stop]
        segments = self._traits(flows, control)[flows, 0] << 32 | indices
        order = np.argsort(segments, kind="stable")
        places = np.arange(len(order))
        new = np.ones(len(order), bool)
        new[1:] = segments[order[1:]] != segments[order[:-1]]
        depth = np.empty_like(places)
        depth[order] = places - np.maximum.accumulate(np.where(new, places, 0))
        order = np.lexsort((indices, flows, depth))
        begins = np.zeros(len(order), bool)
        begins[1:] = depth[order[1:]] != depth[order[:-1]]
        return Layered(start + order, begins)

    def _traits(self, flows: Ints, control: ControlPlane) -> Ints:
        """By flow: the job, the sizes of its packets, and the round that it is in the middle of.

        Sizes of -1: its packets are handled one after the other.
        """
        traits = np.full((len(self._peers), 4), -1, np.int64)
        for flow in np.flatnonzero(np.bincount(flows)).tolist():
            found = control.by_source.get(self._peers[flow])
            if found is None:
                continue
            job, member = found
            shape, rounds = job.shape, job.window
            if shape is None or not job.synchronous or job.halted or member.held_back:
                continue
            begun = rounds.contributed and member.takes_part_in(rounds.high)
            current = rounds.high if begun else -1
            traits[flow] = (job.number, shape.packet_size, shape.last_size, current)
        return traits
