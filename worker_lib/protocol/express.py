"""A fast path for rounds whose vector is a few super-datagrams at most.

The vector is sent at once and the aggregates arrive in order, so it needs no window and no loss
detection. If anything else arrives, or nothing, the round continues as a `Transfer`.
"""

from __future__ import annotations

from iswitch.core.format.packets import Rows
from iswitch.core.format.wire import SEG_SIZE, Shape, Vector

from .transfer import Contribution, Transfer


class Express:
    """A whole vector on its way through the switch.

    Args:
        contribution: holds the packets (its `begin` has been called).
        vector: this worker's vector, flat, [numel].
        out: receives the aggregate, [numel].
        now: the time at which it is sent.
    """

    def __init__(self, contribution: Contribution, vector: Vector, out: Vector, now: float) -> None:
        self.contribution = contribution
        self.sent_at = now
        self.came = 0  # segments, from the first
        self.came_at = now  # when the last of them arrived; at first, when the vector was sent
        self._vector = vector
        self._out = out
        contribution.fill(vector, contribution.shape.segments)

    @property
    def done(self) -> bool:
        """Return whether every aggregate has arrived."""
        return self.came == self.contribution.shape.segments

    def take(self, rows: Rows, tail: int) -> bool:
        """Store aggregates, the packets of a `Burst`; False: they are not the next in order."""
        shape: Shape = self.contribution.shape
        start, stop = self.came, self.came + len(rows)
        size = rows.shape[1]
        fits = size == (shape.packet_size if stop - start > 1 else tail)
        if stop > shape.segments or tail != shape.tail(stop) or not fits:
            return False
        if rows[:, :SEG_SIZE].tobytes() != self.contribution.headers(start, stop):
            return False
        out, elements, full = self._out, shape.elements, min(stop, shape.full_segments)
        if start < full:
            whole = out[start * elements : full * elements].reshape(full - start, elements)
            whole[...] = rows[: full - start, SEG_SIZE:].view(out.dtype)
        if full < stop:
            out[full * elements :] = rows[-1, SEG_SIZE:tail].view(out.dtype)
        self.came = stop
        return True

    def transfer(self) -> Transfer:
        """Return a Transfer that continues this round, with what was sent and what arrived."""
        transfer = Transfer(self.contribution, self._vector, self._out)
        transfer.take_over(self.came, self.sent_at, self.came_at)
        return transfer
