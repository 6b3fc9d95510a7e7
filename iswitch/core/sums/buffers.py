"""Where the buffers of jobs come from, and what is said if there is no memory for them.

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
    """Buffers of plain memory; they count as had as soon as they are promised."""

    def see(self, nbytes: int) -> None:
        """Check that the system can give so many bytes in all, before the first is taken.

        Raises:
            MemoryError: it cannot.
        """

    def take(self, nbytes: int) -> Rows:
        """So many bytes, all zero.

        Raises:
            MemoryError: they cannot be had.
        """
        return np.zeros(nbytes, np.uint8)

    def leave_room(self, segments: int, nbytes: int = HEADROOM) -> None:
        """See that a job of so many segments can be served beside what is taken.

        Raises:
            MemoryError: it cannot.
        """
        np.empty(nbytes + PASSING * segments, np.uint8)

    def refused(self, job: int, nbytes: int) -> None:
        """A Join of this job was refused, for these bytes could not be had."""


class AllOrNothing(Buffers):
    """Buffers without which a replay or a history ends, before it blames what it is to judge."""

    def leave_room(self, segments: int, nbytes: int = HEADROOM) -> None:
        """See that a job of so many segments can be served beside what is taken.

        Raises:
            OutsideError: it cannot.
        """
        try:
            super().leave_room(segments, nbytes)
        except MemoryError:
            raise OutsideError(f"no memory for {nbytes:,} bytes in passing; {MEND}") from None

    def refused(self, job: int, nbytes: int) -> None:
        """End it.

        Raises:
            OutsideError: always.
        """
        raise OutsideError(f"no memory for {nbytes:,} bytes of job {job}; {MEND}")


PLAIN = Buffers()
