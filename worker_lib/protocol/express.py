"""A round whose vector is a few super-datagrams at most, as long as all goes well.

It goes out at once and comes back in order, so there is no window to look at and no loss to find.
Whatever else comes, or does not come, has it go on as a `Transfer`.
"""

from __future__ import annotations

from iswitch.core.format.packets import Rows
from iswitch.core.format.wire import SEG_SIZE, Shape, Vector

from .transfer import Contribution, Transfer


class Express:
    """A whole vector on its way through the switch.

    Args:
        contribution: where the packets are laid out (its `begin` has been called).
        vector: what this worker contributes, flat, (numel,).
        out: takes the aggregate, like the vector.
        now: when it is sent.
    """

    def __init__(self, contribution: Contribution, vector: Vector, out: Vector, now: float) -> None:
        self.contribution = contribution
        self.sent_at = now
        self.came = 0  # segments, from the first
        self.came_at = now  # when the last did, or it was sent
        self._vector = vector
        self._out = out
        contribution.fill(vector, contribution.shape.segments)

    @property
    def done(self) -> bool:
        """Whether every aggregate has come."""
        return self.came == self.contribution.shape.segments

    def take(self, rows: Rows, tail: int) -> bool:
        """Take aggregates, in packets as those of a `Burst`; False: they are not the next."""
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
        """The same from now on: all of it sent, and what has come."""
        transfer = Transfer(self.contribution, self._vector, self._out)
        transfer.take_over(self.came, self.sent_at, self.came_at)
        return transfer
