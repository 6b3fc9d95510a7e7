"""Makes scenarios of owned segments, of versions in trees, and of jobs of all kinds together.

They are drawn apart from those of generate.py, so that a new plan here changes none of these.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

from .absence import TOLD
from .drawing import LEASE, STARS, TREES, WIDE, Drawing, leaders
from .scenario import ELASTIC, WHOLE, Job, Scenario

KINDS = "rounds", "blocks", "versions"


class Mixed(Drawing):
    """Draws a plan, one of the methods below, and a scenario that follows it."""

    def scenario(self) -> Scenario:
        """Draw the scenario."""
        plans = [self.owned, self.replaced, self.lost, self.in_a_tree, self.together, self.quiet]
        (plan,) = self.rng.choices(plans, (5, 3, 1, 5, 6, 1))
        self.form = self.rng.choice((*STARS, *TREES))
        self.think = self.horizon / 40
        return self.scenario_of(plan())

    # Plans

    def owned(self) -> tuple[Job, ...]:
        """Keep the ranks; let links and processes fail, and switches lose their state."""
        commands = self.rng.random() < 0.3
        number = self.number(1) if not commands else self.rng.choice((1, 2))
        job = self.blocks(number, self.hosts)
        self.faults(self.rng.randrange(3, 10), restarts=not commands)
        self.commands(commands)
        return (job,)

    def number(self, place: int) -> int:
        """Draw a number for a job whose segments have owners, beside restarts of switches.

        In trees its workers ask for ranks, since nobody else gets a restarted switch's for a lease.
        """
        return 2 * place - (self.form in TREES or self.rng.random() < 0.5)

    def replaced(self) -> tuple[Job, ...]:
        """Let ranks crash or leave, and others take their places, at a star.

        In trees that is left out for whole jobs: docs/hierarchy.md, "Limits".
        """
        self.form = self.rng.choice(STARS[1:])
        changes = self.rng.randint(1, 3)
        job = self.blocks(self.rng.choice((1, 2)), self.hosts, changes)
        for _ in range(changes):
            what = self.rng.choice(("reborn", "reborn", "leave"))
            host = self.rng.choice(self.hosts[what == "leave" :])
            self.event(what, host, self.rng.choice((1e-5, 1e-3, 2e-2)))
        self.faults(self.rng.randrange(2, 6), restarts=False)
        self.commands(self.rng.random() < 0.2 and not job.keyed)
        return (job,)

    def lost(self) -> tuple[Job, ...]:
        """Let a rank be silent for long, or die for a while; the others are told of it."""
        star = self.rng.random() < 0.5
        self.form = self.rng.choice(STARS[1:] if star else WIDE)
        self.lease = LEASE
        self.horizon = 6.0
        self.think = self.horizon / 40
        job = replace(self.blocks(1, self.hosts, 1), tells=True)
        stay = leaders(self.form)
        host = self.rng.choice([host for host in self.hosts if host not in stay])
        what = self.rng.choice(("pause", "reborn")) if star else "pause"
        self.event(what, host, self.rng.choice((0.5, LEASE + TOLD + 0.5)))
        return (job,)

    def in_a_tree(self) -> tuple[Job, ...]:
        """Play an asynchronous job in a tree, where switches restart or workers are replaced."""
        self.form = self.rng.choice(TREES)
        changes = self.rng.choice((0, 0, 1, 2, 3))
        job = self.versions(self.rng.choice((1, 2)), self.hosts, changes)
        job = replace(job, threshold=0, keyed=self.rng.random() < 0.25)
        for _ in range(changes):
            self.event("reborn", self.rng.choice(self.hosts), self.rng.choice((1e-5, 1e-3, 2e-2)))
        self.faults(self.rng.randrange(2, 8), restarts=not changes)
        for _ in range(3):  # a worker is late, so that the others make versions without it
            lasting = self.rng.uniform(4, 16) * self.horizon / 40
            self.event("pause", self.rng.choice(self.hosts), round(lasting, 6))
        return (job,)

    def together(self) -> tuple[Job, ...]:
        """Let two or three jobs of any kinds share a network, each with workers of its own."""
        self.form = self.rng.choice([form for form in (*STARS, *TREES) if form not in ALONE])
        hosts = list(self.hosts)
        self.rng.shuffle(hosts)
        count = min(len(hosts), self.rng.choice((2, 3, 3)))
        cuts = sorted(self.rng.sample(range(1, len(hosts)), count - 1))
        jobs = tuple(
            self.of_any_kind(place, tuple(sorted(hosts[start:stop])))
            for place, (start, stop) in enumerate(pairwise((0, *cuts, len(hosts))), 1)
        )
        rounds = [job for job in jobs if not job.asynchronous]
        commands = bool(rounds) and self.rng.random() < 0.3
        self.faults(self.rng.randrange(3, 10), restarts=not commands)
        if commands:
            for _ in range(self.rng.randint(1, 2)):
                self.event("reset", self.rng.choice(self.rng.choice(rounds).hosts))
        return jobs

    def of_any_kind(self, place: int, hosts: tuple[str, ...]) -> Job:
        """Draw a job that workers keep; two places have no number in common."""
        kind, number = self.rng.choice(KINDS), self.number(place)
        if kind == "blocks":
            return self.blocks(number, hosts)
        if kind == "versions":
            keyed = self.rng.random() < 0.25
            return replace(self.versions(number, hosts), threshold=0, keyed=keyed)
        return self.job(self.rng.choice((WHOLE, ELASTIC)), len(hosts), hosts, number)

    def quiet(self) -> tuple[Job, ...]:
        """Let nothing fail, and no worker be slow."""
        self.sound, self.horizon, self.think = True, 0.005, 0.0
        return (self.blocks(self.rng.choice((1, 2)), self.hosts),)


ALONE = ("star:1",)  # worker
