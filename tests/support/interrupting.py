"""Errors of a signal's handler at a chosen line of a worker's code."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

ROOM = "worker_lib/"


class Interrupted(Exception):
    """The handler's error."""


class Handler:
    """Raises an error at a line of a worker's code.

    Args:
        line: the line, counted from 1 on.
    """

    def __init__(self, line: int) -> None:
        self.left = line

    def __call__(self, frame: FrameType, event: str, _: Any) -> Any:
        if ROOM not in frame.f_code.co_filename:
            return None
        if event == "line":
            self.left -= 1
            if not self.left:
                raise Interrupted
        return self

    @contextmanager
    def watching(self) -> Iterator[None]:
        before = sys.gettrace()
        sys.settrace(self)
        try:
            yield
        finally:
            sys.settrace(before)
