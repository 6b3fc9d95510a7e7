"""Learns from control packets the job and layout of data packets, which name neither.

One end of a packet is a member, the other the switch. A Join names the member's job and the layout
of its vectors. A Join that the switch refuses is forgotten when the Ack is seen.
"""

from __future__ import annotations

from typing import NamedTuple

from iswitch.core.format.wire import (
    MTU_PAYLOAD,
    PORT,
    SEG_SIZE,
    Ack,
    Action,
    Control,
    Join,
    Shape,
    Status,
    WireError,
)

End = tuple[str, int]  # IPv4 address, UDP port
Pair = tuple[End, End]  # of a member and its switch

MAX_PACKETS = 128  # of a super-datagram (UDP_MAX_SEGMENTS)
TO_SWITCH = {Action.JOIN, Action.LEAVE, Action.SETH, Action.FBCAST, Action.SHOW}  # only there


class JobKnown(NamedTuple):
    """The job of a packet, as learned from earlier packets.

    Attributes:
        job: number of the job.
        shape: layout of its vectors; None: unknown.
        to_switch: whether the packet goes to the switch.
        parts: whether data packets are parts of contributions, with a header of their own.
    """

    job: int
    shape: Shape | None
    to_switch: bool
    parts: bool = False


class JobsSeen:
    """Learns of the jobs of a capture, packet by packet.

    Args:
        port: UDP port of switches, to recognise a switch where no Join was seen.
    """

    def __init__(self, port: int = PORT) -> None:
        self.ports = {port}
        self.forget()

    def forget(self) -> None:
        """Forget all jobs, before another capture begins."""
        self._members: dict[Pair, int] = {}
        self._shapes: dict[tuple[End, int], Shape] = {}  # by switch and job
        self._parts: set[Pair] = set()  # whose contributions come in parts
        self._asked: dict[tuple[Pair, int, int], Shape | None] = {}  # Joins without an answer yet

    def of(self, source: End, destination: End) -> JobKnown | None:
        """Find the job of a packet by its two ends; None: the job is unknown."""
        for member, switch, to_switch in (
            (source, destination, True),
            (destination, source, False),
        ):
            job = self._members.get((member, switch))
            if job is not None:
                parts = to_switch and (member, switch) in self._parts
                return JobKnown(job, self._shapes.get((switch, job)), to_switch, parts)
        return None

    def learn(self, source: End, destination: End, packet: Control) -> None:
        """Learn from a control packet which job its ends belong to, and the job's shape.

        Args:
            source: sender of the packet.
            destination: receiver of the packet.
            packet: the packet, without its MAC.
        """
        pair = self._pair(source, destination, packet)
        if pair is None:
            return
        key, where = (pair, packet.job, packet.request), (pair[1], packet.job)
        if isinstance(packet.value, Join):
            try:
                shape = packet.value.shape()
            except WireError:
                return
            self._asked[key] = shape
            (self._parts.add if packet.value.sends_parts else self._parts.discard)(pair)
            self._members.setdefault(pair, packet.job)
            if shape is not None:
                self._shapes.setdefault(where, shape)
        elif isinstance(packet.value, Ack) and packet.value.action == Action.JOIN:
            shape = self._asked.pop(key, None)
            if packet.status == Status.OK and shape is not None:
                self._members[pair] = packet.job
                self._shapes[where] = shape
        else:
            self._members.setdefault(pair, packet.job)

    def _pair(self, source: End, destination: End, packet: Control) -> Pair | None:
        if packet.action in TO_SWITCH:
            return source, destination
        known = self.of(source, destination)
        if known is not None:
            return (source, destination) if known.to_switch else (destination, source)
        if (source[1] in self.ports) == (destination[1] in self.ports):
            return None
        return (source, destination) if destination[1] in self.ports else (destination, source)


def cut(payload: bytes, shape: Shape | None, more: int = 0) -> list[bytes]:
    """Cut a super-datagram into its packets; any other payload stays whole.

    Without a shape, recognise a super-datagram by the `Seg` of each next segment. Parts have `more`
    bytes than other packets.
    """
    size = _stride(payload) if shape is None else shape.packet_size + more
    count = -(-len(payload) // size)
    if not 1 < count <= MAX_PACKETS:
        return [payload]
    packets = [payload[i : i + size] for i in range(0, len(payload), size)]
    return packets if shape is None or all(_fits(p, shape, more) for p in packets) else [payload]


def _fits(packet: bytes, shape: Shape, more: int) -> bool:
    index, length = int.from_bytes(packet[4:SEG_SIZE], "big"), len(packet) - more
    return length >= SEG_SIZE and index < shape.segments and length == shape.tail(index + 1)


def _stride(payload: bytes) -> int:
    """Return the bytes from one `Seg` to the next; the payload's length if it has only one."""
    if len(payload) <= MTU_PAYLOAD:
        return len(payload)
    seg = int.from_bytes(payload[:SEG_SIZE], "big")
    size = payload.find(_after(seg, 1), SEG_SIZE)
    while size > 0:
        starts = range(0, len(payload), size)
        if len(starts) <= MAX_PACKETS and all(
            payload[start : start + SEG_SIZE] == _after(seg, i) for i, start in enumerate(starts)
        ):
            return size
        size = payload.find(_after(seg, 1), size + 1)
    return len(payload)


def _after(seg: int, count: int) -> bytes:
    return ((seg + count) % 2**64).to_bytes(SEG_SIZE, "big")
