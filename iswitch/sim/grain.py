"""How many packets one event of a simulated network may hold: `--grain`."""

from __future__ import annotations

from iswitch.faults.units import QuantityError

AUTO = 44  # packets of a super-datagram, in which workers send and open their windows


def grain_of(text: str) -> int:
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
    return int(text)
