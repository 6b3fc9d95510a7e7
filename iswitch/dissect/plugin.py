"""The Wireshark dissector, one file of Lua: tables made of `fields`, and lua/*.lua behind them."""

from __future__ import annotations

from importlib import resources
from typing import Any

from iswitch.core.format import wire
from iswitch.core.format.keys import MAC_SIZE

from . import faults, fields
from .jobs import MAX_PACKETS, TO_SWITCH

PARTS = ("fields", "jobs", "faults", "control", "data", "entry")  # each uses those before it
HEAD = (
    "-- Made by `iswitch dissector`. Wireshark dissector of the iSwitch wire protocol, version 1.\n"
)


def dissector() -> str:
    """Return the text of the whole plugin."""
    folder = resources.files(__package__) / "lua"
    parts = [(folder / f"{part}.lua").read_text(encoding="utf-8") for part in PARTS]
    made = "".join(f"local {name} = {_lua(value)}\n" for name, value in _tables().items())
    return "\n".join([HEAD, made, *parts])


def _tables() -> dict[str, Any]:
    return {
        "PORT": wire.PORT,
        "TOS_CONTROL": wire.TOS_CONTROL,
        "TOS_DATA": wire.TOS_DATA,
        "TOS_MASK": wire.TOS_MASK,
        "SEG_SIZE": wire.SEG_SIZE,
        "MAC_SIZE": MAC_SIZE,
        "COUNTED": wire.COUNTED,
        "MAX_PAYLOAD": wire.MAX_PAYLOAD,
        "MTU_PAYLOAD": wire.MTU_PAYLOAD,
        "MAX_PACKETS": MAX_PACKETS,
        "SHORT": faults.SHORT,
        "TRUNCATED": faults.TRUNCATED,
        "ACTION": {action.name: action.value for action in wire.Action},
        "CONTROLLER": wire.MemberType.CONTROLLER.value,
        "WORKER": wire.MemberType.WORKER.value,
        "RANKS": wire.RANKS,
        "FIRST_WITH_OWNERS": min(mode.value for mode in wire.Mode if mode.has_owners),
        "ALL_TO_ALL": wire.Mode.ALL_TO_ALL.value,
        "CLOSING_SIZE": wire.CLOSING_SIZE,
        "SYNCHRONOUS": wire.Mode.SYNCHRONOUS.value,
        "WHOLE": wire.FLAG_WHOLE,
        "FIRST_OF_SLOTS": 1 << wire.SLOTS_SHIFT,
        "PAST_SLOTS": wire.SLOTS_BITS + (1 << wire.SLOTS_SHIFT),
        "PARTIAL": wire.FLAG_PARTIAL,
        "PARTS": wire.FLAG_PARTS,
        "PART_SIZE": wire.PART.itemsize,
        "REPRODUCIBLE": wire.FLAG_REPRODUCIBLE,
        "NEW": wire.FLAG_NEW,
        "NO_RANK": wire.NO_RANK,
        "BITMAPS": dict(enumerate(wire.BITMAPS, 1)),
        "SWITCH": wire.MemberType.SWITCH.value,
        "TO_SWITCH": {action.value: True for action in sorted(TO_SWITCH)},
        "CODES": fields.CODES,
        "ENUMS": {name: enum.__name__ for name, enum in fields.ENUMS.items()},
        "FLAGS": fields.FLAGS,
        "ITEMSIZE": {dtype.value: dtype.itemsize for dtype in wire.DType},
        "OPERANDS": {op.value: op.operands for op in wire.Op},
        "HEADER": _layout(fields.HEADER),
        "SEG": _layout(fields.SEG),
        "VALUES": {
            action.value: {
                size: _layout(layout)
                for kind in kinds
                for size, layout in (fields.layouts(kind) if kind else {0: ()}).items()
            }
            for action, kinds in wire.VALUES.items()
        },
    }


def _layout(layout: tuple[fields.Field, ...]) -> list[dict[str, Any]]:
    return [{k: v for k, v in field._asdict().items() if v is not None} for field in layout]


def _lua(value: Any, indent: str = "") -> str:
    """Write a value as a Lua literal; tables of tables take several lines."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, str):
        return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
    inner = indent + "    "
    if isinstance(value, dict):
        names = [k if isinstance(k, str) else f"[{k}]" for k in value]
        parts = [f"{k} = {_lua(v, inner)}" for k, v in zip(names, value.values(), strict=True)]
        nested = any(isinstance(v, dict | list) for v in value.values())
    else:
        parts = [_lua(v, inner) for v in value]
        nested = True
    if nested and parts:
        return "{\n" + "".join(f"{inner}{part},\n" for part in parts) + indent + "}"
    return "{ " + ", ".join(parts) + " }" if parts else "{}"
