"""The data plane in NumPy arrays."""

from __future__ import annotations

from iswitch.core.format.counters import Counters
from iswitch.core.format.wire import Mode, Shape

from .asynchronous import AsynchronousAccelerator
from .buffers import PLAIN, Buffers
from .paper import Counting, PaperAccelerator
from .plane import Accelerator, DataPlane, Rule
from .synchronous import SynchronousAccelerator


class NumPyPlane(DataPlane):
    """Adds up vectors in NumPy arrays.

    Args:
        counters: where contributions are counted.
        has_parent: whether sums go on to another switch.
        counting: exactly once each member's contribution, or packets.
        buffers: where memory comes from.
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
        self._buffers = buffers

    def tells_ranks_apart(self, mode: Mode) -> bool:
        """Whether sums of this mode can be in rank order."""
        return mode is Mode.SYNCHRONOUS and not self.counts_packets

    def begin(self, job: int, shape: Shape, rule: Rule, reproducible: bool) -> Accelerator:  # noqa: ARG002
        """Make what adds up the vectors of a job whose first contributor joins."""
        if shape.mode is Mode.ASYNCHRONOUS:
            return AsynchronousAccelerator(shape, rule, self.counters, self._buffers)
        kind = PaperAccelerator if self.counts_packets else SynchronousAccelerator
        return kind(shape, rule, self.counters, reproducible, self.has_parent, self._buffers)


def memory_needed(shape: Shape, reproducible: bool, first: bool, has_parent: bool = False) -> int:
    """Bytes to reserve for one more contributor, with the job's buffers if it is the first.

    Args:
        shape: the layout of the job's vectors.
        reproducible: whether sums are made in rank order.
        first: whether the job begins with it.
        has_parent: whether sums go on to another switch.
    """
    if shape.mode is Mode.ASYNCHRONOUS:
        base = AsynchronousAccelerator.memory(shape)
        each = AsynchronousAccelerator.memory_per_member(shape)
    else:
        base = SynchronousAccelerator.memory(shape, has_parent)
        each = SynchronousAccelerator.memory_per_member(shape, reproducible)
    return base * first + each
