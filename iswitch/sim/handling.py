"""The time that nodes take for packets: hosts for each message and byte, switches in a pipeline."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from iswitch.faults.fifo import Fifo
from iswitch.faults.line import Ints

from .runs import Times


class Handling(NamedTuple):
    """The time that a node takes for packets; the default, none, counts as false.

    `per_packet` and `per_byte` (of whole frames) are seconds for which a packet keeps the node from
    the next one; `latency` is in seconds, and delays a packet without keeping the node from others.
    """

    per_packet: float = 0.0
    per_byte: float = 0.0
    latency: float = 0.0

    def __bool__(self) -> bool:
        """Return whether packets take any time."""
        return self != Handling()


class Server:
    """Handles packets one after the other.

    Args:
        handling: the time that it takes for them.
    """

    def __init__(self, handling: Handling) -> None:
        self._handling = handling
        self._fifo = Fifo()

    @property
    def busy(self) -> float:
        """Return when all packets that came are done, in seconds."""
        return self._fifo.busy

    def serve(self, sizes: Ints, ready: Times) -> Times:
        """Return when packets are done that come at some times, in seconds.

        Args:
            sizes: bytes of each packet as a frame, (n,).
            ready: when each comes.
        """
        each, byte, latency = self._handling
        if not (each or byte):
            return ready + latency
        return self._fifo.serve(ready, each + np.multiply(sizes, byte, dtype=np.float64)) + latency
