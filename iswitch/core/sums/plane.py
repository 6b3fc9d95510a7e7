"""The interface between a switch's control plane and its data plane, which adds up.

A `DataPlane` serves one switch; it makes an `Accelerator` for each job that has contributors. Two
data planes exist: NumPy arrays (`numpy_plane`), and the P4 program in a bmv2 (`iswitch.bmv2`).
The control plane decides which members take part, and which segments are complete. It calls the
accelerator with whole bursts, and sends the packets that the accelerator returns. A data plane that
sends packets itself returns none.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence

from iswitch.core.format.counters import Counters
from iswitch.core.format.packets import Address, Cutter, Outgoing, Stretch
from iswitch.core.format.wire import Mode, Shape, Status

from .pool import Pool
from .runs import Held, Outcome, Run
from .states import RoundStates

Rule = Callable[[int, int], bool]
"""Return whether a segment is complete, given its round and the bitmap of its contributors.

Asynchronous jobs, and planes that count packets, pass the number of contributions as the bitmap.
"""


class Accelerator(ABC):
    """The sums of one job."""

    shape: Shape
    cutter: Cutter
    keeps_aggregates = True  # of the parent, to send them again

    @abstractmethod
    def join(self, seat: int) -> None:
        """Prepare for a new member on this seat.

        Raises:
            MemoryError: too little memory for it; nothing has changed.
        """

    def rank(self, seat: int, ranks: int) -> None:  # noqa: B027  (only some ask for it)
        """Set the ranks of a seat, a bitmap: the lowest is its place in sums in rank order."""

    @abstractmethod
    def accumulate(self, seat: int, stretch: Stretch, outcome: Outcome) -> None:
        """Accumulate one member's contributions; add completed and late runs to `outcome`.

        Args:
            seat: the member's seat.
            stretch: the contributed segments.
            outcome: completed and late runs are added to it.
        """

    @abstractmethod
    def reevaluate(self) -> list[Run]:
        """Complete the segments that are complete by the changed rule; return their runs."""

    @abstractmethod
    def force(self, round_: int, start: int, stop: int) -> tuple[list[Run], int]:
        """Complete open segments without their missing contributions.

        Returns:
            The completed runs, and the fewest contributions in one.
        """

    @abstractmethod
    def held(self, round_: int, start: int, stop: int) -> Iterator[tuple[Run, Held, int]]:
        """Yield the runs of segments start..stop-1, each with its state and contributor bitmap."""

    def bits_held(self) -> int:
        """Return the bitmap of the seats that have a contribution in some segment; 0: unknown."""
        return 0

    def want(self, runs: Sequence[Run]) -> None:  # noqa: B027  (only some do not keep them)
        """Take the parent's aggregates, which have come before, for new when they come again."""

    def forget(self, round_: int, start: int, stop: int) -> None:  # noqa: B027
        """Forget who has contributed to those of the segments whose sums are not here."""

    @abstractmethod
    def reset(self, round_: int) -> None:
        """Empty all sums; an asynchronous job continues from version `round_`."""

    def end(self) -> None:  # noqa: B027  (arrays are freed by themselves)
        """Free the job's resources in the data plane, after its last contributor has left."""

    @abstractmethod
    def deliver(self, completed: Sequence[Run], peers: tuple[Address, ...]) -> list[Outgoing]:
        """Send runs that have just completed: to the contributors, or as a sum to the parent."""

    @abstractmethod
    def send(
        self, runs: Sequence[Run], peers: tuple[Address, ...], partial: bool = False
    ) -> list[Outgoing]:
        """Send kept aggregates again.

        Args:
            runs: the runs to send; there may be gaps between them.
            peers: the receivers.
            partial: whether to send the parent this switch's sums, instead of aggregates.
        """


