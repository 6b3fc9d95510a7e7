"""A queue of actions, in the order of their times."""

from __future__ import annotations

import heapq
from collections.abc import Callable

Action = Callable[[], None]


class EventQueue:
    """Keeps actions by the time they are due; equal times keep their order."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Action]] = []
        self._serial = 0

    def put(self, when: float, action: Action) -> None:
        """Add an action that is due at a time."""
        self._serial += 1
        heapq.heappush(self._heap, (when, self._serial, action))

    def next_time(self) -> float | None:
        """Return the time of the next action, in seconds; None: there is none."""
        return self._heap[0][0] if self._heap else None

    def pop(self) -> tuple[float, Action]:
        """Take out the next action, and its time."""
        when, _, action = heapq.heappop(self._heap)
        return when, action
