"""Quantities of a link as text: `1Gbit`, `5ms`, `0.1%`, `100 packets`, `64kB`.

Decimal arithmetic: what is written is the float nearest to what was read, and reads back equal.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Literal, NamedTuple, Self

from iswitch.outside import OutsideError

FRAME_HEADER = 14  # bytes of Ethernet before what an MTU counts
NUMBER = re.compile(r"\s*([-+]?(?:\d+\.?\d*|\.\d+))\s*(\D*)", re.ASCII)


class QuantityError(OutsideError, ValueError):
    """Text that is no such quantity, or an impossible value; the message names the mend."""


@dataclass(frozen=True)
class Unit:
    """The way a quantity is written. `scales`: its units, smallest first, in any case."""

    quantity: str
    scales: Mapping[str, Decimal]
    example: str
    bare: str | None = None  # the unit of text that names none; None: there has to be one
    tail: str = ""  # what may follow the unit

    def parse(self, text: str | float) -> Decimal:
        """Read a value in the base unit; a number without a unit is one already.

        Raises:
            QuantityError: not a number with one of the units.
        """
        if isinstance(text, str):
            found = NUMBER.fullmatch(text)
            unit = found and self.unit(found[2].strip())
            if not found or unit is None:
                units = ", ".join(self.scales)
                raise QuantityError(
                    f"{self.quantity} {text!r} is not a number and a unit ({units}); write "
                    f"{self.quantity}={self.example}"
                )
            return Decimal(found[1]) * self.scales[unit]
        return Decimal(repr(text))

    def unit(self, text: str) -> str | None:
        """Find the unit that is meant, if any."""
        if not text:
            return self.bare
        known = {name.lower(): name for name in self.scales}
        return known.get(text.lower().removesuffix(self.tail))

    def format(self, value: float) -> str:
        """Write the value with the largest unit of which it is at least one."""
        number = Decimal(repr(value))
        name, scale = next(iter(self.scales.items()))
        for name_, scale_ in self.scales.items():
            if scale_ <= abs(number):
                name, scale = name_, scale_
        return f"{(number / scale).normalize():f}{name}"


def powers(names: str, base: int = 1000, start: int = 0) -> dict[str, Decimal]:
    """Make units that are each `base` times the one before; the first is base**start."""
    return {name: Decimal(base) ** (start + i) for i, name in enumerate(names.split())}


RATE = Unit("rate", powers("bit kbit Mbit Gbit Tbit"), "100Mbit", tail="/s")
DELAY = Unit("delay", powers("ns us ms s", start=-3), "5ms")
JITTER = Unit("jitter", DELAY.scales, "1ms")
LOSS, DUPLICATE, REORDER, CORRUPT = (
    Unit(name, {"%": Decimal("0.01"), "": Decimal(1)}, "0.1%", bare="")
    for name in ("loss", "duplicate", "reorder", "corrupt")
)
BURST = Unit("burst", {"": Decimal(1)}, "8", bare="")
MTU = Unit("mtu", {"": Decimal(1)}, "1500", bare="")
PACKETS = {"packets": Decimal(1), "packet": Decimal(1)}
BYTES = powers("B kB MB GB") | powers("KiB MiB GiB", base=1024, start=1)
QUEUE = Unit("queue", PACKETS | BYTES, "100packets", bare="packets")


class Queue(NamedTuple):
    """Room of a queue, in packets or in bytes."""

    size: int
    unit: Literal["packets", "bytes"] = "packets"

    @classmethod
    def parse(cls, text: str | float) -> Self:
        """Read `100`, `100 packets` or `64kB`.

        Raises:
            QuantityError: neither of these.
        """
        size = whole(QUEUE, text)
        if isinstance(text, str) and (found := NUMBER.fullmatch(text)):
            unit = QUEUE.unit(found[2].strip())
            return cls(size, "packets" if unit in PACKETS else "bytes")
        return cls(size)

    def __str__(self) -> str:
        return f"{self.size}{'packets' if self.unit == 'packets' else 'B'}"

    def bytes(self, mtu: int) -> int:
        """Give the room in bytes, for packets as large as the MTU allows."""
        return self.size * (mtu + FRAME_HEADER) if self.unit == "packets" else self.size

    def packets(self, mtu: int) -> int:
        """Give the room in packets as large as the MTU allows, at least one."""
        return self.size if self.unit == "packets" else max(1, self.size // (mtu + FRAME_HEADER))


def whole(unit: Unit, text: str | float) -> int:
    """Check that a quantity is a whole number.

    Raises:
        QuantityError: it is not whole.
    """
    value = unit.parse(text)
    if not value.is_finite() or value != int(value):
        raise QuantityError(
            f"{unit.quantity} {text!r} is not a whole number; write {unit.quantity}={unit.example}"
        )
    return int(value)


def count(number: int, noun: str, plural: str = "s") -> str:
    """Write a number of things."""
    return f"{number:,} {noun}{'' if number == 1 else plural}"
