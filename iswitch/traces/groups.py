"""Groups packets that a replay handles at once, and defines the receiver of its output."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from iswitch.core.format.arbiter import Traffic, classify
from iswitch.core.format.lines import line_at
from iswitch.core.format.packets import Address
from iswitch.core.format.wire import SEG_SIZE
from iswitch.ethernet.frame import Transmission

from .batch import Ints
from .links import IP, UDP, Packets

# The roles of a packet for the switch that is replayed, as a report names them.
ROLES = ("skipped", "to_switch", "from_switch", "passing", "cut_off")
SKIPPED, TO_SWITCH, FROM_SWITCH, PASSING, CUT_OFF = range(len(ROLES))


class PacketGroup:
    """Packets of one flow, length and port in a batch: a range of them, or chosen ones.

    Args:
        packets: the batch.
        which: the packets in it.
        what: their role, as in ROLES.
        listening: UDP port at which the switch listens.

    Attributes:
        at: [n], offsets of their UDP payloads in the file.
        head: headers of the first packet.
    """

    def __init__(self, packets: Packets, which: slice | Ints, what: int, listening: int) -> None:
        self.packets = packets
        self.which = which
        self.what = what
        self.listening = listening
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
            which = slice(which.start + start, which.start + stop)
        else:
            which = which[start:stop]
        return PacketGroup(self.packets, which, self.what, self.listening)

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
        ip, port, own = (IP + 12, UDP, UDP + 2) if source else (IP + 16, UDP + 2, UDP)
        host = ".".join(map(str, self.head[ip : ip + 4]))
        ours, theirs = (int.from_bytes(self.head[at : at + 2], "big") for at in (own, port))
        return Address(host, theirs, self.port, line_at(ours, self.listening) or 0)


def next_seg(payload: bytes) -> int:
    """Find where the next segment begins in a super-datagram; 0: none does."""
    seg = int.from_bytes(payload[:SEG_SIZE], "big") + 1 & 0xFFFFFFFFFFFFFFFF
    return max(0, payload.find(seg.to_bytes(SEG_SIZE, "big"), SEG_SIZE))


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
