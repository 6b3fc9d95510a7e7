"""The parts that scenarios are drawn from: jobs, links and events."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from random import Random

from topologies import Topology

from .scenario import ASYNCHRONOUS, COLLECTIVES, WHOLE, Event, Job, Scenario
from .values import EXACT, most_lives

STARS = ("star:1", "star:2", "star:3", "star:4", "star:5")
TREES = (
    "rack:1x2", "rack:2x1", "rack:2x2", "rack:1x3", "rack:3x1", "rack:2x3",
    "tree:1x1x2", "tree:2x1x2", "tree:2x2x1", "tree:1x1x1x2", "leafspine:2x2x2",
)  # fmt: skip
WIDE = ("rack:1x2", "rack:2x2", "rack:2x3", "tree:1x1x2", "tree:2x1x2")  # two at some switch
LEASE = 4.0  # seconds, where all are told of lost members, which send every second
NUMBERS = 40  # contributions of a worker of an asynchronous job, at most
LARGE = (200, 700)  # segments: some super-datagrams, so that there are runs and a window


class Drawing:
    """Draws a scenario from a seed; each part adds events.

    Attributes:
        form: the network, as `Topology.parse` takes it.
        lease: seconds, of every switch; 0: it never runs out.
        think: seconds of work between two rounds.
        sound: whether links are sound, and only the plan's own events happen.
    """

    form: str
    think: float

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.rng = Random(f"soak {seed}")
        self.horizon = self.rng.choice((0.05, 0.1, 0.2, 0.4))
        self.events: list[Event] = []
        self.lease = 0.0
        self.sound = False

    @property
    def hosts(self) -> tuple[str, ...]:
        """Return the hosts of the network."""
        return nodes(self.form)[0]

    @property
    def switches(self) -> tuple[str, ...]:
        """Return the switches of the network, the root first."""
        return nodes(self.form)[1]

    def scenario_of(self, jobs: tuple[Job, ...]) -> Scenario:
        """Draw the rest of a scenario: strangers, links, latency, and whether there are ports."""
        if self.rng.random() < 0.3 and not self.sound:
            self.strangers(jobs)
        return Scenario(
            seed=self.seed,
            topology=self.form,
            jobs=jobs,
            links="" if self.sound else self.links(),
            events=tuple(sorted(self.events, key=lambda event: event.at)),
            horizon=self.horizon,
            think=self.think,
            latency=self.rng.choice((2e-5, 1e-4, 5e-4)),
            lease=self.lease,
            ports=self.rng.random() < 0.25,
        )

    def sleeper(self) -> None:
        """Pause a worker, or its whole switch, while others force rounds; cut its switch's link.

        So another worker of the switch waits for a round that the sleeper will not contribute to.
        """
        topology = Topology.parse(self.form)
        sleeper = self.rng.choice(self.hosts)
        switch = topology.switch_of(sleeper)
        elsewhere = [host for host in self.hosts if topology.switch_of(host) != switch]
        others = elsewhere or [host for host in self.hosts if host != sleeper]
        start, step = self.rng.uniform(0.1, 0.3) * self.horizon, self.horizon / 20
        below = bool(elsewhere) and switch != self.switches[0]
        if below and self.rng.random() < 0.5:  # all the rounds come to its switch in one burst
            sleeper = switch
        self.event("pause", sleeper, 6 * step, at=start)
        if below and sleeper != switch:
            self.event("cut", switch, 0.8 * step, at=start + 2.6 * step)
        for i in range(1, 6):
            self.event("fbcast", self.rng.choice(others), at=start + i * step)

    def gathering(self, changes: int, first: tuple[str, ...]) -> float | None:
        """Make a worker late in some scenarios, so that others come and go before all have joined.

        Returns:
            the time, in seconds, at which others come and go; None: any time.
        """
        if not changes or len(first) < 2 or self.rng.random() < 0.7:
            return None
        self.event("cut", first[-1], 0.02, at=0.0)
        return 0.003 + 0.012 * self.rng.random()

    def job(
        self,
        mode: str,
        lives: int,
        hosts: tuple[str, ...] | None = None,
        number: int = 1,
        threshold: int = 0,
    ) -> Job:
        """Draw a synchronous job that can tell `lives` worker processes apart."""
        rng = self.rng
        dtypes = [dtype for dtype in EXACT if most_lives(dtype) >= lives]
        elements = rng.choice((1, 2, 3, 8, 33))
        numel = rng.choice((0, 1, elements, rng.randint(1, 6 * elements), rng.randint(1, 200)))
        numel = min(numel, 12 * elements)  # segments: the fewer, the more histories
        if rng.random() < (0.01 if self.lease else 0.06):  # it has many rounds
            numel = elements * rng.randint(*LARGE) - rng.randrange(elements)
        dtype = rng.choice(dtypes).name.lower()
        in_order = rng.random() < 0.15
        keyed = rng.random() < 0.25
        return Job(
            number, mode, hosts or self.hosts, dtype, numel, elements, threshold, in_order,
            keyed=keyed,
        )  # fmt: skip

    def blocks(self, number: int, hosts: tuple[str, ...], more: int = 0) -> Job:
        """Draw a job whose segments have owners, with `more` worker processes than hosts."""
        rng = self.rng
        job = self.job(WHOLE, len(hosts) + more, hosts, number)
        collective = rng.choice(COLLECTIVES)
        blocks = len(hosts) ** (2 if collective == COLLECTIVES[2] else 1)
        return replace(job, collective=collective, numel=-(-job.numel // blocks))

    def versions(self, number: int, hosts: tuple[str, ...], more: int = 0) -> Job:
        """Draw an asynchronous job, with `more` worker processes than hosts."""
        rng = self.rng
        elements = NUMBERS * (len(hosts) + more) + 1  # the last one counts contributions
        dtype = rng.choice(list(EXACT)).name.lower()
        numel = elements * rng.randint(1, 3)
        h = rng.choice((0, 0, rng.randint(1, len(hosts))))
        return Job(number, ASYNCHRONOUS, hosts, dtype, numel, elements, h)

    def links(self) -> str:
        """Draw impairments of all links."""
        rng = self.rng
        parts = []
        if rng.random() < 0.8:
            loss = rng.choice((0.01, 0.05, 0.1, 0.2))
            parts.append(f"loss={loss}")
            if not self.lease and rng.random() < 0.3:  # a heartbeat must come through
                parts.append(f"burst={rng.choice((2, 4, 8))}")
        if rng.random() < 0.6:
            parts.append(f"duplicate={rng.choice((0.01, 0.1, 0.3))}")
        if rng.random() < 0.3:
            parts.append(f"corrupt={rng.choice((0.01, 0.05))}")
        if rng.random() < 0.6:
            delay = rng.choice((100, 1000))
            parts += [f"delay={delay}us", f"jitter={rng.choice((delay // 2, delay))}us"]
            if rng.random() < 0.6:
                parts.append(f"reorder={rng.choice((0.05, 0.3))}")
        if rng.random() < 0.2:
            parts += ["rate=20Mbit", f"queue={rng.choice((4, 20, 100))}"]
        return ",".join(parts)

    def faults(self, count: int, restarts: bool) -> None:
        """Add faults of processes and links that keep the members."""
        for _ in range(count):
            kinds = ("pause", "pause", "cut", "cut", "echo", "stutter")
            what = self.rng.choice((*kinds, "restart", "restart") if restarts else kinds)
            lasting = self.rng.choice((0.002, 0.02, 0.1))
            if what == "restart":
                who = self.rng.choice(self.switches)
                lasting = self.rng.choice((1e-5, 2e-3, 5e-2))
            elif what != "cut":
                who = self.rng.choice((*self.hosts, *self.switches))
            else:
                who = self.rng.choice((*self.hosts, *self.switches[1:]))  # nothing is above a root
            self.event(what, who, lasting)
            if what == "stutter":  # so that two rounds meet in a burst
                self.event("echo", who, lasting, at=self.events[-1].at)

    def strangers(self, jobs: tuple[Job, ...]) -> None:
        """Add strangers that send, but no attack that could succeed.

        Leave out replays if a switch restarts: it forgets Request numbers and rounds, and might
        accept them. Leave out "garble" if members have leases, which data from their place renews.
        """
        kinds = ["stranger", "spoof"]
        if not self.lease:
            kinds.append("garble")
            if not any(event.what == "restart" for event in self.events):
                kinds.append("replay")
        if any(job.keyed for job in jobs):
            kinds.append("forge")
        for _ in range(self.rng.randint(1, 3)):
            what = self.rng.choice(kinds)
            anywhere = what in ("garble", "replay", "forge")
            places = list(self.switches)
            if anywhere:
                places += [
                    host for job in jobs if job.keyed or what != "forge" for host in job.hosts
                ]
            who = self.rng.choice(places)
            self.event(what, who, self.rng.choice((0.002, 0.02, 0.1)))

    def commands(self, wanted: bool) -> None:
        """Add Halts and Resets."""
        for _ in range(self.rng.randint(1, 3) if wanted else 0):
            what = self.rng.choice(("halt", "reset", "reset"))
            lasting = self.rng.choice((0.001, 0.03)) if what == "halt" else 0.0
            self.event(what, self.rng.choice(self.hosts), lasting)

    def event(
        self, what: str, who: str, lasting: float = 0.0, value: int = 0, at: float | None = None
    ) -> None:
        """Add an event.

        Args:
            what: one of EVENTS.
            who: the node.
            lasting: seconds that it lasts.
            value: a further value that the event takes.
            at: seconds; None: draw a time, but not in the last fifth.
        """
        when = self.rng.random() * 0.8 * self.horizon if at is None else at
        self.events.append(Event(round(when, 6), what, who, lasting, value))


@cache
def nodes(form: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """List hosts and switches of a short form, the root first."""
    topology = Topology.parse(form)
    hosts = tuple(host.name for host in topology.hosts)
    return hosts, tuple(switch.name for switch in topology.tree)


def leaders(form: str) -> set[str]:
    """List the first host of every switch that has hosts."""
    topology = Topology.parse(form)
    places = [topology.hosts_at(switch.name) for switch in topology.tree]
    return {hosts[0].name for hosts in places if hosts}
