"""Environment variables that switch something off: 0 does; 1, or nothing, leaves it on."""

from __future__ import annotations

import functools
import os
import sys


def is_on(name: str) -> bool:
    """Return whether a variable leaves on what it is for; say once that any other value does."""
    value = os.environ.get(name, "")
    if value not in ("", "0", "1"):
        _say_of(name, value)
    return value != "0"


@functools.cache
def _say_of(name: str, value: str) -> None:
    if sys.stderr is not None:
        words = f"{name} is {value!r}, which switches nothing off: write {name}=0, or unset it"
        print(words, file=sys.stderr, flush=True)
