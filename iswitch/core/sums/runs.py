"""Runs of segments, and the states that they can be in."""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from typing import NamedTuple

from iswitch.core.format.packets import Indices, index_ranges


class Run(NamedTuple):
    """Segments start..stop-1 of one round (or version), held in buffer `slot`."""

    slot: int
    round: int
    start: int
    stop: int

    @property
    def segments(self) -> int:
        """Return the number of segments in the run."""
        return self.stop - self.start


class Outcome(NamedTuple):
    """The effects of contributions: runs that they completed, and runs already complete before."""

    completed: list[Run]
    late: list[Run]


class Held(Enum):
    """The state of a segment in a given round."""

    COMPLETE = "complete"
    SENT = "sent to the parent"
    OPEN = "open"
    PASSED = "gone on to the parent in parts"
    NOTHING = "not begun"
    GONE = "no longer kept"


def merge(runs: Iterable[Run]) -> list[Run]:
    """Join neighbouring runs where one continues the other."""
    merged: list[Run] = []
    for run in runs:
        if merged:
            slot, round_, start, stop = merged[-1]
            if (slot, round_, stop) == run[:3]:
                merged[-1] = Run(slot, round_, start, run.stop)
                continue
        merged.append(run)
    return merged


def runs(slot: int, round_: int, indices: Indices) -> list[Run]:
    """Return the runs of ascending segment indices, (n,)."""
    return [
        Run(slot, round_, int(indices[a]), int(indices[b - 1]) + 1)
        for a, b in index_ranges(indices, 1)
    ]
