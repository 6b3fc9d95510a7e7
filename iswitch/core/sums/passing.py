"""The accelerator of a job whose segments go on to the switch above where there is no slot.

Docs/protocol.md, "Parts". The switch keeps a state for every segment, and a sum only where it has a
slot. Everything it sends up is a *part*: elements, the seats whose contributions are in them, and,
once all have contributed, the seats of all. The switch above merges parts (`assembly`). So whatever
is here can be sent on, given up or lost at any time: what the switch above lacks it asks for.

A segment that has gone on stays so until a later round takes its place: the sum of those that come
after could otherwise go up with seats in it that the switch above has already.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from iswitch.core.format.counters import Counters
from iswitch.core.format.packets import Address, Cutter, Indices, Outgoing, Rows, Stretch
from iswitch.core.format.wire import PART, SEG_SIZE, TOS_DATA, Shape, Vector

from .buffers import PLAIN, Buffers
from .combining import combine_of, word_of
from .plane import RoundAccelerator, Rule
from .pool import SLOT, Parts, Pool
from .runs import Held, Outcome, Run, runs
from .states import Bitmaps, RoundStates

PLACE = np.dtype(np.int32)
NONE = 0  # a place without a slot; others are the slot's number and 1


class PassingAccelerator(RoundAccelerator):
    """Adds up what has a slot, and sends on what has none.

    Args:
        job: the job's number.
        shape: the layout of its vectors.
        complete: the rule that decides which segments are complete.
        counters: counts the contributions.
        pool: the slots of all jobs.
        priority: of the job.
        buffers: allocates the memory.

    Raises:
        MemoryError: too little memory. All lasting memory is allocated here.
    """

    OPEN, SENT = RoundStates.OPEN, RoundStates.SENT
    COMPLETE, PASSED = RoundStates.COMPLETE, RoundStates.PASSED
    SETS = RoundStates.SETS
    keeps_aggregates = False

    def __init__(
        self,
        job: int,
        shape: Shape,
        complete: Rule,
        counters: Counters,
        pool: Pool,
        priority: int = 0,
        buffers: Buffers = PLAIN,
    ) -> None:
        self.job = job
        self.shape = shape
        self.complete = complete
        self.counters = counters
        self.pool = pool
        self.priority = priority
        self.added = self.passed_on = 0  # contributions to this job, as the counters say of all
        self._buffers = buffers
        self.cutter = Cutter(shape)
        self.cutter.prepare()
        self.states = RoundStates(shape.segments)
        places = buffers.take(self.SETS * shape.segments * PLACE.itemsize)
        self.places = places.view(PLACE).reshape(self.SETS, shape.segments)
        self._word = word_of(shape.dtype)
        self._combine = combine_of(shape.op, shape.dtype)
        self._fits = shape.packet_size <= SLOT
        self._sums: Vector = pool.rows[:, : shape.packet_size * self._fits].view(self._word)
        self._taken: list[tuple[Run, Rows]] = []
        self._forgotten = 0  # seats whose contributions have gone on, though no state tells it

    @classmethod
    def memory(cls, shape: Shape) -> int:
        """Return the bytes that a job of this shape needs besides the slots."""
        each = cls.SETS * (RoundStates.RECORD.size + PLACE.itemsize) + Cutter.MEMORY
        return shape.segments * each

    def nbytes(self) -> int:
        """Return the size of all arrays and states in bytes, without the headers of rounds."""
        return int(self.places.nbytes) + sum(len(table.bytes) for table in self.states.sets)

    def slots_taken(self) -> int:
        """Return the number of slots that the job has."""
        return int(np.count_nonzero(self.places))

    def join(self, seat: int) -> None:  # noqa: ARG002  (all members share one sum)
        """Prepare for a new member on this seat."""
        self._buffers.leave_room(self.shape.segments)

    def bits_held(self) -> int:
        """Return the bitmap of the seats that have a contribution in some segment, or above."""
        return self.states.bits() | self._forgotten

    # Contributions

    def accumulate(self, seat: int, stretch: Stretch, outcome: Outcome) -> None:
        """Accumulate one member's contributions, or send them on, at most one per segment."""
        table = self.states.sets[stretch.round % self.SETS]
        for some in stretch.consecutive():
            self._clear(some)
            for start, stop in table.uniform(some.start, some.start + len(some.rows)):
                rows = some.rows[start - some.start : stop - some.start]
                self._accumulate_run(seat, stretch.round, start, stop, rows, outcome)

    def _clear(self, stretch: Stretch) -> None:
        """Free slots whose sums have gone up for those segments to which nobody has contributed.

        That may change any states of this job, so it comes before they are looked at.
        """
        start, stop = stretch.start, stretch.start + len(stretch.rows)
        table, wanted = self.states.sets[stretch.round % self.SETS], 0
        for a, b in table.uniform(start, stop):
            holds, how_far, bitmap = table.get(a)
            wanted += (b - a) * (holds != stretch.round or not (bitmap or how_far))
        self.pool.clear(wanted * self._fits)

    def _accumulate_run(
        self, seat: int, round_: int, start: int, stop: int, rows: Rows, outcome: Outcome
    ) -> None:
        at = round_ % self.SETS
        holds, how_far, bitmap = self.states.sets[at].get(start)
        if holds != round_ or not (bitmap or how_far):
            how_far = bitmap = 0
            self._give_back(at, start, stop)
        if bitmap >> seat & 1:
            self.counters["duplicate"] += stop - start
            return
        if how_far in (self.SENT, self.COMPLETE):
            self.counters["late"] += stop - start
            return
        bitmap |= 1 << seat
        run = Run(at, round_, start, stop)
        if how_far == self.PASSED:
            self._pass_on(seat, run, bitmap, rows, outcome)
            return
        first = bitmap == 1 << seat
        slots = self._take(run) if first else self.places[at, start:stop] - np.int64(1)
        room = start + len(slots)
        if room > start:
            if first:
                self.places[at, start:room] = slots + 1
            self._add(slots, rows[: room - start], first)
            some = run._replace(stop=room)
            self.counters["accumulated"] += some.segments
            self.added += some.segments
            self.states.sets[at].set(start, room, round_, self.OPEN, bitmap)
            if self.complete(round_, bitmap):
                outcome.completed.append(self.finish(some, bitmap))
        if room < stop:
            rest = run._replace(start=room)
            self._pass_on(seat, rest, bitmap, rows[room - start :], outcome)

    def _take(self, run: Run) -> Indices:
        """Take slots for the first segments of a run, for as many as there are."""
        return self.pool.take(self, run.segments * self._fits)

    def _add(self, slots: Indices, rows: Rows, first: bool) -> None:
        """Accumulate packets into slots; copy them if they are the `first`."""
        data = rows.view(self._word)
        width = data.shape[1]
        if first:
            self._sums[slots, :width] = data
        else:
            self._sums[slots, :width] = self._combine(self._sums[slots, :width], data)

    def _pass_on(self, seat: int, run: Run, bitmap: int, rows: Rows, outcome: Outcome) -> None:
        """Send contributions on as they are."""
        whole = bitmap if self.complete(run.round, bitmap) else 0
        self._put(run, rows, 1 << seat, whole)
        self.states.sets[run.slot].set(run.start, run.stop, run.round, self.PASSED, bitmap)
        self.counters["passed_on"] += run.segments
        self.passed_on += run.segments
        if whole:
            outcome.completed.append(run)

    def _put(self, run: Run, rows: Rows, bits: int, whole: int) -> None:
        """Have a run sent to the switch above.

        Args:
            run: the segments.
            rows: their packets, (n, size) bytes; headers are written.
            bits: the seats whose contributions are in them.
            whole: the seats with which they are whole; 0: not known yet.
        """
        n, size = len(rows), rows.shape[1]
        packets = np.empty((n, PART.itemsize + size), np.uint8)
        headers = self.cutter.headers(run.round, run.start, run.stop)
        packets[:, :SEG_SIZE] = headers.view(np.uint8).reshape(n, SEG_SIZE)
        head = np.zeros(1, PART)
        head["bits"], head["whole"] = bits, whole
        packets[:, SEG_SIZE : SEG_SIZE + PART.itemsize] = head.view(np.uint8)
        packets[:, SEG_SIZE + PART.itemsize :] = rows[:, SEG_SIZE:]
        short = run.stop > self.shape.full_segments and size > self.shape.last_size
        tail = self.shape.last_size if short else size
        self.pool.outbox.append(Parts(self.job, packets, PART.itemsize + tail))

    def finish(self, run: Run, bitmap: int) -> Run:
        """Finish a run: its sums are to go up."""
        at, round_, start, stop = run
        self.states.sets[at].set(start, stop, round_, self.SENT, bitmap)
        self.counters["aggregates"] += stop - start
        return run

    def push_out(self, slots: Indices) -> None:
        """Send the sums in these slots to the switch above, as they are, and forget the slots."""
        for at in range(self.SETS):
            table = self.states.sets[at]
            indices = np.flatnonzero(np.isin(self.places[at], slots + 1))
            for run in runs(at, 0, indices):
                for start, stop in table.uniform(run.start, run.stop):
                    round_, how_far, bitmap = table.get(start)
                    some = Run(at, round_, start, stop)
                    whole = bitmap if self.complete(round_, bitmap) else 0
                    if how_far == self.OPEN:
                        self._put(some, self._rows_of(some), bitmap, whole)
                        self.counters["pushed_out"] += some.segments
                    table.set(start, stop, round_, self.PASSED, bitmap)
                    self._give_back(at, start, stop)

    def _rows_of(self, run: Run) -> Rows:
        """Copy the sums of a run, whose segments all have slots."""
        slots = self.places[run.slot, run.start : run.stop] - 1
        return self.pool.rows[slots, : self.shape.packet_size]

    def _give_back(self, at: int, start: int, stop: int) -> None:
        places = self.places[at, start:stop]
        taken = places[places != NONE]
        if len(taken):
            self.pool.give_back(taken - 1)
            places[:] = NONE

    # Aggregates

    def take(self, stretch: Stretch) -> list[Run]:
        """Take consecutive aggregates from the parent; return the runs that are new.

        They are not kept: `send` must follow.
        """
        round_, index, rows, *_ = stretch
        at = round_ % self.SETS
        taken = []
        for start, stop in self.states.sets[at].uniform(index, index + len(rows)):
            holds, how_far, bitmap = self.states.sets[at].get(start)
            if holds == round_ and how_far == self.COMPLETE:
                self.counters["repeated"] += stop - start
                continue
            self._give_back(at, start, stop)
            bits = bitmap if holds == round_ else 0
            self.states.sets[at].set(start, stop, round_, self.COMPLETE, bits)
            self.counters["from_parent"] += stop - start
            run = Run(at, round_, start, stop)
            self._taken.append((run, rows[start - index : stop - index]))
            taken.append(run)
        return taken

    def want(self, runs: Sequence[Run]) -> None:
        """Take aggregates that have come before for new when they come again."""
        for at, round_, a, b in runs:
            for start, stop in self.states.sets[at].uniform(a, b):
                _, _, bitmap = self.states.sets[at].get(start)
                self.states.sets[at].set(start, stop, round_, self.PASSED, bitmap)

    def forget(self, round_: int, start: int, stop: int) -> None:
        """Forget who has contributed to those of the segments whose sums are not here."""
        table = self.states.sets[round_ % self.SETS]
        for a, b in table.uniform(start, stop):
            holds, how_far, bitmap = table.get(a)
            if holds == round_ and how_far in (self.COMPLETE, self.PASSED):
                self._forgotten |= bitmap
                table.set(a, b, round_, self.PASSED, 0)

    def deliver(self, completed: Sequence[Run], peers: tuple[Address, ...]) -> list[Outgoing]:
        """Have sums sent to the parent that have just become whole; others have gone on."""
        before = len(self.pool.outbox)
        self.send(completed, peers, partial=True)
        self.counters["to_parent"] += sum(len(one.rows) for one in self.pool.outbox[before:])
        return []

    def send(
        self, runs: Sequence[Run], peers: tuple[Address, ...], partial: bool = False
    ) -> list[Outgoing]:
        """Send the aggregates that have just come; with `partial`, the sums that are here."""
        if not partial:
            taken, self._taken = dict(self._taken), []
            found = [(run, taken[run]) for run in runs]
            return [Outgoing(peers, TOS_DATA, rows, self._tail(rows, run)) for run, rows in found]
        for at, _, a, b in runs:
            for start, stop in self.states.sets[at].uniform(a, b):
                round_, how_far, bitmap = self.states.sets[at].get(start)
                if how_far == self.SENT:
                    run = Run(at, round_, start, stop)
                    self._put(run, self._rows_of(run), bitmap, bitmap)
                    self.pool.spend(self.places[at, start:stop] - np.int64(1))
        return []

    def _tail(self, rows: Rows, run: Run) -> int:
        return min(int(rows.shape[1]), self.shape.tail(run.stop))

    # States

    def held(self, round_: int, start: int, stop: int) -> Iterator[tuple[Run, Held, int]]:
        """Yield the runs of segments start..stop-1, each with its state and contributor bitmap.

        What has gone on, from all, is as if it was sent.
        """
        for run, what, bitmap in self.states.held(round_, start, stop):
            if what is Held.PASSED:
                yield run, Held.SENT if self.complete(round_, bitmap) else Held.OPEN, bitmap
            else:
                yield run, what, bitmap

    def words_of(self, round_: int, indices: Indices) -> Bitmaps:
        """Return the states of the sets' segments, (n, words), as they are kept for a round."""
        return self.states.sets[round_ % self.SETS].words[indices]

    def begun(self) -> Iterator[tuple[Run, int, int]]:
        """Yield the nonempty runs of both sets, each with its progress and bitmap."""
        return self.states.begun()

    def reset(self, round_: int) -> None:  # noqa: ARG002  (rounds need no base)
        """Empty both sets."""
        self.end()
        self.states.clear()
        self._forgotten = 0

    def end(self) -> None:
        """Give all slots back."""
        for at in range(self.SETS):
            self._give_back(at, 0, self.shape.segments)
        self.pool.forget(self)
