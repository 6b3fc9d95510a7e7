"""One direction of a link: a cable with a latency, and the faults that `Line` decides.

    sender --> is it plugged in? --> Line: queue, rate, faults, delay --> latency --> receiver

A datagram with a flipped bit has a wrong checksum, and the receiver's kernel would drop it. So this
link never delivers it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import astuple, dataclass
from functools import lru_cache
from math import inf

import numpy as np

from iswitch.core.format.packets import Burst
from iswitch.ethernet.frame import ETH_HEADER, HEADERS
from iswitch.faults import fifo
from iswitch.faults.impairment import Impairment
from iswitch.faults.line import Fates, Ints, Line
from iswitch.faults.parts import Payloads

from .grain import SINGLE, Crossing
from .runs import Run, Times

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

    @classmethod
    def total(cls, links: Iterable[VirtualLink]) -> LinkCounts:
        """Return the sum of the counts of links."""
        return cls(*map(sum, zip(*(astuple(link.counts) for link in links), strict=True)))


class VirtualLink:
    """One direction of a link.

    Args:
        impairment: the faults of the link.
        seed: the seed of its chances: numbers that no other link has.
        latency: seconds that every packet needs on top.
        tell: called for every packet that does not come out.
        into: tells how much a run may hold; None: a packet.

    Attributes:
        into: the same, of the node at its end.
    """

    def __init__(
        self,
        impairment: Impairment,
        seed: Sequence[int],
        latency: float = LATENCY,
        tell: Tell | None = None,
        into: Crossing | None = None,
    ) -> None:
        self.up = True
        self.counts = LinkCounts()
        self.bytes = 0  # of all packets sent, as frames
        self.into = into or Crossing(SINGLE)
        self.latency = latency
        self._tell = tell
        self._line = Line(impairment, seed, ETH_HEADER)
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

    @property
    def is_certain(self) -> bool:
        """Return whether chance decides nothing here."""
        return self._line.is_certain

    @property
    def room(self) -> float:
        """Return how many packets may wait here at once."""
        given = self.impairment
        return inf if given.rate is None else given.queue

    @property
    def busy(self) -> float:
        """Return when all packets that were sent so far have left the sender, in seconds."""
        return self._line.busy

    def send(self, burst: Burst, ready: Times) -> list[Run]:
        """Send packets, which must not be changed later; return the runs that will arrive.

        Args:
            burst: the packets.
            ready: when each can be sent.
        """
        counts = self.counts
        n = len(burst.rows)
        if not self._takes(burst):
            return []
        if self._plain:
            return Run(burst, ready + self.latency).cut(self.into.grain)
        sizes = frame_sizes(burst)
        if (times := self._line.passage(sizes, ready)) is not None:
            return self._cut(Run(burst, times + self.latency if self.latency else times))
        fates = self._line.fates(sizes, ready)
        due = fates.due + self.latency
        if fates.all_came(n):
            return self._cut(Run(burst, due))
        counts.lost += fates.lost
        counts.full += fates.full
        counts.duplicated += fates.duplicated
        counts.reordered += fates.reordered
        came = fates.bit < 0
        counts.corrupted += len(came) - int(came.sum())
        if self._tell is not None:
            tell_damage(self._tell, burst, fates)
        return self._runs(burst, fates.which[came], due[came])

    def _cut(self, run: Run) -> list[Run]:
        """Cut a run as what is behind the link wants it."""
        runs, idle = run.cut(self.into.grain), self.into.idle
        return runs if idle is None else [part for one in runs for part in one.cut_after(idle())]

    def carry(self, burst: Burst, ready: Times) -> list[Run]:
        """Send packets of an ideal transport, see `streams`; return the runs that will arrive."""
        if not self._takes(burst):
            return []
        due = self._line.carry(frame_sizes(burst), ready) + self.latency
        return Run(burst, due).cut(self.into.grain)

    def _takes(self, burst: Burst) -> bool:
        """Count packets that are sent; return whether the link is plugged in."""
        n, size = burst.rows.shape
        self.counts.sent += n
        self.bytes += n * (size + HEADERS) - size + burst.tail
        if not self.up:
            self.counts.cut += n
            if self._tell is not None:
                for i in range(n):
                    self._tell(burst, "cut", i, -1)
        return self.up

    def _runs(self, burst: Burst, which: Ints, due: fifo.Times) -> list[Run]:
        """Return the runs of those packets of a burst that arrive, in their order."""
        runs: list[Run] = []
        at = 0
        for piece in Payloads[Burst](burst).take(which, None):
            runs += Run(piece, due[at : at + len(piece.rows)]).cut(self.into.grain)
            at += len(piece.rows)
        return runs


def frame_sizes(burst: Burst) -> Ints:
    """Return the bytes of each packet as a frame, (n,), not to be changed."""
    return _frame_sizes(*burst.rows.shape, burst.tail)


@lru_cache(64)
def _frame_sizes(count: int, size: int, tail: int) -> Ints:
    found = np.full(count, size + HEADERS)
    found[-1] = tail + HEADERS
    found.setflags(write=False)
    return found


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
