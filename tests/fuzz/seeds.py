"""The examples of docs/protocol.md as inputs of the targets: each packet, each conversation."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from iswitch.core.format.wire import TOS_CONTROL, TOS_DATA
from iswitch.ethernet.frame import ARP_REPLY, arp
from tests.docs.test_protocol_doc import BLOCKS, TO_SWITCH, Block
from tests.fuzz.claims import words
from tests.fuzz.targets import (
    CONTROL,
    DATA,
    PEERS,
    TICK,
    dressed_step,
    frame_step,
    packets_step,
    time_step,
)
from tests.fuzz.traces import Packet, as_files, crowded
from tests.support import frames as slow

NAMES = "ABC"


def kind(block: Block) -> int:
    return CONTROL if block.tos == TOS_CONTROL else DATA


def conversations() -> Iterator[list[Block]]:
    """The packets of each conversation, and those of none as one more."""
    found = defaultdict(list)
    for block in BLOCKS:
        found[block.info.get("conversation", "")].append(block)
    yield from found.values()


def program(blocks: list[Block]) -> bytes:
    """What goes to the switch, as a program of `switch`."""
    steps, now = [], 0.0
    for block in blocks:
        at = float(block.info.get("at", now))
        if at > now:
            steps.append(time_step(round((at - now) / TICK)))
            now = at
        if block.info["direction"] == TO_SWITCH:
            who = NAMES.index(block.info.get("from", "A"))
            steps.append(packets_step(who, kind(block), block.payload))
    return b"".join(steps)


def as_child(blocks: list[Block]) -> bytes:
    """The same, and whatever goes to A comes from the parent."""
    steps = []
    for block in blocks:
        if block.info["direction"] == TO_SWITCH:
            who = NAMES.index(block.info.get("from", "A"))
            steps.append(packets_step(who, kind(block), block.payload))
        elif "A" in block.info.get("to", "A"):
            steps.append(packets_step(PEERS - 1, kind(block), block.payload))
    return b"".join(steps)


def as_session(blocks: list[Block]) -> bytes:
    """What goes to A, with an allreduce begun after each."""
    to_a = [b for b in blocks if b.info["direction"] != TO_SWITCH and "A" in b.info.get("to", "A")]
    steps = [step for b in to_a for step in (packets_step(0, kind(b), b.payload), time_step(1))]
    return b"".join(steps)


def as_frames(blocks: list[Block]) -> bytes:
    """What goes to the switch, in frames."""
    return b"".join(
        dressed_step(NAMES.index(block.info.get("from", "A")), kind(block), block.payload)
        for block in blocks
        if block.info["direction"] == TO_SWITCH
    )


def as_claims() -> Iterator[bytes]:
    """Frames of a stranger that claim to be another, each with one of nobody's, behind tags."""
    stranger, whose, ip = slow.MACS[2], slow.MACS[0], slow.IPS[0]
    own = b"\xfe\x80" + bytes(6) + bytes([whose[0] ^ 2, *whose[1:3], 0xFF, 0xFE, *whose[3:]])
    link, there = bytes(16), b"\xff\x02" + bytes(14)
    head, options = [slow.MACS[3], stranger], b"\x3a\0\1\4\0\0\0\0"
    advertised = b"\x88" + bytes(7), own, b"\2\1", stranger
    solicited = b"\x87" + bytes(7), own, b"\1\1", whose
    packets = [
        [b"\x08\x00", bytes.fromhex("450000280000400040110000"), ip, slow.IPS[2]],
        [b"\x08\x06", bytes.fromhex("0001080006040002"), whose, ip, bytes(10)],
        [b"\x86\xdd", b"\x60\0\0\0\0\x20\x3a\xff", link, there, *advertised],
        [b"\x86\xdd", b"\x60\0\0\0\0\x30\0\xff", link, there, options, *solicited],
    ]
    tag, service = slow.tag(), slow.tag(kind=0x88A8)
    for wraps in ([], [tag], [service, tag], [b"\0\x40" + slow.SNAP], [tag] * 9):
        for packet in packets:
            honest = words(*head, *wraps, b"\x88\xb5", bytes(50))
            yield b"\x05" + words(*head, *wraps, *packet) + honest


def tagged_frames() -> bytes:
    """Tags around data for the switch, and around ARP between others, as a program of `chassis`."""
    datagram = slow.tagged(0, bytes(20), TOS_DATA)
    said = arp(ARP_REPLY, slow.MACS[1], slow.IPS[1], slow.MACS[2], slow.IPS[2])
    tags = slow.tag(), slow.tag(0xE000, 0x88A8)
    rows = [slow.wrapped(slow.VNET + frame, *tags) for frame in (datagram, said)]
    return b"".join(frame_step(1, row) for row in rows)


def of_one(blocks: list[Block]) -> list[Packet]:
    """What is said, as if there were one worker only."""
    return [(b.info["direction"] == TO_SWITCH, b.tos, b.payload) for b in blocks]


def seeds() -> dict[str, list[bytes]]:
    """By target."""
    talks = list(conversations())
    return {
        "control": [block.payload for block in BLOCKS if not block.is_data],
        "switch": list(map(program, talks)),
        "child": list(map(as_child, talks)),
        "chassis": [*map(as_frames, talks), tagged_frames()],
        "guard": list(as_claims()),
        "session": list(map(as_session, talks)),
        "trace": [
            file for talk in talks for file in (*as_files(of_one(talk)), crowded(of_one(talk)))
        ],
    }
