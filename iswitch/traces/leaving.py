"""Holds back Leaves that stand in a trace before the switch received them.

A switch that is held up finds contributions and a Leave waiting, and answers them in turn: the
aggregates that it sends because of the contributions stand behind the Leave in the capture. A
replay in the order of the capture would not know the member any more, and could compare none of
them. So where the order is unknown, a Leave takes effect where the switch is seen to answer it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from iswitch.core.format.packets import Address
from iswitch.core.format.wire import SEG_SIZE, Action, Header

from .groups import PacketGroup

ACK_SECONDS = 2.0  # seconds from a Leave to its Ack, which may not be in the trace

_Key = tuple[str, int, int]  # host and port of the leaving member, and the Request


class Leaves:
    """Leaves that have come and are not answered yet, in the order of their coming."""

    def __init__(self) -> None:
        self._kept: dict[_Key, tuple[float, list[PacketGroup]]] = {}

    def keep(self, group: PacketGroup, payloads: Sequence[bytes], now: float) -> bool:
        """Keep a group of control packets if it is one Leave, or copies of one; return whether."""
        payload = payloads[0]
        if len(payload) < SEG_SIZE or any(other != payload for other in payloads):
            return False
        header = Header.parse(payload)
        if header.action != Action.LEAVE:
            return False
        peer = group.peer(source=True)
        self._kept.setdefault((peer.host, peer.port, header.request), (now, []))[1].append(group)
        return True

    def answered(self, peer: Address, payload: bytes) -> list[PacketGroup]:
        """Give back the Leave that a packet of the switch acknowledges, with its copies."""
        if not self._kept or len(payload) < SEG_SIZE:
            return []
        header = Header.parse(payload)
        key = peer.host, peer.port, header.request
        return self._taken([key]) if header.action == Action.ACK and key in self._kept else []

    def of(self, peer: Address) -> list[PacketGroup]:
        """Give back a Leave that cannot wait any longer, since the peer asks for something else."""
        return self._taken([key for key in self._kept if key[:2] == (peer.host, peer.port)])

    def overdue(self, now: float) -> list[PacketGroup]:
        """Give back Leaves whose answers are overdue."""
        late = [key for key, (since, _) in self._kept.items() if now > since + ACK_SECONDS]
        return self._taken(late)

    def _taken(self, keys: Iterable[_Key]) -> list[PacketGroup]:
        return [group for key in keys for group in self._kept.pop(key)[1]]
