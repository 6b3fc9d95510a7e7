"""Policies: which jobs may share the memory of a switch, and how (docs/sharing.md).

The operator chooses one. It decides with numbers of jobs and bytes alone, so that it can be played
against an oracle without a switch. `memory.py` asks it when a contributor joins, and `turns.py`,
where jobs take turns, when rounds begin and end.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from math import inf
from typing import ClassVar, NamedTuple

from iswitch.core.format.wire import Turn


class Growth(NamedTuple):
    """How the slots of a job may change, if its policy resizes jobs.

    Attributes:
        least: slots for which its persistent part has room.
        most: slots that are of use to it.
        each: bytes of one slot more.
    """

    least: int
    most: int
    each: int


class Need(NamedTuple):
    """The bytes that a contributor of a job needs at the switch, the job's buffers included.

    Attributes:
        persistent: as long as it is a member: kept aggregates and tables.
        ephemeral: only while a round is under way: the vector in flight. 0 if it cannot be lent.
        rounds: that the job still has to do, as it tells; 0: it does not tell.
        priority: of the job, from 0 on; jobs of a higher one go before all others.
        growth: how its slots may change; None: they stay.
    """

    persistent: int
    ephemeral: int = 0
    rounds: int = 0
    priority: int = 0
    growth: Growth | None = None

    @property
    def total(self) -> int:
        """Return the sum of both."""
        return self.persistent + self.ephemeral


class Verdict(NamedTuple):
    """The answer to a contributor that wants memory.

    Attributes:
        admitted: it has the memory.
        place: its job's place in the queue, from 1 on; 0: it does not wait, but is refused.
    """

    admitted: bool
    place: int = 0


ADMITTED, REFUSED = Verdict(True), Verdict(False)


class Standing(NamedTuple):
    """The place of a job among those that take turns.

    Attributes:
        lane: the number of its lane, from 1 on, of the oldest first; 0: it takes no turns.
        turn: whether it has its turn there, or waits for it.
    """

    lane: int = 0
    turn: Turn = Turn.NONE


NO_LANE = Standing()


class Policy(ABC):
    """Shares the memory of a switch among its jobs.

    Args:
        memory: bytes that may be reserved at any instant.
    """

    name: ClassVar[str]
    takes_turns: ClassVar[bool] = False  # jobs lend each other the ephemeral part of their memory
    passes_on: ClassVar[bool] = False  # segments without a slot go on to the switch above
    resizes: ClassVar[bool] = False  # the slots of jobs change from round to round

    def __init__(self, memory: int) -> None:
        self.memory = memory

    @property
    @abstractmethod
    def reserved(self) -> int:
        """Return the bytes that are reserved for all jobs, at most `memory`."""

    @abstractmethod
    def admit(self, job: int, need: Need) -> Verdict:
        """Reserve memory for one more contributor of a job, let the job wait, or refuse it.

        Args:
            job: the job's number.
            need: what this contributor needs; of the job's first one, with the job's buffers.
        """

    @abstractmethod
    def withdraw(self, job: int, need: Need) -> None:
        """Give back what `admit` has reserved for one contributor: the machine has no memory."""

    @abstractmethod
    def leave(self, job: int) -> None:
        """Give back all that a job has reserved: its last contributor has left."""

    def outranks(self, ours: int, theirs: int) -> bool:  # noqa: ARG002
        """Return whether a job of one priority may push out sums of a job of another."""
        return False

    # The queue: empty where a job without room is refused

    def queue(self) -> list[int]:
        """Return the jobs that wait, in the order in which they come in."""
        return []

    def waits_for(self, job: int) -> int:  # noqa: ARG002
        """Return the bytes that a job of the queue needs."""
        return 0

    def priority_of(self, job: int) -> int:  # noqa: ARG002
        """Return the priority of a job of the queue."""
        return 0

    def forget(self, job: int) -> None:  # noqa: B027  (only some let jobs wait)
        """Take a job out of the queue."""

    def next_in(self) -> int | None:
        """Return the job of the queue that `admit` would take in now; None: there is none."""
        return None

    # Slots: only where they change

    def slots_of(self, job: int) -> int:  # noqa: ARG002
        """Return the slots that a job may use in rounds to come; 0: they do not change."""
        return 0

    def room_of(self, job: int) -> int:  # noqa: ARG002
        """Return the slots that are reserved for each round of a job."""
        return 0

    def pin(self, job: int) -> None:  # noqa: B027
        """Give a job its fewest slots, for as long as it lasts."""

    def uses(self, job: int, slots: int) -> None:  # noqa: B027
        """Note the most slots that a job still has, or may have, in a round."""

    def reserved_by(self, job: int) -> int:  # noqa: ARG002
        """Return the bytes that are reserved for a job."""
        return 0

    def share(self) -> list[int]:
        """Share what is free; return the jobs that may use other numbers of slots than before."""
        return []

    # Turns: only where jobs take them

    def tell(self, job: int, rounds: int) -> None:  # noqa: B027
        """Note how many rounds a job still has to do, as its member tells."""

    def ask(self, job: int, now: float) -> None:  # noqa: B027
        """Note that all members of a job want to begin a round."""

    def begin(self, job: int, now: float) -> None:  # noqa: B027
        """Note that a round of the job that has its lane has begun."""

    def end(self, job: int, now: float, done: bool) -> None:  # noqa: B027
        """Note that this round is over: `done`, or given up."""

    def has_turn(self, job: int) -> bool:  # noqa: ARG002
        """Return whether a job may have a round under way."""
        return True

    def standing(self, job: int) -> Standing:  # noqa: ARG002
        """Return the lane of a job, and whose turn it is there."""
        return NO_LANE

    def turns(self) -> list[int]:
        """Give turns to jobs that have asked, and return these jobs."""
        return []

    def look_at(self) -> float:
        """Return when `turns` is to be called though nothing happens, in seconds; inf: never."""
        return inf

    def losses(self) -> list[int]:
        """Return the jobs that have lost their turns since this was called last.

        They must give back the ephemeral part of their memory before anything else is allocated.
        """
        return []


class Static(Policy):
    """Every job keeps all its memory from its first Join on; without room a Join is refused."""

    name = "static"

    def __init__(self, memory: int) -> None:
        super().__init__(memory)
        self._reserved = 0
        self._by_job: dict[int, int] = {}

    @property
    def reserved(self) -> int:
        """Return the bytes that are reserved for all jobs."""
        return self._reserved

    def admit(self, job: int, need: Need) -> Verdict:
        """Reserve memory for one more contributor of a job, or refuse it."""
        if self._reserved + need.total > self.memory:
            return REFUSED
        self._change(job, need.total)
        return ADMITTED

    def withdraw(self, job: int, need: Need) -> None:
        """Give back what one contributor has reserved."""
        self._change(job, -need.total)

    def leave(self, job: int) -> None:
        """Give back all that a job has reserved."""
        self._reserved -= self._by_job.pop(job, 0)

    def _change(self, job: int, nbytes: int) -> None:
        self._by_job[job] = self._by_job.get(job, 0) + nbytes
        self._reserved += nbytes
