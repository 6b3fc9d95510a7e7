"""Makes scenarios of several whole jobs that are short of memory, under every policy.

They are drawn apart from those of generate.py, so that a new plan here changes none of these.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random

from .drawing import STARS, TREES, Drawing, nodes
from .scenario import WHOLE, Event, Scenario
from .sharing import below_a_fallback, in_a_pool, in_turns, least_memory, split

CROWDED = tuple(form for form in (*STARS, *TREES) if len(nodes(form)[0]) > 1)


class Shared(Drawing):
    """Draws a scenario in which two or three jobs share a star, or a tree with a fallback."""

    def scenario(self) -> Scenario:
        """Draw the scenario."""
        shares = self.rng.choice((in_a_pool, in_a_pool, in_turns, in_turns, below_a_fallback))
        stars = shares is not below_a_fallback
        self.form = self.rng.choice([form for form in CROWDED if (form in STARS) is stars])
        self.think = self.horizon / 40
        job = self.job(WHOLE, len(self.hosts))
        self.faults(self.rng.randrange(2, 7), restarts=True)
        scenario = split(self.scenario_of((job,)), self.rng, (WHOLE,))
        return with_comings_and_goings(shares(scenario, self.rng))


def with_comings_and_goings(scenario: Scenario) -> Scenario:
    """Let jobs come and go, and wait for each other's memory, if no switch restarts.

    The root has memory for the job that stays and any other one; or, if all go, for any one. A
    switch that restarts as a job goes may take a late Join for one of a worker that has come.
    """
    rng = Random(f"comings and goings {scenario.seed}")
    if scenario.restarts or rng.random() < 0.4:
        return scenario
    jobs, span = scenario.jobs, scenario.horizon
    stays = rng.choice((None, *jobs, *jobs))
    events = []
    for job in jobs:
        if rng.random() < 0.5:
            events.append(Event(round(rng.random() * 0.4 * span, 6), "come", job.hosts[0]))
        if job is not stays:
            when = round(rng.uniform(0.2, 0.8) * span, 6)
            events.append(Event(when, "go", job.hosts[0]))
    both = sorted((*scenario.events, *events), key=lambda event: event.at)
    scenario = replace(scenario, events=tuple(both))
    if not scenario.memory:  # that of the root is not short
        return scenario
    beside = () if stays is None else (stays,)
    least = max(least_memory(scenario, (*beside, job)) for job in jobs if job is not stays)
    return replace(scenario, memory=rng.randint(least, max(least, scenario.memory)))
