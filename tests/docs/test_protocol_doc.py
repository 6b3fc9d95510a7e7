"""docs/protocol.md is checked against the code: tables, every packet, whole conversations.

A packet on the page is a fenced block ```packet key=value ...``` of hex bytes, followed by a line
of inline code that says what it means: `Help(job=7, ...)` or `Seg(round=.., index=..) dtype [..]`,
or `Part(...) dtype [..]`, which is a data packet with more in its head.
Blocks with `conversation=NAME` are played, in order, against a switch; those with `mac=right` or
`mac=wrong` end in a MAC of the key that the page tells.
"""

from __future__ import annotations

import ast
import re
from dataclasses import fields
from typing import Any, NamedTuple

import numpy as np
import pytest

from iswitch.core.format import keys, wire
from iswitch.core.format.packets import Address, Burst, Outgoing
from iswitch.core.format.wire import Action, Control, DType, Mode, Op, Shape, Status
from iswitch.core.jobs.limits import Limits
from iswitch.core.sums.resized import ResizedAccelerator
from iswitch.core.switch import Switch
from tests.support import ROOT

pytestmark = pytest.mark.unit

PAGE = (ROOT / "docs" / "protocol.md").read_text(encoding="utf-8")

FENCE = re.compile(
    r"^```packet(?P<info>[^\n]*)\n(?P<body>.*?)^```\n`(?P<meaning>[^`\n]+)`$", re.M | re.S
)
ACTIONS = {
    name: Action[name.upper()]
    for name in ["Join", "Leave", "Reset", "SetH", "FBcast", "Help", "Halt", "Ack", "Show"]
}
TO_SWITCH, TO_WORKER = "worker-to-switch", "switch-to-worker"
PEERS = {name: Address(f"10.0.0.{n}", 40000 + n) for n, name in enumerate("ABC", start=1)}


class Block(NamedTuple):
    """One packet on the page."""

    line: int
    info: dict[str, str]
    payload: bytes
    meaning: str

    @property
    def tos(self) -> int:
        return int(self.info["tos"], 16)

    @property
    def packet(self) -> bytes:
        """Without the MAC."""
        return self.payload[: -keys.MAC_SIZE] if "mac" in self.info else self.payload

    @property
    def is_data(self) -> bool:
        return self.meaning.startswith("Seg(")

    @property
    def is_part(self) -> bool:
        return self.meaning.startswith("Part(")

    @property
    def action(self) -> Action | None:
        return None if self.is_data else ACTIONS[self.meaning.partition("(")[0]]


def hex_bytes(body: str) -> bytes:
    return bytes.fromhex("".join(line.partition("#")[0] for line in body.splitlines()))


def parse_page(page: str) -> list[Block]:
    """Every packet block; an assertion fails if one is not of the documented form."""
    blocks = []
    for match in FENCE.finditer(page):
        line = page.count("\n", 0, match.start()) + 1
        info = dict(word.split("=", 1) for word in match["info"].split())
        blocks.append(Block(line, info, hex_bytes(match["body"]), match["meaning"]))
    assert len(blocks) == len(re.findall(r"^ *```packet", page, re.M)), "a block of another form"
    return blocks


ALL = parse_page(PAGE)
BLOCKS = [block for block in ALL if not block.is_part]
PARTS = [block for block in ALL if block.is_part]
each_block = pytest.mark.parametrize(
    "block", [pytest.param(block, id=f"line {block.line}") for block in BLOCKS]
)


# What a block means


def arguments(call: str) -> dict[str, Any]:
    """The keyword arguments of a call, names such as OK as strings."""
    node = ast.parse(call, mode="eval").body
    assert isinstance(node, ast.Call)
    assert not node.args, "every field is named"
    found: dict[str, Any] = {}
    for keyword in node.keywords:
        value = keyword.value
        assert keyword.arg is not None
        found[keyword.arg] = value.id if isinstance(value, ast.Name) else ast.literal_eval(value)
    return found


def meant_control(block: Block) -> Control:
    """The control packet a block says it is, all fields of its value named."""
    assert block.action is not None
    given = arguments(block.meaning)
    job, request = given.pop("job"), given.pop("request")
    status = Status[given.pop("status")] if block.action is Action.ACK else Status.OK
    if block.action is Action.ACK:
        given = {"action": Action[given.pop("action")], "known": 0, **given}
        if "awaited" in given:
            given["awaited"] = tuple(wire.Awaited(*entry) for entry in given["awaited"])
        if "members" in given:
            given["members"] = tuple(wire.Present(*entry) for entry in given["members"])
    for kind in wire.VALUES[block.action]:
        names = {field.name for field in fields(kind)} if kind else set()
        if set(given) == names - {"padding"}:  # which is zeros
            value = kind(**given) if kind else None
            return Control(block.action, job, request, value, status)
    raise AssertionError(f"{block.action.name} has no value with the fields {sorted(given)}")


class Data(NamedTuple):
    round: int
    segment: int
    dtype: DType
    elements: wire.Vector


