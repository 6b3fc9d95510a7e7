"""The parts of networks: hosts, switches, links and their ends. Each is checked by itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple, Self

from iswitch.faults.impairment import READERS, UNITS, Impairment
from iswitch.faults.units import MTU, RATE, QuantityError, Queue, whole

from .errors import TopologyError

QUEUE = Queue(1000)  # the kernel's default length of a device's queue
IMPAIRMENTS = ("delay", "loss", "jitter", "duplicate", "reorder", "corrupt", "burst")  # of a Link
MAX_QUEUE = 1 << 30  # bytes; the kernel's parameters have 32 bits, and memory ends earlier
MIN_MTU, MAX_MTU = 68, 65535  # RFC 791; veth's largest


@dataclass(frozen=True)
class Host:
    """A machine that runs workers, with one link to its switch."""

    name: str


@dataclass(frozen=True)
class Switch:
    """An iSwitch. `parent`: the switch it sends partial aggregates to; None: the root."""

    name: str
    parent: str | None = None


@dataclass(frozen=True)
class Link:
    """A cable between the nodes `a` and `b`. Its settings apply to each direction.

    Attributes:
        rate: bit/s of whole Ethernet frames; None: as fast as the machine is.
        delay: seconds, one way.
        loss: the probability that a frame is lost.
        queue: the room before the bottleneck.
        mtu: bytes of the largest IP packet.
        jitter, duplicate, reorder, corrupt, burst: as in an `Impairment`.
    """

    a: str
    b: str
    rate: int | None = None
    delay: float = 0.0
    loss: float = 0.0
    queue: Queue = QUEUE
    mtu: int = 1500
    jitter: float = 0.0
    duplicate: float = 0.0
    reorder: float = 0.0
    corrupt: float = 0.0
    burst: float = 0.0

    def __post_init__(self) -> None:
        check_link(self)

    @classmethod
    def of(cls, a: str, b: str, **settings: str | float) -> Self:
        """Make a link of settings as text: `Link.of("h1", "s1", rate="1Gbit", delay="5ms")`.

        Raises:
            TopologyError: a setting is unknown, or its value is impossible.
        """
        return cls(a, b, **parse_settings(settings))  # type: ignore[arg-type]

    def settings(self) -> dict[str, str | int]:
        """List the settings that differ from the defaults, as `Link.of` takes them."""
        found: dict[str, str | int] = {}
        if self.rate is not None:
            found["rate"] = RATE.format(self.rate)
        for name in IMPAIRMENTS:
            if value := getattr(self, name):
                found[name] = UNITS[name].format(value)
        if self.queue != QUEUE:
            found["queue"] = str(self.queue)
        if self.mtu != Link.mtu:
            found["mtu"] = self.mtu
        return found

    @property
    def impairment(self) -> Impairment:
        """Return the impairment in each direction, but for the rate and its queue."""
        return Impairment(**{name: getattr(self, name) for name in IMPAIRMENTS})

    @property
    def pace(self) -> Impairment:
        """Return the rate and the queue in each direction, which the kernel keeps for frames."""
        return Impairment(rate=self.rate, queue=self.queue.packets(self.mtu))


def parse_settings(settings: Mapping[str, str | float]) -> dict[str, object]:
    """Parse the values of a `Link`'s fields.

    Raises:
        TopologyError: a setting is unknown, or its value is impossible.
    """
    parsers: dict[str, Callable[[str | float], object]] = {
        "rate": READERS["rate"],
        "queue": Queue.parse,
        "mtu": lambda value: whole(MTU, value),
        **{name: READERS[name] for name in IMPAIRMENTS},
    }
    for name, value in settings.items():
        if name not in parsers:
            raise TopologyError(f"a link has no {name!r}; it can have {', '.join(parsers)}")
        if isinstance(value, bool) or not isinstance(value, str | int | float):
            raise TopologyError(f"{name} {value!r} is neither text nor a number; mend it")
    try:
        return {name: parsers[name](value) for name, value in settings.items()}
    except QuantityError as error:
        raise TopologyError(str(error)) from error


def check_link(link: Link) -> None:
    """Refuse a link with an impossible setting.

    Raises:
        TopologyError: a value is impossible.
    """
    where = f"link {link.a}-{link.b}"
    if link.a == link.b:
        raise TopologyError(f"{where} joins a node to itself; name two nodes")
    if link.rate is not None and not link.rate > 0:
        raise TopologyError(f"{where}: rate {link.rate} is not positive; leave it out for no limit")
    if not 0 <= link.loss < 1:
        raise TopologyError(
            f"{where}: loss {link.loss} is not in [0, 1); write 1% or 0.01 for one in a hundred"
        )
    try:
        _ = link.impairment
    except QuantityError as error:
        raise TopologyError(f"{where}: {error}") from error
    if not MIN_MTU <= link.mtu <= MAX_MTU:
        raise TopologyError(
            f"{where}: mtu {link.mtu} is not in {MIN_MTU}..{MAX_MTU}; 1500 is usual, 9000 is jumbo"
        )
    if not 0 < link.queue.bytes(link.mtu) <= MAX_QUEUE:
        raise TopologyError(
            f"{where}: queue of {link.queue} is not in 1 B..1 GiB; 1000packets is usual"
        )


class Port(NamedTuple):
    """An end of a link at a node: the interface, the link, and the node at the other end."""

    ifname: str
    number: int  # as in the interface's name
    mac: str
    link: Link
    peer: str
