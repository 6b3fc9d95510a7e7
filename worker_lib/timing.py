"""How long a worker's calls take."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import numpy as np

from iswitch.core.format.histogram import Histogram

KEPT = 100_000  # durations, for the percentiles


class Calls:
    """Counts calls and their durations.

    Attributes:
        count: the number of calls.
        last: durations of the last ones, in seconds.
        durations: of all calls.
    """

    def __init__(self) -> None:
        self.count = 0
        self.last: deque[float] = deque(maxlen=KEPT)
        self.durations = Histogram()

    def add(self, durations: Sequence[float]) -> None:
        """Count calls by their durations, in seconds."""
        self.count += len(durations)
        self.last.extend(durations)
        self.durations.extend(durations)

    def percentile(self, part: float) -> float:
        """Return the duration that a part of the last calls, in per cent, does not exceed."""
        return float(np.percentile(np.asarray(self.last or [np.nan]), part))
