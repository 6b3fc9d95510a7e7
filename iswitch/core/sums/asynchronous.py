"""The accelerator of an asynchronous job: versions instead of rounds (section 5 of the protocol).

Any H contributions to a segment make its next version. A segment has nine slots: the open one, and
the eight versions kept for Help. (`partial.py` is for switches below another, which make none.)

Losses hit single segments, so the versions of segments drift apart. But a worker needs one version
of all segments. So no segment may be more than AHEAD versions ahead of the slowest one. AHEAD is
below the number of versions kept, so workers can still ask for some that they missed.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from iswitch.core.format.counters import Counters
from iswitch.core.format.packets import Cutter
from iswitch.core.format.wire import (
    ROUND_MASK,
    VERSIONS_AHEAD,
    VERSIONS_KEPT,
    Shape,
    round_distance,
)

from .buffers import PLAIN, Buffers
from .numbered import NumberedAccelerator
from .plane import Rule
from .runs import Held, Run

AT_ONCE = 4096  # segments whose states are copied at once


class AsynchronousAccelerator(NumberedAccelerator):
    """Makes a version of every H contributions to a segment.

    The state of a segment: its last version, its open slot, the number of contributions in that
    slot, and the number of versions kept.
    """

    KEPT = VERSIONS_KEPT
    AHEAD = VERSIONS_AHEAD
    SLOTS = KEPT + 1

    def __init__(
        self,
        shape: Shape,
        complete: Rule,
        counters: Counters,
        buffers: Buffers = PLAIN,
    ) -> None:
        super().__init__(shape, self.SLOTS, complete, counters, buffers)
        self.lowest = 0  # a lower bound of the versions of all segments

    @classmethod
    def memory(cls, shape: Shape) -> int:
        """Return the bytes that a job of this shape needs."""
        per_segment = cls.SLOTS * shape.packet_size + cls.RECORD.size + Cutter.MEMORY
        return shape.segments * per_segment

    def _is_ahead(self, index: int) -> bool:
        """Return whether a segment must wait for slower ones."""
        version = self.state.get(index)[0]
        if round_distance(version, self.lowest) < self.AHEAD:
            return False
        versions = self.state.words.view(np.uint32)[:, 0]
        behind = (np.uint32(self.version) - versions).max()  # wraps as the numbers do
        self.lowest = (self.version - int(behind)) & ROUND_MASK
        return round_distance(version, self.lowest) >= self.AHEAD

    def _is_ripe(self, state: tuple[int, ...]) -> bool:
        """Return whether segments in this state have enough contributions for a version."""
        version, _, count, _ = state
        return count > 0 and self.complete(version, count)

    def _finish(self, start: int, stop: int) -> Run:
        version, slot, _, kept = self.state.get(start)
        version = (version + 1) & ROUND_MASK
        self._write_headers(slot, version, start, stop)
        self.state.set(start, stop, version, (slot + 1) % self.SLOTS, 0, min(kept + 1, self.KEPT))
        if round_distance(version, self.version) > 0:
            self.version = version
        self.counters["aggregates"] += stop - start
        return Run(slot, version, start, stop)

    def force(self, round_: int, start: int, stop: int) -> tuple[list[Run], int]:
        """Complete version `round_` of the segments in which it is open.

        Returns:
            The completed runs, and the fewest contributions in one.
        """
        forced = []
        for a, b in self.state.uniform(start, stop):
            version, _, count, _ = self.state.get(a)
            if count and round_distance(round_, version) == 1:
                forced.append((self._finish(a, b), count))
        self.counters["partial_aggregates"] += sum(run.segments for run, _ in forced)
        return [run for run, _ in forced], min((count for _, count in forced), default=0)

    def held(self, round_: int, start: int, stop: int) -> Iterator[tuple[Run, Held, int]]:
        """Yield the runs of version `round_` with their state; the bitmap is always 0."""
        for a, b in self.state.uniform(start, stop):
            version, slot, count, kept = self.state.get(a)
            ahead = round_distance(round_, version)
            run = Run((slot - 1 + ahead) % self.SLOTS, round_, a, b)
            if ahead > 0:
                yield run, Held.OPEN if ahead == 1 and count else Held.NOTHING, 0
            else:
                yield run, Held.COMPLETE if -ahead < kept else Held.GONE, 0

    def reset(self, round_: int) -> None:
        """Forget open sums and kept versions; the next version is `round_` + 1."""
        self.state.set(0, self.shape.segments, round_, 0, 0, 0)
        self.version = self.lowest = round_

    def name(self, version: int) -> None:
        """Make only versions newer than this one, which a returning member names.

        It looks at a few segments at a time: a Join must not run out of memory half way.
        """
        segments = self.shape.segments
        for first in range(0, segments, AT_ONCE):
            for start, stop in self.state.uniform(first, min(first + AT_ONCE, segments)):
                made, slot, count, _ = self.state.get(start)
                if round_distance(version, made) > 0:
                    self.state.set(start, stop, version, slot, count, 0)
        if round_distance(version, self.version) > 0:
            self.version = version
