"""The data plane in NumPy arrays."""

from __future__ import annotations

from collections.abc import Callable

from iswitch.core.format.counters import Counters
from iswitch.core.format.wire import Mode, Shape, Status

from .asynchronous import AsynchronousAccelerator
from .buffers import PLAIN, Buffers
from .owned import OwnedAccelerator
from .paper import Counting, PaperAccelerator
from .partial import PartialAccelerator
from .passing import PassingAccelerator
from .plane import Accelerator, DataPlane, Rule
from .pool import Pool
from .resized import ResizedAccelerator
from .slotted import SlottedAccelerator
from .synchronous import SynchronousAccelerator
from .turns import TurnAccelerator

APART = TurnAccelerator | ResizedAccelerator  # the sums of each round
IN_ROUNDS = SynchronousAccelerator | SlottedAccelerator | APART | PassingAccelerator


class NumPyPlane(DataPlane):
    """Adds up vectors in NumPy arrays.

    Args:
        counters: counts the contributions.
        has_parent: whether sums go on to another switch.
        counting: EXACT counts each member's contribution once; PAPER counts packets.
        buffers: allocates the memory.
    """

    def __init__(
        self,
        counters: Counters,
        has_parent: bool = False,
        counting: Counting = Counting.EXACT,
        buffers: Buffers = PLAIN,
    ) -> None:
        super().__init__(counters, has_parent)
        self.counts_packets = counting is Counting.PAPER
        self.lends = not (has_parent or self.counts_packets)
        self.passes_on = has_parent and not self.counts_packets
        self.merges = not self.counts_packets
        self._buffers = buffers

    def tells_ranks_apart(self, mode: Mode) -> bool:
        """Return whether sums of this mode can be in rank order."""
        return mode is not Mode.ASYNCHRONOUS and not self.counts_packets

    def refusal(self, shape: Shape, begins: bool) -> Status | None:  # noqa: ARG002
        """Return the status that refuses a contributor for its shape; None: it can be served."""
        # Packets that are only counted have no senders, and owners are among the senders.
        return Status.BAD_REQUEST if self.counts_packets and shape.mode.has_owners else None

    def begin(
        self,
        job: int,  # noqa: ARG002
        shape: Shape,
        rule: Rule,
        reproducible: bool,
        slots: int = 0,
    ) -> Accelerator:
        """Make the accelerator of a job whose first contributor joins.

        Args:
            job: its number.
            shape: the layout of its vectors.
            rule: decides which segments are complete.
            reproducible: whether to sum in rank order.
            slots: segments of a round that have room at a time; 0: all.
        """
        if slots:
            ways = rule, self.counters, reproducible, self.has_parent, self._buffers
            return SlottedAccelerator(shape, slots, *ways)
        if shape.mode is Mode.ASYNCHRONOUS:
            versions = PartialAccelerator if self.has_parent else AsynchronousAccelerator
            return versions(shape, rule, self.counters, self._buffers)
        kind = PaperAccelerator if self.counts_packets else SynchronousAccelerator
        if shape.mode.has_owners:
            kind = OwnedAccelerator
        return kind(shape, rule, self.counters, reproducible, self.has_parent, self._buffers)

    def begin_in_turns(self, shape: Shape, rule: Rule) -> Accelerator:
        """Make the accelerator of a job that takes turns."""
        return TurnAccelerator(shape, rule, self.counters, self._buffers)

    def begin_passing(
        self, job: int, shape: Shape, rule: Rule, pool: Pool, priority: int
    ) -> Accelerator:
        """Make the accelerator of a job whose segments go on where there is no slot for them."""
        ways = rule, self.counters, pool, priority, self._buffers
        return PassingAccelerator(job, shape, *ways)

    def begin_resized(
        self, shape: Shape, rule: Rule, slots_of: Callable[[int], int], room: int
    ) -> Accelerator:
        """Make the accelerator of a job whose slots change."""
        return ResizedAccelerator(shape, slots_of, room, rule, self.counters, self._buffers)


def memory_needed(
    shape: Shape, reproducible: bool, first: bool, has_parent: bool = False, slots: int = 0
) -> int:
    """Return the bytes to reserve for one more contributor; for the first, with the job's buffers.

    Args:
        shape: the layout of the job's vectors.
        reproducible: whether sums are made in rank order.
        first: whether the job begins with this contributor.
        has_parent: whether sums go on to another switch.
        slots: segments of a round that have room at a time; 0: all.
    """
    if slots:
        base = SlottedAccelerator.memory(shape, slots, has_parent)
        each = SlottedAccelerator.memory_per_member(shape, slots, reproducible)
    elif shape.mode is Mode.ASYNCHRONOUS:
        versions = PartialAccelerator if has_parent else AsynchronousAccelerator
        base, each = versions.memory(shape), versions.memory_per_member(shape)
    else:
        base = SynchronousAccelerator.memory(shape, has_parent)
        each = SynchronousAccelerator.memory_per_member(shape, reproducible)
    return base * first + each
