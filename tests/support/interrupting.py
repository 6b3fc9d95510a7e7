"""Errors of a signal's handler at a chosen line of a worker's code."""

from __future__ import annotations

from types import CodeType

from .lines import Lines

ROOM = "worker_lib/"


class Interrupted(Exception):
    """The handler's error."""


class Handler(Lines):
    """Raises an error at a line of a worker's code."""

    ERROR = Interrupted

    def counts(self, code: CodeType) -> bool:
        return ROOM in code.co_filename

    @property
    def was_called(self) -> bool:
        """Return whether that line was reached."""
        assert self.fails_at is not None
        return self.count >= self.fails_at
