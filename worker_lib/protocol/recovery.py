"""Which of the segments that were sent are lost, by what became of others.

The idea is RACK's (RFC 8985): what was sent before something that has been answered, and has itself
not been answered for as long as that took and some more, is lost. So one lost packet is known a
fraction of a round trip later, however many follow it.

An aggregate comes when the last worker has contributed. Of a segment that all send for the first
time this tells something about those sent before it, since all send in one order; of one that is
sent again it does not: another worker may have sent it again earlier. What was sent again is
therefore lost when it has not been answered for two round trips, whatever came meanwhile.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from iswitch.core.format.packets import Indices

SLACK = 0.5  # round trips by which a segment may be later than others
AGAIN = 2.0  # round trips for what was sent again; doubles with every copy
AGAIN_FLOOR = 0.001  # seconds
MOST_COPIES = 10  # for which it doubles
SLACK_FLOOR = 250e-6  # seconds; an idle core takes so long to wake up

Which = slice | Indices


class Losses:
    """What was sent of one vector, and when."""

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
        """So many segments are sent now, in ascending order; of new ones none is in flight."""
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
        """Aggregates have come."""
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
        """Segments are in flight no more."""
        self._in_order = False
        flying = self._order[which] > 0
        self.in_flight -= int(np.count_nonzero(flying))
        if self._again_in_flight:
            self._again_in_flight -= int(np.count_nonzero(flying & (self._copies[which] > 0)))
        self._order[which] = 0

    def is_younger(self, which: Which, when: float) -> bool:
        """Whether some of these were sent at that time or after it, if only for the last time."""
        return bool((self._at[which] >= when).any())

    def are_copies(self, which: Indices) -> npt.NDArray[np.bool_]:
        """Which of these were sent more than once."""
        return self._copies[which] > 0

    def land(self) -> None:
        """After such a silence nothing is in flight any more."""
        self._order[:] = 0
        self._in_order = False
        self.in_flight = self._again_in_flight = 0

    @property
    def doubtful(self) -> bool:
        """Whether something may be lost."""
        if self._again_in_flight or self.in_flight > self._sent - self._newest:
            return True
        # What was sent again has come, and was counted among those sent after the newest.
        return self._lossy and bool(((self._order > 0) & (self._order < self._newest)).any())

    @property
    def expected(self) -> float:
        """Seconds that a round trip takes now: most of it is a queue, as long as what is in flight.

        At the end, when only what was lost is still missing, there is none. Once something has been
        lost it pays to be hasty: little is sent too often then, and all wait for it.
        """
        if self.round_trip is None:
            return 0.0
        least = 0.0 if self._lossy else min(self._shortest, self.round_trip)
        return least + (self.round_trip - least) * self.in_flight / self._most

    @property
    def slack(self) -> float:
        """Seconds; also between two looks at what is lost, so that it is sent again together."""
        return max(SLACK * self.expected, SLACK_FLOOR)

    @property
    def patience(self) -> float:
        """Seconds after which what was sent again once is lost."""
        return max(AGAIN * self.expected, AGAIN_FLOOR)

    def overdue(self, now: float) -> tuple[Indices, Indices, float | None]:
        """What is lost: for the first time, and again; and when to look again (None: no need)."""
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
