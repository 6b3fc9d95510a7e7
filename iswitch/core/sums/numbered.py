"""Contributions that their senders number: the base of the accelerators of asynchronous jobs.

There are no rounds and no bitmap: a member's contribution counts if its number is newer than the
last one counted from that member at that segment.
"""

from __future__ import annotations

import struct
from abc import abstractmethod

import numpy as np

from iswitch.core.format.counters import Counters
from iswitch.core.format.packets import Rows, Stretch
from iswitch.core.format.wire import Shape, round_distance

from .accelerator import NumPyAccelerator
from .buffers import PLAIN, Buffers
from .plane import Rule, VersionAccelerator
from .runs import Outcome, Run
from .states import Table

LATE = 4096  # numbers: how far behind the last one of a process something of it may still come
NOBODY, ITS_OWN, FORMER = range(3)  # whose number it is; the last: of the process before there


def is_late(ahead: int, whose: int) -> bool:
    """Return whether a contribution may have been counted.

    Args:
        ahead: how far its number is ahead of the last one that was counted.
        whose: that number.
    """
    return ahead <= 0 and (whose == ITS_OWN or (whose == FORMER and ahead > -LATE))


class NumberedAccelerator(NumPyAccelerator, VersionAccelerator):
    """Counts the contributions to each segment.

    The state of a segment: the number of the last sum that was finished, the slot of the open one,
    the number of contributions in that, and what a subclass says.

    Args:
        shape: the layout of the job's vectors.
        slots: number of vectors of sums that are held.
        complete: the rule that decides which segments are complete.
        counters: counts the contributions.
        buffers: allocates the memory.
    """

    RECORD = struct.Struct("<IIII")
    LAST = struct.Struct("<QQ")  # whose contribution was counted, and the last one's number

    def __init__(
        self,
        shape: Shape,
        slots: int,
        complete: Rule,
        counters: Counters,
        buffers: Buffers = PLAIN,
    ) -> None:
        super().__init__(shape, slots, complete, counters, buffers)
        self.state = Table(self.RECORD, shape.segments)
        self.last: dict[int, Table] = {}  # by seat
        self.version = 0

    @classmethod
    def memory_per_member(cls, shape: Shape) -> int:
        """Return the bytes that each member needs on top."""
        return shape.segments * cls.LAST.size

    def nbytes(self) -> int:
        """Return the size of all arrays and states in bytes, without the headers of rounds."""
        last = sum(len(table.bytes) for table in self.last.values())
        return super().nbytes() + len(self.state.bytes) + last

    def join(self, seat: int) -> None:
        """Prepare for a new member on this seat; forget the contributions of its former owner."""
        last = Table(self.LAST, self.shape.segments)
        self._buffers.leave_room(self.shape.segments)
        self.last[seat] = last

    def count_from(self, seat: int, number: int) -> None:
        """Count only contributions with numbers beyond this one, which a switch's Join names."""
        last = self.last[seat]
        for start, stop in last.uniform(0, self.shape.segments):
            counted, newest = last.get(start)
            if not counted or round_distance(number, newest) > 0:
                last.set(start, stop, ITS_OWN, number)

    def follow(self, seat: int, number: int) -> None:
        """Count nothing of the process before, whose newest number this was.

        Its numbers are known by being no more than LATE behind: those of the new process are ahead,
        or have wrapped since, if that one was there for days.
        """
        self.last[seat].set(0, self.shape.segments, FORMER, number)

    def newest(self, seat: int) -> int | None:
        """Return the newest number counted from a member, or from the process before; None: none.

        Args:
            seat: the member's seat.
        """
        words = self.last[seat].words
        numbers = words[words[:, 0] != NOBODY, 1].astype(np.uint32)
        if not len(numbers):
            return None
        return int(numbers[(numbers - numbers[0]).view(np.int32).argmax()])

    def counted(self, seat: int, number: int, start: int) -> tuple[int, int]:
        """Tell which contributions of a member have been counted, from a segment on.

        Args:
            seat: the member's seat.
            number: a contribution counts as this one if it has this number, or a later one.
            start: the first segment.

        Returns:
            How many segments from `start` on have counted it, and how many after these have not.
        """
        words = self.last[seat].words[start:]
        ahead = (words[:, 1].astype(np.uint32) - np.uint32(number)).view(np.int32)
        lacks = (words[:, 0] == 0) | (ahead < 0)
        if not lacks.any():
            return len(lacks), 0
        first = int(lacks.argmax())
        rest = ~lacks[first:]
        return first, int(rest.argmax()) if rest.any() else len(rest)

    def accumulate(self, seat: int, stretch: Stretch, outcome: Outcome) -> None:
        """Accumulate one member's contributions that are newer than its last ones."""
        last = self.last[seat]
        for round_, index, rows, *_ in stretch.consecutive():
            for a, b in last.uniform(index, index + len(rows)):
                whose, newest = last.get(a)
                if is_late(round_distance(round_, newest), whose):
                    self.counters["duplicate"] += b - a
                    continue
                for start, stop in self.state.uniform(a, b):
                    if self._is_ahead(start):
                        self.counters["ahead"] += stop - start
                        continue
                    some = rows[start - index : stop - index]
                    self._accumulate_run(last, round_, start, stop, some, outcome)

    @abstractmethod
    def _is_ahead(self, index: int) -> bool:
        """Return whether a segment takes no more contributions for now."""

    @abstractmethod
    def _is_ripe(self, state: tuple[int, ...]) -> bool:
        """Return whether segments in this state are complete."""

    @abstractmethod
    def _finish(self, start: int, stop: int) -> Run:
        """Finish segments in one state: send on what is open in them."""

    def reevaluate(self) -> list[Run]:
        """Complete the segments that the changed rule calls complete; return their runs."""
        uniform = self.state.uniform(0, self.shape.segments)
        return [self._finish(a, b) for a, b in uniform if self._is_ripe(self.state.get(a))]

    def _accumulate_run(
        self, last: Table, number: int, start: int, stop: int, rows: Rows, outcome: Outcome
    ) -> None:
        """Accumulate contributions to segments in one state.

        Args:
            last: the numbers last counted from the member.
            number: the contributions' number.
            start: first segment.
            stop: one past the last segment.
            rows: the packets, (n, size) bytes.
            outcome: completed runs are added to it.
        """
        newest, slot, count, more = self.state.get(start)
        state = newest, slot, count + 1, more
        counted = last.mark(start, stop, ITS_OWN, number)
        mark = self.state.mark(start, stop, *state)
        self._count_in(self._words[slot, start:stop], rows, not count, counted, mark)
        if self._is_ripe(state):
            outcome.completed.append(self._finish(start, stop))
