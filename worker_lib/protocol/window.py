"""The send window, and the timer that decides how long a silence may last.

The functions are rules that `iswitch/fast/worker_kernel.py` follows, too: it compiles them.
"""

from __future__ import annotations

from dataclasses import dataclass

CEILING = 5 << 18  # bytes to have under way at most: what a queue of 1000 packets holds
TOGETHER = 16 << 20  # and all workers of a job together: what a switch's UDP socket holds
PROBE = 2.0  # round trips without a sign after which to send something again, to see
PROBE_FLOOR = 0.002  # seconds
FIRST_PATIENCE = 0.05  # seconds, before any round trip is known


def probe_pause(round_trip: float) -> float:
    """Return the seconds of silence after which to look for a loss."""
    return max(PROBE * round_trip, PROBE_FLOOR)


def bursts_allowed(size: float, segments: int, burst: int) -> int:
    """Return how many whole bursts a window has room for, with `segments` under way.

    A part of a burst would cost as much as a whole one.
    """
    return int(size - segments) // burst


def widened(size: float, threshold: float, ceiling: int, burst: int, segments: int) -> float:
    """Return the size of a window after the aggregates of `segments` segments came back."""
    grow = segments if size < threshold else burst * segments / size
    return min(size + grow, ceiling)


def mark_is_due(sent: int, known: int, size: float) -> bool:
    """Return whether a Help must ask what the switch has taken, as nothing else will tell.

    Args:
        sent: packets sent.
        known: of these, those that are taken, or of which something that is to come will tell.
        size: of the window.
    """
    return sent - known >= size / 2


def sampled(smoothed: float, deviation: float, seconds: float) -> tuple[float, float]:
    """Return the estimates of round trips and of their deviation after one more."""
    deviation += (abs(smoothed - seconds) - deviation) / 4
    return smoothed + (seconds - smoothed) / 8, deviation


def patience(
    smoothed: float, deviation: float, floor: float, ceiling: float, backoff: float
) -> float:
    """Return the seconds without progress after which to ask for Help."""
    return min(max(smoothed + 4 * deviation, floor) * backoff, ceiling)


@dataclass
class RoundTrip:
    """Retransmission timer from measured round trips (RFC 6298).

    A round trip goes from sending a segment to the arrival of its aggregate, so it holds the wait
    for the slowest worker too: a timer that adapts to it asks late rather than often.
    """

    floor: float = 0.020  # seconds; below, a worker that is only waiting for a core is asked for
    ceiling: float = 1.0
    smoothed: float | None = None
    deviation: float = 0.0
    backoff: float = 1.0

    def sample(self, seconds: float) -> None:
        """Update the estimates with the round trip of a segment that was sent only once."""
        if self.smoothed is None:
            self.smoothed, self.deviation = seconds, seconds / 2
        else:
            self.smoothed, self.deviation = sampled(self.smoothed, self.deviation, seconds)

    @property
    def typical(self) -> float:
        """Return the seconds that hardly any round trip exceeds unless something is lost."""
        return max(2 * (self.smoothed or 0.0), self.floor) * self.backoff

    @property
    def timeout(self) -> float:
        """Return the seconds without progress after which to ask for Help."""
        smoothed, deviation = self.smoothed, self.deviation
        if smoothed is None:
            smoothed, deviation = FIRST_PATIENCE, 0.0
        return patience(smoothed, deviation, self.floor, self.ceiling, self.backoff)


@dataclass
class SendWindow:
    """Limits segments under way: slow start, then one burst more per window (RFC 5681).

    It is self-clocking: a segment is under way until its aggregate is back, so no worker is more
    than a window ahead of the slowest, and the switch's queue holds at most a window per worker.
    """

    burst: int  # segments of a super-datagram
    ceiling: int
    size: float = 0.0
    threshold: float = float("inf")

    def __post_init__(self) -> None:
        self.size = float(min(4 * self.burst, self.ceiling))

    def limit(self, ceiling: int, burst: int) -> None:
        """Set the most segments under way, and the most of one burst."""
        self.ceiling, self.burst = ceiling, burst
        self.size = max(min(self.size, ceiling), float(min(burst, ceiling)))  # a burst at least

    def returned(self, segments: int) -> None:
        """Widen the window: the aggregates of `segments` segments came back."""
        self.size = widened(self.size, self.threshold, self.ceiling, self.burst, segments)

    def lost(self) -> None:
        """Narrow the window: a contribution was lost, most likely in a full queue."""
        self.threshold = self.size = max(self.size / 2, float(min(self.burst, self.ceiling)))
