"""Claim a rank that another worker still has, but perhaps not for long."""

from __future__ import annotations

from iswitch.core.format.wire import Ack

TAKEN_PAUSE = 0.5  # seconds before asking again for a rank whose owner may be dead


class Claim:
    """A rank that was asked for, and is taken.

    If its owner has been heard since the first question, it is alive and keeps the rank. (Half a
    second is left for packets that were under way.) If not, it may be a process that was killed,
    whose lease has still to run out.
    """

    def __init__(self) -> None:
        self.taken: Ack | None = None  # the last refusal, as long as the owner may be dead
        self.ask_again = 0.0  # when to
        self._since = 0.0  # the first refusal

    def may_succeed(self, ack: Ack, now: float) -> bool:
        """Note that the rank is taken; whether to ask for it again."""
        if self.taken is None:
            self._since = now
        if ack.contributors < 1000 * (now - self._since - TAKEN_PAUSE):  # ms of its silence
            self.taken = None
            return False
        self.taken, self.ask_again = ack, now + TAKEN_PAUSE
        return True

    def is_due(self, now: float) -> bool:
        """Whether to ask again now; the next time is then a pause later."""
        if self.taken is None or self.ask_again > now:
            return False
        self.ask_again = now + TAKEN_PAUSE
        return True
