"""Groups packets that a replay handles at once, and defines the receiver of its output."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from iswitch.core.format.arbiter import Traffic, classify
from iswitch.core.format.packets import Address
from iswitch.ethernet.frame import Transmission

from .batch import Ints
from .links import IP, UDP, Packets

# The roles of a packet for the switch that is replayed, as a report names them.
ROLES = ("skipped", "to_switch", "from_switch", "passing", "cut_off")
SKIPPED, TO_SWITCH, FROM_SWITCH, PASSING, CUT_OFF = range(len(ROLES))


class PacketGroup:
    """Packets of one flow, length and port in a batch: a range of them, or chosen ones.

    Attributes:
        at: [n], offsets of their UDP payloads in the file.
        head: headers of the first packet.
    """

    def __init__(self, packets: Packets, which: slice | Ints, what: int) -> None:
        self.packets = packets
        self.which = which
        self.what = what
        self.at = packets.payload[which]
        first = which.start if isinstance(which, slice) else int(which[0])
        self.port = int(packets.ports[first])
        self.head = packets.heads[first].tobytes()

    def __len__(self) -> int:
        return len(self.at)

    def part(self, start: int, stop: int) -> PacketGroup:
        """Return packets start..stop-1 of the group as a group."""
        which = self.which
        if isinstance(which, slice):
            return PacketGroup(
                self.packets, slice(which.start + start, which.start + stop), self.what
            )
        return PacketGroup(self.packets, which[start:stop], self.what)

    @property
    def size(self) -> int:
        """Return the bytes of each packet's UDP payload."""
        return int.from_bytes(self.head[UDP + 4 : UDP + 6], "big") - 8

    @property
    def tos(self) -> Traffic:
        """Return the kind of the packets, by their ToS."""
        return classify(self.head[IP + 1])

    def peer(self, source: bool) -> Address:
        """Return the packets' sender (if `source`) or receiver."""
        ip, port = (IP + 12, UDP) if source else (IP + 16, UDP + 2)
        host = ".".join(map(str, self.head[ip : ip + 4]))
        return Address(host, int.from_bytes(self.head[port : port + 2], "big"), self.port)


class Sink(Protocol):
    """The interface of a receiver of the replaying switch's packets, such as `TraceWriter`."""

    def write(self, step: list[Transmission], time_ns: int, ports: Sequence[str]) -> None:
        """Write frames that the switch sends at a time (ns since 1970), at the named ports."""

    def keep(
        self, transmission: Transmission, places: Ints, times: Ints, ports: Sequence[str]
    ) -> None:
        """Keep frames sent at different times; `flush` orders them by `places`."""

    def flush(self) -> None:
        """Write the kept frames; later ones all belong behind them."""
