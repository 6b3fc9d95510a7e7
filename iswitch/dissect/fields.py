"""Lists the fields of all packets in one table: names, offsets, sizes, codes.

Offsets and sizes are those of `iswitch.core.format.wire`, names those of the protocol. Scapy's
layers and the tables of the Wireshark dissector are made from this table.
"""

from __future__ import annotations

import re
from enum import IntEnum
from struct import Struct
from typing import NamedTuple

from iswitch.core.format import wire
from iswitch.core.format.wire import Action

Codes = dict[int, str]
Kind = wire.Kind


class Field(NamedTuple):
    """A field of a packet: an unsigned big-endian integer, a bitmap, or bytes."""

    name: str
    filter: str  # in Wireshark, after "iswitch."
    label: str
    offset: int  # from the beginning of the packet
    size: int  # bytes
    codes: str | None  # of CODES, "flags": bits of FLAGS, "ipv4", "bitmap" or "bytes"


ENUMS: dict[str, type[IntEnum]] = {  # of a Join, and of a job
    "type": wire.MemberType,
    "dtype": wire.DType,
    "op": wire.Op,
    "mode": wire.Mode,
    "state": wire.JobState,
}


def _named(codes: type[IntEnum]) -> Codes:
    return {code.value: code.name.lower() for code in codes}


ACTIONS: Codes = {
    action.value: {"SETH": "SetH", "FBCAST": "FBcast"}.get(action.name, action.name.title())
    for action in Action
}
CODES: dict[str, Codes] = {
    "action": ACTIONS,
    "status": {status.value: status.name for status in wire.Status},
    **{name: _named(codes) for name, codes in ENUMS.items()},
}
FLAGS: Codes = {  # of a Join
    wire.FLAG_STANDS_AT: "stands_at",
    wire.FLAG_REPRODUCIBLE: "reproducible",
    wire.FLAG_FIRST: "first",
    wire.FLAG_WHOLE: "whole",
    wire.FLAG_HEARTBEAT: "heartbeat",
    wire.FLAG_NEW: "new",
    wire.FLAG_PARTIAL: "partial",
    wire.FLAG_PARTS: "parts",
    **{1 << wire.SLOTS_SHIFT + i: f"slots_{1 << i}" for i in range(5)},  # of the exponent
    **{1 << wire.PRIORITY_SHIFT + i: f"priority_{1 << i}" for i in range(3)},
}
# Where the protocol's name is not that of `iswitch.core.format.wire`, or says too little by itself:
_NAMES = {"elements": "E"}  # of a Join; in a data packet they are elements
_FILTERS = {"index": "seg.index"}
_LABELS = {
    "E": "E (elements per segment)",
    "last": "Last (elements of the last segment)",
    "threshold": "Threshold (H)",
    "listening": "Port at which it listens",
    "workers": "Workers below",
    "statement": "Statement of ranks",
    "unranked": "Workers to be given a rank",
    "given": "Ranks that were given",
    "lease": "Lease, in milliseconds",
    "silent": "Silent for, in milliseconds",
}
VARIABLE = "awaited", "members", "ranks"  # what follows the fixed fields of a value


def _layout(names: tuple[str, ...], layout: Struct, offset: int) -> tuple[Field, ...]:
    found = []
    for given, code in zip(names, re.findall(r"\d*[A-Zs]", layout.format), strict=True):
        name, size = _NAMES.get(given, given), Struct(">" + code).size
        label = _LABELS.get(name, name.capitalize())
        codes = name if name in CODES or name == "flags" else None
        codes = "bytes" if code[-1] == "s" else codes
        found.append(Field(name, _FILTERS.get(name, name), label, offset, size, codes))
        offset += size
    return tuple(found)


def _value(kind: Kind) -> tuple[Field, ...]:
    names = tuple(name for name in kind.__match_args__ if name not in VARIABLE)
    fields = _layout(names, kind.FORMAT, len(_HEADER_BYTES))
    if not issubclass(kind, wire.Ack):
        return fields
    answered = {
        "action": ("ack.action", "Answered action"),
        "known": ("ack.known", "Known"),
    }
    return tuple(
        field._replace(filter=answered[field.name][0], label=answered[field.name][1])
        if field.name in answered
        else field
        for field in fields
    )


_HEADER_BYTES = wire.Control(Action.LEAVE, 0, 0).build()
HEADER = _layout(wire.Header._fields, Struct(">BBHI"), 0)
SEG = _layout(("round", "index"), Struct(">II"), 0)
VALUES: dict[Kind, tuple[Field, ...]] = {
    kind: _value(kind) for kinds in wire.VALUES.values() for kind in kinds if kind is not None
}


def entry(kind: type[wire.AckWho | wire.AckJob], at: int = 0) -> tuple[Field, ...]:
    """Describe the fields of one worker or member in an Ack; they begin at offset `at`."""
    what = {wire.AckWho: "awaited", wire.AckJob: "member"}[kind]
    return tuple(
        field._replace(
            name=f"{what}_{field.name}",
            filter=f"{what}.{field.name}",
            label=f"{what.capitalize()} {field.label.lower().replace('_', ' ')}",
            codes=field.codes and "ipv4",
        )
        for field in _layout(kind.ENTRY._fields, wire.ENTRIES[kind.ENTRY], at)
    )


def layouts(kind: Kind) -> dict[int, tuple[Field, ...]]:
    """Return the fields of a value by the value's length in bytes."""
    made = {kind.FORMAT.size: VALUES[kind]}
    if kind in (wire.TreeJoin, wire.AckRanks):
        at = kind.FORMAT.size
        for size in wire.BITMAPS[1:]:
            bitmap = Field("ranks", "ranks", "Ranks", len(_HEADER_BYTES) + at, size, "bitmap")
            made[at + size] = (*VALUES[kind], bitmap)
    if kind is wire.AckWho or kind is wire.AckJob:
        for _ in range(wire.MOST_NAMED):
            size, fields = list(made.items())[-1]
            more = entry(kind, len(_HEADER_BYTES) + size)
            made[size + wire.ENTRIES[kind.ENTRY].size] = fields + more
    return made
