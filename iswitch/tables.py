"""A table that a notebook shows as HTML, and a terminal by Rich."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from numbers import Real
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.table import Table as RichTable

LONGEST = 100  # characters of a cell
WIDTH = 100  # columns of what is printed, where nothing says how many there are


def is_width_named() -> bool:
    """Return whether COLUMNS says how many columns there are."""
    return os.environ.get("COLUMNS", "").lstrip("0").isdecimal()


def width() -> int | None:
    """Return how many columns to print; None: the terminal or COLUMNS says so."""
    return None if sys.stdout.isatty() or is_width_named() else WIDTH


@dataclass(frozen=True)
class Table:
    """Rows of values under named columns.

    Attributes:
        columns: their names.
        rows: a value for each column; numbers stand to the right.
        caption: what the table shows.
    """

    columns: Sequence[str]
    rows: Sequence[Sequence[object]]
    caption: str = ""

    def _repr_html_(self) -> str:
        head = "".join(
            f"<th{_style(self._is_right(at))}>{escape(name)}</th>"
            for at, name in enumerate(self.columns)
        )
        body = "\n".join(
            "<tr>" + "".join(_cell(value) for value in row) + "</tr>" for row in self.rows
        )
        caption = f"<caption>{escape(self.caption)}</caption>" * bool(self.caption)
        return f"<table>{caption}<thead><tr>{head}</tr></thead>\n<tbody>{body}</tbody></table>"

    def _is_right(self, at: int) -> bool:
        return all(_is_number(row[at]) for row in self.rows)

    def __rich__(self) -> RichTable:
        from rich.table import Table as RichTable
        from rich.text import Text

        table = RichTable(title=self.caption or None)
        for at, name in enumerate(self.columns):
            table.add_column(Text(name), justify="right" if self._is_right(at) else "left")
        for row in self.rows:
            table.add_row(*(Text(_text(value)) for value in row))
        return table


def _is_number(value: object) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


def _text(value: object) -> str:
    if _is_number(value):
        return f"{value:,}"
    text = value if isinstance(value, str) else " ".join(repr(value).split())
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 3]}..."


def _cell(value: object) -> str:
    return f"<td{_style(_is_number(value))}>{escape(_text(value))}</td>"


def _style(right: bool) -> str:
    return f' style="text-align:{"right" if right else "left"}"'
