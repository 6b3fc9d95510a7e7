"""Sets the stage of a history: a simulated network, worker processes, and their oracles."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from random import Random

from iswitch.core.format.keys import Key
from iswitch.core.format.packets import Address
from iswitch.core.format.wire import ROUND_MASK
from iswitch.core.jobs.limits import Limits
from iswitch.core.jobs.policies import POLICIES
from iswitch.core.jobs.policy import Static
from iswitch.core.jobs.shares import Pool
from iswitch.core.sums.buffers import PLAIN, Buffers
from iswitch.core.switch import Switch
from iswitch.sim.trace import Trace
from topologies import Topology
from topologies.simulated import Simulation

from .absence import Absences
from .blocks import Blocks
from .books import Books
from .conduct import Conduct
from .contributing import Contributing
from .drawing import NUMBERS
from .echoes import Echoes
from .exchanging import Exchanging
from .lives import ENOUGH, Life, Process
from .numbering import check_ranks
from .oracle import Rounds, Versions
from .rings import Cables
from .scenario import ELASTIC, Job, Scenario
from .strangers import Stranger, key_of

MEMORY = 1 << 22  # bytes that a switch lets its jobs reserve
NEW_LIFE = {"reborn", "join", "leave"}  # the last if it lasts


class Stage:
    """The network of a history and all that lives in it.

    Args:
        scenario: the network and the jobs.
        trace: records every packet; None: nothing is recorded.
        buffers: source of the switches' buffers.

    Attributes:
        open: events that are still to happen, or to end.
        has_left: called when a worker's Leave was answered.
    """

    def __init__(
        self, scenario: Scenario, trace: Trace | None = None, buffers: Buffers = PLAIN
    ) -> None:
        self.scenario = scenario
        links = f",{scenario.links}" if scenario.links else ""
        topology = replace(Topology.parse(scenario.topology + links), seed=scenario.seed)
        lease = scenario.lease or float("inf")
        limits = Limits(
            scenario.memory or MEMORY,
            lease=lease,
            buffers=buffers,
            slots=scenario.slots,
            policy=scenario.policy or Static.name,
        )
        passes_on = scenario.policy and POLICIES[scenario.policy].passes_on
        below = scenario.policy if passes_on else Static.name
        keys = {job.number: key for job in scenario.jobs if (key := key_of(job)) is not None}
        self.simulation = Simulation(
            topology,
            limits,
            trace,
            scenario.latency,
            keys,
            scenario.ports,
            below=replace(limits, memory=MEMORY, policy=below),
        )
        self.network = self.simulation.network
        self.cables = Cables(self.network, scenario.seed) if scenario.rings else None
        self.stranger = self._stranger_at(topology) if scenario.strangers else None
        halts = sum(event.what == "halt" for event in scenario.events)
        self.conduct = Conduct(self.network, halts, [Key(key) for key in keys.values()])
        self.network.witness = self.conduct
        self.heard_late: set[str] = set()  # processes whose Leave comes after their place was taken
        self.echoes = Echoes(scenario.seed, self.network.home)
        self.books = {switch.name: self.open_books(switch.name) for switch in topology.tree}
        self.oracles = {job.number: self._oracle(job) for job in scenario.jobs}
        self.absences = {job.number: self._absences(job) for job in scenario.jobs}
        self.lives: dict[str, Life | Contributing] = {}  # the last one at each host
        self.identities = dict.fromkeys(self.oracles, 0)
        self.open = len(scenario.events)  # what is still to happen, or to end
        self.has_left: Callable[[Life], None] = lambda _: None

    def close(self) -> None:
        """Give back what this computer lends: the sockets and the memory of rings."""
        if self.cables is not None:
            self.cables.close()

    def open_books(self, name: str) -> Books:
        """Begin to check the books of a switch that has just started."""
        switch = self.simulation.switch(name)
        assert isinstance(switch, Switch)
        return Books(self.simulation.node(name), switch, self.stranger)

    def _stranger_at(self, topology: Topology) -> Stranger:
        switches = [self.simulation.address(switch.name) for switch in topology.tree]
        hosts = {self.simulation.address(host.name): host.name for host in topology.hosts}

        def job_of(address: Address) -> Job | None:
            return self.job_of(hosts[address]) if address in hosts else None

        return Stranger(self.scenario, self.network, switches, job_of, self._round_of)

    def _round_of(self, job: int) -> int:
        """Find the newest round (or version) of a job that any worker has begun."""
        oracle = self.oracles[job]
        if isinstance(oracle, Rounds):
            return max(oracle.begun, default=0)
        return max((version for _, version in oracle.made), default=0)

    def _absences(self, job: Job) -> Absences:
        def rank_of(host: str) -> int | None:
            switch = self.simulation.switch(self.simulation.topology.switch_of(host))
            at_switch = switch and switch.jobs.get(job.number)
            name = self.simulation.address(host)
            members = at_switch.members.by_address if at_switch else {}
            ranks = (m.rank for a, m in members.items() if a[:2] == name[:2])
            return next(ranks, None)

        return Absences(job, self.scenario.lease, self.simulation.switch_of, rank_of)

    def _oracle(self, job: Job) -> Rounds | Versions:
        if job.asynchronous:
            return self._versions(job)
        lives = len(job.hosts)
        for event in self.scenario.events:
            if event.what in NEW_LIFE and self.job_of(event.who) is job:
                lives += event.what != "leave" or event.lasting > 0
        return (Blocks if job.collective else Rounds)(self.scenario, job, lives)

    def _versions(self, job: Job) -> Versions:
        """Make the oracle of an asynchronous job.

        In a tree a version is of a partial sum of each branch. One that is made as the last worker
        joins a restarted switch holds what has come until then; and one that is made as a new
        process takes the place of another, what the others have given.
        """
        topology, h = self.simulation.topology, job.threshold or len(job.hosts)
        root = topology.tree[0].name
        branches = set()
        for host in job.hosts:
            way = [topology.switch_of(host)]
            while above := topology.parents[way[-1]]:
                way.append(above)
            branches.add(way[-2] if len(way) > 1 else root)
        if branches == {root}:
            least, most = h, float(h)
        else:
            least, most = len(branches), float("inf")
            least = 1 if self.scenario.restarts else least
        return Versions(job, NUMBERS, 1 if self.scenario.changes else least, most)

    def job_of(self, host: str) -> Job:
        """Find the job that a host works on; hosts that join later work on the first."""
        jobs = self.scenario.jobs
        return next((job for job in jobs if host in job.hosts), jobs[0])

    def spawn(self, host: str) -> None:
        """Start a new worker process at a host."""
        job = self.job_of(host)
        identity = self.identities[job.number]
        self.identities[job.number] += 1
        oracle = self.oracles[job.number]
        at, above = self.simulation.address(host), self.simulation.switch_of(host)
        second = self._second(job, host, identity)
        process = Process(self.scenario, self.network, host, at, above, identity, second, self.look)
        life: Life | Contributing
        if isinstance(oracle, Versions):
            life = Contributing(process, oracle)
            life.may_start = lambda: self._has_threshold(job)
            life.made = lambda: self.conduct.made.get(job.number, 0)
        else:
            life = (Exchanging if job.collective else Life)(
                process,
                oracle,
                self._expected(job, identity),
                lambda life: self.has_left(life),
                self.absences[job.number].is_told,
            )
        self.lives[host] = life
        if self.stranger is not None:
            self.stranger.forget(at)
        if self.network.now >= self.scenario.horizon and not self.open:
            life.goal = ENOUGH
        self.network.nodes[at].heed = life.heed
        if self.cables is not None:
            self.cables.meet(at, above, life.session)
        self.network.start(at, life.session)

    def _has_threshold(self, job: Job) -> bool:
        """Tell whether the first worker of an asynchronous job has set H."""
        first = self.lives[job.hosts[0]]
        assert isinstance(first, Contributing)
        return first.session.has_threshold

    def _second(self, job: Job, host: str, identity: int) -> int:
        """Choose the second in which a process starts, by its host's clock."""
        second = 1000 * (identity + 1)
        if identity >= len(job.hosts):  # not the first one there
            second = self.stepped_back(second, host, identity)
        before = self.lives.get(host)
        if before is not None and host in self.heard_late:
            # docs/soak.md, "What is left out": no second begins two whose data can meet.
            second += second == before.session.incarnation
        return second

    def stepped_back(self, second: int, name: str, life: int) -> int:
        """Draw the second of a process's start by its host's clock, which may be set back.

        The second of the former process can be drawn, too. Seconds wrap as rounds do, at 32 bits.

        Args:
            second: the second that a sound clock would show.
            name: name of the node.
            life: number of the process; seeds the draw.
        """
        rng = Random(f"clock {self.scenario.seed} {name} {life}")
        back = rng.choice((0, 0, 0, 1000, 1000, 1001, rng.randrange(500_000)))
        return (second - back) & ROUND_MASK

    def _expected(self, job: Job, identity: int) -> int:
        """Count the workers that a process waits for.

        A newcomer to an elastic job that has begun need not wait for workers that have left it;
        but a restarted switch must be told how many there are.
        """
        begun = self.oracles[job.number].finished
        newcomer = identity >= len(job.hosts) and job.mode == ELASTIC and begun
        return 0 if newcomer and not self.scenario.restarts else len(job.hosts)

    def alive(self) -> Iterator[Life | Contributing]:
        """Yield the workers whose processes run."""
        return (life for life in self.lives.values() if life.alive)

    def alive_in(self, job: Job) -> list[Life | Contributing]:
        """List the workers of a job whose processes run."""
        return [life for life in self.alive() if self.job_of(life.host) is job]

    def states(self) -> str:
        """Say where every worker stands."""
        return "; ".join(life.state() for life in self.lives.values())

    def _makes_again(self, rounds: list[Rounds]) -> bool:
        """Tell whether aggregates may be made once more: after a Reset, or in short sets."""
        short = self.scenario.restarts and self.scenario.policy == Pool.name
        return short or any(one.is_reset for one in rounds)

    def look(self) -> None:
        """Check ranks and books of all switches."""
        for job in self.scenario.jobs:
            check_ranks(self.simulation, job, self.alive_in(job))
        rounds = [oracle for oracle in self.oracles.values() if isinstance(oracle, Rounds)]
        begun = {o.job.number: o.job.shape().segments * len(o.begun) for o in rounds}
        for name, books in self.books.items():
            if self.simulation.switch(name) is books.switch:
                books.look()
                if len(rounds) == len(self.oracles) and not self._makes_again(rounds):
                    books.made_once(begun)
