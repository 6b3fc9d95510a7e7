"""A job beside those of a history, which takes memory from their pool and gives it back."""

from __future__ import annotations

from random import Random

from iswitch.core.jobs.policies import POLICIES
from iswitch.core.jobs.policy import Need, Policy
from iswitch.core.switch import Switch

from .scenario import WHOLE
from .sharing import pool_of
from .stage import Stage

NUMBER = 0xFFFF  # no job of a history has it
LOOKS = 4  # for room, between two changes


class Tenant:
    """Has a part of the root's memory, each time another one, until the faults end.

    It waits for room as other jobs do. It leaves the others their fewest slots if one of them needs
    memory with each of its workers, which would be refused without.

    Args:
        stage: the history; nothing is done if its policy does not resize jobs.
    """

    def __init__(self, stage: Stage) -> None:
        scenario = stage.scenario
        self.stage = stage
        self._rng = Random(f"tenant {scenario.seed}")
        self._pause = max(scenario.horizon / 12, scenario.think)
        self._wants = self._looks = 0
        self._at: Policy | None = None  # that has admitted it
        if scenario.policy and POLICIES[scenario.policy].resizes:
            self._most = scenario.memory
            if any(job.mode != WHOLE or job.reproducible for job in scenario.jobs):
                self._most -= pool_of(scenario)[0]
            stage.network.at(self._pause, self._look)

    def _look(self) -> None:
        network = self.stage.network
        goes_on = network.now + self._pause < self.stage.scenario.horizon
        switch = self.stage.simulation.switch(self.stage.simulation.topology.tree[0].name)
        policy = switch.record.policy if isinstance(switch, Switch) else None  # it is down
        if not goes_on or self._looks <= 0:
            self._change(policy, goes_on)
        self._looks -= 1
        if policy is not None and self._wants and self._at is not policy:
            self._at = policy if policy.admit(NUMBER, Need(self._wants)).admitted else None
        if goes_on:
            network.at(network.now + self._pause / LOOKS, self._look)

    def _change(self, policy: Policy | None, goes_on: bool) -> None:
        """Leave, and take another part from now on; the last time none."""
        if policy is not None:
            policy.forget(NUMBER)
            policy.leave(NUMBER)
        self._at = None
        self._looks = self._rng.randint(LOOKS // 2, LOOKS * 3 // 2)
        part = self._rng.random() * self._rng.randint(0, 1) if goes_on else 0.0
        self._wants = int(part * self._most)
