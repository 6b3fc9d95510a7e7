"""Changes the memory that jobs of a pool share, as if other jobs came and went."""

from __future__ import annotations

from random import Random

from iswitch.core.jobs.policies import POLICIES
from iswitch.core.jobs.policy import Need, Policy
from iswitch.core.switch import Switch

from .stage import Stage

NUMBER = 0xFFFF  # no job of a history has it


class Tenant:
    """Takes a part of the root's memory, each time another one, until the faults end.

    Args:
        stage: the history; nothing is done if its policy does not resize jobs, or in a tree, whose
            jobs keep their slots.
    """

    def __init__(self, stage: Stage) -> None:
        scenario = stage.scenario
        self.stage = stage
        self._rng = Random(f"tenant {scenario.seed}")
        self._pause = max(scenario.horizon / 12, scenario.think)
        alone = len(stage.simulation.topology.tree) == 1
        if scenario.policy and POLICIES[scenario.policy].resizes and alone:
            stage.network.at(self._pause, self._change)

    def _change(self) -> None:
        scenario, network = self.stage.scenario, self.stage.network
        goes_on = network.now + self._pause < scenario.horizon
        part = self._rng.random() * self._rng.randint(0, 1) if goes_on else 0.0
        switch = self.stage.simulation.switch(self.stage.simulation.topology.tree[0].name)
        if isinstance(switch, Switch):  # else it is down
            policy: Policy = switch.record.policy
            policy.memory = scenario.memory - int(part * scenario.memory)
            policy.admit(NUMBER, Need(0))  # so it sees that there is more or less to share
            policy.forget(NUMBER)
            policy.leave(NUMBER)
        if goes_on:
            network.at(network.now + self._pause * self._rng.uniform(0.5, 1.5), self._change)
