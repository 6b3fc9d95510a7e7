"""Writes the log of a process on stderr: as text, or a JSON object a line; never much of it.

Each kind of message is written at once, again after 10 s, and then after four times as long each
time, up to a day. Whatever others send, a process writes a few lines of each kind a day.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime

LEVELS = ("debug", "info", "warning", "error")
SOON, GROWTH, LONGEST = 10.0, 4.0, 86_400.0  # seconds, factor, seconds
MOST_KINDS = 200
MOST_TEXT = 2000  # characters of a line

log = logging.getLogger("iswitch")


class Sparing(logging.Filter):
    """Lets few messages of each kind through; the next one says how many were left out.

    The kind is the message without its arguments.

    Args:
        clock: returns monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._kinds: dict[str, tuple[float, float, int]] = {}  # not before, pause, left out

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether to write a message."""
        kind, now = str(record.msg), self._clock()
        if kind not in self._kinds and len(self._kinds) >= MOST_KINDS:
            return False
        due, pause, left_out = self._kinds.get(kind, (now, SOON, 0))
        if now < due:
            self._kinds[kind] = due, pause, left_out + 1
            return False
        self._kinds[kind] = now + pause, min(GROWTH * pause, LONGEST), 0
        record.left_out = left_out
        return True


class Text(logging.Formatter):
    """Writes `warning: MESSAGE`."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        return f"{record.levelname.lower()}: {message(record)}"


class Json(logging.Formatter):
    """Writes an object: time, level, message."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        when = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        return json.dumps({
            "time": when, "level": record.levelname.lower(), "message": message(record),
        })  # fmt: skip


def message(record: logging.LogRecord) -> str:
    """Return a record's text on one line, and how many like it were left out."""
    left_out: int = getattr(record, "left_out", 0)
    more = f" ({left_out:,} more like it were left out)" * bool(left_out)
    return " ".join(record.getMessage().split())[:MOST_TEXT] + more


def is_logged(line: str) -> bool:
    """Return whether a line of a process's stderr is of its log, rather than how it failed."""
    return line.startswith((*(f"{level}: " for level in LEVELS), '{"time": '))


@contextmanager
def logged(level: str, as_json: bool) -> Iterator[None]:
    """Write the log of this process on stderr during the `with` block, from a level on."""
    handler = logging.StreamHandler(sys.stderr)
    handler.addFilter(Sparing())
    handler.setFormatter(Json() if as_json else Text())
    before = log.level
    log.setLevel(level.upper())
    log.addHandler(handler)
    try:
        yield
    finally:
        log.removeHandler(handler)
        log.setLevel(before)
