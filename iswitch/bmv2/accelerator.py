"""Sums in the P4 data plane, which the core controls over the CPU port."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from iswitch.core.format.counters import Counters
from iswitch.core.format.packets import Address, Cutter, Outgoing, Stretch
from iswitch.core.format.wire import DType, Mode, Op, Shape, Status
from iswitch.core.jobs.job import Job
from iswitch.core.sums.plane import DataPlane, RoundAccelerator, Rule
from iswitch.core.sums.runs import Held, Outcome, Run
from iswitch.core.sums.states import RoundStates
from p4.sizes import SIZES

from .cpu import CpuHeader, Flag
from .pipeline import Pipeline

DTYPES = (DType.FLOAT32, DType.FLOAT16, DType.BFLOAT16, DType.INT32)  # that the program combines
OPS = (Op.SUM, Op.MAX, Op.MIN)


class PipelinePlane(DataPlane):
    """Lets a P4 program add up the vectors of jobs.

    It refuses jobs that the program cannot add up. BAD_REQUEST answers segments too large for an
    MTU of 1500, asynchronous jobs, and sums in rank order. FULL answers more segments or jobs than
    there is room for.

    Args:
        pipeline: the data plane.
        job: returns the job with a number.
    """

    has_lines = False  # its tables know one UDP port of its own

    def __init__(self, pipeline: Pipeline, job: Callable[[int], Job]) -> None:
        super().__init__(Counters(), pipeline.parent is not None)
        self.pipeline = pipeline
        self._job = job

    def refusal(self, shape: Shape, begins: bool) -> Status | None:
        """Return the status that refuses a contributor for its shape; None: it can be served."""
        if self.pipeline.slots(shape) > SIZES["SLOTS"]:
            return Status.FULL
        # In a job that has begun, another mode is answered with MISMATCH.
        is_refused = not fits(shape) or (begins and shape.mode is not Mode.SYNCHRONOUS)
        return Status.BAD_REQUEST if is_refused else None

    def has_room(self, shape: Shape) -> bool:
        """Return whether the data plane has a place and slots for another job of this shape."""
        return self.pipeline.has_room(shape)

    def tells_ranks_apart(self, mode: Mode) -> bool:  # noqa: ARG002
        """Return False: sums are made in the order of arrival, never in rank order."""
        return False

    def begin(
        self,
        job: int,
        shape: Shape,
        rule: Rule,
        reproducible: bool,  # noqa: ARG002
        slots: int = 0,  # noqa: ARG002  (of a switch above; here each segment has its own)
    ) -> PipelineAccelerator:
        """Give a job a place in the data plane."""
        accelerator = PipelineAccelerator(self, job, shape, rule, self._job)
        self.pipeline.begin(job, shape)
        return accelerator


class PipelineAccelerator(RoundAccelerator):
    """Reads a job's state in the data plane, and completes segments there.

    `states` holds the last state that was read; each question first reads its segments anew.
    """

    def __init__(
        self, plane: PipelinePlane, number: int, shape: Shape, rule: Rule, job: Callable[[int], Job]
    ) -> None:
        self.shape = shape
        self.counters = plane.counters
        self.complete = rule
        self.cutter = Cutter(shape)
        self.number = number
        self.pipeline = plane.pipeline
        self.states = RoundStates(shape.segments)
        self._job = job
        self._finished = RoundStates.SENT if plane.has_parent else RoundStates.COMPLETE

    @property
    def job(self) -> Job:
        """Return the job whose segments this accelerator sums."""
        return self._job(self.number)

    def join(self, seat: int) -> None:
        """Do nothing: the data plane needs nothing for one more seat."""

    def bits_held(self) -> int:
        """Return the bitmap of the seats that may have a contribution in some segment."""
        return self.pipeline.contributors(self.number)

    def accumulate(self, seat: int, stretch: Stretch, outcome: Outcome) -> None:  # noqa: ARG002
        """Pass contributions that came to the control plane on to the data plane."""
        (member,) = self.job.members.seated(1 << seat)
        n, tail = len(stretch.rows), stretch.tail
        for i, row in enumerate(stretch.rows, 1):
            self.pipeline.accept(member.address, row.tobytes() if i < n else row[:tail].tobytes())

    def reevaluate(self) -> list[Run]:
        """Complete the segments that the changed rule calls complete; return their runs."""
        if not self.job.members.gathered or not self.bits_held():
            return []
        return super().reevaluate()

    def held(self, round_: int, start: int, stop: int) -> Iterator[tuple[Run, Held, int]]:
        """Yield the runs of segments start..stop-1, each with its state and contributor bitmap."""
        self._look(round_ & 1, start, stop)
        return self.states.held(round_, start, stop)

    def begun(self) -> Iterator[tuple[Run, int, int]]:
        """Yield the nonempty runs of both sets, each with its progress and bitmap."""
        for slot in range(RoundStates.SETS):
            self._look(slot, 0, self.shape.segments)
        return self.states.begun()

    def finish(self, run: Run, bitmap: int) -> Run:
        """Note a run as finished; the data plane finishes and counts it when told to deliver it."""
        slot, round_, start, stop = run
        self.states.sets[slot].set(start, stop, round_, self._finished, bitmap)
        return run

    def take(self, stretch: Stretch) -> list[Run]:  # noqa: ARG002
        """Keep nothing: aggregates from the parent stay in the data plane."""
        return []

    def deliver(self, completed: Sequence[Run], peers: tuple[Address, ...]) -> list[Outgoing]:  # noqa: ARG002
        """Order the data plane to send completed runs to the members or the parent."""
        for run in completed:
            self.pipeline.force(self.number, run)
        return []

    def send(
        self, runs: Sequence[Run], peers: tuple[Address, ...], partial: bool = False
    ) -> list[Outgoing]:
        """Order the data plane to send kept aggregates, or sums for the parent, again."""
        for run in runs:
            if partial:
                self.pipeline.contribute(self.number, run)
            else:
                for peer in peers:
                    seat = self.job.members.by_address[peer].seat
                    self.pipeline.resend(self.number, peer, seat, run)
        return []

    def reset(self, round_: int) -> None:  # noqa: ARG002  (rounds need no base)
        """Empty both sets."""
        self.states.clear()
        self.pipeline.empty(self.number)

    def end(self) -> None:
        """Free the job's place in the data plane, after its last contributor has left."""
        self.pipeline.end(self.number)

    def _look(self, slot: int, start: int, stop: int) -> None:
        answers = self.pipeline.look(self.number, slot, start, stop)
        for index, answer in enumerate(answers, start):
            self.states.sets[slot].set(
                index, index + 1, answer.round, _how_far(answer), answer.bitmap
            )


def fits(shape: Shape) -> bool:
    """Return whether the program can combine the elements of a packet."""
    known = shape.dtype in DTYPES and shape.op in OPS
    return known and shape.elements * shape.dtype.itemsize <= SIZES["MOST_BYTES"]


def _how_far(answer: CpuHeader) -> int:
    if answer.flags & Flag.IS_COMPLETE:
        return RoundStates.COMPLETE
    return RoundStates.SENT if answer.flags & Flag.IS_SENT else RoundStates.OPEN
