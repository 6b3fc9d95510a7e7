"""Captures for the tests of dissectors, put together with iswitch's own builders."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterable, Iterator
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from iswitch.core.format import pcapng
from iswitch.core.format.keys import Key
from iswitch.core.format.wire import (
    FLAG_WHOLE,
    NO_RANK,
    PORT,
    TOS_CONTROL,
    TOS_DATA,
    Ack,
    AckJob,
    Action,
    Awaited,
    Control,
    DType,
    JobState,
    Join,
    MemberType,
    Mode,
    Op,
    Present,
    Round,
    Segments,
    Shape,
    Show,
    Status,
    SwitchJoin,
    Threshold,
    TreeJoin,
    Value,
    Who,
)
from iswitch.dissect.plugin import dissector
from iswitch.ethernet.frame import Route, sums

End = tuple[str, int]

SWITCH: End = ("10.26.255.254", PORT)
PATIENCE = 240.0  # seconds for tshark, where much else is running
KEY = b"a key for the tests"


class Sent(NamedTuple):
    """A packet, and when it was sent, in nanoseconds."""

    source: End
    destination: End
    tos: int
    payload: bytes
    at: int = 0

    def frame(self) -> bytes:
        """The Ethernet frame, with sound checksums."""
        rows = np.frombuffer(self.payload, np.uint8).reshape(1, -1)
        route = Route(
            mac(self.source), mac(self.destination), ip(self.source), ip(self.destination),
            self.source[1], self.destination[1], self.tos,
        )  # fmt: skip
        head = route.heads(len(self.payload), sums(rows))[0, 10:]  # without virtio_net_hdr
        return head.tobytes() + self.payload


def ip(end: End) -> bytes:
    return bytes(map(int, end[0].split(".")))


def mac(end: End) -> bytes:
    return b"\x02\x69" + ip(end)


def worker(number: int) -> End:
    return (f"10.26.0.{number}", 40000 + number)


def write(path: Path, packets: Iterable[Sent]) -> Path:
    """A capture of them, a millisecond apart if they have no times."""
    blocks = [pcapng.section(), pcapng.interface("s1-eth1")]
    for number, packet in enumerate(packets):
        rows = np.frombuffer(packet.frame(), np.uint8).reshape(1, -1)
        when = packet.at or 1_000_000 * (number + 1)
        blocks.append(pcapng.packets(0, when, pcapng.Direction.IN, rows))
    path.write_bytes(b"".join(blocks))
    return path


def request(
    member: End, action: Action, job: int, number: int, value: Value = None, **more: Any
) -> Sent:
    key, relayed = more.pop("key", None), more.pop("relayed", False)
    payload = Control(action, job, number, value, **more).build()
    payload += Key(key).mac(payload) if key else b""
    ends = (SWITCH, member) if relayed else (member, SWITCH)
    return Sent(*ends, TOS_CONTROL, payload)


def ack(member: End, job: int, number: int, value: Ack, status: int = 0, **more: Any) -> Sent:
    return request(member, Action.ACK, job, number, value, status=status, relayed=True, **more)


def data(member: End, round_: int, index: int, elements: bytes, relayed: bool = False) -> Sent:
    payload = (round_ << 32 | index).to_bytes(8, "big") + elements
    ends = (SWITCH, member) if relayed else (member, SWITCH)
    return Sent(*ends, TOS_DATA, payload)


SPECIAL = [0.0, -0.0, 1.0, -2.5, float("inf"), float("-inf"), float("nan"), 1e-41, 65504.0, 1 / 3]


def vector(dtype: DType) -> np.ndarray[Any, Any]:
    """Ten elements, with all that is special about the dtype."""
    if dtype in (DType.INT32, DType.INT64):
        bounds = np.iinfo(dtype.numpy)
        return np.array([0, 1, -1, bounds.max, bounds.min, 7, 8, 9, 10, 11], dtype.numpy)
    if dtype is DType.UINT8:
        return np.array([0, 1, 255, 127, 128, 7, 8, 9, 10, 11], dtype.numpy)
    if dtype.is_pair:
        pairs = np.zeros(10, dtype.numpy)
        alone = {DType.FLOAT32_INT32: DType.FLOAT32, DType.INT32_INT32: DType.INT32}
        alone |= {DType.FLOAT64_INT64: DType.FLOAT64, DType.INT64_INT64: DType.INT64}
        pairs["value"], pairs["index"] = vector(alone[dtype]), range(-2, 8)
        return pairs
    with np.errstate(all="ignore"):
        return np.array(SPECIAL).astype(dtype.numpy)


def everything() -> Iterator[Sent]:
    """All actions, statuses, dtypes, ops, modes and kinds of members; keyed, too."""
    plain = [mode for mode in Mode if not mode.has_owners]
    for number, (dtype, mode) in enumerate(product(DType, plain), start=1):
        yield from job_of(worker(number), number, dtype, mode)
    for number, mode in enumerate([mode for mode in Mode if mode.has_owners], start=90):
        yield from job_of(worker(number), number, DType.INT32, mode)
    member, key = worker(40), KEY
    joined = Join.for_shape(Shape.of(10, elements=4), expected=1, flags=31)
    yield request(member, Action.JOIN, 40, 5, joined, key=key)
    yield ack(member, 40, 5, Ack(Action.JOIN, rank=1), key=key)
    for at, (action, value) in enumerate(REQUESTS):
        yield request(member, action, 40, 10 + at, value, key=key)
        yield ack(member, 40, 10 + at, Ack(action, rank=1), Status.DENIED)
    for at, (action, value) in enumerate(RELAYED):
        yield request(member, action, 40, 1 + at, value, key=key, relayed=True)
    for number, op in enumerate(Op, start=71):
        shape = Shape.of(0, next(dtype for dtype in DType if op.takes(dtype)), op)
        child = SwitchJoin(**{**vars_of(Join.for_shape(shape, MemberType.SWITCH)), "workers": 9})
        yield request(("10.26.1.254", PORT), Action.JOIN, number, 1000, child)
        yield ack(("10.26.1.254", PORT), number, 1000, Ack(Action.JOIN))
        yield data(("10.26.1.254", PORT), 2**32 - 1, 0, b"")
        yield request(worker(50), Action.JOIN, number, 1000, Join(MemberType.CONTROLLER))
    yield request(worker(1), Action.HELP, 1, 77, Segments(1, 2, 3))
    yield ack(worker(1), 1, 77, Ack(Action.HELP, 0, 3, 1 << 31 | 1, 9, 6))
    yield request(worker(1), Action.HELP, 1, 78, Who(1, 2, 3, 4))
    two = Awaited("10.26.0.2", 40002, 1), Awaited("10.26.0.3", 40003, 0, "10.26.1.254", PORT)
    yield ack(worker(1), 1, 78, Ack(Action.HELP, 0, 3, 0, 9, 2).naming(2, two))
    asks = Join.for_shape(Shape.of(10), expected=9)
    yield request(worker(60), Action.JOIN, 50, 1000, asks.asking(5))
    yield ack(worker(60), 50, 1000, Ack(Action.JOIN, rank=5))
    for ranks in (0, 1 << 255 | 6, 1 << 4095 | 1 << 300):
        joins = {**vars_of(asks), "type": MemberType.SWITCH, "workers": 9, "statement": 3}
        tree = TreeJoin(**joins, unranked=2, ranks=ranks)
        told = Ack(Action.JOIN, rank=NO_RANK).telling(3, 2, ranks)
        yield request(worker(61), Action.JOIN, 51, 1000, tree)
        yield ack(worker(61), 51, 1000, told)
        yield request(member, Action.JOIN, 40, 91, tree, key=key)
        yield ack(member, 40, 91, told, key=key)
    yield request(member, Action.HELP, 40, 90, Who(1, 2, 3, 4), key=key)
    yield ack(member, 40, 90, Ack(Action.HELP, 0, 3, 0, 9, 2).naming(2, two), key=key)
    for state in JobState:
        there = Present("10.26.0.2", 40002, 1, 12), Present("10.26.1.254", PORT, NO_RANK, 2**32 - 1)
        shown = AckJob(Action.SHOW, 0, 64, 2, 9, 2, 4, 30_000, state, there[: state.value])
        yield request(member, Action.SHOW, 40, 100 + state, Show(2), key=key)
        yield ack(member, 40, 100 + state, shown, key=key)
    yield ack(worker(1), 1, 4242, Ack(Action.HELP))  # to what was not captured


REQUESTS: list[tuple[Action, Value]] = [
    (Action.LEAVE, None),
    (Action.RESET, None),
    (Action.SETH, Threshold(3)),
    (Action.FBCAST, Segments(2**32 - 1, 2**31, 5)),
    (Action.HELP, Segments(4, 1, 2)),
    (Action.HALT, None),
    (Action.SHOW, Show(2, 16)),
]
RELAYED: list[tuple[Action, Value]] = [
    (Action.RESET, Round(12)),
    (Action.HELP, Segments(4, 0, 1)),
    (Action.HALT, None),
]


def vars_of(join: Join) -> dict[str, int]:
    return {name: getattr(join, name) for name in join.__match_args__}


def job_of(member: End, job: int, dtype: DType, mode: Mode) -> Iterator[Sent]:
    """A member joins, contributes, asks for everything, and is answered with every status."""
    elements = vector(dtype)
    op = next(op for op in Op if op.takes(dtype))
    owners = int(mode.has_owners)
    shape = Shape(dtype, op, mode, 4, 2, 3, owners)
    joined = Join.for_shape(shape, expected=owners, flags=FLAG_WHOLE * owners)
    yield request(member, Action.JOIN, job, 1000, joined)
    yield ack(member, job, 1000, Ack(Action.JOIN, rank=job, threshold=2, round=3, contributors=2))
    for relayed in (False, True):
        for index in range(3):
            part = elements[4 * index : 4 * index + 4]
            yield data(member, 7, index, part.tobytes(), relayed)
    rows = shape.headers(8)
    whole = b"".join(
        int(row).to_bytes(8, "big") + elements[4 * i : 4 * i + 4].tobytes()
        for i, row in enumerate(rows)
    )
    yield Sent(member, SWITCH, TOS_DATA, whole)  # a super-datagram
    for at, (action, value) in enumerate(REQUESTS):
        for status in Status:
            number = 2000 + 10 * at + status
            yield request(member, action, job, number, value)
            yield ack(member, job, number, Ack(action, 0, job, 1, 7, 2), status)
    for at, (action, value) in enumerate(RELAYED):
        yield request(member, action, job, 1 + at, value, relayed=True)
        yield request(member, Action.ACK, job, 1 + at, Ack(action, rank=job))


def tshark(path: Path, folder: Path, *options: str, twice: bool = True) -> str:
    """What tshark prints of a capture, with the dissector; nothing of it may be an error."""
    script = folder / "iswitch.lua"
    script.write_text(dissector())
    command = ["tshark", "-X", f"lua_script:{script}", "-r", str(path), *options]
    command += ["-2"] * twice
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=PATIENCE)
    noise = [line for line in done.stderr.splitlines() if "root" not in line]
    assert not noise, noise
    return done.stdout


def layers(path: Path, folder: Path, *options: str) -> list[dict[str, Any]]:
    """Of each packet, what tshark has in JSON."""
    text = tshark(path, folder, "-T", "json", "--no-duplicate-keys", *options)
    return [packet["_source"]["layers"] for packet in json.loads(text)]
