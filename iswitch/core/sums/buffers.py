"""The memory of jobs' buffers, and the message for a switch that has not enough of it.

The core has no I/O: a world hands in what asks the system, and tells its operator.
"""

from __future__ import annotations

import numpy as np

from iswitch.core.format.packets import Rows
from iswitch.outside import OutsideError

HEADROOM = 16 << 20  # bytes that a Join has to leave free, for what packets need in passing
REQUEST = 4 << 20  # bytes that have to be free before a request is begun; it needs fewer
PASSING = 256  # and these for each segment of the job: what a question about all of them needs
MEND = "free some, or raise ulimit -v"


class Buffers:
    """Takes buffers from plain memory; they count as taken as soon as the system promises them."""

    def see(self, nbytes: int) -> None:
        """Check, before the first byte is taken, that the system can give `nbytes` in all.

        Raises:
            MemoryError: it cannot.
        """

    def take(self, nbytes: int) -> Rows:
        """Take `nbytes` bytes, all zero.

        Raises:
            MemoryError: they cannot be had.
        """
        return np.zeros(nbytes, np.uint8)

    def leave_room(self, segments: int, nbytes: int = HEADROOM) -> None:
        """Check that a job of `segments` segments can be served beside what is taken.

        Raises:
            MemoryError: it cannot.
        """
        np.empty(nbytes + PASSING * segments, np.uint8)

    def refused(self, job: int, nbytes: int) -> None:
        """Tell the operator that a Join was refused because these bytes could not be taken."""


class AllOrNothing(Buffers):
    """Ends a replay or a history that lacks memory, before it blames the switch that it judges."""

    def leave_room(self, segments: int, nbytes: int = HEADROOM) -> None:
        """Check that a job of `segments` segments can be served beside what is taken.

        Raises:
            OutsideError: it cannot.
        """
        try:
            super().leave_room(segments, nbytes)
        except MemoryError:
            raise OutsideError(f"no memory for {nbytes:,} bytes in passing; {MEND}") from None

    def refused(self, job: int, nbytes: int) -> None:
        """End the replay or history.

        Raises:
            OutsideError: always.
        """
        raise OutsideError(f"no memory for {nbytes:,} bytes of job {job}; {MEND}")


PLAIN = Buffers()
