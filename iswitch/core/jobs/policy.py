"""Policies: which jobs may share the memory of a switch, and how (docs/sharing.md).

The operator chooses one. It decides with numbers of jobs and bytes alone, so that it can be played
against an oracle without a switch. `memory.py` asks it when a contributor joins, and `turns.py`,
where jobs take turns, when rounds begin and end.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar, NamedTuple


class Need(NamedTuple):
    """The bytes that a contributor of a job needs at the switch, the job's buffers included.

    Attributes:
        persistent: as long as it is a member: kept aggregates and tables.
        ephemeral: only while a round is under way: the vector in flight. 0 if it cannot be lent.
    """

    persistent: int
    ephemeral: int = 0

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


class Policy(ABC):
    """Shares the memory of a switch among its jobs.

    Args:
        memory: bytes that may be reserved at any instant.
    """

    name: ClassVar[str]
    takes_turns: ClassVar[bool] = False  # jobs lend each other the ephemeral part of their memory

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


POLICIES: dict[str, type[Policy]] = {kind.name: kind for kind in (Static,)}
