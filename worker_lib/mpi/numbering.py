"""Job numbers of the communicators of a run: unique, though no two processes ask one another."""

from __future__ import annotations

import threading
from collections import deque

from worker_lib.arguments import MOST_JOB

from .errors import MpiError


class Numbers:
    """Gives out the job numbers of one process.

    Of N processes the one with rank r has numbers `first` + r + N * k, and its communicators take
    them in turn. One that has been given back is used again only when no other is left, so that all
    ranks have long left the old job.

    Args:
        first: first number of the run.
        rank, size: rank of this process in COMM_WORLD, and size of COMM_WORLD.
    """

    def __init__(self, first: int, rank: int, size: int) -> None:
        self._next = first + rank
        self._step = size
        self._given_back: deque[int] = deque()
        self._lock = threading.Lock()

    def take(self) -> int:
        """Return a free number, or -1 if none is left."""
        with self._lock:
            if self._next <= MOST_JOB:
                self._next += self._step
                return self._next - self._step
            return self._given_back.popleft() if self._given_back else -1

    def give_back(self, number: int, unused: bool = False) -> None:
        """Take a number back; `unused` if no job has had it, so that it may be next."""
        with self._lock:
            if unused and number == self._next - self._step:
                self._next = number
            elif number >= 0:
                self._given_back.append(number)


def checked(number: int) -> int:
    """Return a number; raise if it says that none was left."""
    if number < 0:
        raise MpiError(
            "ERR_OTHER",
            f"no job number is left up to {MOST_JOB}: free communicators (comm.Free()), or begin "
            "the run at a smaller number (ISWITCH_JOB, `iswitch run --job`)",
        )
    return number
