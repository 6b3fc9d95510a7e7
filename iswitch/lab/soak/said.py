"""Reads packets for the modules that judge switches and sessions (conduct.py)."""

from __future__ import annotations

from collections.abc import Sequence

from iswitch.core.format.packets import Address, Outgoing
from iswitch.core.format.wire import SEG_SIZE, TOS_DATA, Control
from iswitch.core.switch import Switch

Endpoint = tuple[str, int]  # host and UDP port: ports of switches aside


def endpoint(address: Address) -> Endpoint:
    """Drop the switch port from an address."""
    return address.host, address.port


def packets_to(sends: Sequence[Outgoing], peer: Endpoint | None) -> int:
    """Count the data packets for a receiver, each segment of a round once."""
    mine = [
        out.rows[:, :SEG_SIZE].tobytes()
        for out in sends
        if out.tos == TOS_DATA and any(endpoint(a) == peer for a in out.peers)
    ]
    if len(mine) < 2:  # usual; a switch repeats nothing within one
        return sum(map(len, mine)) // SEG_SIZE
    heads = b"".join(mine)
    return len({heads[i : i + SEG_SIZE] for i in range(0, len(heads), SEG_SIZE)})


def parsed(payload: bytes, switch: Switch | None) -> Control | None:
    """Parse a control packet without its MAC; None: it is malformed."""
    if switch is not None and (key := switch.record.keys.of(int.from_bytes(payload[2:4], "big"))):
        payload = key.opened(payload) or b""
    try:
        return Control.parse(payload)
    except ValueError:
        return None
