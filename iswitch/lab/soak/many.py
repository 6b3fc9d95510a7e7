"""Many histories, on several cores."""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from multiprocessing import resource_tracker

from .generate import generate
from .run import Result, run

FEW = 8  # seeds that are played before other processes have started


def play(seeds: Sequence[int], processes: int) -> Iterator[Result]:
    """Play seeds in several processes, and yield the results as they come, in any order."""
    if processes == 1 or len(seeds) <= FEW:
        yield from map(play_seed, seeds)
        return
    with ExitStack() as stack:
        with _deaf_children():
            # Not a fork of this process, which may have threads: rich's, for one.
            pool = stack.enter_context(multiprocessing.get_context("spawn").Pool(processes))
        yield from pool.imap_unordered(play_seed, seeds)


@contextmanager
def _deaf_children() -> Iterator[None]:
    """Make processes that start in the `with` block ignore Ctrl-C; their parent ends them.

    A Ctrl-C in the block is raised after it: a process prints an error if its parent ends while
    it starts.
    """
    resource_tracker.ensure_running()  # else the Pool starts it, which unblocks SIGINT
    came: list[int] = []
    handler = signal.signal(signal.SIGINT, lambda number, _: came.append(number))
    # The processes inherit the mask; threads of this one (BLAS has some) may still take it.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        signal.signal(signal.SIGINT, handler)
    if came:
        signal.raise_signal(signal.SIGINT)


def play_seed(seed: int) -> Result:
    """Play the history of a seed, and return its result."""
    return run(generate(seed))
