"""What is going to happen, in the order of time."""

from __future__ import annotations

import heapq
from collections.abc import Callable

Action = Callable[[], None]


class EventQueue:
    """Actions by the time they are due; those due at one time in the order they were put in."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Action]] = []
        self._serial = 0

    def put(self, when: float, action: Action) -> None:
        """Have something done at a time."""
        self._serial += 1
        heapq.heappush(self._heap, (when, self._serial, action))

    def next_time(self) -> float | None:
        """When the next is due; None: nothing ever will be."""
        return self._heap[0][0] if self._heap else None

    def pop(self) -> tuple[float, Action]:
        """Take the next."""
        when, _, action = heapq.heappop(self._heap)
        return when, action
