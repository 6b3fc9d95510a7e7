"""Compares aggregates that a real switch sent with those of the switch that replays.

If packets are in the order in which the real switch handled them, both switches make equal
additions, and every bit must be equal. Some sums are equal in any order: those of integers, those
in rank order, those of two contributions, and maximum and minimum. Other sums may differ: two sums
of the same n numbers x, each rounded after every addition, differ by at most

    2 g sum |x|,    g = (n - 1) u / (1 - (n - 1) u)

with u = 2**-24 for float32, 2**-11 for float16, 2**-8 for bfloat16 (Higham, Accuracy and Stability
of Numerical Algorithms, section 4.2). A second switch, which gets the absolute values, computes sum
|x|. Its sum is rounded, too, but never below (1 - g) sum |x|.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from iswitch.core.format.packets import Address, Rows, Stretch
from iswitch.core.format.wire import PART, SEG_SIZE, DType, Op, Shape, split_seg
from iswitch.core.jobs.job import Job
from iswitch.core.sums.runs import Held, Run
from iswitch.core.switch import Switch

from .batch import Ints
from .bits import differing, equal_rows, flipped, text, within
from .passed import PassingSwitch, job_of, name_of, without_head

MOST_DIFFERENCES = 100  # that are told one by one
MOST_PENDING = 32 << 20  # bytes of aggregates kept until the replaying switch has them, too
Row = npt.NDArray[np.uint8]

ROUNDED = (Op.SUM, Op.PROD)  # of floats: by other orders they differ in the last bits
UNIT = {
    DType.FLOAT64: 2.0**-53,
    DType.FLOAT32: 2.0**-24,
    DType.FLOAT16: 2.0**-11,
    DType.BFLOAT16: 2.0**-8,
}


class Difference(NamedTuple):
    """A captured aggregate packet that differs from the right one, or has none to compare with.

    Attributes:
        kind: `differs`, `missing` (the replaying switch did not complete it) or `malformed`.
        offset: offset in the file of the first element that differs, or of the payload.
        to: the packet's receiver.
        element: first element of the segment that differs; `elements` is the number of these.
        bit: the one bit that differs, counted from the element's least significant; None: several.
        lacking: members whose contribution is not in the trace.
    """

    kind: str
    packet: int
    offset: int
    time: float
    job: int
    round: int
    segment: int
    to: str
    element: int | None = None
    elements: int = 0
    captured: str = ""
    recomputed: str = ""
    bit: int | None = None
    lacking: tuple[str, ...] = ()


class ElementsDiffer(NamedTuple):
    """The last fields of a `Difference`: which elements differ, and how the first of them does."""

    element: int | None = None
    elements: int = 0
    captured: str = ""
    recomputed: str = ""
    bit: int | None = None


NOTHING = ElementsDiffer()


@dataclass
class Tally:
    """Counts aggregate packets of the trace by the outcome of their comparison."""

    captured: int = 0
    equal: int = 0
    within_bound: int = 0
    different: int = 0
    missing: int = 0
    unchecked: int = 0  # to those whose Join is not in the trace, or no longer kept
    to_parent: int = 0  # of these, contributions of the switch to the one above
    differences: list[Difference] = field(default_factory=list)


class Captured(NamedTuple):
    """Data packets that a real switch sent to one peer: payloads as rows, and where they were."""

    peer: Address
    rows: Rows  # (n, size)
    packets: Ints  # their numbers
    offsets: Ints  # of their payloads in the file
    times: npt.NDArray[np.float64]  # seconds from the first packet of the trace

    def only(self, i: int, skip: int = 0) -> Captured:
        """Return one of them, without the bytes before its elements that contributions lack."""
        which = slice(i, i + 1)
        where = self.offsets[which] + skip
        rows, packets, times = self.rows[which], self.packets[which], self.times[which]
        return Captured(self.peer, rows, packets, where, times)


class Pending(NamedTuple):
    """Aggregates that the replaying switch has not made yet."""

    job: Job
    stretch: Stretch
    captured: Captured
    to_parent: bool


class Comparison:
    """Compares captured aggregates with those of the replay, as the replay proceeds.

    Args:
        switch: switch that replays the trace.
        magnitudes: switch that sums absolute values, to bound rounding errors where the order
            of the packets is unknown; None: the order is known.
    """

    def __init__(self, switch: PassingSwitch, magnitudes: Switch | None = None) -> None:
        self.switch = switch
        self.magnitudes = magnitudes
        self.tally = Tally()
        self._pending: list[Pending] = []
        self._pending_bytes = 0

    def take(self, captured: Captured) -> None:
        """Compare data packets that the captured switch sent to a peer."""
        self.tally.captured += len(captured.rows)
        job, to_parent = job_of(self.switch, captured.peer)
        if job is not None and job.passes_on:
            self._compare_passed(job, captured, to_parent)
            return
        for cut in self._cut(job, captured):
            assert job is not None
            if to_parent:
                self.tally.to_parent += len(cut.rows)
            for stretch in cut.consecutive():
                if not stretch.fits(shape_of(job)):
                    self._differ("malformed", job, stretch, captured)
                else:
                    self._compare(job, stretch, captured, to_parent)

    def settle(self, end: bool = False) -> None:
        """Compare again where the aggregate was not complete; at the end, count it as missing."""
        if not self._pending:
            return
        pending, self._pending, self._pending_bytes = self._pending, [], 0
        for each in pending:
            self._compare(*each, end=end)

    # Inside

    def _cut(self, job: Job | None, captured: Captured) -> list[Stretch]:
        """Cut packets of a job into stretches."""
        if job is None or job.accelerator is None or captured.rows.shape[1] < SEG_SIZE:
            self.tally.unchecked += len(captured.rows)
            return []
        return list(job.accelerator.cutter.cut(captured.rows, captured.rows.shape[1]))

    def _compare_passed(self, job: Job, captured: Captured, to_parent: bool) -> None:
        """Compare packets of a job that passes segments on, one by one.

        Which ones find a slot, and how their sums are rounded, depends on the order in which the
        switch took them. So parts that are not equal are not checked if that is unknown.
        """
        if to_parent:
            self.tally.to_parent += len(captured.rows)
        if len(captured.rows[0]) < SEG_SIZE + PART.itemsize * to_parent:
            self.tally.unchecked += len(captured.rows)
            return
        shape = shape_of(job)
        for i, row in enumerate(captured.rows):
            ours = self.switch.passed.like(job, name_of(row, to_parent))
            if ours == row.tobytes():
                self.tally.equal += 1
                continue
            if self.magnitudes is not None and (ours is None or to_parent):
                self.tally.unchecked += 1  # other contributions were added, or in another order
                continue
            theirs = without_head(row[None], to_parent)
            round_, index = split_seg(int.from_bytes(theirs[0, :SEG_SIZE].tobytes(), "big"))
            part = Stretch(round_, index, theirs, theirs.shape[1])
            one = captured.only(i, PART.itemsize * to_parent)
            if ours is None or index >= shape.segments or len(ours) != len(row):
                self._differ("malformed" if ours else "missing", job, part, one)
                continue
            mine = without_head(np.frombuffer(ours, np.uint8)[None], to_parent)
            run = Run(0, round_, index, index + 1)
            found = self._row(job, run, (theirs[0], mine[0]), 0, to_parent)
            self._differ("differs", job, part, one, found or NOTHING)

    def _compare(
        self, job: Job, stretch: Stretch, captured: Captured, to_parent: bool, end: bool = False
    ) -> None:
        """Compare consecutive segments of one round."""
        accelerator = job.accelerator
        if accelerator is None:
            self.tally.unchecked += len(stretch.rows)
            return
        may_wait = self.magnitudes is not None and not end
        for run, what, bitmap in accelerator.held(stretch.round, stretch.start, stretch.stop):
            begin, stop = run.start - stretch.start, run.stop - stretch.start
            last = stop == len(stretch.rows)
            theirs = stretch.rows[begin:stop]
            part = Stretch(run.round, run.start, theirs, stretch.tail if last else theirs.shape[1])
            if what is Held.COMPLETE or (to_parent and what is Held.SENT):
                (ours,) = accelerator.send((run,), (), partial=to_parent)
                rows = ours.rows[:, : theirs.shape[1]]
                for i in self._unequal(job, part, rows, ours.tail):
                    one = run._replace(start=run.start + i, stop=run.start + i + 1)
                    found = self._row(job, one, (theirs[i], rows[i]), bitmap, to_parent)
                    if found is not None:
                        row = Stretch(run.round, one.start, theirs[i : i + 1], part.tail)
                        self._differ("differs", job, row, captured, found)
            elif what is Held.GONE:
                self.tally.unchecked += len(theirs)
            elif may_wait and self._pending_bytes < MOST_PENDING:
                self._pending.append(
                    Pending(
                        job, part._replace(rows=theirs.copy()), _only(captured, part), to_parent
                    )
                )
                self._pending_bytes += theirs.size
            else:
                self._differ("missing", job, part, captured, lacking=_lacking(job, run, bitmap))

    def _unequal(self, job: Job, part: Stretch, ours: Rows, tail: int) -> list[int]:
        """Count the segments that equal ours, (n, size) bytes; return the indices of the others."""
        theirs = part.rows
        if tail != theirs.shape[1] and part.stop >= shape_of(job).segments:
            ours, theirs = ours[:, :tail], theirs[:, :tail]
        same = equal_rows(ours, theirs)
        wrong = [] if same is None else np.flatnonzero(~same).tolist()
        self.tally.equal += len(theirs) - len(wrong)
        return wrong

    def _row(
        self, job: Job, run: Run, rows: tuple[Row, Row], bitmap: int, to_parent: bool
    ) -> ElementsDiffer | None:
        """Return how a single segment differs; None: by no more than its bound.

        Args:
            job: the job of the segments.
            run: the segment.
            rows: the captured packet, and ours.
            bitmap: bitmap of its contributors.
            to_parent: whether it is the sum of the members here.
        """
        heads = [row[:SEG_SIZE].tobytes().hex() for row in rows]
        if heads[0] != heads[1]:
            return ElementsDiffer(captured=heads[0], recomputed=heads[1])
        shape = shape_of(job)
        size = shape.tail(run.stop)
        its, mine = (row[SEG_SIZE:size].copy().view(shape.dtype.numpy) for row in rows)
        bound = self._bound(job, run, bitmap, len(mine), to_parent)
        wrong = differing(mine, its) if bound is None else ~within(mine, its, bound)
        if bound is not None and not wrong.any():
            self.tally.within_bound += 1
            return None
        places = np.flatnonzero(wrong)
        first = int(places[0]) if len(places) else 0
        a, b = its[first], mine[first]
        return ElementsDiffer(first, len(places), text(a), text(b), flipped(a, b))

    def _bound(
        self, job: Job, run: Run, bitmap: int, count: int, to_parent: bool
    ) -> npt.NDArray[np.float64] | None:
        """Compute how far the elements of a segment may differ, [count]; None: they must be equal.

        Args:
            job: the job of the segments.
            run: the segment.
            bitmap: bitmap of its contributors.
            count: number of its elements.
            to_parent: whether it is the sum of the members here.
        """
        shape = shape_of(job)
        n = bitmap.bit_count()
        unit = UNIT.get(shape.dtype)
        if self.magnitudes is None or unit is None or shape.op not in ROUNDED:
            return None
        if job.reproducible or n <= 2 or not job.synchronous or job.passes_on:
            return None
        other = self.magnitudes.jobs.get(job.number)
        if other is None or other.accelerator is None:
            return None
        (kept,) = other.accelerator.send((run,), (), partial=to_parent)
        size = SEG_SIZE + count * shape.dtype.itemsize
        sums = kept.rows[0, SEG_SIZE:size].copy().view(shape.dtype.numpy).astype(np.float64)
        g = (n - 1) * unit / (1 - (n - 1) * unit)
        bound: npt.NDArray[np.float64] = 2 * g * np.abs(sums) / (1 - g)
        return bound

    def _differ(
        self,
        kind: str,
        job: Job,
        part: Stretch,
        captured: Captured,
        found: ElementsDiffer = NOTHING,
        lacking: tuple[str, ...] = (),
    ) -> None:
        n = len(part.rows)
        if kind == "missing":
            self.tally.missing += n
        else:
            self.tally.different += n
        for i in range(min(n, MOST_DIFFERENCES - len(self.tally.differences))):
            segment = part.start + i
            at = position(captured, part, i)
            offset = int(captured.offsets[at])
            if found.element is not None:
                offset += SEG_SIZE + found.element * shape_of(job).dtype.itemsize
                if found.bit is not None:
                    offset += found.bit // 8
            self.tally.differences.append(
                Difference(
                    kind,
                    int(captured.packets[at]),
                    offset,
                    round(float(captured.times[at]), 9),
                    job.number,
                    part.round,
                    segment,
                    f"{captured.peer.host}:{captured.peer.port}",
                    *found,
                    lacking,
                )
            )


def shape_of(job: Job) -> Shape:
    """Return the layout of a job that is under way."""
    assert job.shape is not None
    return job.shape


def _lacking(job: Job, run: Run, bitmap: int) -> tuple[str, ...]:
    """Name the contributors of which an open run has no contribution."""
    if not job.synchronous:
        return ()
    seated = job.members.seated(job.rounds.lacking(run.round, bitmap))
    return tuple(str(member.address) for member in seated)


def position(captured: Captured, part: Stretch, i: int) -> int:
    """Return the index of the captured packet with the header of row `i` of a part."""
    wanted = part.rows[i, :SEG_SIZE].tobytes()
    heads = np.ascontiguousarray(captured.rows[:, :SEG_SIZE]).view(np.uint64)[:, 0]
    found = np.flatnonzero(heads == np.frombuffer(wanted, np.uint64)[0])
    return int(found[0]) if len(found) else 0


def _only(captured: Captured, part: Stretch) -> Captured:
    """Copy the captured packets that are in a part."""
    first = position(captured, part, 0)
    which = slice(first, first + len(part.rows))
    return captured._replace(
        rows=part.rows.copy(),
        packets=captured.packets[which].copy(),
        offsets=captured.offsets[which].copy(),
        times=captured.times[which].copy(),
    )
