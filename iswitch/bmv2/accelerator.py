"""A job whose sums are in the data plane: what the core asks of an accelerator, by way of that."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from iswitch.core.format.packets import Cutter, Rows, Stretch
from iswitch.core.format.wire import Mode, Shape
from iswitch.core.jobs.job import Job
from iswitch.core.sums.accelerator import Held, Outcome, Run, SynchronousAccelerator, Table

from .cpu import Flag

if TYPE_CHECKING:
    from .pipeline import Pipeline


class PipelineAccelerator(SynchronousAccelerator):
    """Looks at the data plane's state, and completes segments there.

    `state` is what was found there last; every question fetches anew what it is about.
    """

    def __init__(self, job: Job, shape: Shape, pipeline: Pipeline) -> None:
        self.job = job
        self.shape = shape
        self.pipeline = pipeline
        self.complete = job.is_complete
        self.counters = job.counters
        self.slots = self.SLOTS
        self.reproducible = False
        self.order = {}
        self._finished = self.SENT if job.has_parent else self.COMPLETE
        self.cutter = Cutter(shape)
        self.state = [Table(self.RECORD, shape.segments) for _ in range(self.SLOTS)]

    def join(self, seat: int) -> None:
        """The data plane needs nothing for one more seat."""

    def bits_held(self) -> int:
        """Bitmap of the seats whose contribution may be held in some segment."""
        return self.pipeline.contributors(self.job)

    def accumulate(self, seat: int, stretch: Stretch, outcome: Outcome) -> None:  # noqa: ARG002
        """Let a contribution in that came to the control plane; its effects are there, too."""
        (member,) = self.job.members.seated(1 << seat)
        n, tail = len(stretch.rows), stretch.tail
        for i, row in enumerate(stretch.rows, 1):
            self.pipeline.accept(member, row.tobytes() if i < n else row[:tail].tobytes())

    def reevaluate(self) -> list[Run]:
        """Complete what the rule, which has changed, now calls complete."""
        if not self.job.members.gathered or not self.bits_held():
            return []
        for slot in range(self.SLOTS):
            self._look(slot, 0, self.shape.segments)
        return super().reevaluate()

    def held(self, round_: int, start: int, stop: int) -> Iterator[tuple[Run, Held, int]]:
        """What is held of these segments, run by run, with the contributors' bitmap."""
        self._look(round_ & 1, start, stop)
        return super().held(round_, start, stop)

    def waiting(self) -> list[Run]:
        """What was sent to the parent and whose aggregate has not come."""
        for slot in range(self.SLOTS):
            self._look(slot, 0, self.shape.segments)
        return super().waiting()

    def packed(self, runs: Sequence[Run], partial: bool = False) -> Iterator[tuple[Rows, int]]:
        """Nothing: the data plane sends the sums of the members here to the parent."""
        assert partial  # aggregates from the parent are its business altogether
        for run in runs:
            self.pipeline.contribute(self.job, run)
        return iter(())

    def reset(self, round_: int) -> None:
        """Empty both sets."""
        super().reset(round_)
        self.pipeline.empty(self.job)

    def _look(self, slot: int, start: int, stop: int) -> None:
        for index, answer in enumerate(self.pipeline.look(self.job, slot, start, stop), start):
            how_far = self.OPEN
            if answer.flags & Flag.IS_COMPLETE:
                how_far = self.COMPLETE
            elif answer.flags & Flag.IS_SENT:
                how_far = self.SENT
            self.state[slot].set(index, index + 1, answer.round, how_far, answer.bitmap)

    def _finish(self, run: Run, bitmap: int) -> Run:
        """The data plane does it, and counts it, when it is told to send the aggregates."""
        slot, round_, start, stop = run
        self.state[slot].set(start, stop, round_, self._finished, bitmap)
        return run


@dataclass
class PipelineJob(Job):
    """A job that has a place in the data plane as long as it has contributors."""

    pipeline: Pipeline | None = None

    def make_accelerator(self, shape: Shape, reproducible: bool) -> PipelineAccelerator:  # noqa: ARG002
        """In the data plane."""
        return PipelineAccelerator(self, shape, cast("Pipeline", self.pipeline))

    def begin(self, shape: Shape, reproducible: bool, seat: int) -> None:
        """Take a place there, too."""
        super().begin(shape, reproducible, seat)
        cast("Pipeline", self.pipeline).begin(self)

    def tells_ranks_apart(self, mode: Mode) -> bool:  # noqa: ARG002
        """Sums are made as contributions arrive, never in rank order."""
        return False

    def end(self) -> None:
        """The last contributor has left: give the place back."""
        cast("Pipeline", self.pipeline).end(self)
        super().end()
