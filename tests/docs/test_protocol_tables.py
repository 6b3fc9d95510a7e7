"""The tables and links of docs/protocol.md."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import fields
from enum import IntEnum
from typing import Any, NamedTuple

import pytest

from iswitch.core.format import counters, wire
from iswitch.core.format.wire import Action, DType, Mode, Op, Status
from tests.docs.test_protocol_doc import PAGE

pytestmark = pytest.mark.unit


class Table(NamedTuple):
    heading: str
    header: list[str]
    rows: list[list[str]]


def parse_tables(page: str) -> list[Table]:
    tables, heading, at = [], "", None
    for line in page.splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if line.startswith("#"):
            heading, at = line.lstrip("# "), None
        elif not line.lstrip().startswith("|"):
            at = None
        elif at is None:
            at = Table(heading, cells, [])
            tables.append(at)
        elif set(line) - set("|- "):
            at.rows.append(cells)
    return tables


TABLES = parse_tables(PAGE)


def the_table(wanted: Callable[[Table], bool]) -> Table:
    (table,) = filter(wanted, TABLES)
    return table


def has_header(table: Table, *cells: str) -> bool:
    return tuple(table.header[: len(cells)]) == cells


def codes_of(header: str) -> Callable[[Table], bool]:
    return lambda table: has_header(table, header, "name")


@pytest.mark.parametrize(
    ("header", "enum"),
    [
        ("Action", Action),
        ("Status", Status),
        ("type", wire.MemberType),
        ("dtype", DType),
        ("op", Op),
        ("mode", Mode),
        ("state", wire.JobState),
    ],
)
def test_codes(header: str, enum: type[IntEnum]) -> None:
    table = the_table(codes_of(header))
    assert {row[1].upper(): int(row[0]) for row in table.rows} == {m.name: m.value for m in enum}


def test_dtype_sizes() -> None:
    table = the_table(codes_of("dtype"))
    assert [int(row[2]) for row in table.rows] == [dtype.itemsize for dtype in DType]


@pytest.mark.parametrize(
    ("heading", "value"),
    [
        ("Join", wire.SwitchJoin),
        ("Reset", wire.Round),
        ("SetH", wire.Threshold),
        ("FBcast", wire.Segments),
        ("Help", wire.Segments),
        ("Help that asks for whom", wire.Who),
        ("Ack", wire.Ack),
        ("Ack that names workers", wire.AckWho),
    ],
)
def test_layout_of_values(heading: str, value: Any) -> None:
    table = the_table(lambda t: t.heading == heading and has_header(t, "offset", "size", "field"))
    sizes = {"B": 1, "H": 2, "I": 4}
    at, layout = 8, []
    codes = value.FORMAT.format.lstrip(">")
    named = [field for field in fields(value) if field.name != "awaited"]  # has a table of its own
    for field, code in zip(named, codes, strict=True):
        layout.append([str(at), str(sizes[code]), field.name])
        at += sizes[code]
    assert [row[:3] for row in table.rows] == layout


@pytest.mark.parametrize(
    ("heading", "value"),
    [
        ("Join that asks for a rank", wire.RankJoin),
        ("Join that states ranks", wire.TreeJoin),
        ("Ack that tells ranks", wire.AckRanks),
        ("Ack that shows a job", wire.AckJob),
    ],
)
def test_layout_of_what_follows(heading: str, value: Any) -> None:
    """The end of a value, whose beginning is that of another."""
    rows = the_table(lambda t: t.heading == heading and has_header(t, "offset")).rows
    names = [row[2] for row in rows]
    own = [field.name for field in fields(value) if field.name != "members"][-len(rows) :]
    assert names == own
    codes = value.FORMAT.format.lstrip(">")
    sizes = [str({"B": 1, "H": 2, "I": 4}[code]) for code in codes]
    if "ranks" in own:
        sizes.append("0, 32 or 512")
        assert wire.BITMAPS == (0, 32, 512)
    assert [row[1] for row in rows] == sizes[-len(rows) :]
    ends = [int(row[0]) + (int(row[1]) if row[1].isdecimal() else 0) for row in rows]
    assert [int(row[0]) for row in rows[1:]] == ends[:-1]
    assert 8 + value.FORMAT.size == ends[-1]


@pytest.mark.parametrize(
    ("entry", "kind", "sizes"),
    [("entry", wire.Awaited, (4, 2, 2, 4, 2)), ("member", wire.Present, (4, 2, 2, 4))],
)
def test_layout_of_entries(entry: str, kind: Any, sizes: tuple[int, ...]) -> None:
    table = the_table(lambda t: has_header(t, "at", "bytes", entry))
    layout, at = [], 0
    for name, size in zip(kind._fields, sizes, strict=True):
        layout.append([str(at), str(size), name])
        at += size
    assert [row[:3] for row in table.rows] == layout
    assert at == wire.ENTRIES[kind].size


def test_value_lengths() -> None:
    for row in the_table(codes_of("Action")).rows:
        lengths = {int(n) for n in re.findall(r"(\d+) bytes", row[2])}
        kinds = wire.VALUES[Action(int(row[0]))]
        assert lengths == {kind.FORMAT.size for kind in kinds if kind}
        assert ("none" in row[2]) == (None in kinds)


def test_drop_reasons() -> None:
    table = the_table(lambda t: has_header(t, "reason"))
    assert [row[0].strip("`") for row in table.rows] == list(counters.DROPS)


def test_drops_of_data_are_in_the_order_of_questions() -> None:
    table = the_table(lambda t: has_header(t, "question"))
    named = re.findall(r"dropped: `(\w+)`", "\n".join(row[1] for row in table.rows))
    of_rounds = set(counters.DATA_DROPS) - {"ahead"}  # which is of versions
    assert sorted(named) == sorted(("short", *of_rounds))


def testcodes_of_carrying() -> None:
    table = the_table(lambda t: has_header(t, "ToS", "DSCP"))
    told = {row[2]: (int(row[0], 16), int(row[1])) for row in table.rows}
    tos = {"control": wire.TOS_CONTROL, "data": wire.TOS_DATA}
    assert told == {kind: (value, value >> 2) for kind, value in tos.items()}
    assert f"port **{wire.PORT}**" in PAGE


def test_links_within_the_page_lead_somewhere() -> None:
    headings = re.findall(r"^#+ (.+)$", PAGE, re.M)
    anchors = {re.sub(r"[^\w\- ]", "", h.lower()).replace(" ", "-") for h in headings}
    assert set(re.findall(r"\]\(#([^)]+)\)", PAGE)) <= anchors
