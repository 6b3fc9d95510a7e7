"""Frames between the control plane and bmv2, and the runtime's lines."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import pytest

from iswitch.bmv2.cpu import CpuHeader, CpuOp, Flag
from iswitch.bmv2.link import AT_ONCE, CpuLink, PipelineSilent
from iswitch.bmv2.pipeline import Own, Pipeline
from iswitch.bmv2.runtime import Cli, RuntimeRefused, handle, packets
from iswitch.bmv2.switch import PipelineSwitch
from iswitch.core.format.packets import Address, Burst
from iswitch.core.format.wire import (
    FLAG_NEW,
    TOS_CONTROL,
    Action,
    Control,
    Join,
    Segments,
    Shape,
    Status,
    Threshold,
)

pytestmark = pytest.mark.unit


class Stub:
    """A data plane that answers what it is asked, after what it has to say first.

    Args:
        lost: of the frames to it, by number from 0 on.
    """

    def __init__(self, *lost: int) -> None:
        self.came = 0
        self.lost = lost
        self.next = 0
        self.asked: list[CpuHeader] = []
        self.done: list[tuple[CpuOp, int, bytes]] = []
        self.says: list[bytes] = []
        self.waiting = self.most = 0  # frames since it was last listened to

    def send(self, frame: bytes) -> None:
        self.waiting += 1
        self.most = max(self.most, self.waiting)
        self.came += 1
        if self.came - 1 in self.lost:
            return
        header, rest = CpuHeader.parse(frame)
        if header.op in (CpuOp.LOOK, CpuOp.HOLD):
            self.asked.append(header)
            self.says.append(header._replace(round=header.slot + 1, next=self.next).build())
        elif header.number == self.next:
            self.next += 1
            self.done.append((header.op, header.port, rest))

    def receive(self, seconds: float) -> bytes | None:  # noqa: ARG002
        self.waiting = 0
        return self.says.pop(0) if self.says else None


class Registers(Stub):
    """A data plane that answers with these registers, whatever it is asked about."""

    held: dict[str, Any]

    def send(self, frame: bytes) -> None:
        super().send(frame)
        header, _ = CpuHeader.parse(frame)
        if header.op is CpuOp.LOOK:
            answer, _ = CpuHeader.parse(self.says.pop())
            self.says.append(answer._replace(**self.held).build())


class Tables:
    """A runtime that does as it is told."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def run(self, lines: Sequence[str]) -> list[str]:
        self.lines += lines
        return ["added with handle 1" for _ in lines]

    def close(self) -> None:
        pass


def test_only_a_contribution_says_that_a_member_has_heard_its_ack() -> None:
    """Malformed data renews its lease, and leaves a repeated Join a repeat."""
    wire = Registers()
    wire.held = {}
    own = Own(b"\2\0\0\0\0\1", b"\n\x1a\xff\xfe", 26963)
    pipeline = Pipeline(CpuLink(wire, 0.0), Tables(), own, 2)
    switch = PipelineSwitch(pipeline)
    join = Control(Action.JOIN, 7, 1000, Join.for_shape(Shape.of(4), flags=FLAG_NEW)).build()

    def comes(now: float) -> tuple[int, float]:
        (out,) = switch.receive(Burst.single(Address("10.0.0.1", 5000), TOS_CONTROL, join), now)
        (member,) = switch.jobs[7].members.contributors()
        return Control.parse(out.rows[0].tobytes()).status, member.last_seen

    assert comes(0.0) == (Status.OK, 0.0)
    contributors = {"contributors": 2, "now": 3_000_000}  # somebody else's count
    wire.held = {**contributors, "seen": 2_000_000}
    assert comes(5.0) == (Status.OK, 5.0)
    wire.held = {**contributors, "seen": 2_000_000, "flags": Flag.HAS_CONTRIBUTED}
    assert comes(9.0) == (Status.DENIED, 8.0)


def test_a_request_of_one_member_has_no_other_one_looked_at() -> None:
    """Of 64 workers one asks for Help: the data plane is asked about that one, not about 64."""
    wire = Registers()
    wire.held = {}
    own = Own(b"\2\0\0\0\0\1", b"\n\x1a\xff\xfe", 26963)
    pipeline = Pipeline(CpuLink(wire, 0.0), Tables(), own, 2)
    switch = PipelineSwitch(pipeline)
    peers = [Address(f"10.0.0.{host}", 5000, host) for host in range(64)]

    def asks(peer: Address, packet: Control, now: float) -> list[int]:
        wire.asked.clear()
        switch.receive(Burst.single(peer, TOS_CONTROL, packet.build()), now)
        return [header.rank for header in wire.asked if header.op is CpuOp.LOOK and not header.slot]

    for peer in peers:
        asks(peer, Control(Action.JOIN, 7, 1, Join.for_shape(Shape.of(4), expected=64)), 0.0)
    wire.held = {"contributors": 2, "seen": 0, "now": 0}
    lease = switch.record.limits.lease
    help_ = Control(Action.HELP, 7, 2, Segments(0, 1, 1))
    assert asks(peers[9], help_, 1.0) == [9]
    assert asks(peers[9], Control(Action.SETH, 7, 3, Threshold(0)), 1.0)[:64] == [*range(64)]
    assert asks(peers[9], help_, lease + 1)[:64] == [*range(64)]  # or the others would seem lost


