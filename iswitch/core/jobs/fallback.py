"""Policies under which segments without a slot go on to the switch above, the fallback.

ATP (NSDI 2021) sends on what finds no slot: best effort. ESA (arXiv 2201.06398) lets jobs of a
higher priority push out the sums of others. All jobs of the switch share its slots, segment by
segment.
"""

from __future__ import annotations

from .policy import Static


class BestEffort(Static):
    """Whoever comes first has a slot, until its sum has gone up and another one needs the slot."""

    name = "besteffort"
    passes_on = True


class Preempt(BestEffort):
    """A job of a higher priority pushes out sums of jobs of a lower one."""

    name = "preempt"

    def outranks(self, ours: int, theirs: int) -> bool:
        """Return whether a job of one priority may push out sums of a job of another."""
        return ours > theirs
