"""The memory of jobs' buffers, and the message for a lack of it.

The core has no I/O: a world hands in an object that asks the system and tells its operator.
"""

from __future__ import annotations

import numpy as np

from iswitch.core.format.packets import Rows
from iswitch.outside import OutsideError

HEADROOM = 16 << 20  # bytes that a Join must leave free for the handling of packets
REQUEST = 4 << 20  # bytes that must be free before a request is begun; it needs fewer
PASSING = 256  # further bytes for each segment of the job: a question about all needs them
MEND = "free some, or raise ulimit -v"


class Buffers:
    """Allocates buffers from plain memory, which the system may only promise."""

    def see(self, nbytes: int) -> None:
        """Check, before the first allocation, that the system can provide a total of `nbytes`.

        Raises:
            MemoryError: the system cannot provide them.
        """

    def take(self, nbytes: int) -> Rows:
        """Allocate `nbytes` bytes, all zero.

        Raises:
            MemoryError: the system has too little memory.
        """
        return np.zeros(nbytes, np.uint8)

    def leave_room(self, segments: int, nbytes: int = HEADROOM) -> None:
        """Check that enough memory is left to serve a job of `segments` segments.

        Raises:
            MemoryError: there is too little memory for it.
        """
        np.empty(nbytes + PASSING * segments, np.uint8)

    def refused(self, job: int, nbytes: int) -> None:
        """Tell the operator that a Join was refused because this memory could not be allocated."""


class AllOrNothing(Buffers):
    """Ends a replay or history that lacks memory, so that no fault of the switch is reported."""

    def leave_room(self, segments: int, nbytes: int = HEADROOM) -> None:
        """Check that enough memory is left to serve a job of `segments` segments.

        Raises:
            OutsideError: there is too little memory for it.
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
