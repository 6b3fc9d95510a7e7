"""Memory that lacks at a line: an exception when a chosen line that handles data is reached."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import CodeType, FrameType
from typing import Any

MODULES = (
    "accelerator.py",
    "synchronous.py",
    "asynchronous.py",
    "packets.py",
    "job.py",
    "switch.py",
)
# What may not be interrupted, and needs nothing but small objects, for which a Join has left room.
INDIVISIBLE = {"_count_in", "_keep", "write", "_add", "_given_up", "_count_in_each"}
# Not for data: what is called there belongs to members, not to packets.
OUTSIDE = {
    "begin",
    "join",
    "__init__",
    "receive",
    "_control",
    "handle_timer",
    "deadline",
    "not_below",
}


class Lines:
    """Counts lines, by default those that handle data, and raises an error at one of them."""

    ERROR: type[Exception] = MemoryError

    def __init__(self, fails_at: int | None = None) -> None:
        self.fails_at = fails_at
        self.count = 0

    def counts(self, code: CodeType) -> bool:
        """Return whether a function's lines count."""
        if not code.co_filename.endswith(MODULES) or "iswitch" not in code.co_filename:
            return False
        return code.co_name not in INDIVISIBLE | OUTSIDE

    def __call__(self, frame: FrameType, event: str, _: Any) -> Any:
        if not self.counts(frame.f_code):
            return None
        if event == "line":
            self.count += 1
            if self.count == self.fails_at:
                raise self.ERROR
        return self

    @contextmanager
    def watching(self) -> Iterator[None]:
        before = sys.gettrace()
        sys.settrace(self)
        try:
            yield
        finally:
            sys.settrace(before)
