"""Does one thing for many values, on several cores."""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from multiprocessing import resource_tracker
from typing import TypeVar

from iswitch.system.interrupts import STOPPING

T = TypeVar("T")
R = TypeVar("R")


def spread(work: Callable[[T], R], values: Sequence[T], processes: int) -> Generator[R, None, None]:
    """Call a function with each value in several processes; yield the results in any order.

    The processes end with the iterator.
    """
    if processes == 1 or len(values) <= 1:
        yield from map(work, values)
        return
    with ExitStack() as stack:
        with _deaf_children():
            # Not a fork of this process, which may have threads: rich's, for one.
            context = multiprocessing.get_context("spawn")
            pool = stack.enter_context(context.Pool(min(processes, len(values))))
        yield from pool.imap_unordered(work, values)


@contextmanager
def _deaf_children() -> Iterator[None]:
    """Make processes that start in the `with` block ignore Ctrl-C; their parent ends them.

    A signal that would stop this process in the block is raised after it: a process prints an
    error if its parent ends while it starts.
    """
    resource_tracker.ensure_running()  # else the Pool starts it, which unblocks SIGINT
    came: list[int] = []
    before = {number: signal.getsignal(number) for number in STOPPING}
    for number, handler in before.items():
        if handler is not signal.SIG_IGN:  # as under nohup
            signal.signal(number, lambda which, _: came.append(which))
    # The processes inherit the mask; threads of this one (BLAS has some) may still take it.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        for number, handler in before.items():
            signal.signal(number, handler)
    if came:
        signal.raise_signal(came[0])
