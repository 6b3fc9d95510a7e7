"""What packets say, for who judges the conduct of machines."""

from __future__ import annotations

from collections.abc import Sequence

from iswitch.core.format.packets import Address, Outgoing
from iswitch.core.format.wire import SEG_SIZE, TOS_DATA, Control
from iswitch.core.switch import Switch

Place = tuple[str, int]  # host and UDP port: ports of switches aside


def place(address: Address) -> Place:
    """Where it is, whatever switch port that is behind."""
    return address.host, address.port


def packets_to(sends: Sequence[Outgoing], peer: Place | None) -> int:
    """Data packets for somebody, each segment of a round once."""
    mine = [
        out.rows[:, :SEG_SIZE].tobytes()
        for out in sends
        if out.tos == TOS_DATA and any(place(a) == peer for a in out.peers)
    ]
    if len(mine) < 2:  # as nearly always: and in one the switch repeats nothing
        return sum(map(len, mine)) // SEG_SIZE
    heads = b"".join(mine)
    return len({heads[i : i + SEG_SIZE] for i in range(0, len(heads), SEG_SIZE)})


def parsed(payload: bytes, switch: Switch | None) -> Control | None:
    """A control packet, its MAC (if the job is keyed) left out; None: it makes no sense."""
    if switch is not None and (key := switch.record.keys.of(int.from_bytes(payload[2:4], "big"))):
        payload = key.opened(payload) or b""
    try:
        return Control.parse(payload)
    except ValueError:
        return None