def test_answers_come_in_the_order_of_the_questions() -> None:
    wire = Stub(1, 40, 70)
    looks = [CpuHeader(CpuOp.LOOK, slot=slot) for slot in range(300)]
    assert [answer.round for answer in CpuLink(wire, 0.0).ask(looks)] == list(range(1, 301))
    assert wire.most == AT_ONCE


def test_a_late_answer_is_not_taken_for_the_next_one() -> None:
    wire = Stub()
    link = CpuLink(wire, 0.0)
    (first,) = link.ask([CpuHeader(CpuOp.LOOK, slot=5)])
    wire.says = [first._replace(round=99).build()]
    assert [answer.round for answer in link.ask([CpuHeader(CpuOp.LOOK, slot=5)])] == [6]


@pytest.mark.parametrize("lost", [(0,), (31,), (32,), (40, 41), (0, 32, 64, 66), (99,)])
def test_orders_are_done_once_each_and_in_their_order(lost: tuple[int, ...]) -> None:
    wire = Stub(*lost)
    link = CpuLink(wire, 0.0)
    for port in range(100):
        link.tell(CpuHeader(CpuOp.SEND, port=port))
    link.settle()
    assert [port for _, port, _ in wire.done] == list(range(100))
    assert not link.has_frames


def test_a_hold_whose_end_is_lost_ends() -> None:
    wire = Stub(1)
    link = CpuLink(wire, 0.0)
    link.hold()
    link.go()
    assert link.has_frames  # so the engine asks
    assert list(link.pull(8)) == []
    assert [op for op, *_ in wire.done] == [CpuOp.GO]


def test_a_data_plane_that_is_silent_is_told_of() -> None:
    with pytest.raises(PipelineSilent, match="has the switch ended"):
        CpuLink(Stub(*range(99)), 0.0).hold()


def test_data_held_back_is_handled_after_the_hold() -> None:
    """In the order in which it came; control that came meanwhile is not lost."""
    wire = Stub()
    link = CpuLink(wire, 0.0)
    wire.says = [
        CpuHeader(CpuOp.CONTROL, port=2).build() + b"control",
        CpuHeader(CpuOp.HELD, port=1).build() + b"early",
    ]
    link.hold()
    wire.says = [CpuHeader(CpuOp.HELD, port=4).build() + bytes([i]) for i in range(3)]
    assert list(link.pull(8)) == [(2, b"control")]
    link.go()
    assert list(link.pull(8)) == []
    assert wire.done == [
        (CpuOp.GO, 0, b""),
        (CpuOp.RECEIVE, 1, b"early"),
        *((CpuOp.RECEIVE, 4, bytes([i])) for i in range(3)),
    ]
    wire.says = [CpuHeader(CpuOp.HELD, port=5).build() + b"late"]
    assert list(link.pull(8)) == []
    assert wire.done[-1] == (CpuOp.RECEIVE, 5, b"late")


FAKE = """
import sys
while True:
    print("RuntimeCmd: ", end="", flush=True)
    line = sys.stdin.readline()
    if not line:
        break
    print({"add": "Entry has been added with handle 5", "bad": "Error: no such table"}.get(
        line.strip(), line.strip()))
"""


def test_lines_are_answered_one_by_one() -> None:
    cli = Cli([sys.executable, "-c", FAKE])
    assert cli.run(["one", "add"]) == ["one", "Entry has been added with handle 5"]
    with pytest.raises(RuntimeRefused, match="bad: Error: no such table"):
        cli.run(["bad", "two"])
    assert cli.run(["three"]) == ["three"]
    cli.close()


def test_a_cli_that_does_not_start_says_why() -> None:
    with pytest.raises(RuntimeRefused, match="No module named"):
        Cli([sys.executable, "-c", "import no_such_module"])


def test_what_answers_say() -> None:
    assert handle("node was created with handle 12") == 12
    assert handle("Entry has been added with handle -2147483647") == -2147483647
    assert packets("fates[1]= (120 bytes, 3 packets)") == 3
    for read in (handle, packets):
        with pytest.raises(RuntimeRefused):
            read("DONE")
