"""The control plane of the P4 program, without compiler and switch: what it says to them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from iswitch.bmv2.accelerator import DTYPES, OPS, fits
from iswitch.bmv2.cpu import FORMAT, CpuHeader, CpuOp, Flag
from iswitch.bmv2.entries import Entry, JobPlace, job_entries, parent_entry
from iswitch.bmv2.fates import FATES
from iswitch.bmv2.room import Room
from iswitch.core.format.counters import COUNTERS, DROPS, Counters
from iswitch.core.format.packets import Address
from iswitch.core.format.wire import (
    DType,
    MemberType,
    Shape,
)
from iswitch.core.format.wire import Op as ReduceOp
from iswitch.core.jobs.job import Job
from iswitch.core.jobs.member import Member
from iswitch.core.sums.numpy_plane import NumPyPlane
from p4.generate import FORMATS, OPERATIONS, kind
from p4.sizes import PROGRAM
from p4.tools import HOME, ToolMissing, find, sources
from tests.support.combining import COMBINATIONS

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
    assert [names[form] for form in FORMATS] == list(DTYPES)
    assert [name.replace("add", "sum").upper() for name in OPERATIONS] == [op.name for op in OPS]
    assert kind(DType.INT32, ReduceOp.MIN) == max(kind(d, o) for d in DTYPES for o in OPS) < 16


@pytest.mark.parametrize(("dtype", "op"), COMBINATIONS)
def test_what_the_program_cannot_combine_is_refused(dtype: DType, op: ReduceOp) -> None:
    assert fits(Shape.of(10, dtype, op)) == (dtype in DTYPES and op in OPS)


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
