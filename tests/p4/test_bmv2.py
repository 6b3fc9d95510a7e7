"""The control plane of the P4 program, without compiler and switch: what it says to them."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from iswitch.bmv2.cpu import FORMAT, CpuHeader, CpuOp, Flag
from iswitch.bmv2.entries import Entry, JobPlace, job_entries, parent_entry
from iswitch.bmv2.fates import FATES
from iswitch.bmv2.link import AT_ONCE, CpuLink, PipelineSilent
from iswitch.bmv2.pipeline import Own, Pipeline, Sizes
from iswitch.bmv2.room import Room
from iswitch.bmv2.runtime import Cli, RuntimeRefused, handle, packets
from iswitch.bmv2.switch import PipelineSwitch
from iswitch.core.format.counters import COUNTERS, DROPS, Counters
from iswitch.core.format.packets import Address, Burst
from iswitch.core.format.wire import (
    FLAG_NEW,
    TOS_CONTROL,
    Action,
    Control,
    DType,
    Join,
    MemberType,
    Segments,
    Shape,
    Status,
    Threshold,
)
from iswitch.core.format.wire import Op as ReduceOp
from iswitch.core.jobs.job import Job
from iswitch.core.jobs.member import Member
from iswitch.core.sums.numpy_plane import NumPyPlane
from p4.generate import FORMATS, OPERATIONS, kind
from p4.sizes import PROGRAM, SIZES
from p4.tools import HOME, ToolMissing, find, sources

pytestmark = pytest.mark.unit

HEADERS = (PROGRAM / "headers.p4").read_text(encoding="utf-8")
WIDTHS = {"op_t": 8, "job_t": 16, "slot_t": 32, "round_t": 32}


def test_the_header_is_that_of_the_program() -> None:
    """The same fields, in the same order, of the same widths."""
    body = re.search(r"header cpu_t {(.*?)}", HEADERS, re.DOTALL)
    assert body is not None
    fields = re.findall(r"^    (\w+)(?:<(\d+)>)? (\w+);", body[1], re.MULTILINE)
    assert tuple(name for *_, name in fields) == CpuHeader._fields
    widths = [int(bits or WIDTHS.get(kind, 0)) for kind, bits, _ in fields]
    letters = {"B": 8, "H": 16, "I": 32, "Q": 64}
    assert widths == [letters[letter] for letter in FORMAT.format[1:]]


def test_operations_and_flags_are_those_of_the_program() -> None:
    body = re.search(r"enum bit<8> op_t {(.*?)}", HEADERS, re.DOTALL)
    assert body is not None
    named = {name: int(code) for name, code in re.findall(r"(\w+) = (\d+)", body[1])}
    assert named == {op.name: op.value for op in CpuOp}
    flags = re.findall(r"const bit<8> (\w+) = (\d+);", HEADERS)
    assert {n: int(v) for n, v in flags if n in Flag.__members__} == {
        flag.name: flag.value for flag in Flag
    }


def test_the_program_has_all_of_its_files() -> None:
    included = re.findall(r'#include "(\w+\.p4)"', "".join(sources().values()))
    assert set(included) | {"switch.p4"} == set(sources())


def test_a_tool_that_is_missing_is_looked_for_in_both_places(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(HOME, str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path / "other"))
    with pytest.raises(ToolMissing, match=rf"{tmp_path}/bin or PATH.*docs/p4\.md"):
        find("p4c-bm2-ss")
    tool = tmp_path / "bin" / "p4c-bm2-ss"
    tool.parent.mkdir()
    tool.touch(0o700)
    assert find("p4c-bm2-ss") == str(tool)


# Entries

SHAPE = Shape.of(200, DType.FLOAT32, elements=64)


def a_job(*firsts: int | None, high: int = 0) -> Job:
    """With a worker for each first round."""
    counters = Counters()
    job = Job(7, counters, NumPyPlane(counters))
    job.shape = SHAPE
    job.window.high = high
    for rank, first in enumerate(firsts):
        address = Address(f"10.0.0.{rank + 1}", 5000 + rank, rank)
        job.members.add(Member(address, MemberType.WORKER, rank, 1, first, 0.0))
    return job


PLACE = JobPlace(3, 100, 9, SHAPE)


def rules(job: Job) -> list[tuple[str, tuple[str, ...]]]:
    entries = job_entries(job, PLACE, {})
    return [(e.match[1], e.parameters) for e in entries if e.table == "rules"]


def test_entries_of_a_job() -> None:
    macs = {("10.0.0.1", 0): bytes.fromhex("02000000000a")}
    entries = job_entries(a_job(None, 4), PLACE, macs)
    lines = [entry.line for entry in entries if entry.table != "rules"]
    assert lines == [
        "table_add jobs job 3 => 0 0 1 0 0 0 0 9 4 256 32 100",
        "table_add members member 0 10.0.0.1 5000 => 3 0 1 0 0 0",
        "table_add members member 1 10.0.0.2 5001 => 3 1 2 0 1 4",
        "table_add receivers receiver 3 0 => 02:00:00:00:00:0a 10.0.0.1 5000",
    ]


def test_entries_of_a_job_below_another_switch() -> None:
    parent = Address("10.26.255.254", 26963, 4)
    macs = {("10.26.255.254", 4): bytes.fromhex("02690a1afffe")}
    entries = job_entries(a_job(None), PLACE, macs, parent)
    lines = [entry.line for entry in entries if entry.table in ("jobs", "receivers")]
    assert lines == [
        "table_add jobs job 3 => 0 0 1 1 4 0 0 9 4 256 32 100",
        "table_add receivers receiver 3 64 => 02:69:0a:1a:ff:fe 10.26.255.254 26963",
    ]
    line = "table_add members parent 4 10.26.255.254 26963 => 3"
    assert parent_entry(PLACE, parent).line == line


def test_kinds_of_elements_and_operations_are_the_protocols() -> None:
    names = {None: DType.INT32} | {form: DType[form.name] for form in FORMATS if form}
    assert [names[form] for form in FORMATS] == list(DType)
    assert [name.replace("add", "sum").upper() for name in OPERATIONS] == [
        op.name for op in ReduceOp
    ]
    assert kind(DType.INT32, ReduceOp.MIN) == max(kind(d, o) for d in DType for o in ReduceOp) < 16


def test_what_became_of_packets_is_numbered_as_in_the_program() -> None:
    body = re.search(r"enum bit<8> fate_t {(.*?)}", HEADERS, re.DOTALL)
    assert body is not None
    named = re.findall(r"(\w+) = (\d+)", body[1])
    assert [int(number) for _, number in named] == list(range(len(named)))
    assert (named[0][0], named[-1][0]) == ("NONE", "TO_CPU")
    of_core = {"aggregate": "aggregates"}
    counted = [name.lower() for name, _ in named[1:-1]]
    assert [of_core.get(name, name) for name in counted] == list(FATES[1:])
    assert set(FATES[1:]) <= set(COUNTERS | DROPS)


def test_sums_are_complete_when_all_have_contributed() -> None:
    assert rules(a_job(None, None, None, high=5)) == [
        ("2147483653->4294967295", ("7", "1")),
        ("0->2147483652", ("7", "1")),
    ]


def test_who_joined_just_now_is_waited_for_from_its_first_round_on() -> None:
    """Newcomers with two different first rounds make three stretches of rounds."""
    assert rules(a_job(None, 6, 7, 7, high=1 << 31)) == [
        ("0->5", ("1", "1")),
        ("6->6", ("3", "1")),
        ("7->4294967295", ("15", "1")),
    ]


def test_a_first_round_is_a_serial_number() -> None:
    assert rules(a_job(None, 2, high=0xFFFFFFFF)) == [
        ("2147483647->4294967295", ("1", "1")),
        ("0->1", ("1", "1")),
        ("2->2147483646", ("3", "1")),
    ]


def test_with_a_threshold_any_contributions_do() -> None:
    job = a_job(None, 6, high=1 << 31)
    job.threshold = 2
    assert {parameters for _, parameters in rules(job)} == {("0", "2")}
    job.threshold = 1 << 31
    assert {parameters for _, parameters in rules(job)} == {("0", "255")}


def test_nothing_is_complete_before_all_have_come() -> None:
    job = a_job(None)
    job.members.expected = 2
    assert rules(job) == []


def test_an_entry_with_a_priority() -> None:
    entry = Entry("rules", ("1", "0->5"), "rule", ("3", "1"), 1)
    assert entry.line == "table_add rules rule 1 0->5 => 3 1 1"
    assert entry.key == ("rules", ("1", "0->5"))


# Room


def test_room_is_given_first_fit_and_taken_back() -> None:
    room = Room(100)
    assert [room.take(40), room.take(20), room.take(40)] == [0, 40, 60]
    assert not room.fits(1)
    room.give_back(40)
    assert room.fits(20)
    assert not room.fits(21)
    room.give_back(0)
    assert room.take(60) == 0


# The wire


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
    pipeline = Pipeline(CpuLink(wire, 0.0), Tables(), Sizes.of(SIZES), own, 2)
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
    pipeline = Pipeline(CpuLink(wire, 0.0), Tables(), Sizes.of(SIZES), own, 2)
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


# The runtime API

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
