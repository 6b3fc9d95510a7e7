"""Gathers results that take long, shows how far it is, and keeps them when a signal stops it."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Generator
from contextlib import closing
from typing import TypeVar

from iswitch.system.interrupts import Signals, Stopped

from .progress import Bar

T = TypeVar("T")
EVERY = 5.0  # seconds from line to line where there is no terminal


def gather(
    results: Generator[T, None, None], total: int, what: str, command: str
) -> tuple[list[T], int]:
    """Return all results and 0, or those until a signal came and an exit status.

    The generator is closed then; a line on stderr says how far it was.

    Args:
        results: yields them.
        total: how many there will be.
        what: they are, in words.
        command: whose they are.
    """
    found: list[T] = []
    said = time.monotonic()

    def show() -> None:
        nonlocal said
        text = f"{what} {len(found)}/{total}"
        bar.show(len(found), text)
        now = time.monotonic()
        if now - said >= EVERY and not sys.stderr.isatty():
            said = now
            print(text, file=sys.stderr, flush=True)

    with Signals():
        try:
            with Bar(total, f"{what} 0/{total}") as bar, closing(results):
                for one in results:
                    found.append(one)
                    show()
        except KeyboardInterrupt as stop:
            number = stop.signum if isinstance(stop, Stopped) else signal.SIGINT
            print(
                f"{command}: stopped by {signal.Signals(number).name} after {len(found)} of "
                f"{total} {what}",
                file=sys.stderr,
            )
            return found, 128 + number
    return found, 0
