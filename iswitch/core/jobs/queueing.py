"""The base of policies in which jobs without room wait: the order of their queue."""

from __future__ import annotations

from abc import abstractmethod
from typing import Generic, Protocol, TypeVar

from .policy import Need, Policy

MOST_WAITING = 1024  # jobs in the queue; further ones are refused


class Guest(Protocol):
    """A job that has come in, or waits.

    Attributes:
        number: its number.
        need: the bytes reserved for it, and its rounds.
        came: a number that grows with every job that comes.
    """

    number: int
    need: Need
    came: int


G = TypeVar("G", bound=Guest)


class Queueing(Policy, Generic[G]):
    """Lets jobs wait, those of a higher priority before all others."""

    def __init__(self, memory: int) -> None:
        super().__init__(memory)
        self._waiting: dict[int, G] = {}
        self._count = 0

    @abstractmethod
    def rank_in_queue(self, job: G) -> float:
        """Return what decides which waiting job is next: the least one's, of equals the first's."""

    def _next(self) -> int:
        """Return a number that grows with every call."""
        self._count += 1
        return self._count

    def queue(self) -> list[int]:
        """Return the jobs that wait, in the order in which they come in."""

        def rank(one: G) -> tuple[int, float, int]:
            return -one.need.priority, self.rank_in_queue(one), one.came

        return [guest.number for guest in sorted(self._waiting.values(), key=rank)]

    def waits_for(self, job: int) -> int:
        """Return the bytes that a job of the queue needs."""
        return self._waiting[job].need.total

    def priority_of(self, job: int) -> int:
        """Return the priority of a job of the queue."""
        return self._waiting[job].need.priority

    def forget(self, job: int) -> None:
        """Take a job out of the queue."""
        self._waiting.pop(job, None)
