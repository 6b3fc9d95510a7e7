"""Lines side by side, each of which serves packets one after the other."""

from __future__ import annotations

import numpy as np

from iswitch.core.format.wire import Shape
from iswitch.ethernet.frame import HEADERS
from iswitch.sim.handling import Handling

from .fabric import Floats, Ints


def frame_sizes(shape: Shape) -> Ints:
    """Return the bytes of the frames that carry a vector's segments, (segments,)."""
    sizes = np.full(shape.segments, shape.packet_size + HEADERS)
    sizes[-1] = shape.tail(shape.segments) + HEADERS
    return sizes


class Lines:
    """Lines that all carry packets of the same sizes, in the same order.

    Args:
        each: seconds that a packet takes on each line, (n,) or (1,).
        byte: seconds that a byte takes, (n,) or (1,).
        delay: seconds that pass until a packet has come, (n,) or (1,).
    """

    def __init__(self, each: Floats, byte: Floats, delay: Floats) -> None:
        self._each, self._byte, self._delay = (_column(values) for values in (each, byte, delay))
        self._busy: Floats | float = -np.inf  # when the packets before are gone, (n, 1)

    @classmethod
    def of_links(cls, rate: Floats, delay: Floats) -> Lines:
        """Return lines with rates in bit/s, (n,), and delays in seconds, (n,)."""
        return cls(np.zeros(1), 8 / rate, delay)

    @classmethod
    def of_nodes(cls, handling: Handling) -> Lines:
        """Return what takes the time of equal nodes."""
        return cls(*(np.array([value]) for value in handling))

    def carry(self, ready: Floats, sizes: Ints) -> Floats:
        """Return when packets have come, (n, k) seconds.

        Args:
            ready: when each can be sent, (n, k), never falling in a row.
            sizes: bytes of each as a frame, (k,).
        """
        total = self._each * np.arange(1, len(sizes) + 1) + self._byte * sizes.cumsum()
        # Begins, if these are served without a pause.
        done: Floats = ready - (total - self._each - self._byte * sizes)
        np.maximum.accumulate(done, axis=1, out=done)
        np.maximum(done, self._busy, out=done)
        done += total
        self._busy = done[:, -1:].copy()
        done += self._delay
        return done


def _column(values: Floats) -> Floats:
    """Return values as a column; of one row, if all are equal."""
    return values[:1, None] if len(values) and (values == values[0]).all() else values[:, None]
