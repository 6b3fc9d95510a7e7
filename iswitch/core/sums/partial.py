"""The accelerator of an asynchronous job at a switch below another: partial sums, and no versions.

The members' contributions to a segment are added up to a partial sum, which goes up as one
contribution of this switch when H of them are in it, or when it has been held for a time. It is
kept until the switch above has counted it: until then it may be sent again, under its number, and
what comes meanwhile is added up in a second buffer. So every contribution is in one partial sum,
and the switch above counts that once. Versions are made by the root; the newest are kept for Help.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from iswitch.core.format.counters import Counters
from iswitch.core.format.packets import Cutter, Rows, Stretch
from iswitch.core.format.wire import (
    ROUND_MASK,
    VERSIONS_AHEAD,
    VERSIONS_KEPT,
    Shape,
    later,
    round_distance,
)

from .buffers import PLAIN, Buffers
from .numbered import NumberedAccelerator
from .plane import Rule
from .runs import Held, Outcome, Run
from .states import Table


class PartialAccelerator(NumberedAccelerator):
    """Adds up partial sums, and keeps the versions that come from the switch above.

    The state of a segment: the number of its last partial sum, the buffer of the open one, the
    number of contributions in that, and whether the last one is still to be counted above.

    Attributes:
        version: the newest version known.
        number: the number of the newest partial sum; None: it is not known where to begin.
        unasked: partial sums were sent since this was cleared.
        opened: contributions were added since this was cleared.
        cut_off: the switch above does not know this one; nothing goes up.
    """

    KEPT = VERSIONS_KEPT
    AHEAD = VERSIONS_AHEAD
    SLOTS = 2
    VERSION = struct.Struct("<II")  # a version, and what is known of its segment
    NOTHING, HERE, GONE = range(3)

    def __init__(
        self, shape: Shape, complete: Rule, counters: Counters, buffers: Buffers = PLAIN
    ) -> None:
        super().__init__(shape, self.SLOTS, complete, counters, buffers)
        self._has_parent = True
        self.aggregates = self._vectors(self.KEPT)
        self.kept = [Table(self.VERSION, shape.segments) for _ in range(self.KEPT)]
        self.number: int | None = None
        self.unasked = self.opened = self.cut_off = False

    @classmethod
    def memory(cls, shape: Shape) -> int:
        """Return the bytes that a job of this shape needs."""
        own = cls.SLOTS * shape.packet_size + cls.RECORD.size + Cutter.MEMORY
        return shape.segments * (own + cls.KEPT * (shape.packet_size + cls.VERSION.size))

    def nbytes(self) -> int:
        """Return the size of all arrays and states in bytes, without the headers of rounds."""
        return super().nbytes() + sum(len(table.bytes) for table in self.kept)

    # Partial sums

    def _is_ahead(self, index: int) -> bool:
        """Return whether a segment's open sum is full, while the one before it is not counted."""
        *_, count, uncounted = self.state.get(index)
        waits = uncounted or self.cut_off
        return bool(waits) and self.complete(self.version, count // self.AHEAD)

    def _accumulate_run(
        self, last: Table, number: int, start: int, stop: int, rows: Rows, outcome: Outcome
    ) -> None:
        super()._accumulate_run(last, number, start, stop, rows, outcome)
        self.opened = True

    def _is_ripe(self, state: tuple[int, ...]) -> bool:
        """Return whether segments in this state have enough contributions, and may go up."""
        return self._may_go(state) and self.complete(self.version, state[2])

    def _may_go(self, state: tuple[int, ...]) -> bool:
        *_, count, uncounted = state
        return count > 0 and not uncounted and not self.cut_off

    def _going(self, start: int, stop: int) -> list[tuple[int, int]]:
        """Return the ranges of segments start..stop-1 whose open sums may go up."""
        uniform = self.state.uniform(start, stop)
        return [(a, b) for a, b in uniform if self._may_go(self.state.get(a))]

    def _finish(self, start: int, stop: int) -> Run:
        before, slot, _, _ = self.state.get(start)
        assert self.number is not None
        # Segments that complete one after the other get one number, and so remain one run.
        number = (self.number + 1) & ROUND_MASK if before == self.number else self.number
        self._write_headers(slot, number, start, stop)
        self.state.set(start, stop, number, 1 - slot, 0, 1)
        self.number = number
        self.unasked = True
        self.counters["aggregates"] += stop - start
        return Run(slot, number, start, stop)

    def force(self, round_: int, start: int, stop: int) -> tuple[list[Run], int]:
        """Complete what is open, if version `round_` has not been made.

        Returns:
            The completed runs, and the fewest contributions in one.
        """
        if round_distance(round_, self.version) <= 0:
            return [], 0
        going = self._going(start, stop)
        fewest = min((self.state.get(a)[2] for a, _ in going), default=0)
        self.counters["partial_aggregates"] += sum(b - a for a, b in going)
        return [self._finish(a, b) for a, b in going], fewest

    def let_go(self) -> list[Run]:
        """Complete what has been held long enough, however few contributions it is of."""
        return [self._finish(a, b) for a, b in self._going(0, self.shape.segments)]

    def is_open(self) -> bool:
        """Return whether contributions wait in an open sum."""
        return bool(self.state.words.view("<u4")[:, 2].any())

    # What the switch above has counted

    def uncounted(self) -> list[Run]:
        """Return the partial sums that the switch above is not known to have counted."""
        found = []
        for start, stop in self.state.uniform(0, self.shape.segments):
            number, slot, _, uncounted = self.state.get(start)
            if uncounted:
                found.append(Run(1 - slot, number, start, stop))
        return found

    def was_counted(self, number: int, start: int, stop: int) -> None:
        """Give up the partial sums of this number: the switch above has counted them."""
        for a, b in self.state.uniform(start, stop):
            last, slot, count, uncounted = self.state.get(a)
            if uncounted and last == number:
                self.state.set(a, b, number, slot, count, 0)

    def begin_above(self, number: int) -> None:
        """Continue with numbers beyond this one, at a switch above that knows none of them.

        It is not known whether the one before has counted what is uncounted, so that is given up:
        nothing counts twice.
        """
        for run in self.uncounted():
            self.was_counted(run.round, run.start, run.stop)
            self.counters["sums_given_up"] += run.segments
        self.number = (later(self.number, number) + 1) & ROUND_MASK
        self.cut_off = False

    def end(self) -> None:
        """Count what has not gone up, after the last contributor has left."""
        left = sum(run.segments for run in self.uncounted())
        left += int((self.state.words.view("<u4")[:, 2] > 0).sum())
        self.counters["sums_given_up"] += left

    def reset(self, round_: int) -> None:
        """Forget all sums and kept versions; the next version is `round_` + 1."""
        self.state.set(0, self.shape.segments, self.number or 0, 0, 0, 0)
        for table in self.kept:
            table.clear()
        self.version = round_

    # Versions

    def name(self, version: int) -> None:
        """Know of a version that the switch above or a returning member names."""
        self.version = later(self.version, version)

    def take(self, stretch: Stretch) -> list[Run]:
        """Keep consecutive aggregates from the switch above; return the runs that are new."""
        version, index, rows, *_ = stretch
        slot = version % self.KEPT
        table = self.kept[slot]
        taken = []
        for start, stop in table.uniform(index, index + len(rows)):
            holds, what = table.get(start)
            newer = round_distance(holds, version)
            if what and (newer > 0 or (newer == 0 and what == self.HERE)):
                self.counters["repeated"] += stop - start
                continue
            part = rows[start - index : stop - index]
            mark = table.mark(start, stop, version, self.HERE)
            self.aggregates[slot, start:stop, : part.shape[1]] = part
            mark.write()
            self.counters["from_parent"] += stop - start
            taken.append(Run(slot, version, start, stop))
        self.name(version)
        return taken

    def lose(self, version: int, start: int, stop: int) -> None:
        """Note that the switch above no longer keeps this version of some of these segments."""
        table = self.kept[version % self.KEPT]
        for a, b in table.uniform(start, stop):
            holds, what = table.get(a)
            if not what or round_distance(version, holds) > 0:
                table.set(a, b, version, self.GONE)

    def held(self, round_: int, start: int, stop: int) -> Iterator[tuple[Run, Held, int]]:
        """Yield the runs of version `round_` with their state; the bitmap is always 0."""
        slot = round_ % self.KEPT
        past = round_distance(self.version, round_) >= self.KEPT + self.AHEAD
        for a, b in self.kept[slot].uniform(start, stop):
            holds, what = self.kept[slot].get(a)
            newer = round_distance(holds, round_) if what else -1
            run = Run(slot, round_, a, b)
            if newer == 0 and what == self.HERE:
                yield run, Held.COMPLETE, 0
            else:
                yield run, Held.GONE if newer >= 0 or past else Held.SENT, 0
