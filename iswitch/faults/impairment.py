"""The faults of a link in one direction: passive data, read from text.

`loss=1%,burst=8,delay=5ms,jitter=1ms,duplicate=0.1%,reorder=1%,corrupt=0.01%,rate=100Mbit,queue=100`

docs/links.md defines each fault; line.py applies them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from functools import partial
from typing import Self

from .units import (
    BURST,
    CORRUPT,
    DELAY,
    DUPLICATE,
    JITTER,
    LOSS,
    RATE,
    REORDER,
    QuantityError,
    Queue,
    whole,
)

LIMIT = 1000  # packets: the kernel's default length of a device's queue

UNITS = {
    "loss": LOSS,
    "burst": BURST,
    "delay": DELAY,
    "jitter": JITTER,
    "duplicate": DUPLICATE,
    "reorder": REORDER,
    "corrupt": CORRUPT,
    "rate": RATE,
}
DIRECTIONS = ("in", "out")
PROBABILITIES = ("loss", "duplicate", "reorder", "corrupt")


@dataclass(frozen=True)
class Impairment:
    """The faults of a link in one direction; without any fault, the default, it counts as false.

    `loss`, `duplicate`, `reorder` and `corrupt` are probabilities per packet on the wire. `delay`
    and `jitter` are in seconds. `rate` is in bit/s of whole frames; None: no limit. `queue` is the
    number of packets that may wait for the rate.

    Raises:
        QuantityError: a value is impossible.
    """

    loss: float = 0.0
    delay: float = 0.0
    jitter: float = 0.0
    duplicate: float = 0.0
    reorder: float = 0.0
    corrupt: float = 0.0
    rate: int | None = None
    queue: int = LIMIT
    burst: float = 0.0  # mean length of runs of lost packets; 0: losses are independent

    def __post_init__(self) -> None:
        for name in PROBABILITIES:
            if not 0 <= getattr(self, name) <= 1:
                raise QuantityError(
                    f"{name} {getattr(self, name)} is not in [0, 1]; write 1% or 0.01 for one in a "
                    "hundred"
                )
        if self.burst and not self.loss:
            raise QuantityError(
                f"burst {self.burst:g} is the length of runs of lost packets, and none is lost; "
                "give a loss, such as 1%"
            )
        if self.burst and self.loss == 1:
            raise QuantityError(f"burst {self.burst:g} cannot be where all are lost; leave it out")
        if self.burst and not 1 / (1 - self.loss) <= self.burst < float("inf"):
            raise QuantityError(
                f"burst {self.burst:g} cannot be: independent losses come in runs of "
                f"{1 / (1 - self.loss):g} already; give more, or leave it out"
            )
        if not 0 <= self.delay < float("inf"):
            raise QuantityError(f"delay {self.delay} is not a time; give one of 0 s or more")
        if not 0 <= self.jitter <= self.delay:
            raise QuantityError(
                f"jitter {self.jitter} s is not in 0 s..delay ({self.delay} s); a packet cannot "
                "arrive before it was sent, so give a longer delay"
            )
        if self.reorder and not self.delay:
            raise QuantityError(
                "reorder lets a packet skip the delay, and there is none; give a delay, such as 1ms"
            )
        if self.rate is not None and not self.rate > 0:
            raise QuantityError(
                f"rate {self.rate} is not positive; leave it out for as fast as the machine is"
            )
        if self.queue < 1:
            raise QuantityError(f"queue {self.queue} has no room; give 1 packet or more")

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read text such as `loss=1%,delay=5ms`.

        Raises:
            QuantityError: a name is unknown or given twice, or a value is impossible.
        """
        values: dict[str, float] = {}
        for part in text.split(","):
            name, equals, value = (word.strip() for word in part.partition("="))
            if name not in READERS or not equals:
                raise QuantityError(
                    f"{part!r} is no impairment; write some of {', '.join(READERS)}, such as "
                    "loss=1%,delay=5ms"
                )
            if name in values:
                raise QuantityError(f"{text!r} says {name} twice; leave one of them out")
            values[name] = READERS[name](value)
        return cls(**values)  # type: ignore[arg-type]

    def __str__(self) -> str:
        """Write the impairment so that `parse` reads an equal one; empty if there is none."""
        return ",".join(
            f"{field.name}={UNITS[field.name].format(value) if field.name in UNITS else value}"
            for field in fields(self)
            if (value := getattr(self, field.name)) != field.default
        )

    def __bool__(self) -> bool:
        """Return whether there is any fault; a limited queue alone is no fault."""
        return self != Impairment(queue=self.queue)


Impairments = Mapping[tuple[int, str], Impairment]  # by port number and direction


def _read_room(text: str | float) -> int:
    room = Queue.parse(text)
    if room.unit == "bytes":
        raise QuantityError(f"queue {text!r} counts bytes; here it counts packets, as in queue=100")
    return room.size


READERS: dict[str, Callable[[str | float], float]] = {
    **{name: unit.number for name, unit in UNITS.items()},
    "rate": partial(whole, RATE),
    "queue": _read_room,
}
