"""One direction of a link: a cable with a latency, and the faults that `Line` decides.

    sender --> is it plugged in? --> Line: queue, rate, faults, delay --> latency --> receiver

A datagram with a flipped bit has a wrong checksum, and the receiver's kernel would drop it. So this
link never delivers it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from iswitch.core.format.packets import Burst
from iswitch.ethernet.frame import ETH_HEADER, HEADERS
from iswitch.faults.impairment import Impairment
from iswitch.faults.line import Fates, Line
from iswitch.faults.parts import Payloads

LATENCY = 5e-6  # seconds that any packet needs from one machine to the next

Tell = Callable[[Burst, str, int, int], None]  # burst, fault, packet's index, flipped bit or -1


@dataclass
class LinkCounts:
    """Counts packets: sent + duplicated = delivered + lost + full + corrupted + cut + under way."""

    sent: int = 0
    delivered: int = 0
    lost: int = 0
    full: int = 0  # found no room in the queue
    corrupted: int = 0
    cut: int = 0  # sent while the link was down
    duplicated: int = 0
    reordered: int = 0

    def under_way(self) -> int:
        """Return the number of packets in the link."""
        gone = self.delivered + self.lost + self.full + self.corrupted + self.cut
        return self.sent + self.duplicated - gone

    def add(self, other: LinkCounts) -> None:
        """Add the counts of another link."""
        for field in fields(self):
            setattr(self, field.name, getattr(self, field.name) + getattr(other, field.name))


class Arrival(NamedTuple):
    """Packets that come out of a link together, and when."""

    due: float
    burst: Burst


class VirtualLink:
    """One direction of a link.

    Args:
        impairment: the faults of the link.
        seed: the seed of its chances: numbers that no other link has.
        latency: seconds that every packet needs on top.
        tell: called for every packet that does not come out.
    """

    def __init__(
        self,
        impairment: Impairment,
        seed: Sequence[int],
        latency: float = LATENCY,
        tell: Tell | None = None,
    ) -> None:
        self.up = True
        self.latency = latency
        self.counts = LinkCounts()
        self._tell = tell
        self._line = Line(impairment, seed, spared=ETH_HEADER)
        self._plain = not impairment

    @property
    def impairment(self) -> Impairment:
        """Return the faults of the link; setting others leaves packets under way unchanged."""
        return self._line.impairment

    @impairment.setter
    def impairment(self, impairment: Impairment) -> None:
        self._line.impairment = impairment
        # Packets that skip the line would overtake those that it still delays.
        self._plain = self._plain and not impairment

    def send(self, burst: Burst, now: float) -> list[Arrival]:
        """Send packets, which must not be changed later; return the arrivals with their times."""
        counts = self.counts
        n, size = burst.rows.shape
        counts.sent += n
        if not self.up:
            counts.cut += n
            if self._tell is not None:
                for i in range(n):
                    self._tell(burst, "cut", i, -1)
            return []
        if self._plain:
            return [Arrival(now + self.latency, burst)]
        sizes = np.full(n, size + HEADERS)
        sizes[-1] = burst.tail + HEADERS
        fates = self._line.fates(sizes, now)
        counts.lost += fates.lost
        counts.full += fates.full
        counts.duplicated += fates.duplicated
        counts.reordered += fates.reordered
        counts.corrupted += int((fates.bit >= 0).sum())
        if self._tell is not None:
            tell_damage(self._tell, burst, fates)
        return self._arrivals(burst, fates)

    def _arrivals(self, burst: Burst, fates: Fates) -> list[Arrival]:
        which, due, bit = fates.which, fates.due, fates.bit
        if not len(which):
            return []
        payloads = Payloads[Burst](burst)
        bounds = [0, *(np.flatnonzero(np.diff(due)) + 1).tolist(), len(due)]
        return [
            Arrival(float(due[a]) + self.latency, piece)
            for a, b in pairwise(bounds)
            for piece in payloads.take(which[a:b], bit[a:b])
        ]


def tell_damage(tell: Tell, burst: Burst, fates: Fates) -> None:
    """Report the packets of a burst that are lost, refused by the queue, or corrupted."""
    came = set(fates.which.tolist())
    on_the_wire = len(burst.rows) - fates.full
    for i in range(len(burst.rows)):
        if i not in came:
            tell(burst, "lost" if i < on_the_wire else "full", i, -1)
    for i, bit in zip(fates.which.tolist(), fates.bit.tolist(), strict=True):
        if bit >= 0:
            tell(burst, "corrupted", i, bit)
