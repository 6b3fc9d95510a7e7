"""Quantities of a link as text: `1Gbit`, `5ms`, `0.1%`, `100 packets`, `64kB`.

Arithmetic is decimal, so that a value written as text and read again is equal.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Literal, NamedTuple, Self

from iswitch.outside import OutsideError

FRAME_HEADER = 14  # bytes of the Ethernet header, which an MTU does not count
NUMBER = re.compile(r"\s*([-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d{1,2})?)\s*(\D*)", re.ASCII)


class QuantityError(OutsideError, ValueError):
    """A text names no such quantity, or its value is impossible; the message names the mend."""


@dataclass(frozen=True)
class Unit:
    """Reads and writes a quantity. `scales`: its units, smallest first, in upper or lower case."""

    quantity: str
    scales: Mapping[str, Decimal]
    example: str
    bare: str | None = None  # the unit of text that names none; None: text must name one
    tail: str = ""  # text that may follow the unit

    def parse(self, text: str | float) -> Decimal:
        """Read a value and return it in the base unit; a float is in the base unit already.

        Raises:
            QuantityError: the text is not a number with one of the units.
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

    def number(self, text: str | float) -> float:
        """Read a value as `parse` does, and return it as a float.

        Raises:
            QuantityError: the text is not a number with one of the units.
        """
        return float(self.parse(text))

    def bare_number(self, text: str) -> float:
        """Read a value as `parse` does, and return it in the unit of text that names none.

        Raises:
            QuantityError: the text is not a number with one of the units.
        """
        return float(self.parse(text) / self.scales[self.bare or next(iter(self.scales))])

    def unit(self, text: str) -> str | None:
        """Return the unit that the text names, or the default one; None: unknown."""
        if not text:
            return self.bare
        known = {name.lower(): name for name in self.scales}
        return known.get(text.lower().removesuffix(self.tail))

    def format(self, value: float) -> str:
        """Write the value in the largest unit in which it is 1 or more."""
        number = Decimal(repr(value))
        name, scale = next(iter(self.scales.items()))
        for name_, scale_ in self.scales.items():
            if scale_ <= abs(number):
                name, scale = name_, scale_
        return f"{(number / scale).normalize():f}{name}"


def powers(names: str, base: int = 1000, start: int = 0) -> dict[str, Decimal]:
    """Make units, each `base` times its predecessor; the first is base**start."""
    return {name: Decimal(base) ** (start + i) for i, name in enumerate(names.split())}


RATE = Unit("rate", powers("bit kbit Mbit Gbit Tbit"), "100Mbit", tail="/s")
DELAY = Unit("delay", powers("ns us ms s", start=-3), "5ms")
TIME = Unit("time", DELAY.scales, "3ms", bare="s")
MILLISECONDS = Unit("time", DELAY.scales, "3ms", bare="ms")
JITTER = Unit("jitter", DELAY.scales, "1ms")
LOSS, DUPLICATE, REORDER, CORRUPT = (
    Unit(name, {"%": Decimal("0.01"), "": Decimal(1)}, "0.1%", bare="")
    for name in ("loss", "duplicate", "reorder", "corrupt")
)
BURST = Unit("burst", {"": Decimal(1)}, "8", bare="")
MTU = Unit("mtu", {"": Decimal(1)}, "1500", bare="")
PACKETS = {"packets": Decimal(1), "packet": Decimal(1)}
BYTES = powers("B kB MB GB") | powers("KiB MiB GiB", base=1024, start=1)
MEMORY = Unit("memory", BYTES, "4MiB", bare="MiB")
QUEUE = Unit("queue", PACKETS | BYTES, "100packets", bare="packets")


class Queue(NamedTuple):
    """The room of a queue, in packets or in bytes."""

    size: int
    unit: Literal["packets", "bytes"] = "packets"

    @classmethod
    def parse(cls, text: str | float) -> Self:
        """Read `100`, `100 packets` or `64kB`.

        Raises:
            QuantityError: the text is no whole number of packets or bytes.
        """
        size = whole(QUEUE, text)
        if isinstance(text, str) and (found := NUMBER.fullmatch(text)):
            unit = QUEUE.unit(found[2].strip())
            return cls(size, "packets" if unit in PACKETS else "bytes")
        return cls(size)

    def __str__(self) -> str:
        return f"{self.size}{'packets' if self.unit == 'packets' else 'B'}"

    def bytes(self, mtu: int) -> int:
        """Return the room in bytes, for packets as large as the MTU allows."""
        return self.size * (mtu + FRAME_HEADER) if self.unit == "packets" else self.size

    def packets(self, mtu: int) -> int:
        """Return the room in packets as large as the MTU allows, at least one."""
        return self.size if self.unit == "packets" else max(1, self.size // (mtu + FRAME_HEADER))


def whole(unit: Unit, text: str | float) -> int:
    """Read a quantity that must be a whole number.

    Raises:
        QuantityError: the quantity is not whole.
    """
    value = unit.parse(text)
    if not value.is_finite() or value != int(value):
        raise QuantityError(
            f"{unit.quantity} {text!r} is not a whole number; write {unit.quantity}={unit.example}"
        )
    return int(value)


def count(number: int, noun: str, plural: str = "s") -> str:
    """Write a number and its noun, such as `1 packet` or `2 packets`."""
    return f"{number:,} {noun}{'' if number == 1 else plural}"
