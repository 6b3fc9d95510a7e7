"""The trace of a simulated network: to read, to compare, and to open in Wireshark."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from iswitch.core.format.keys import MAC_SIZE
from iswitch.core.format.packets import Address
from iswitch.core.format.pcapng import Direction, interface, packets, section
from iswitch.core.format.wire import (
    COUNTED,
    SEG_SIZE,
    TOS_CONTROL,
    TOS_DATA,
    Ack,
    Action,
    Control,
    Join,
    Segments,
    Status,
    WireError,
    split_seg,
)
from iswitch.ethernet.frame import ETH_HEADER, HEADERS
from iswitch.ethernet.made_up import frames

from .host import FRAME

SENT, RECEIVED = "sent", "received"


class TraceRecord(NamedTuple):
    """One event of a packet or of a machine, at a time in seconds.

    `what` of a packet is `sent`, `received`, a fault of its link (`lost`, `full`, `corrupted` or
    `cut`), `overflow` (its receiver's socket is full) or `dead` (no process is there). Without a
    target it is an event of the machine `source`. `bit` is the flipped bit, counted from the
    frame's first, or -1.
    """

    time: float
    what: str
    source: Address
    target: Address | None = None
    tos: int = 0
    payload: bytes = b""
    bit: int = -1


class Trace:
    """Keeps records in the order of their events."""

    def __init__(self) -> None:
        self.records: list[TraceRecord] = []

    def digest(self) -> str:
        """Return a hash that only traces with equal records share, as hexadecimal digits."""
        state = hashlib.blake2b(digest_size=16)
        for record in self.records:
            state.update(repr(record).encode())
        return state.hexdigest()

    def lines(self, names: Mapping[Address, str]) -> list[str]:
        """Write the timeline, a line for each record, times in milliseconds."""
        return [line(record, names) for record in self.records]

    def pcapng(self, names: Mapping[Address, str]) -> bytes:
        """Write a capture as if from the network card of every machine, for Wireshark.

        Frames have the headers of the raw world. A packet that a link has corrupted appears at its
        receiver, with the bit flipped; lost packets do not appear.
        """
        cards = list(dict.fromkeys(names.values()))
        numbers = {address: cards.index(name) for address, name in names.items()}
        blocks = [section(), *map(interface, cards)]
        for record in self.records:
            if record.target is None:
                continue
            leaves = record.what == SENT
            if not leaves and record.what not in (RECEIVED, "corrupted", "overflow", "dead"):
                continue
            where = numbers[record.source if leaves else record.target]
            direction = Direction.OUT if leaves else Direction.IN
            time_ns = round(record.time * 1e9)
            blocks.append(packets(where, time_ns, direction, frame(record)))
        return b"".join(blocks)


def frame(record: TraceRecord) -> np.ndarray[tuple[int, int], np.dtype[np.uint8]]:
    """Make the Ethernet frame of a packet, as one row."""
    assert record.target is not None
    payload = np.frombuffer(record.payload, np.uint8).reshape(1, -1)
    if record.tos == FRAME:
        return payload
    whole = frames(record.source, record.target, record.tos, payload)
    assert whole.shape[1] == HEADERS + payload.shape[1]
    if record.bit >= 8 * ETH_HEADER:
        whole[0, record.bit // 8] ^= 0x80 >> record.bit % 8
    return whole


def line(record: TraceRecord, names: Mapping[Address, str]) -> str:
    """Write a record as a line of text."""
    source = _name(record.source, names)
    time = f"{record.time * 1000:10.3f} ms"
    if record.target is None:
        return f"{time}  {source} {record.what}"
    target = _name(record.target, names)
    return (
        f"{time}  {source:>5} > {target:5} {record.what:9} {describe(record.tos, record.payload)}"
    )


def _name(address: Address, names: Mapping[Address, str]) -> str:
    """Return the name of an address, with a question mark if another node has forged it."""
    name = names.get(address._replace(ingress=0), str(address))
    return f"{name}?" if address.ingress else name


def describe(tos: int, payload: bytes) -> str:
    """Describe a packet in a few words; `*` behind the number marks a packet with a MAC."""
    if tos == TOS_DATA and len(payload) >= SEG_SIZE:
        round_, index = split_seg(int.from_bytes(payload[:SEG_SIZE], "big"))
        return f"data {round_}.{index}"
    if tos == FRAME:
        return f"a frame of {len(payload)} bytes, of type {payload[12:14].hex()}"
    if tos != TOS_CONTROL:
        return f"{len(payload)} bytes, ToS {tos:#04x}"
    sealed = ""
    try:
        packet = Control.parse(payload)
    except WireError as error:
        try:
            packet, sealed = Control.parse(payload[:-MAC_SIZE]), "*"
        except WireError:
            return f"? {error}"
    text = f"{packet.action.name} #{packet.request}{sealed}"
    match packet.value:
        case Ack() as ack:
            action = Action(ack.action).name if ack.action in list(Action) else str(ack.action)
            status = Status.of(packet.status).name
            told = f"round {ack.round}, {ack.contributors} of {ack.threshold}"
            if ack.action == Action.HELP:
                told = f"round {ack.round}, missing {ack.missing:b}"
            if ack.known == COUNTED:
                told = f"round {ack.round}, {ack.contributors} counted, {ack.threshold} not"
            return f"{text} {action} {status}: {told}"
        case Segments(round_, index, count):
            return f"{text} {round_}.{index}+{count}"
        case Join() as join:
            return f"{text} flags {join.flags} round {join.round} expected {join.expected}"
        case None:
            return text
    return f"{text} {packet.value}"
