"""Claims a rank that another worker still has, if that worker may be dead."""

from __future__ import annotations

from iswitch.core.format.wire import ELSEWHERE, Ack

TAKEN_PAUSE = 0.5  # seconds before asking again for a rank whose owner may be dead
LONGEST_WAIT = 60.0  # seconds: two leases of 30 s


class Claim:
    """The claim to a rank that another worker has.

    If the switch has heard that worker since the first refusal, the worker is alive and keeps the
    rank. (TAKEN_PAUSE is allowed for packets on their way.) Otherwise it may be a killed process
    whose lease has not run out. The switch cannot say when it heard a worker behind another switch;
    a returning member assumes after `LONGEST_WAIT` that such a worker is alive.
    """

    def __init__(self) -> None:
        self.taken: Ack | None = None  # the last refusal, as long as the owner may be dead
        self.ask_again = 0.0  # when to
        self._since = 0.0  # the first refusal

    def may_succeed(self, ack: Ack, comes_back: bool, now: float) -> bool:
        """Note a refusal; return whether to ask for the rank again.

        Args:
            ack: the refusal.
            comes_back: whether this worker was a member before, rather than being constructed now.
            now: the time, in seconds.
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
        """Return whether to ask again now; if so, schedule the next question TAKEN_PAUSE later."""
        if self.taken is None or self.ask_again > now:
            return False
        self.ask_again = now + TAKEN_PAUSE
        return True
