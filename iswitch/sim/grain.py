"""How much one event of a simulated network may hold: `--grain`."""

from __future__ import annotations

from typing import NamedTuple

from iswitch.faults.units import QuantityError


class Grain(NamedTuple):
    """The most packets of a run, and the most seconds between the first and the last of them."""

    packets: int
    span: float = float("inf")

    def fitting(self, packets: int, span: float) -> int:
        """Return into runs of how many packets to cut some that come within `span` seconds."""
        most = self.packets
        while most > 1 and span * most > self.span * packets:
            most //= 2
        return most


SINGLE = Grain(1)  # every packet by itself, unless others come at the same time

# A worker's first window is 176 packets. A run of no more than half of it comes back before the
# line has sent the other half, so that what it makes room for need not wait. And the shortest timer
# of a worker, after which it asks what became of a segment, is 2 ms.
AUTO = Grain(88, 0.001)


def grain_of(text: str) -> Grain:
    """Read a grain: `auto`, or a number of packets of 1 or more.

    Raises:
        QuantityError: it is neither.
    """
    if text == "auto":
        return AUTO
    if not text.isdecimal() or not 1 <= int(text) <= 1 << 20:
        raise QuantityError(
            f"grain {text!r} is neither auto nor a number of packets from 1 to {1 << 20}; 1 moves "
            "every packet by itself"
        )
    return Grain(int(text))
