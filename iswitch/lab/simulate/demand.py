"""What workers compute and call: of the options alone, or of a workload."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np

from iswitch.sim.model.fabric import Floats
from iswitch.sim.model.steps import Call, Group, Item, Schedule
from iswitch.virtual.computing import Computing
from iswitch.workload.programs import programs

from .scenario import Scenario


class Demand(NamedTuple):
    """The programs of all workers, and how their calls are carried."""

    programs: list[list[Item]]
    schedule: Schedule = Schedule()

    @classmethod
    def of(cls, scenario: Scenario) -> Demand:
        """Return what the workers of a scenario do."""
        if scenario.work is not None:
            arrangement, seed = scenario.arrangement, scenario.compute.seed
            made = programs(scenario.work, scenario.workers, arrangement, seed)
            return cls(made, arrangement.schedule)
        call = Call(Group(range(scenario.workers)), scenario.size.numel)
        times = computing(scenario).T.tolist()
        item = partial(Item, call=call, blocks=True, ends=True)
        return cls([[item(seconds) for seconds in row] for row in times])

    @property
    def steps(self) -> int:
        """Return the number of steps."""
        return sum(item.ends for item in self.programs[0])

    @property
    def compute(self) -> list[float]:
        """Return the seconds of computing in each step, the mean of the workers."""
        totals = [0.0] * self.steps
        for items in self.programs:
            step = 0
            for item in items:
                totals[step] += item.seconds
                step += item.ends
        return [total / len(self.programs) for total in totals]

    @property
    def bytes(self) -> int:
        """Return the bytes that the first worker has summed in a step, the mean."""
        return 4 * sum(item.call.numel for item in self.programs[0] if item.call) // self.steps

    @property
    def longest(self) -> int:
        """Return the elements of the longest vector that is carried at a time."""
        items = (item for items in self.programs for item in items)
        longest = max((item.call.numel for item in items if item.call is not None), default=1)
        return min(longest, self.schedule.piece or longest)

    def groups(self) -> list[Group]:
        """Return all groups that call something."""
        items = (item for items in self.programs for item in items)
        return list(dict.fromkeys(item.call.group for item in items if item.call is not None))

    def first(self, steps: int) -> Demand:
        """Return the first steps."""
        cut = []
        for items in self.programs:
            ends = [at for at, item in enumerate(items, 1) if item.ends]
            cut.append(items[: ends[min(steps, len(ends)) - 1]])
        return self._replace(programs=cut)

    def halved(self) -> Demand:
        """Return the same with half as many elements."""

        def half(item: Item) -> Item:
            call = item.call
            return item._replace(call=call and call._replace(numel=max(1, call.numel // 2)))

        return self._each(half)

    def faster(self) -> Demand:
        """Return the same with half the computing."""
        return self._each(lambda item: item._replace(seconds=item.seconds / 2))

    def evened(self) -> Demand | None:
        """Return the same with computing half as far from its mean; None: all compute equally."""
        if len({len(items) for items in self.programs}) > 1:
            return None
        times = np.array([[item.seconds for item in items] for items in self.programs])
        even = (times + times.mean(axis=0)) / 2
        if np.allclose(times, even):
            return None
        made = [
            [item._replace(seconds=seconds) for item, seconds in zip(items, row, strict=True)]
            for items, row in zip(self.programs, even.tolist(), strict=True)
        ]
        return self._replace(programs=made)

    def _each(self, change: Callable[[Item], Item]) -> Demand:
        return self._replace(programs=[[change(item) for item in some] for some in self.programs])


def computing(scenario: Scenario) -> Floats:
    """Return how long each worker computes in each iteration, (iterations, ranks) seconds."""
    plan = scenario.compute
    if plan.kind == "zero" or not (plan.sigma or plan.slow or plan.kind == "file"):
        return np.full((scenario.iterations, scenario.workers), plan.seconds)
    ranks = [Computing(plan, rank) for rank in range(scenario.workers)]
    times = np.empty((scenario.iterations, scenario.workers))
    for row in times:
        for rank, one in enumerate(ranks):
            one.mark()
            row[rank] = one.charge()
    return times