def meant_data(block: Block) -> Data:
    """The data packet a block says it is."""
    match = re.fullmatch(r"(Seg\(.*?\)) (\w+) (\[.*\])", block.meaning)
    assert match, "a data packet's meaning is Seg(...) dtype [elements]"
    seg = arguments(match[1])
    assert set(seg) == {"round", "index"}
    dtype = DType[match[2].upper()]
    elements = np.array(ast.literal_eval(match[3]), dtype.numpy)
    return Data(seg["round"], seg["index"], dtype, elements)


def shape_of(block: Block, dtype: DType) -> Shape:
    """The layout a data block is an example of."""
    elements, last, segments = (int(block.info[key]) for key in ("E", "last", "segments"))
    op = next(op for op in Op if op.takes(dtype))
    shape = Shape(dtype, op, Mode.SYNCHRONOUS, elements, last, segments)
    shape.check()
    return shape


# Every packet on the page


@each_block
def test_block_says_how_it_travels(block: Block) -> None:
    assert block.info["direction"] in (TO_SWITCH, TO_WORKER)
    assert block.tos == (wire.TOS_DATA if block.is_data else wire.TOS_CONTROL)
    if "conversation" in block.info:
        who = "from" if block.info["direction"] == TO_SWITCH else "to"
        assert {"from", "to"} & set(block.info) == {who}


@each_block
def test_control_block_parses_and_builds(block: Block) -> None:
    if block.is_data:
        return
    meant = meant_control(block)
    assert Control.parse(block.packet) == meant
    assert meant.build() == block.packet
    allowed = {
        TO_SWITCH: not isinstance(meant.value, wire.Round),
        TO_WORKER: isinstance(meant.value, wire.Round | wire.Ack)
        or meant.action in (Action.HELP, Action.HALT),
    }
    assert allowed[block.info["direction"]], "this action does not go that way"
    if isinstance(meant.value, wire.Join):
        meant.value.shape()


def example_key() -> tuple[int, bytes]:
    """The keyed job of the examples, and its key."""
    found = re.search(r"Job (\d+) has a \[key\].*?the (\d+) bytes of the text `(.*?)`", PAGE, re.S)
    assert found
    assert len(found[3]) == int(found[2])
    return int(found[1]), found[3].encode()


@each_block
def test_macs(block: Block) -> None:
    _, secret = example_key()
    opened = keys.Key(secret).opened(block.payload)
    assert (opened is not None) == (block.info.get("mac") == "right")


@each_block
def test_data_block_parses_and_builds(block: Block) -> None:
    if not block.is_data:
        return
    meant = meant_data(block)
    shape = shape_of(block, meant.dtype)
    last = meant.segment == shape.segments - 1
    assert len(block.payload) == (shape.last_size if last else shape.packet_size)
    assert len(meant.elements) == (shape.last if last else shape.elements)
    seg = int.from_bytes(block.payload[: wire.SEG_SIZE], "big")
    assert wire.split_seg(seg) == (meant.round, meant.segment)
    assert block.payload[wire.SEG_SIZE :] == meant.elements.tobytes()
    header = shape.headers(meant.round)[meant.segment : meant.segment + 1].tobytes()
    assert header + meant.elements.tobytes() == block.payload


@pytest.mark.parametrize("block", PARTS, ids=lambda block: f"line {block.line}")
def test_part_parses_and_builds(block: Block) -> None:
    """It is the contribution without its head."""
    assert (block.info["direction"], block.tos) == (TO_SWITCH, wire.TOS_DATA)
    match = re.fullmatch(r"Part(\(.*?\)) (.*)", block.meaning)
    assert match
    given = arguments(f"Part{match[1]}")
    start, stop = wire.SEG_SIZE, wire.SEG_SIZE + wire.PART.itemsize
    head = np.frombuffer(block.payload[start:stop], wire.PART)[0]
    assert (given["join"], given["seats"], given["whole"]) == tuple(head.tolist())
    meaning = f"Seg(round={given['round']}, index={given['index']}) {match[2]}"
    payload = block.payload[:start] + block.payload[stop:]
    test_data_block_parses_and_builds(block._replace(meaning=meaning, payload=payload))


@pytest.mark.parametrize("action", Action)
def test_every_action_has_an_example(action: Action) -> None:
    directions = {block.info["direction"] for block in BLOCKS if block.action is action}
    wanted = {TO_SWITCH}
    if action in (Action.ACK, Action.HELP, Action.HALT, Action.RESET):
        wanted.add(TO_WORKER)
    assert directions == wanted


def data_examples() -> list[tuple[Data, Shape]]:
    meant = [(block, meant_data(block)) for block in BLOCKS if block.is_data]
    return [(data, shape_of(block, data.dtype)) for block, data in meant]


@pytest.mark.parametrize("dtype", DType)
def test_every_dtype_has_an_example(dtype: DType) -> None:
    assert any(data.dtype is dtype and data.elements.size for data, _ in data_examples())


