"""Makes scenarios of several whole jobs that are short of memory, under every policy.

They are drawn apart from those of generate.py, so that a new plan here changes none of these.
"""

from __future__ import annotations

from .drawing import STARS, TREES, Drawing, nodes
from .scenario import WHOLE, Scenario
from .sharing import below_a_fallback, in_a_pool, in_turns, split

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
        return shares(scenario, self.rng)
