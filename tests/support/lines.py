"""Memory that lacks at a line: an exception when a chosen line that handles data is reached."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
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
    """Counts lines that handle data, and lacks memory at one of them."""

    def __init__(self, fails_at: int | None = None) -> None:
        self.fails_at = fails_at
        self.count = 0

    def __call__(self, frame: FrameType, event: str, _: Any) -> Any:
        code = frame.f_code
        if not code.co_filename.endswith(MODULES) or "iswitch" not in code.co_filename:
            return None
        if code.co_name in INDIVISIBLE | OUTSIDE:
            return None
        if event == "line":
            self.count += 1
            if self.count == self.fails_at:
                raise MemoryError
        return self

    @contextmanager
    def watching(self) -> Iterator[None]:
        before = sys.gettrace()
        sys.settrace(self)
        try:
            yield
        finally:
            sys.settrace(before)
