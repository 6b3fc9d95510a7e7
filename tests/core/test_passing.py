"""Few slots under a fallback: histories of several jobs in a tree, against an oracle.

Every sum of `Jobs` is that of its workers' vectors, or a history fails. Here all switches below the
root share few slots among their jobs, and pass on what has none.
"""

from __future__ import annotations

import os
from typing import ClassVar

import pytest

from iswitch.core.format.packets import Address
from iswitch.core.jobs.limits import Limits
from iswitch.core.switch import Switch
from tests.core.test_tree_jobs import Jobs, OneJob
from worker_lib.protocol.session import Session

pytestmark = pytest.mark.unit

SEEDS = int(os.environ.get("ISWITCH_MODEL_SEEDS", "4"))  # `make model` takes more
POLICIES = "besteffort", "preempt"


class Passing(Jobs):
    """A tree whose lower switches have few slots."""

    policy: ClassVar[str] = "preempt"
    slots: ClassVar[int] = 8

    def new_switch(self, address: Address) -> Switch:
        limits = Limits(lease=self.lease, slots=self.slots, policy=self.policy)
        incarnation = 1000 + int(self.now * 100)
        switch = Switch(limits, False, self.above[address], incarnation, self.keys)
        switch.record.listening = address.port
        return switch

    def join(self, number: int, *args: object, **kwargs: object) -> Session:
        kwargs = {"whole": True, "priority": self.random.randrange(3), **kwargs}
        return super().join(number, *args, **kwargs)  # type: ignore[arg-type]

    def end_job(self, job: OneJob) -> None:
        """End a job everywhere: a whole job takes in nobody while it has its workers still."""
        super().end_job(job)
        self.let_pass(0.5)

    def look(self) -> None:
        """No slot is lost, and each has one owner."""
        for switch in self.switches.values():
            pool = switch.record.pool
            if pool is not None:
                places = [
                    place
                    for job in switch.jobs.values()
                    if job.passes_on
                    for place in job.sums.places[job.sums.places > 0].tolist()  # type: ignore[attr-defined]
                ]
                assert len(places) == len(set(places)) == pool.slots - pool.free


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(SEEDS))
@pytest.mark.parametrize("policy", POLICIES)
def test_random_histories_of_jobs_without_slots(policy: str, seed: int) -> None:
    """Jobs begin and end, switches and fallback restart, packets are lost; all sums are exact."""
    kind = type("Of", (Passing,), {"policy": policy, "slots": (2, 4, 8)[seed % 3]})
    tree = kind(*[(2,), (1, 2), (2, 2), (1,)][seed % 4], seed=seed)
    for _ in range(40):
        tree.step_of_history()
        tree.look()
    for job in list(tree.under_way.values()):
        if job.total is not None:
            tree.end_round(job)
