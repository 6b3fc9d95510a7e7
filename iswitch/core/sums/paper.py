"""Counting as the paper and its patent describe it: a bare counter for each segment.

"Aggregates gradient vectors with the same Seg number; when the counter equals H, the result is
broadcast" (ISCA 2019, section 3). Nothing remembers whose contributions a sum holds. So a packet
that comes twice, or is sent again after a loss, counts twice: the sum is wrong, and is complete
before the last worker has contributed. This counting exists to show that, and for comparison with
systems that count so; docs/guarantees.md shows the difference.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum

import numpy as np

from iswitch.core.format.packets import Rows, Stretch

from .runs import Held, Outcome, Run
from .synchronous import SynchronousAccelerator


class Counting(Enum):
    """The two ways of counting contributions."""

    EXACT = "exact"  # each member's once
    PAPER = "paper"  # packets


class PaperAccelerator(SynchronousAccelerator):
    """Counts packets instead of keeping a bitmap of contributors; cannot sum in rank order."""

    def bits_held(self) -> int:
        """Return no bits: a counter does not tell whose contributions a sum holds."""
        return 0

    def accumulate(self, seat: int, stretch: Stretch, outcome: Outcome) -> None:  # noqa: ARG002
        """Add packets to the sums and count them, without looking at their sender."""
        for round_, index, rows, *_ in stretch.consecutive():
            for start, stop in self.state[round_ & 1].uniform(index, index + len(rows)):
                self._count(round_, start, stop, rows[start - index : stop - index], outcome)

    def _count(self, round_: int, start: int, stop: int, rows: Rows, outcome: Outcome) -> None:
        slot = round_ & 1
        state = self.state[slot]
        holds, how_far, count = state.get(start)
        if holds != round_:
            how_far = count = 0
        if how_far:
            self.counters["late"] += len(rows)
            if how_far == self.COMPLETE:
                outcome.late.append(Run(slot, round_, start, stop))
            return
        mark = state.mark(start, stop, round_, self.OPEN, count + 1)
        self._count_in(self._words[slot, start:stop], rows, not count, mark)
        if self.complete(round_, count + 1):
            outcome.completed.append(self.finish(Run(slot, round_, start, stop), count + 1))

    def force(self, round_: int, start: int, stop: int) -> tuple[list[Run], int]:
        """Complete open segments without their missing contributions.

        Returns:
            The completed runs, and the fewest packets in one.
        """
        slot = round_ & 1
        counts = self.state[slot].words[start:stop, 1].copy()
        runs, _ = super().force(round_, start, stop)
        forced = [counts[run.start - start : run.stop - start] for run in runs]
        return runs, min((int(np.min(some)) for some in forced), default=0)

    def held(self, round_: int, start: int, stop: int) -> Iterator[tuple[Run, Held, int]]:
        """Yield the runs of segments start..stop-1, each with its state and bitmap.

        The bitmap of an open run is 0, since its contributors are unknown: so Help asks every
        participant.
        """
        for run, what, count in super().held(round_, start, stop):
            yield run, what, 0 if what is Held.OPEN else count
