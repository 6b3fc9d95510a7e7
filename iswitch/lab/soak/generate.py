"""Makes scenarios from seeds: which events may meet in one, which may not, and why."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from .absence import TOLD
from .drawing import LEASE, STARS, TREES, WIDE, Drawing, leaders, nodes
from .mixed import Mixed
from .scenario import ELASTIC, WHOLE, Event, Job, Scenario
from .shared import Shared
from .sharing import CALM, with_company, with_fallback, with_policy, with_pool, with_slots

SLOW = 0.02  # seconds between rounds: a Reset is repeated before the second one after it
OTHERS = 0.25  # of the histories are of the plans in mixed.py
SHORT_OF_MEMORY = 0.2  # of the histories in which the workers stay are those of shared.py


def generate(seed: int) -> Scenario:
    """Make the scenario of a seed."""
    scenario = _drawn(seed)
    scarce = Random(f"short of memory {seed}").random() < SHORT_OF_MEMORY
    if scarce and not scenario.changes:  # of those in which workers come and go there are few
        return with_rings(with_garble(with_impostors(Shared(seed).scenario())))
    return scenario


def _drawn(seed: int) -> Scenario:
    if Random(f"other plans {seed}").random() < OTHERS:
        return _more(with_impostors(Mixed(seed).scenario()))
    scenario = with_missed_resets(with_company(_Generator(seed).scenario()))
    return _more(with_impostors(with_lost_resets(scenario)))


def _more(scenario: Scenario) -> Scenario:
    return with_policy(with_pool(with_slots(with_fallback(with_rings(with_garble(scenario))))))


def with_rings(scenario: Scenario) -> Scenario:
    """Let workers and switches have rings, in sockets' histories in which nobody forges packets."""
    rng = Random(f"rings {scenario.seed}")
    if scenario.ports or scenario.strangers or scenario.is_quiet or rng.random() < 0.3:
        return scenario
    return replace(scenario, rings=True)


def with_missed_resets(scenario: Scenario) -> Scenario:
    """Cut a worker off at each Reset, so that it learns of the Reset by Help before the relay.

    Leave out keyed jobs: there strangers send recorded Resets, which are late, too.
    """
    rng = Random(f"missed reset {scenario.seed}")
    hosts = [host for job in scenario.jobs for host in job.hosts]
    resets = [event for event in scenario.events if event.what == "reset"]
    if not resets or len(hosts) == 1 or any(job.keyed for job in scenario.jobs):
        return scenario
    cuts = []
    for event in resets:
        other = rng.choice([host for host in hosts if host != event.who])
        cuts.append(Event(event.at, "cut", other, round(rng.uniform(0.021, 0.05), 6)))
    return _beside(replace(scenario, think=SLOW), *cuts)


def with_lost_resets(scenario: Scenario) -> Scenario:
    """Add a switch restart when some workers may have heard of a Reset, and others not.

    Only in whole jobs without a key: docs/soak.md, "What is left out".
    """
    rng = Random(f"lost reset {scenario.seed}")
    kinds = {event.what for event in scenario.events} - CALM
    unfit = any(job.mode != WHOLE or job.keyed for job in scenario.jobs) or scenario.lease
    rare = kinds == {"restart"} and rng.random() < 0.1
    if unfit or not (kinds == {"reset"} or rare):
        return scenario
    pause = rng.choice((0.0002, 0.001, 0.005))
    chosen = rng.choice([event for event in scenario.events if event.what in kinds])
    hosts, switches = nodes(scenario.topology)
    if rare:
        event = Event(max(0.0, round(chosen.at - pause, 6)), "reset", rng.choice(hosts))
    else:
        lasting = rng.choice((1e-5, 0.001, 0.02))
        event = Event(round(chosen.at + pause, 6), "restart", rng.choice(switches), lasting)
    return _beside(scenario, event)


def _beside(scenario: Scenario, *events: Event) -> Scenario:
    both = sorted((*scenario.events, *events), key=lambda event: event.at)
    return replace(scenario, events=tuple(both))


