"""What `iswitch bench` says when a signal ends it."""

from __future__ import annotations

import sys

from iswitch.system.interrupts import Stopped


def say_stopped(stopped: Stopped, measured: bool) -> int:
    """Say whether anything was measured before a signal came; return the exit status."""
    so_far = "what was measured until then:" if measured else "nothing was measured"
    print(f"stopped by {stopped.name}; {so_far}", file=sys.stderr)
    return 128 + stopped.signum
