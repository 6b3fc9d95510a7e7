"""The way in which a job adds up, settled when its first contributor joins."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from iswitch.core.format.wire import Shape
from iswitch.core.sums.plane import Accelerator, DataPlane, Rule
from iswitch.core.sums.pool import Pool


class Way(NamedTuple):
    """The way in which a job adds up.

    Attributes:
        reproducible: sums are made in rank order.
        slots: segments of a round that have room at a time; 0: all.
        turns: rounds wait for the job's turn with the memory.
        resizes: the slots change from round to round; `slots` are the fewest.
        pool: the slots without which segments go on to the parent; None: they have their own.
    """

    reproducible: bool = False
    slots: int = 0
    turns: bool = False
    resizes: bool = False
    pool: Pool | None = None

    def begin(
        self,
        plane: DataPlane,
        job: int,
        shape: Shape,
        rule: Rule,
        priority: int,
        slots_of: Callable[[int], int],
    ) -> Accelerator:
        """Make the accelerator of a job.

        Args:
            plane: adds up.
            job: the job's number.
            shape: the layout of its vectors.
            rule: decides which segments are complete.
            priority: of the job.
            slots_of: returns the most slots that a worker may take a round to have.

        Raises:
            MemoryError: too little memory for it; nothing has changed.
        """
        if self.turns:
            return plane.begin_in_turns(shape, rule)
        if self.resizes:
            return plane.begin_resized(shape, rule, slots_of, self.slots)
        if self.pool is not None:
            return plane.begin_passing(job, shape, rule, self.pool, priority)
        return plane.begin(job, shape, rule, self.reproducible, self.slots)


PLAIN = Way()
