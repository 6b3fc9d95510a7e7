"""Many histories, on several cores."""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Iterator, Sequence

from .generate import generate
from .run import Result, run

AT_ONCE = 8  # seeds handed to a process together


def play(seeds: Sequence[int], processes: int) -> Iterator[Result]:
    """The results, in any order, as they come."""
    if processes == 1 or len(seeds) <= AT_ONCE:
        yield from map(play_seed, seeds)
        return
    # Not a fork of this process, which may have threads: rich's, for one.
    # Ctrl-C is for this process, which ends the others.
    leave_it = (signal.SIGINT, signal.SIG_IGN)
    with multiprocessing.get_context("spawn").Pool(processes, signal.signal, leave_it) as pool:
        yield from pool.imap_unordered(play_seed, seeds, AT_ONCE)


def play_seed(seed: int) -> Result:
    """One history."""
    return run(generate(seed))
