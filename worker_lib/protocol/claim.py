"""Claim a rank that another worker still has, but perhaps not for long."""

from __future__ import annotations

from iswitch.core.format.wire import ELSEWHERE, Ack

TAKEN_PAUSE = 0.5  # seconds before asking again for a rank whose owner may be dead
LONGEST_WAIT = 60.0  # seconds: two leases of 30 s


class Claim:
    """A rank that was asked for, and is taken.

    If its owner has been heard since the first question, it is alive and keeps the rank. (Half a
    second is left for packets that were under way.) If not, it may be a process that was killed,
    whose lease has still to run out. Nobody says when an owner behind another switch was heard: a
    worker that comes back believes it alive after `LONGEST_WAIT`.
    """

    def __init__(self) -> None:
        self.taken: Ack | None = None  # the last refusal, as long as the owner may be dead
        self.ask_again = 0.0  # when to
        self._since = 0.0  # the first refusal

    def may_succeed(self, ack: Ack, comes_back: bool, now: float) -> bool:
        """Note that the rank is taken; whether to ask for it again.

        Args:
            ack: the refusal.
            comes_back: this worker has been a member before, and no constructor waits for it.
            now: the time.
        """
        if self.taken is None:
            self._since = now
        waited = now - self._since
        too_long = comes_back and waited > LONGEST_WAIT and ack.contributors == ELSEWHERE
        if too_long or ack.contributors < 1000 * (waited - TAKEN_PAUSE):  # ms of its silence
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
