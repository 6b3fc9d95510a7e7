"""Decides when to restart a process that has ended by itself, and when to give up."""

from __future__ import annotations

from dataclasses import dataclass

FIRST_PAUSE = 0.25  # seconds before the first restart in a row; doubles
LONGEST_PAUSE = 4.0
LEAST_AGE = 1.0  # seconds between two starts: a process at an address is known by its second
SOUND = 10.0  # seconds after which a process counts as sound, and its next end begins a new row


@dataclass
class Restarts:
    """The restarts of one process.

    Args:
        most: the most restarts in a row.
        sound: seconds that a process must run to begin a new row; infinity: none ever does.
    """

    most: int = 0
    sound: float = SOUND
    count: int = 0  # restarts in all
    row: int = 0  # restarts in a row
    due: float | None = None  # when the next one is to be
    _began: float | None = None  # None: it does not run yet

    def began(self, now: float) -> None:
        """Note when the process was started."""
        self._began = now

    def plan(self, now: float) -> bool:
        """Set in `due` when to restart the process that has ended; False: no more restarts."""
        began, self._began = self._began, None
        if began is not None and now - began >= self.sound:
            self.row = 0
        if self.row >= self.most:
            return False
        pause = min(FIRST_PAUSE * 2**self.row, LONGEST_PAUSE)
        self.due = now + pause if began is None else max(now + pause, began + LEAST_AGE)
        self.row += 1
        self.count += 1
        return True

    def is_due(self, now: float) -> bool:
        """Return True once when the restart is due."""
        if self.due is None or now < self.due:
            return False
        self.due = None
        return True