def with_garble(scenario: Scenario) -> Scenario:
    """Add data of rounds beyond the next, where nothing but contributions moves the window."""
    rng = Random(f"garble {scenario.seed}")
    moved = {event.what for event in scenario.events} - CALM
    if moved or scenario.lease or scenario.is_quiet or rng.random() < 0.3:
        return scenario
    root = nodes(scenario.topology)[1][0]
    event = Event(round(rng.random() * 0.5 * scenario.horizon, 6), "garble", root, 0.02)
    return _beside(scenario, event)


def with_impostors(scenario: Scenario) -> Scenario:
    """Add strangers that attack workers through their switches' ports, if there are any."""
    rng = Random(f"impostor {scenario.seed}")
    if not scenario.ports or scenario.is_quiet or rng.random() < 0.4:
        return scenario
    hosts = [host for job in scenario.jobs for host in job.hosts]
    events = [
        Event(
            round(rng.random() * 0.8 * scenario.horizon, 6), "impostor", rng.choice(hosts),
            rng.choice((0.002, 0.02, 0.1)),
        )
        for _ in range(rng.randint(1, 2))
    ]  # fmt: skip
    return _beside(scenario, *events)


class _Generator(Drawing):
    """Draws a plan, one of the methods below, and a scenario that follows it."""

    def scenario(self) -> Scenario:
        plans = [self.steady, self.members, self.both, self.leases]
        plans += [self.threshold, self.forced, self.asynchronous, self.several, self.told]
        plans += [self.attacked, self.halted_again, self.quiet]
        (plan,) = self.rng.choices(plans, (8, 7, 3, 3, 2, 4, 5, 2, 2, 3, 1, 1))
        self.form = self.rng.choice(STARS if self.rng.random() < 0.5 else TREES)
        self.think = self.horizon / 40
        return self.scenario_of(plan())

    # Plans

    def steady(self) -> tuple[Job, ...]:
        """Keep the members; let links and processes fail, and switches lose their state."""
        job = self.job(self.rng.choice((WHOLE, ELASTIC)), len(self.hosts))
        # A Reset that not all have heard of is forgotten with the state of the switch.
        commands = self.rng.random() < 0.3
        self.faults(self.rng.randrange(3, 10), restarts=not commands)
        self.commands(commands)
        return (job,)

    def members(self) -> tuple[Job, ...]:
        """Let workers come and go; no switch loses its state.

        A restarted switch waits again for as many workers as were expected at first:
        docs/protocol.md, "A switch that lost its state".
        """
        mode = self.rng.choice((WHOLE, ELASTIC))
        mortals = list(self.hosts)
        if len(self.switches) > 1:
            # docs/hierarchy.md, "Limits": a switch must have a member that takes part in the round;
            # and the round that a newcomer to a whole job is given can be beyond that of the Reset.
            mode = ELASTIC
            stay = leaders(self.form)
            mortals = [host for host in self.hosts if host not in stay]
        late = mode == ELASTIC and len(mortals) > 1 and self.rng.random() < 0.5
        newcomers = [mortals.pop()] if late else []
        changes = self.rng.randint(1, 3) if mortals else 0
        first = tuple(host for host in self.hosts if host not in newcomers)
        job = self.job(mode, len(self.hosts) + changes, first)
        for host in newcomers:
            self.event("join", host)
        leavers = [host for host in mortals if host != first[0]]  # one worker always stays
        when = self.gathering(changes, first)
        twice = self.rng.random() < 0.3  # the second dies young
        for _ in range(changes):
            what = self.rng.choice(("reborn", "reborn", "leave"))
            if what == "reborn":
                host = mortals[0] if twice else self.rng.choice(mortals)
                hold = self.rng.choice((0, 2000, 10_000, 30_000)) if mode == ELASTIC else 0
                self.event(what, host, self.rng.choice((1e-5, 1e-3, 2e-2)), hold, at=when)
                when = self.events[-1].at + 0.003 if twice else when
            elif leavers:
                host = leavers.pop(self.rng.randrange(len(leavers)))
                # A whole job waits for the place to be taken; it was promised nothing less.
                back = mode == WHOLE or self.rng.random() < 0.5
                self.event(what, host, self.rng.choice((1e-3, 2e-2)) if back else 0.0, at=when)
        self.faults(self.rng.randrange(2, 6), restarts=False)
        # In a keyed job nobody goes back, also not a newcomer that was told a later round.
        self.commands(self.rng.random() < 0.2 and not job.keyed)
        return (job,)

    def both(self) -> tuple[Job, ...]:
        """Let workers crash and be replaced, and switches restart.

        A crash and a restart are further apart than a packet can be late: a switch that knows
        nothing of the old process cannot tell its packets from those of the new one. Each of them
        is over before the next one.
        """
        self.form = self.rng.choice(STARS)  # see docs/soak.md, "What is left out"
        count = self.rng.randint(2, 4)
        job = self.job(ELASTIC, len(self.hosts) + count)
        self.horizon = max(self.horizon, 0.2)
        for i in range(count):
            self.time = (i + self.rng.random() * 0.5) * self.horizon / count
            lasting = self.rng.choice((1e-5, 1e-3, 0.25 * self.horizon / count))
            if self.rng.random() < 0.5:
                self.event("restart", self.rng.choice(self.switches), lasting, at=self.time)
            else:
                self.event("reborn", self.rng.choice(self.hosts), lasting, at=self.time)
        return (job,)

    def leases(self) -> tuple[Job, ...]:
        """Let workers die, or be silent for longer than their lease.

        One worker stays: a job that loses its last contributor begins anew, and waits for all.
        """
        self.form = self.rng.choice(STARS[2:])
        self.lease = 1.5  # longer than any pause between two repeats of a Join
        self.horizon = 5.0
        mode = self.rng.choice((WHOLE, ELASTIC))
        job = self.job(mode, len(self.hosts) + 2)
        sleeper, mortal = self.rng.sample(self.hosts, 2)
        self.event("pause", sleeper, self.rng.choice((0.5, 1.7, 3.0)))
        if mode == ELASTIC:
            self.event("die", mortal)
        elif self.rng.random() < 0.5:
            self.event("reborn", mortal, self.rng.choice((0.01, 2.0)))
        return (job,)

    def told(self) -> tuple[Job, ...]:
        """Let one or two workers die, leave, or be silent for long; the others are told.

        Then another worker takes the place, or H is set (in a star only, since SetH acts at one
        switch), or the silent worker resumes.
        """
        star = self.rng.random() < 0.5
        self.form = self.rng.choice(STARS[1:] if star else WIDE)
        self.lease = LEASE
        self.horizon = 6.0
        job = replace(self.job(WHOLE, len(self.hosts) + 2), tells=True)
        # A switch all of whose workers are silent leaves the job: docs/hierarchy.md, "Limits".
        stay = leaders(self.form)
        mortals = [host for host in self.hosts if host not in stay]
        what = self.rng.choice(("pause", "pause", "reborn", "leave", "die") if star else ("pause",))
        for host in self.rng.sample(mortals, min(len(mortals), self.rng.randint(1, 2))):
            long = LEASE + TOLD + self.rng.choice((0.5, 3.0))
            lasting = 0.0 if what == "die" else self.rng.choice((0.5, long, long))
            self.event(what, host, lasting)
        if what == "die":
            left = len(self.hosts) - len(self.events)
            self.event("seth", self.hosts[0], value=left, at=self.horizon + LEASE + TOLD)
        return (job,)

    def attacked(self) -> tuple[Job, ...]:
        """Give commands in a keyed job, which a stranger records and sends again."""
        kinds = ["reset", "halt"]
        if len(self.switches) == 1 and len(self.hosts) > 1:
            kinds += ["leave", "reborn", "seth"]
        given = [self.rng.choice(kinds) for _ in range(self.rng.randint(1, 3))]
        if "seth" in given:  # a halted job refuses it; and it waits for workers that have left
            given = ["seth"] * len(given)
        mode = ELASTIC if "seth" in given else self.rng.choice((WHOLE, ELASTIC))
        job = replace(self.job(mode, len(self.hosts) + len(given)), keyed=True)
        mortals = list(self.hosts[1:])  # somebody always stays
        for what in given:
            when = self.rng.random() * 0.4 * self.horizon
            if what in ("reset", "halt"):
                self.event(what, self.rng.choice(self.hosts), 0.001 * (what == "halt"), at=when)
            elif what == "seth":
                value = self.rng.randint(0, len(self.hosts))
                self.event(what, self.rng.choice(self.hosts), value=value, at=when)
            elif mortals:
                host = mortals.pop(self.rng.randrange(len(mortals)))
                self.event(what, host, self.rng.choice((1e-3, 2e-2)), at=when)
        for _ in range(self.rng.randint(2, 4)):
            who = self.rng.choice((*self.hosts, *self.switches, *self.switches))
            when = (0.4 + self.rng.random() * 0.4) * self.horizon
            self.event(self.rng.choice(("replay", "replay", "forge")), who, 0.1, at=when)
        return (job,)

    def threshold(self) -> tuple[Job, ...]:
        """Set H, at a star: a restarted switch knows no H, and SetH acts at one switch."""
        self.form = self.rng.choice(STARS[1:])
        job = self.job(ELASTIC, len(self.hosts), threshold=self.rng.randint(1, len(self.hosts)))
        for _ in range(self.rng.randrange(3)):
            value = self.rng.randint(0, len(self.hosts))
            self.event("seth", self.rng.choice(self.hosts), value=value)
        self.faults(self.rng.randrange(2, 6), restarts=False)
        return (job,)

    def forced(self) -> tuple[Job, ...]:
        """Force broadcasts of rounds as they are (FBcast)."""
        if self.rng.random() < 0.6:
            self.form = self.rng.choice(("rack:2x2", "rack:2x3", "tree:2x1x2", "star:3"))
        job = self.job(self.rng.choice((WHOLE, ELASTIC)), len(self.hosts))
        for _ in range(self.rng.randint(1, 3)):
            self.event("fbcast", self.rng.choice(self.hosts))
        self.faults(self.rng.randrange(2, 6), restarts=False)
        if len(self.hosts) > 2:
            self.sleeper()
        return (job,)

    def asynchronous(self) -> tuple[Job, ...]:
        """Play an asynchronous job, at a star: trees refuse them."""
        self.form = self.rng.choice(STARS[:4])
        job = self.versions(1, self.hosts)
        self.faults(self.rng.randrange(2, 6), restarts=not job.threshold)
        for _ in range(5 if len(self.hosts) > 1 else 0):  # about as many as versions are made
            lasting = self.rng.uniform(4, 16) * self.horizon / 40
            self.event("pause", self.rng.choice(self.hosts), round(lasting, 6))
        return (job,)

    def several(self) -> tuple[Job, ...]:
        """Play two jobs at one star; `with_company` does so in trees."""
        self.form = self.rng.choice(STARS[2:])
        middle = len(self.hosts) // 2
        mine, others = self.hosts[:middle], self.hosts[middle:]
        first = self.job(self.rng.choice((WHOLE, ELASTIC)), len(mine), mine)
        if versions := self.rng.random() < 0.3:
            second = self.versions(2, others)
        else:
            second = self.job(self.rng.choice((WHOLE, ELASTIC)), len(others), others, number=2)
        commands = self.rng.random() < 0.3 and not versions
        self.faults(self.rng.randrange(4), restarts=not (commands or versions))
        self.commands(commands)
        return first, second

    def halted_again(self) -> tuple[Job, ...]:
        """Restart the root of a tree, whose relays begin anew.

        Links are sound, so all workers have heard of the Reset long before the restart.
        """
        self.form = self.rng.choice(TREES)
        self.sound, self.horizon = True, 1.2
        self.think = self.horizon / 40
        job = self.job(self.rng.choice((WHOLE, ELASTIC)), len(self.hosts))
        self.event("halt", self.rng.choice(self.hosts), 0.001, at=0.1)
        self.event("restart", self.switches[0], 0.002, at=0.3)
        self.event("halt", self.rng.choice(self.hosts), 0.001, at=1.0)
        return (job,)

    def quiet(self) -> tuple[Job, ...]:
        """Let nothing fail, and no worker be slow."""
        self.sound, self.horizon, self.think = True, 0.005, 0.0
        return (self.job(self.rng.choice((WHOLE, ELASTIC)), len(self.hosts)),)
