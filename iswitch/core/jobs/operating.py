"""Carries out an operator's orders: take no new jobs, end jobs, and tell members why.

Rules of docs/protocol.md, "Drained switches".
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from iswitch.core.format.packets import Outgoing
from iswitch.core.format.wire import Status

from .job import Job
from .lifecycle import Lifecycle
from .record import NOWHERE, Elsewhere, Record, bare_answer

LOOK_PAUSE = 0.005  # seconds between two looks whether a round has ended


@dataclass(frozen=True)
class Order:
    """An operator's order.

    Attributes:
        drain: whether to take no new jobs from now on; None: as before.
        jobs: the numbers of the jobs to end; None: all jobs.
        to: the switch to which members are told to go.
        grace: seconds that a round under way may still take.
    """

    drain: bool | None = None
    jobs: frozenset[int] | None = frozenset()
    to: Elsewhere = NOWHERE
    grace: float = 0.0


class Operating:
    """Carries out the orders in a record.

    Args:
        record: the jobs, and the orders.
        lifecycle: changes the jobs.
    """

    def __init__(self, record: Record, lifecycle: Lifecycle) -> None:
        self.record = record
        self.lifecycle = lifecycle
        self._ending: dict[int, tuple[float, Elsewhere]] = {}  # until when, and where to go
        self._look_at = inf

    def deadline(self) -> float:
        """Return the next time at which `carry_out` has work, in seconds; infinite: never."""
        return 0.0 if self.record.orders else self._look_at

    def carry_out(self, now: float) -> list[Outgoing]:
        """Carry out what has been ordered, and end the jobs whose rounds are over."""
        record = self.record
        sends: list[Outgoing] = []
        while record.orders:
            order: Order = record.orders.popleft()
            if order.drain is not None:
                record.drained = order.to if order.drain else None
                sends += self._send_away(now)
            for number in record.jobs if order.jobs is None else order.jobs:
                self._ending[number] = now + order.grace, order.to
        for number, (until, to) in list(self._ending.items()):
            job = record.jobs.get(number)
            if job is None or not job.members:
                del self._ending[number]
            elif now >= until or is_between_rounds(job):
                del self._ending[number]
                sends += self.lifecycle.evict(job, to, now)
        self._look_at = now + LOOK_PAUSE if self._ending else inf
        return sends

    def _send_away(self, now: float) -> list[Outgoing]:
        """Refuse the contributors that wait for memory, if the switch is drained."""
        record = self.record
        sends: list[Outgoing] = []
        if record.drained is None:
            return sends
        for number in record.policy.queue():
            record.policy.forget(number)
            for one in record.queue.take(number, now):
                told = record.drained.told()
                sends.append(bare_answer(one.peer, one.packet, Status.DRAINED, **told))
        return sends


def is_between_rounds(job: Job) -> bool:
    """Return whether nothing is lost if the job ends now, but what its members compute."""
    if job.shape is None or not job.synchronous:
        return True
    return job.has_finished(job.high) or not job.bits_held()
