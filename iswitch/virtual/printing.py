"""Notes that a process prints, so that the lines of all are shown in the order of virtual time."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable
from typing import Any

from .patches import Patches


class Noted(io.FileIO):
    """A stream of this process that tells whenever something is written to it.

    Args:
        descriptor: that of the stream, which stays open.
        tell: called before each write.
    """

    def __init__(self, descriptor: int, tell: Callable[[], None]) -> None:
        super().__init__(descriptor, "w", closefd=False)
        self._tell = tell

    def write(self, data: Any) -> int:
        """Write bytes, without a buffer; return how many."""
        self._tell()
        return super().write(data)


def install(patches: Patches, tell: Callable[[], None]) -> None:
    """Call `tell` whenever Python writes to stdout or stderr, neither of which is buffered then."""
    for descriptor, name in enumerate(("stdout", "stderr"), start=1):
        former = getattr(sys, name)
        if former is not None:
            stream = io.TextIOWrapper(
                Noted(descriptor, tell),
                former.encoding,
                former.errors,
                newline="\n",
                write_through=True,
            )
            patches.put(sys, name, stream)
            patches.put(sys, f"__{name}__", stream)
