"""A round in which nothing goes wrong: segments are sent, and their aggregates arrive in order.

Its vector may be shorter than the job's longest, as that of a `Transfer`.

It needs no loss detection. If anything else arrives, or nothing, the round continues as a
`Transfer`, in the state that this would have if it had sent and received all until then.

There are two ways to play it. In Python a vector of a few super-datagrams is sent at once. A
compiled kernel (`worker_lib/kernel.py`) plays a vector of any size within the window, on the memory
of the contribution and of the caller's arrays; it records what it did, and may stop after any
packet.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from iswitch.core.format.packets import Rows
from iswitch.core.format.wire import SEG_SIZE, Shape, Vector

from .transfer import Contribution, Progress, Transfer


class Play(NamedTuple):
    """Tells how far a kernel has played an express round.

    Attributes:
        progress: how far the round was after each step, in order.
        round_trip: seconds from sending the last segment that was answered to its aggregate.
        window: size of the window.
    """

    progress: list[Progress]
    round_trip: float
    window: float


class Streak(NamedTuple):
    """Tells what a kernel has played: rounds in a row, each from its beginning to its end.

    Attributes:
        rounds: their number.
        until: the round behind them.
        came_at: when the last aggregate came, in seconds.
        smoothed: estimate of the round trip, in seconds.
        deviation: and of its deviation.
        window: size of the window.
        took: how long each round took, in seconds, (rounds,).
    """

    rounds: int
    until: int
    came_at: float
    smoothed: float
    deviation: float
    window: float
    took: npt.NDArray[np.float64]


class Express:
    """A whole vector on its way through the switch.

    Args:
        contribution: holds the packets (its `begin` has been called).
        shape: the layout of the vector.
        vector: this worker's vector, flat, [numel].
        out: receives the aggregate, [numel].
        now: the time.
    """

    def __init__(
        self, contribution: Contribution, shape: Shape, vector: Vector, out: Vector, now: float
    ) -> None:
        self.contribution = contribution
        self.shape = shape
        self.vector = vector
        self.out = out
        self.sent = 0  # segments, from the first
        self.came = 0  # aggregates, from the first
        self.came_at = now  # when the last of them arrived; at first, when the round began
        self._progress: list[Progress] = []

    @property
    def done(self) -> bool:
        """Return whether every aggregate has arrived."""
        return self.came == self.shape.segments

    def send_all(self, now: float) -> None:
        """Lay out all segments, which are sent at once."""
        self.sent = self.shape.segments
        self.contribution.fill(self.vector, self.sent)
        self._progress.append(Progress(self.sent, 0, now))

    def take(self, rows: Rows, tail: int) -> bool:
        """Store aggregates, the packets of a `Burst`; False: they are not the next in order."""
        shape, sent_as = self.shape, self.contribution.shape
        start, stop = self.came, self.came + len(rows)
        size = rows.shape[1]
        fits = size == shape.packet_size or (stop - start == 1 and size == tail)
        if stop > self.sent or tail != sent_as.tail(stop) or not fits:
            return False
        if rows[:, :SEG_SIZE].tobytes() != self.contribution.headers(start, stop):
            return False
        out, elements, full = self.out, shape.elements, min(stop, shape.full_segments)
        if start < full:
            whole = out[start * elements : full * elements].reshape(full - start, elements)
            whole[...] = rows[: full - start, SEG_SIZE:].view(out.dtype)
        if full < stop:
            out[full * elements :] = rows[-1, SEG_SIZE : shape.last_size].view(out.dtype)
        self.came = stop
        return True

    def note(self, now: float) -> float:
        """Record that aggregates were taken; return the round trip of the last one, in seconds."""
        self._progress.append(Progress(self.sent, self.came, now))
        self.came_at = now
        return now - next(one.at for one in self._progress if one.sent >= self.came)

    def played(self, play: Play) -> None:
        """Record what a kernel did."""
        self._progress += play.progress
        if play.progress:
            self.sent, self.came, at = play.progress[-1]
            self.contribution.filled = max(self.contribution.filled, self.sent)
            self.came_at = at

    def transfer(self) -> Transfer:
        """Return a Transfer that continues this round, with what was sent and what arrived."""
        transfer = Transfer(self.contribution, self.vector, self.out)
        transfer.take_over(self._progress)
        return transfer
