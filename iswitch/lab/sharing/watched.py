"""A policy that is watched: who had a turn and when, who waited, and how much was reserved."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from iswitch.core.jobs.policy import Need, Policy, Standing, Verdict


@dataclass
class Record:
    """What a policy did, in seconds.

    Attributes:
        turns: job, begin and end of each round of a job that takes turns.
        admitted: when each job was let in.
        freed: when there was room for each of these jobs.
        memory: time and bytes reserved, whenever these changed.
        refused: how often a job was refused memory.
    """

    turns: list[tuple[int, float, float]] = field(default_factory=list)
    admitted: dict[int, float] = field(default_factory=dict)
    freed: dict[int, float] = field(default_factory=dict)
    memory: list[tuple[float, int]] = field(default_factory=list)
    refused: int = 0


class Watched(Policy):
    """Passes everything on to a policy, and keeps a record.

    It says of itself that jobs take turns, if they do so in the policy: make it by `watched`.

    Args:
        policy: decides.
        clock: returns the time, in seconds.
    """

    name = "watched"

    def __init__(self, policy: Policy, clock: Callable[[], float]) -> None:
        super().__init__(policy.memory)
        self.record = Record()
        self._policy = policy
        self._clock = clock
        self._began: dict[int, float] = {}

    def _note(self) -> None:
        memory = self.record.memory
        if not memory or memory[-1][1] != self.reserved:
            memory.append((self._clock(), self.reserved))
            if (job := self._policy.next_in()) is not None:
                self.record.freed.setdefault(job, self._clock())

    @property
    def reserved(self) -> int:
        """Return the bytes that are reserved for all jobs."""
        return self._policy.reserved

    def admit(self, job: int, need: Need) -> Verdict:
        """Reserve memory for one more contributor, and note when its job came in."""
        verdict = self._policy.admit(job, need)
        if verdict.admitted:
            now = self._clock()
            self.record.freed.setdefault(job, now)
            self.record.admitted.setdefault(job, now)
        self.record.refused += not verdict.admitted and not verdict.place
        self._note()
        return verdict

    def withdraw(self, job: int, need: Need) -> None:
        """Give back what one contributor has reserved."""
        self._policy.withdraw(job, need)
        self._note()

    def leave(self, job: int) -> None:
        """Give back all that a job has reserved."""
        self._policy.leave(job)
        self._note()

    def outranks(self, ours: int, theirs: int) -> bool:
        """Return whether a job of one priority may push out sums of a job of another."""
        return self._policy.outranks(ours, theirs)

    def queue(self) -> list[int]:
        """Return the jobs that wait."""
        return self._policy.queue()

    def waits_for(self, job: int) -> int:
        """Return the bytes that a job of the queue needs."""
        return self._policy.waits_for(job)

    def priority_of(self, job: int) -> int:
        """Return the priority of a job of the queue."""
        return self._policy.priority_of(job)

    def forget(self, job: int) -> None:
        """Take a job out of the queue."""
        self._policy.forget(job)

    def next_in(self) -> int | None:
        """Return the job of the queue that can come in now."""
        return self._policy.next_in()

    def slots_of(self, job: int) -> int:
        """Return the slots that a job may use."""
        return self._policy.slots_of(job)

    def room_of(self, job: int) -> int:
        """Return the slots that are reserved for each round of a job."""
        return self._policy.room_of(job)

    def pin(self, job: int) -> None:
        """Give a job its fewest slots."""
        self._policy.pin(job)

    def uses(self, job: int, slots: int) -> None:
        """Note the most slots that a job still has."""
        self._policy.uses(job, slots)
        self._note()

    def reserved_by(self, job: int) -> int:
        """Return the bytes that are reserved for a job."""
        return self._policy.reserved_by(job)

    def share(self) -> list[int]:
        """Share what is free."""
        changed = self._policy.share()
        self._note()
        return changed

    def tell(self, job: int, rounds: int) -> None:
        """Note how many rounds a job still has to do."""
        self._policy.tell(job, rounds)

    def ask(self, job: int, now: float) -> None:
        """Note that a job wants to begin a round."""
        self._policy.ask(job, now)

    def begin(self, job: int, now: float) -> None:
        """Note that a round has begun."""
        self._policy.begin(job, now)
        self._began.setdefault(job, now)

    def end(self, job: int, now: float, done: bool) -> None:
        """Note that a round is over."""
        self._policy.end(job, now, done)
        began = self._began.pop(job, None)
        if began is not None and done:
            self.record.turns.append((job, began, now))

    def has_turn(self, job: int) -> bool:
        """Return whether a job may have a round under way."""
        return self._policy.has_turn(job)

    def standing(self, job: int) -> Standing:
        """Return the lane of a job, and whose turn it is there."""
        return self._policy.standing(job)

    def turns(self) -> list[int]:
        """Give turns."""
        given = self._policy.turns()
        self._note()
        return given

    def look_at(self) -> float:
        """Return when `turns` is to be called though nothing happens."""
        return self._policy.look_at()

    def losses(self) -> list[int]:
        """Return the jobs that have lost their turns."""
        return self._policy.losses()


class WatchedTurns(Watched):
    """Watches a policy in which jobs take turns."""

    takes_turns = True


class WatchedSlots(Watched):
    """Watches a policy in which the slots of jobs change."""

    resizes = True


def watched(policy: Policy, clock: Callable[[], float]) -> Watched:
    """Make what passes everything on to a policy, and keeps a record."""
    if policy.resizes:
        return WatchedSlots(policy, clock)
    return (WatchedTurns if policy.takes_turns else Watched)(policy, clock)