def test_special_lengths_have_examples() -> None:
    examples = data_examples()
    assert any(shape.numel == 0 for _, shape in examples), "the empty vector"
    assert any(
        0 < len(data.elements) < shape.elements and data.segment == shape.segments - 1
        for data, shape in examples
    ), "a short last segment"


@pytest.mark.parametrize(
    ("good", "bad"),
    [
        ("00 00 00 09 00 00 00 00", "00 00 00 09 00 00 00 0"),  # not bytes
        ("```packet direction=", "```packet direction"),  # no info
        ("`Seg(round=9, index=0)", "Seg(round=9, index=0)"),  # no meaning
    ],
)
def test_broken_block_is_found(good: str, bad: str) -> None:
    assert good in PAGE
    with pytest.raises((AssertionError, ValueError)):
        parse_page(PAGE.replace(good, bad, 1))


# Conversations with the switch

Sent = tuple[list[str], int, bytes]  # receivers, ToS, payload
FOUR = Shape.of(4, DType.INT32, elements=1)
ROOM = sum(ResizedAccelerator.memory(FOUR, slots) for slots in (4, 2))  # bytes
LIMITS = {"slots": Limits(slots=2), "pool": Limits(policy="pool", slots=2, memory=ROOM)}


def packets(sends: list[Outgoing]) -> list[Sent]:
    """What the switch sends, packet by packet."""
    names = {address: name for name, address in PEERS.items()}
    found = []
    for out in sends:
        to = [names[peer] for peer in out.peers]
        sizes = [out.rows.shape[1]] * (len(out.rows) - 1) + [out.tail]
        rows = zip(out.rows, sizes, strict=True)
        found += [(to, out.tos, row[:size].tobytes()) for row, size in rows]
    return found


def play(blocks: list[Block]) -> Switch:
    """Send what workers send; the switch must send exactly what the page says, in that order."""
    limits = LIMITS.get(blocks[0].info["conversation"])
    switch = Switch(limits, keys=dict([example_key()]))
    now, due = 0.0, list[Sent]()
    for block in blocks:
        at, where = float(block.info["at"]), f"docs/protocol.md:{block.line}"
        assert at >= now, f"{where}: time goes backwards"
        sent_at, now = now, at
        if block.info["direction"] == TO_SWITCH:
            assert not due, f"{where}: the page lacks {due}"
            assert_nothing_due(switch, now, where)
            burst = Burst.single(PEERS[block.info["from"]], block.tos, block.payload)
            due = packets(switch.receive(burst, now))
            continue
        if at > sent_at:
            assert not due, f"{where}: the page lacks {due}"
            due = packets(switch.handle_timer(now))
        assert due, f"{where}: the switch sends nothing more"
        assert due.pop(0) == (block.info["to"].split(","), block.tos, block.payload), where
    assert not due, f"the page lacks {due}"
    return switch


def assert_nothing_due(switch: Switch, now: float, where: str) -> None:
    """The page shows everything the switch sends, repeats by its timer too."""
    deadline = switch.deadline()
    assert deadline is None or deadline > now, f"{where}: the switch's timer is due before"


CONVERSATIONS = list(
    dict.fromkeys(b.info["conversation"] for b in BLOCKS if "conversation" in b.info)
)


def conversation(name: str) -> list[Block]:
    return [block for block in ALL if block.info.get("conversation") == name]


def test_there_are_conversations() -> None:
    assert {"round", "restart", "versions", "keyed", "pool", "parts"} <= set(CONVERSATIONS)


@pytest.mark.parametrize("name", CONVERSATIONS)
def test_switch_answers_as_documented(name: str) -> None:
    play(conversation(name))


def test_conversation_drops_are_those_told() -> None:
    """In "round": one contribution late, one in a Halt, one from before the Reset."""
    switch = play(conversation("round"))
    assert switch.counters.drops() == {"late": 1, "halted": 1, "out_of_window": 1}


def test_drops_of_the_conversation_with_slots() -> None:
    assert play(conversation("slots")).counters.drops() == {"late": 1}


def test_drops_of_the_conversation_with_parts() -> None:
    switch = play(conversation("parts"))
    assert (switch.counters.drops(), switch.counters["merged"]) == ({"duplicate": 1}, 2)


def test_slots_of_the_pool_at_the_end() -> None:
    """Both have their shares; A has begun no round, so it has given its slots back at once."""
    policy = play(conversation("pool")).record.policy
    assert [policy.slots_of(job) for job in (21, 22)] == [2, 2]
    assert policy.reserved == 2 * ResizedAccelerator.memory(FOUR, 2)


def test_drops_of_the_keyed_conversation() -> None:
    switch = play(conversation("keyed"))
    assert switch.counters.drops() == {"bad_mac": 2, "replayed": 1}


def test_wrong_answer_on_the_page_is_found() -> None:
    blocks = conversation("restart")
    n = next(n for n, block in enumerate(blocks) if block.is_data and "to" in block.info)
    wrong = blocks[n]._replace(payload=blocks[n].payload[:-1] + b"\1")
    with pytest.raises(AssertionError):
        play([*blocks[:n], wrong])
    with pytest.raises(AssertionError):
        play(blocks[:n])
