"""The examples of docs/protocol.md as inputs of the targets: each packet, each conversation."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from iswitch.wire import TOS_CONTROL

from ..test_protocol_doc import BLOCKS, TO_SWITCH, Block
from .targets import (
    CONTROL,
    DATA,
    PEERS,
    TICK,
    dressed_step,
    packets_step,
    time_step,
)
from .traces import Packet, as_files, crowded

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
        "chassis": list(map(as_frames, talks)),
        "session": list(map(as_session, talks)),
        "trace": [
            file for talk in talks for file in (*as_files(of_one(talk)), crowded(of_one(talk)))
        ],
    }
