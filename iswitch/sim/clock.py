"""A virtual clock: it stands still, or jumps to the next event."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from itertools import count

Action = Callable[[], None]


class Clock:
    """Carries out actions at their times, and those of one time in the order of scheduling.

    Attributes:
        now: the time, in seconds.
    """

    def __init__(self) -> None:
        self.now = 0.0
        self._events: list[tuple[float, int, Action]] = []  # a heap, by time and serial number
        self._serial = count()

    def at(self, when: float, action: Action) -> None:
        """Schedule an action for a time in seconds; a past time means now."""
        heapq.heappush(self._events, (max(when, self.now), next(self._serial), action))

    def next_time(self) -> float | None:
        """Return the time of the next event, in seconds; None: there is none.

        The event may turn out to be void: a deadline that its machine has moved since.
        """
        return self._events[0][0] if self._events else None

    def step(self) -> bool:
        """Advance to the next event and carry it out; return False if there is none."""
        if not self._events:
            return False
        self.now, _, action = heapq.heappop(self._events)
        action()
        return True
