"""Counts durations by length, in intervals that all histograms share."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass, field

# Upper bounds of the intervals, in seconds: 1, 2 and 5 of each decade.
BOUNDS = tuple(digit * 10.0**power for power in range(-4, 1) for digit in (1, 2, 5))


@dataclass(slots=True)
class Histogram:
    """Counts durations by length.

    Attributes:
        counts: durations in the intervals that BOUNDS ends; the last has no end.
        seconds: the sum of all durations, in seconds.
    """

    counts: list[int] = field(default_factory=lambda: [0] * (len(BOUNDS) + 1))
    seconds: float = 0.0

    def add(self, seconds: float) -> None:
        """Count a duration."""
        self.counts[bisect_left(BOUNDS, seconds)] += 1
        self.seconds += seconds

    def extend(self, durations: Iterable[float]) -> None:
        """Count several durations, in seconds."""
        for seconds in durations:
            self.add(seconds)
