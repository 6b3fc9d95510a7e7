"""Reads the counters of a switch's links: the kernel's, and those of impaired ports."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from iswitch.core.format.counters import Counters
from iswitch.ports.impaired import Impaired

from .places import Names

Fields = dict[str, Any]
FAULTS = tuple(
    f"{name}_{way}" for name in ("offered", "lost", "queue", "corrupted") for way in ("in", "out")
)
DEVICES = Path("/proc/self/net/dev")  # of the network namespace of this process


def links_of(
    interfaces: Sequence[str], port: object, counters: Counters, names: Names
) -> Callable[[], list[Fields]]:
    """Return a function that describes the links of a switch now.

    Args:
        interfaces: its ports; none: it has a UDP socket, which is one link.
        port: the opened ports, with what wraps them.
        counters: the switch's counters.
        names: the names in its network.
    """
    impaired = port
    while not isinstance(impaired, Impaired) and hasattr(impaired, "port"):
        impaired = impaired.port

    def now() -> list[Fields]:
        links = of_interfaces(interfaces, names) if interfaces else [of_socket(counters)]
        for number, link in enumerate(links):
            faults = impaired.faults(number) if isinstance(impaired, Impaired) else {}
            link.update({name: faults.get(name, 0) for name in FAULTS})
        return links

    return now


def of_socket(counters: Counters) -> Fields:
    """Describe the one link of a UDP socket, in packets."""
    both = {f"{way}_{what}": counters[f"{way}_{what}"] for way in WAYS for what in WHAT}
    return {"name": "udp", "peer": None, "rate": None, **both}


WAYS, WHAT = ("rx", "tx"), ("packets", "bytes")


def of_interfaces(interfaces: Sequence[str], names: Names) -> list[Fields]:
    """Describe the links at interfaces, in the kernel's packets: a super-datagram is one."""
    read = counted()
    network = names.look()
    found = []
    for name in interfaces:
        peer, rate = network.ports.get(name, (None, None))
        rx_bytes, rx_packets, tx_bytes, tx_packets = read.get(name, (0, 0, 0, 0))
        found.append({
            "name": name, "peer": peer, "rate": rate,
            "rx_packets": rx_packets, "rx_bytes": rx_bytes,
            "tx_packets": tx_packets, "tx_bytes": tx_bytes,
        })  # fmt: skip
    return found


def counted() -> dict[str, tuple[int, int, int, int]]:
    """Read received bytes and packets, and sent bytes and packets, by interface (proc(5))."""
    found: dict[str, tuple[int, int, int, int]] = {}
    with suppress(OSError, ValueError, IndexError):
        for line in DEVICES.read_text().splitlines()[2:]:
            name, _, rest = line.partition(":")
            n = [int(word) for word in rest.split()]
            found[name.strip()] = n[0], n[1], n[8], n[9]
    return found