class RoundAccelerator(Accelerator):
    """The sums of a synchronous job: sets of two rounds, and under a parent its aggregates."""

    counters: Counters
    complete: Rule

    @abstractmethod
    def begun(self) -> Iterator[tuple[Run, int, int]]:
        """Yield the nonempty runs of both sets, each with its progress and bitmap."""

    @abstractmethod
    def finish(self, run: Run, bitmap: int) -> Run:
        """Finish a run: turn its sums into aggregates."""

    @abstractmethod
    def take(self, stretch: Stretch) -> list[Run]:
        """Keep consecutive aggregates from the parent; return the runs that are new."""

    def waiting(self) -> list[Run]:
        """Return the runs that were sent to the parent and whose aggregates have not come."""
        return [run for run, how_far, _ in self.begun() if how_far == RoundStates.SENT]

    def has_all(self, round_: int) -> bool:
        """Return whether every aggregate of a round is here."""
        held = self.held(round_, 0, self.shape.segments)
        return all(what is Held.COMPLETE for _, what, _ in held)

    def reevaluate(self) -> list[Run]:
        """Complete the segments that are complete by the changed rule; return their runs."""
        return [
            self.finish(run, bitmap)
            for run, how_far, bitmap in self.begun()
            if not how_far and self.complete(run.round, bitmap)
        ]

    def force(self, round_: int, start: int, stop: int) -> tuple[list[Run], int]:
        """Complete open segments without their missing contributions.

        Returns:
            The completed runs, and the fewest contributions in one.
        """
        held = list(self.held(round_, start, stop))
        forced = [
            (self.finish(run, bitmap), bitmap.bit_count())
            for run, what, bitmap in held
            if what is Held.OPEN
        ]
        self.counters["partial_aggregates"] += sum(run.segments for run, _ in forced)
        return [run for run, _ in forced], min((count for _, count in forced), default=0)


class VersionAccelerator(Accelerator):
    """The sums of an asynchronous job: the open version of each segment, and the last few made."""

    version: int  # the highest version made

    @abstractmethod
    def name(self, version: int) -> None:
        """Make only versions newer than this one, which a returning member names."""


class DataPlane(ABC):
    """Adds up the vectors of a switch's jobs.

    Args:
        counters: counts the contributions.
        has_parent: whether sums go on to another switch.
    """

    counts_packets = False  # instead of each member's contribution once
    lends = False  # it can make accelerators of jobs that take turns, or are resized
    passes_on = False  # it can make accelerators of jobs that pass on what finds no slot
    merges = False  # it takes contributions of switches below in parts
    has_lines = True  # it can speak to the switch above from a UDP port for each job

    def __init__(self, counters: Counters, has_parent: bool) -> None:
        self.counters = counters
        self.has_parent = has_parent

    def refusal(self, shape: Shape, begins: bool) -> Status | None:  # noqa: ARG002
        """Return the status with which to refuse a contributor; None: accept it.

        Args:
            shape: the layout that its Join names.
            begins: whether the job would begin with it.
        """
        return None

    def begin_in_turns(self, shape: Shape, rule: Rule) -> Accelerator:
        """Make the accelerator of a job that takes turns, where the plane `lends` memory.

        Args:
            shape: the layout of its vectors.
            rule: decides which segments are complete.

        Raises:
            MemoryError: too little memory for it; nothing has changed.
        """
        raise NotImplementedError

    def begin_resized(
        self, shape: Shape, rule: Rule, slots_of: Callable[[int], int], room: int
    ) -> Accelerator:
        """Make the accelerator of a job whose slots change, where the plane `lends` memory.

        Args:
            shape: the layout of its vectors.
            rule: decides which segments are complete.
            slots_of: returns the most slots that a worker may take a round to have.
            room: the slots for which a round has memory at first.

        Raises:
            MemoryError: too little memory for it; nothing has changed.
        """
        raise NotImplementedError

    def begin_passing(
        self, job: int, shape: Shape, rule: Rule, pool: Pool, priority: int
    ) -> Accelerator:
        """Make the accelerator of a job whose segments go on, where the plane `passes_on`.

        Args:
            job: its number.
            shape: the layout of its vectors.
            rule: decides which segments are complete.
            pool: the slots of all jobs.
            priority: of the job.

        Raises:
            MemoryError: too little memory for it; nothing has changed.
        """
        raise NotImplementedError

    def has_room(self, shape: Shape) -> bool:  # noqa: ARG002
        """Return whether another job of this shape can begin; `begin` checks the memory."""
        return True

    @abstractmethod
    def tells_ranks_apart(self, mode: Mode) -> bool:
        """Return whether sums of this mode can be in rank order."""

    @abstractmethod
    def begin(
        self, job: int, shape: Shape, rule: Rule, reproducible: bool, slots: int = 0
    ) -> Accelerator:
        """Make the accelerator of a job whose first contributor joins.

        Args:
            job: its number.
            shape: the layout of its vectors.
            rule: decides which segments are complete.
            reproducible: whether to sum in rank order.
            slots: segments of a round that must have room at a time; 0: all.

        Raises:
            MemoryError: too little memory for it; nothing has changed.
        """
