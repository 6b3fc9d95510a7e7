"""Detects lost segments by the times at which others were sent and answered.

The idea is RACK's (RFC 8985). Suppose a segment was answered, and one sent before it was not. If
the earlier one stays unanswered for the answered one's round trip and some slack, it is lost. So a
lost packet is detected a fraction of a round trip later, however many packets follow it.

An aggregate arrives when the last worker has contributed. All workers send new segments in one
order, so the aggregate of a segment sent once says something about those sent before it. The
aggregate of a repeated segment does not, since another worker may have repeated it earlier. A
repeated segment is therefore lost when it is unanswered for two round trips, whatever else arrives.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from iswitch.core.format.packets import Indices

SLACK = 0.5  # round trips by which a segment may be later than others
AGAIN = 2.0  # round trips to wait for a repeated segment; doubles with every copy
AGAIN_FLOOR = 0.001  # seconds, the least such wait
MOST_COPIES = 10  # copies after which the wait no longer doubles
SLACK_FLOOR = 250e-6  # seconds that an idle core takes to wake up

Which = slice | Indices


class Losses:
    """Tracks the segments of one vector: which were sent, when, and which are lost."""

    def __init__(self, segments: int) -> None:
        self._order = np.zeros(segments, np.int64)  # of sending; 0: not in flight
        self._at = np.zeros(segments)
        self._copies = np.zeros(segments, np.uint8)  # that were sent beyond the first
        self._sent = 0
        self._newest = 0  # the last sent of those whose aggregate has come
        self._shortest = float("inf")
        self._again_in_flight = 0
        self._most = 1  # were in flight at once
        self._lossy = False
        self._in_order = True  # what is in flight was sent once, in ascending order
        self.in_flight = 0
        self.round_trip: float | None = None  # the last that can be told
        self.measured: float | None = None  # the last of a segment that was sent once (Karn)

    def sent(self, which: Which, count: int, now: float, again: bool) -> None:
        """Note that segments are sent now, in ascending order.

        Args:
            which: the segments; unless `again`, none of them is in flight.
            count: their number.
            now: the time, in seconds.
            again: whether they were sent before.
        """
        if again:
            self._in_order = False
            self.forget(which)  # the Help of the switch may name what was sent again already
        self._order[which] = np.arange(self._sent + 1, self._sent + 1 + count)
        self._at[which] = now
        self._sent += count
        self.in_flight += count
        self._most = max(self._most, self.in_flight)
        if again:
            self._copies[which] = np.minimum(self._copies[which] + 1, MOST_COPIES)
            self._lossy = True
            self._again_in_flight += count

    def came(self, which: Which, now: float) -> None:
        """Note that aggregates have arrived; measure the round trip by the last one sent."""
        order = self._order[which]
        plain = self._in_order and isinstance(which, slice) and order[0] and order[-1]
        last = -1 if plain else int(order.argmax())
        newest = int(order[last])
        if not newest:
            return
        again = self._again_in_flight and self._copies[which][last]
        took = now - float(self._at[which][last])
        if plain:
            order[:] = 0
            self.in_flight -= len(order)
        else:
            self.forget(which)
        if again:
            if took >= self._shortest:  # else it is the answer to what was sent before
                self.round_trip = took
            return
        if newest < self._newest:
            return  # another worker's contribution had been lost
        self._newest = newest
        self._shortest = min(self._shortest, took)
        self.measured = self.round_trip = took

    def forget(self, which: Which) -> None:
        """Count segments as no longer in flight."""
        self._in_order = False
        flying = self._order[which] > 0
        self.in_flight -= int(np.count_nonzero(flying))
        if self._again_in_flight:
            self._again_in_flight -= int(np.count_nonzero(flying & (self._copies[which] > 0)))
        self._order[which] = 0

    def is_younger(self, which: Which, when: float) -> bool:
        """Return whether some of these segments were last sent at or after a time."""
        return bool((self._at[which] >= when).any())

    def are_copies(self, which: Indices) -> npt.NDArray[np.bool_]:
        """Return which of these segments were sent more than once, bool [n]."""
        return self._copies[which] > 0

    def land(self) -> None:
        """Count all segments as no longer in flight, after a long silence."""
        self._order[:] = 0
        self._in_order = False
        self.in_flight = self._again_in_flight = 0

    @property
    def doubtful(self) -> bool:
        """Return whether any segment may be lost."""
        if self._again_in_flight or self.in_flight > self._sent - self._newest:
            return True
        # What was sent again has come, and was counted among those sent after the newest.
        return self._lossy and bool(((self._order > 0) & (self._order < self._newest)).any())

    @property
    def expected(self) -> float:
        """Estimate the round trip now, in seconds: most of it is queueing behind what is in flight.

        At the end, when only lost segments are missing, there is no queue. After a loss the
        estimate may be too short: few segments are then repeated needlessly, and all workers wait
        for the lost ones.
        """
        if self.round_trip is None:
            return 0.0
        least = 0.0 if self._lossy else min(self._shortest, self.round_trip)
        return least + (self.round_trip - least) * self.in_flight / self._most

    @property
    def slack(self) -> float:
        """Return the seconds by which a segment may be later than others before it is lost.

        It is also the least time between two checks for losses, so that several are repeated
        together.
        """
        return max(SLACK * self.expected, SLACK_FLOOR)

    @property
    def patience(self) -> float:
        """Return the seconds after which a segment that was repeated once is lost."""
        return max(AGAIN * self.expected, AGAIN_FLOOR)

    def overdue(self, now: float) -> tuple[Indices, Indices, float | None]:
        """Return the segments lost for the first time, those lost again, and when to check next.

        The lost ones count as no longer in flight. A time of None: there is nothing to check.
        """
        flying = self._order > 0
        again = self._copies > 0
        doubtful = np.flatnonzero(flying & (again | (self._order < self._newest)))
        if not len(doubtful) or self.round_trip is None:
            return doubtful[:0], doubtful[:0], None
        again = again[doubtful]
        patience = self.patience * 2.0 ** (self._copies[doubtful] - 1.0)
        due = self._at[doubtful] + np.where(again, patience, self.round_trip + self.slack)
        lost = due <= now
        rest = due[~lost]
        first, second = doubtful[lost & ~again], doubtful[lost & again]
        self.forget(doubtful[lost])
        return first, second, max(float(rest.min()), now + self.slack) if len(rest) else None
