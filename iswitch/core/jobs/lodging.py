"""The lanes in which jobs lend each other memory, and the jobs in them: see `lanes.py`."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf

from .policy import Need


@dataclass(eq=False, slots=True)
class Lane:
    """A lane: at most one of its jobs has a round under way.

    Attributes:
        jobs: the jobs in it.
        holder: the job that may have a round under way; None: nobody has asked yet.
        into: the lane into which it is to be emptied; None: it stays.
    """

    jobs: list[Lodger] = field(default_factory=list)
    holder: Lodger | None = None
    into: Lane | None = None

    @property
    def size(self) -> int:
        """Return the bytes that the largest of its jobs needs."""
        return max((job.need.ephemeral for job in self.jobs), default=0)

    @property
    def busy(self) -> bool:
        """Return whether a round is under way in it."""
        return self.holder is not None and self.holder.began is not None


@dataclass(eq=False, slots=True)
class Lodger:
    """A job that has come in, or waits.

    Attributes:
        number: its number.
        need: the bytes reserved for it, and its rounds.
        came: a number that grows with every job that comes.
        lane: its lane; None: it waits, or lends nothing.
        asked: all its members want to begin a round, since this number of askings.
        began: when the round under way began, in seconds; None: none is under way.
        spent: seconds in which it had rounds under way.
        idle: seconds in which it wanted none, since its first.
        ended: when its last round was over, in seconds, until it wants another; None: it does.
        done: rounds that it has finished.
        left: rounds still to do; 0: not known.
    """

    number: int
    need: Need
    came: int
    lane: Lane | None = None
    asked: int | None = None
    began: float | None = None
    spent: float = 0.0
    idle: float = 0.0
    ended: float | None = None
    done: int = 0
    left: int = 0

    def wants(self, now: float) -> None:
        """Note that it wants to begin a round."""
        if self.ended is not None:
            self.idle += now - self.ended
            self.ended = None

    @property
    def load(self) -> float | None:
        """Return the part of the time in which it would have rounds under way, if it never waited.

        None: it is not known yet.
        """
        return self.spent / (self.spent + self.idle) if self.done > 1 else None

    @property
    def remaining(self) -> float:
        """Return the seconds that its rounds still take; infinite if it has not told how many.

        0 before the first round has been measured, so that it is measured soon.
        """
        if not self.left:
            return inf
        return self.left * self.spent / self.done if self.done else 0.0
