"""Puts interleaved packets of several flows into runs, so that they need not be handled one by one.

Where several workers send at a time, nearly every packet is of another flow than the one before.
What a switch holds of a segment depends on the packets of that segment only, in their order, as
long as members are in the middle of the round that the job is in. So packets are put in layers: the
first packet of each segment, the second of each, and so on; within a layer by flow and segment. The
order of each segment's packets, contributions and aggregates alike, remains that of the trace: sums
are rounded in that order, and each aggregate is compared with what the switch holds at that moment.

Below another switch that goes for its aggregates and for the sums that it gets, too.

A window of packets that may be reordered ends before anything but data (a control packet, a frame
that passes), where a round begins, and where a member goes back to an earlier segment (a packet
sent again, another round). Such packets, with those that came at once with them, are handled in the
order of the trace.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from iswitch.core.format.arbiter import DATA
from iswitch.core.format.lines import line_at
from iswitch.core.format.packets import Address
from iswitch.core.format.wire import SEG_SIZE
from iswitch.core.jobs.job import Job
from iswitch.core.jobs.member import Member
from iswitch.core.switch import Switch

from .batch import Bytes, Ints, field, gather
from .links import IP, UDP, Packets

LEAST = 32  # packets of a window; below, the sorting costs more than it spares
BITS = 15
MOST = MOST_FLOWS = 1 << BITS  # packets of a window, flows in a batch
MOST_PORTS = 1 << 15  # that flows are told apart by
SAMPLE = 1024  # packets that nearly always include one of each flow

Flags = npt.NDArray[np.bool_]


class Layers:
    """Finds windows in the packets of a batch.

    Args:
        data: the file.
        packets: the packets to, from and through the switch, in the order of the trace.
        to: whether each packet goes to the switch, bool [n].
        of: whether each packet comes from the switch, bool [n].
        listening: UDP port at which the switch listens.
        detailed: (job, round) of each round whose events are all recorded, in the order of the
            trace.
        timed: whether a member's rounds begin when they did in the trace.

    Attributes:
        indices: int64 [n], the segment of each data packet.
    """

    def __init__(
        self,
        data: Bytes,
        packets: Packets,
        to: Flags,
        of: Flags,
        listening: int,
        detailed: Collection[tuple[int, int]] = (),
        timed: bool = False,
    ) -> None:
        self._detailed = detailed
        self._timed = timed
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
        ends, flows = numbered(hosts << np.uint64(16) | places)
        self._peers = [
            Address(
                ".".join(map(str, (key >> 32).to_bytes(4, "big"))),
                key >> 16 & 0xFFFF,
                (key & 0xFFFF) >> 1,
            )
            for key in ends.tolist()
        ]
        own = np.where(to, field(heads, UDP + 2, 2), field(heads, UDP, 2))
        if (own != listening).any():  # lines, of which each is another flow
            keys, flows = numbered((flows << 16 | own).astype(np.uint64))
            self._peers = [
                self._peers[key >> 16]._replace(line=line_at(key & 0xFFFF, listening) or 0)
                for key in keys.tolist()
            ]
        if len(self._peers) > MOST_FLOWS:
            plain[:] = False
        self._flows = flows.astype(np.int16)  # to sort faster
        apart = ~plain | (self._behind() & to)
        # If packets that came at once include repeats, the switch may have handled them at once,
        # and answered in another order.
        self._trains = np.cumsum(changes(self._flows))
        apart = (np.bincount(self._trains, apart) > 0)[self._trains]
        self._apart = np.append(apart, False)
        self._ends = np.flatnonzero(apart)

    def _behind(self) -> Flags:
        """Tell which packets repeat a segment of their flow and round, or come late, (n,)."""
        by_flow = np.argsort(self._flows, kind="stable")
        rounds, indices = self._rounds[by_flow], self.indices[by_flow]
        vectors = np.cumsum(changes(self._flows[by_flow]) | changes(rounds))
        reached = vectors << 32 | indices
        found = np.zeros(len(by_flow), bool)
        found[by_flow[1:]] = reached[1:] <= np.maximum.accumulate(reached)[:-1]
        return found

    def window(self, start: int, stop: int, switch: Switch) -> int:
        """Find the end of a window that begins at packet `start`, `stop` at most."""
        if self._apart[start]:
            return start
        end = int(np.searchsorted(self._ends, start, "right"))
        stop = min(stop, start + MOST, *self._ends[end : end + 1].tolist())
        which = slice(start, stop)
        flows, sizes = self._flows[which], self._sizes[which]
        traits = self._traits(flows, switch)[flows]
        fits = (sizes == traits[:, 1]) | (sizes == traits[:, 2])
        fits &= (self._rounds[which] == traits[:, 3]) | ~self._to[which]
        return stop if fits.all() else start + int(fits.argmin())

    def stretch(self, at: int) -> int:
        """Find the end of the packets that came together with packet `at` - 1; `at` if none did."""
        if at >= len(self._trains) or not self._apart[at - 1]:
            return at
        return int(np.searchsorted(self._trains, self._trains[at - 1], "right"))

    def groups(self, start: int, stop: int, switch: Switch, most: int) -> Iterator[Ints]:
        """Yield a window's packets by layers, in groups of one flow and size, `most` at most."""
        which = slice(start, stop)
        flows, indices, sizes = self._flows[which], self.indices[which], self._sizes[which]
        places = np.arange(stop - start)
        # Keys of 63 bits: 16 of the job, 32 of the segment, and the rest of the place or the like.
        segments = self._traits(flows, switch)[flows, 0] << 32 | indices
        order = np.argsort(segments << BITS | places)
        ordered = segments[order]
        new = changes(ordered)
        layers = np.empty_like(places)
        layers[order] = places - np.maximum.accumulate(np.where(new, places, 0))
        order = np.argsort((layers << BITS | flows) << 32 | indices)
        kinds = ((layers << BITS | flows) << 16 | sizes)[order]
        cuts = np.flatnonzero(changes(kinds))
        order += start
        for a, b in pairwise([0, *cuts.tolist(), len(order)]):
            for at in range(a, b, most):
                yield order[at : min(at + most, b)]

    def _traits(self, flows: npt.NDArray[np.int16], switch: Switch) -> Ints:
        """Return for each flow its job, its two packet sizes and its current round, (flows, 4).

        Packets of a flow with sizes of -1 are handled one after the other.
        """
        traits = np.full((len(self._peers), 4), -1, np.int64)
        for flow in np.flatnonzero(np.bincount(flows)).tolist():
            job, member = _joined(switch, self._peers[flow])
            if job is None or (member is not None and member.held_back):
                continue
            shape, rounds = job.shape, job.window
            if shape is None or not job.synchronous or job.halted:
                continue
            if job.slots or job.takes_turns or job.passes_on or job.assemblies:
                continue  # one segment's packets decide what becomes of another's
            if (job.number, rounds.high) in self._detailed:
                continue
            begun = rounds.contributed
            if member is None:
                begun = begun and rounds.is_sure
            else:
                begun = begun and member.takes_part_in(rounds.high)
                if self._timed:
                    begun = begun and member.contributed == rounds.high
            current = rounds.high if begun else -1
            traits[flow] = (job.number, shape.packet_size, shape.last_size, current)
        return traits


def _joined(switch: Switch, peer: Address) -> tuple[Job | None, Member | None]:
    """Find the job of a peer, and the member; it is None for the switch above."""
    found = switch.record.by_source.get(peer)
    hierarchy = switch.control.hierarchy
    if found is None and hierarchy is not None and hierarchy.is_parent(peer):
        return hierarchy.fed(peer.line), None
    return found or (None, None)


def changes(row: npt.NDArray[Any]) -> Flags:
    """Tell where a value differs from the one before; the first counts as different."""
    found = np.zeros(len(row), bool)
    found[1:] = row[1:] != row[:-1]
    return found


def numbered(keys: npt.NDArray[np.uint64]) -> tuple[npt.NDArray[np.uint64], Ints]:
    """List the keys that occur, ascending, and the index of each entry's key."""
    for some in keys[:SAMPLE], keys:
        found = np.sort(some)
        found = np.append(found[:1], found[changes(found)])
        numbers = np.minimum(np.searchsorted(found, keys), len(found) - 1)
        if (found[numbers] == keys).all():
            break
    return found, numbers
