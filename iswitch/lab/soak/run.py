"""Plays a scenario in the simulated world under the eyes of the oracle."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from random import Random

from iswitch.core.format.keys import Key
from iswitch.core.format.packets import Address, Burst
from iswitch.core.format.wire import ROUND_MASK, Action, Segments
from iswitch.core.jobs.limits import Limits
from iswitch.core.sums.buffers import PLAIN, AllOrNothing, Buffers
from iswitch.core.switch import Switch
from iswitch.faults.impairment import Impairment
from iswitch.outside import OutsideError
from iswitch.sim.node import is_uniform
from iswitch.sim.trace import Trace
from topologies import Topology
from topologies.simulated import Simulation

from .absence import TOLD, Absences
from .books import Books, check_links
from .conduct import Conduct
from .drawing import NUMBERS
from .lives import ENOUGH, Contributing, Life, Process
from .numbering import check_ranks
from .oracle import Rounds, Versions
from .scenario import ELASTIC, STRANGE, Event, Job, Scenario
from .strangers import PACE, PLACE, TIMES, Stranger, key_of
from .violation import Violation

BOUND = 30.0  # seconds after the end of all faults in which everybody must get on
EVENTS = 1_000_000  # that may happen in a history: none needs a tenth of it
SOON = 0.005  # seconds after which is tried again what cannot be done yet
TIDY = 0.25  # seconds between two looks whether the job is still halted
MEMORY = 1 << 22  # bytes that a switch lets its jobs reserve
ECHO = 0.001, 0.06  # seconds after which packets come once more
NEW_LIFE = {"reborn", "join", "leave"}  # the last if it lasts


@dataclass(frozen=True)
class Result:
    """How a history ended.

    Attributes:
        violation: the kind of promise that was broken; empty: none.
        message: in what way.
        time: virtual seconds at the end.
        rounds: allreduces (and versions of segments) that were looked at.
        packets: that were sent on links.
    """

    seed: int
    violation: str
    message: str
    time: float
    rounds: int
    packets: int


def run(scenario: Scenario, trace: Trace | None = None) -> Result:
    """Play it to its end, or to the first violation."""
    return outcome(History(scenario, trace, AllOrNothing()))


def outcome(history: History) -> Result:
    """Play a history, and say how it ended.

    Raises:
        OutsideError: this machine has too little memory for it.
    """
    violation = message = ""
    try:
        history.play()
    except Violation as broken:
        violation, message = broken.kind, str(broken)
    except OutsideError:  # this machine's shortage, and no fault of theirs
        raise
    except Exception as error:  # whatever the machines raise is what is looked for here
        violation = type(error).__name__
        message = f"{violation}: {error}"
    network = history.simulation.network
    rounds = sum(oracle.finished for oracle in history.oracles.values())
    packets = network.link_counts().sent
    return Result(history.scenario.seed, violation, message, network.now, rounds, packets)


class History:
    """One history.

    Args:
        scenario: what happens in it.
        trace: where it is written down, if anywhere.
        buffers: where its switches take theirs from.
    """

    def __init__(
        self, scenario: Scenario, trace: Trace | None = None, buffers: Buffers = PLAIN
    ) -> None:
        self.scenario = scenario
        links = f",{scenario.links}" if scenario.links else ""
        topology = replace(Topology.parse(scenario.topology + links), seed=scenario.seed)
        lease = scenario.lease or float("inf")
        limits = Limits(MEMORY, lease=lease, buffers=buffers)
        keys = {job.number: key for job in scenario.jobs if (key := key_of(job)) is not None}
        self.simulation = Simulation(
            topology, limits, trace, scenario.latency, keys, scenario.ports
        )
        self.network = self.simulation.network
        self.stranger = self._stranger_at(topology) if scenario.strangers else None
        halts = sum(event.what == "halt" for event in scenario.events)
        self.network.witness = Conduct(self.network, halts, [Key(key) for key in keys.values()])
        self.echoing: Counter[Address] = Counter()  # echoes at each node
        self.kept: dict[tuple[Address, Address], deque[Burst]] = {}  # what was sent last, and where
        self.heard_late: set[str] = set()  # whose last words come when another has their place
        self.held: dict[Address, float] = {}  # who speaks, and for how long it is held back
        self.rng = Random(f"echo {scenario.seed}")
        self.books = {switch.name: self._open(switch.name) for switch in topology.tree}
        self.oracles = {job.number: self._oracle(job) for job in scenario.jobs}
        self.absences = {job.number: self._absences(job) for job in scenario.jobs}
        self.lives: dict[str, Life | Contributing] = {}  # the last one at each host
        self.identities = dict.fromkeys(self.oracles, 0)
        self.open = len(scenario.events)  # what is still to happen, or to end
        for job in scenario.jobs:
            for host in job.hosts:
                self._spawn(host)
        for event in scenario.events:
            self.network.at(event.at, partial(self._happen, event))
        self.network.at(scenario.horizon, self._mend_links)

    def play(self) -> None:
        """Let it happen.

        Raises:
            Violation: a promise was broken.
        """
        network, limit = self.network, self.scenario.horizon + BOUND
        for _ in range(EVENTS):
            due = network.next_time()
            faults = network.now < self.scenario.horizon or self.open
            if not faults or due is None or (due >= self.scenario.horizon and not self.open):
                break
            if network.now > limit:
                raise Violation("no progress", f"it does not even begin: {self._states()}")
            network.step()
        self._end_faults()
        end = network.now + BOUND
        for _ in range(EVENTS):
            if all(life.done for life in self._alive()):
                break
            if network.now > end or not network.step():
                raise Violation("no progress", f"{BOUND:g} s after the faults: {self._states()}")
        else:
            raise Violation("no progress", f"too much happens: {self._states()}")
        self._look()
        check_links(network)

    # Building

    def _open(self, name: str) -> Books:
        switch = self.simulation.switch(name)
        assert isinstance(switch, Switch)
        return Books(self.simulation.node(name), switch, self.stranger)

    def _stranger_at(self, topology: Topology) -> Stranger:
        switches = [self.simulation.address(switch.name) for switch in topology.tree]
        hosts = {self.simulation.address(host.name): host.name for host in topology.hosts}

        def job_of(address: Address) -> Job | None:
            return self._job_of(hosts[address]) if address in hosts else None

        return Stranger(self.scenario, self.network, switches, job_of, self._round_of)

    def _round_of(self, job: int) -> int:
        """The newest round of a job (or version) that anybody has begun."""
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
            return Versions(job, NUMBERS)
        lives = len(job.hosts)
        for event in self.scenario.events:
            if event.what in NEW_LIFE and self._job_of(event.who) is job:
                lives += event.what != "leave" or event.lasting > 0
        return Rounds(self.scenario, job, lives)

    def _job_of(self, host: str) -> Job:
        """The job that a host works on; who joins later works on the first."""
        jobs = self.scenario.jobs
        return next((job for job in jobs if host in job.hosts), jobs[0])

    def _spawn(self, host: str) -> None:
        """A new worker process at a host."""
        job = self._job_of(host)
        identity = self.identities[job.number]
        self.identities[job.number] += 1
        oracle = self.oracles[job.number]
        at, above = self.simulation.address(host), self.simulation.switch_of(host)
        process = Process(self.scenario, self.network, host, at, above, identity, 1000, self._look)
        life: Life | Contributing
        if isinstance(oracle, Versions):
            life = Contributing(process, oracle)
            first = self.lives.get(job.hosts[0], life)
            assert isinstance(first, Contributing)
            life.may_start = lambda: first.session.has_threshold
        else:
            second = 1000 * (identity + 1)
            if identity >= len(job.hosts):  # not the first one there
                second = self._stepped_back(second, host, identity)
            before = self.lives.get(host)
            if before is not None and host in self.heard_late:
                # docs/soak.md, "What is left out": no second begins two whose data can meet.
                second += second == before.session.incarnation
            life = Life(
                replace(process, incarnation=second),
                oracle,
                self._expected(job, identity),
                self._has_left,
                self.absences[job.number].is_told,
            )
        self.lives[host] = life
        if self.stranger is not None:
            self.stranger.forget(at)
        if self.network.now >= self.scenario.horizon and not self.open:
            life.goal = ENOUGH
        self.network.nodes[at].heed = life.heed
        self.network.start(at, life.session)

    def _stepped_back(self, second: int, name: str, life: int) -> int:
        """When a process begins by its host's clock, which may have been stepped back since.

        The very same second as of the process before is among the draws, and numbers wrap.
        """
        rng = Random(f"clock {self.scenario.seed} {name} {life}")
        back = rng.choice((0, 0, 0, 1000, 1000, 1001, rng.randrange(500_000)))
        return (second - back) & ROUND_MASK

    def _expected(self, job: Job, identity: int) -> int:
        """How many workers a life waits for.

        Who comes to an elastic job that has begun need not wait for those that have left it; but
        a switch that was restarted must be told how many there are.
        """
        begun = self.oracles[job.number].finished
        newcomer = identity >= len(job.hosts) and job.mode == ELASTIC and begun
        return 0 if newcomer and not self.scenario.restarts else len(job.hosts)

    # What happens

    def _happen(self, event: Event) -> None:
        """Do it, or try again soon if it is too early for it."""
        strange = event.what in STRANGE
        if self._intrude(event) if strange else getattr(self, f"_{event.what}")(event):
            return
        self.network.at(self.network.now + SOON, partial(self._happen, event))

    def _later(self, event: Event, action: Callable[[], object]) -> bool:
        """What ends an event."""

        def end() -> None:
            action()
            self.open -= 1

        self.network.at(self.network.now + event.lasting, end)
        return True

    def _over(self) -> bool:
        """An event that has no end, or no object."""
        self.open -= 1
        return True

    def _gathered(self, host: str) -> bool:
        """Whether the job has begun: who leaves before is missed for good."""
        return self.oracles[self._job_of(host).number].finished > 0

    def _pause(self, event: Event) -> bool:
        node = self.simulation.node(event.who)
        if node.machine is None or node.paused:
            return self._over()
        self.network.pause(node.address)
        came_back = self._is_missed(event.who, event.lasting)

        def resume() -> None:
            self.network.resume(node.address)
            came_back()

        return self._later(event, resume)

    def _stutter(self, event: Event) -> bool:
        """It takes what has come for some time at once: there can be two rounds in it."""
        node = self.simulation.node(event.who)
        if node.machine is None or node.paused:
            return self._over()
        end, process = self.network.now + event.lasting, node.machine

        def look() -> None:
            if node.machine is not process:  # it has crashed
                self.open -= 1
                return
            self.network.resume(node.address)
            if self.network.now >= end:
                self.open -= 1
                return
            self.network.pause(node.address)
            self.network.at(self.network.now + self.scenario.think, look)

        look()
        return True

    def _echo(self, event: Event) -> bool:
        """Half of its packets are kept somewhere, and come again."""
        address = self.simulation.address(event.who)
        self.echoing[address] += 1

        def end() -> None:
            self.echoing[address] -= 1

        self.network.echo = self._after
        self.network.ahead = self._older
        return self._later(event, end)

    def _after(self, peer: Address, burst: Burst) -> float | None:
        """In how many seconds these packets come again."""
        if burst.peer in self.held:
            return self.held[burst.peer]
        near = self.echoing[peer] or self.echoing[burst.peer]
        if not near or burst.peer == PLACE or self.rng.random() < 0.5:
            return None
        return float(ECHO[0] * (ECHO[1] / ECHO[0]) ** self.rng.random())

    def _older(self, peer: Address, burst: Burst) -> Burst | None:
        """Packets of two rounds ago, whose set these will take, come once more before these."""
        if not is_uniform(burst) or burst.peer == PLACE:
            return None
        kept = self.kept.setdefault((burst.peer, peer), deque(maxlen=4))
        size, now_at = burst.rows.shape[1], round_of(burst)
        older = [b for b in kept if b.rows.shape[1] == size and now_at - round_of(b) == 2]
        kept.append(burst)
        near = self.echoing[peer] or self.echoing[burst.peer]
        return older[-1] if near and older and self.rng.random() < 0.5 else None

    def _cut(self, event: Event) -> bool:
        if not self._plug(event.who, up=False):
            return self._over()
        return self._later(event, partial(self._plug, event.who, up=True))

    def _plug(self, node: str, up: bool) -> bool:
        """Plug the cable upward in, or pull it out; whether that is a change."""
        tree = {switch.name: switch.parent for switch in self.simulation.topology.tree}
        above = tree.get(node) or self.simulation.topology.ports(node)[0].peer
        a, b = self.simulation.address(node), self.simulation.address(above)
        if self.network.links[a, b].up is up:
            return False
        self.network.plug(a, b, up=up)
        return True

    def _restart(self, event: Event) -> bool:
        node = self.simulation.node(event.who)
        if node.machine is None:
            return self._over()
        self._look()
        self.network.crash(node.address)

        def start() -> None:
            seconds = self.simulation.incarnations
            life = round(event.at * 1e6)
            seconds[event.who] = self._stepped_back(seconds[event.who], event.who, life)
            self.simulation.start_switch(event.who)
            self.books[event.who] = self._open(event.who)

        return self._later(event, start)

    def _reborn(self, event: Event) -> bool:
        life = self.lives[event.who]
        if not life.alive:
            return self._over()
        if isinstance(life, Life) and life.leaving:
            return False
        if not event.value:
            return self._replace(event)
        if not isinstance(life, Life) or life.begun is not None:
            return self._over()

        def begun() -> None:
            at = self.network.now  # it sends only after this
            self._plug(event.who, up=False)
            self.held[life.address] = event.value / 1e6
            self.network.at(at, last_words)

        def last_words() -> None:
            self._plug(event.who, up=True)
            self.heard_late.add(event.who)
            del self.held[life.address]
            if life.alive:
                self._replace(event)
            else:
                self._over()

        life.begun = begun
        self.network.echo = self._after
        return True

    def _ends(self, life: Life | Contributing) -> None:
        """Its process ends; what was to happen when it begins a round will not."""
        if isinstance(life, Life) and life.begun is not None:
            life.begun = None
            self.open -= 1
        self.network.crash(life.address)

    def _replace(self, event: Event) -> bool:
        self._ends(self.lives[event.who])
        came_back = self._is_missed(event.who, event.lasting)

        def start() -> None:
            self._spawn(event.who)
            came_back()

        return self._later(event, start)

    def _is_missed(
        self, host: str, lasting: float | None = None, left: bool = False
    ) -> Callable[[], None]:
        """The worker of a host is away for so long, or for good: see to it that this is told.

        What is returned is to be called when it is back.
        """
        life = self.lives.get(host)
        if not self.scenario.lease or not isinstance(life, Life):
            return lambda: None
        absences = self.absences[self._job_of(host).number]
        absence = absences.goes(life, self._of_its_job(life), left)
        job = absences.job
        wait = self.scenario.lease + TOLD
        if (job.tells or job.mode == ELASTIC) and (lasting is None or lasting > wait):
            self.open += 1

            def check() -> None:
                self.open -= 1
                if not job.threshold and not self.scenario.has("seth"):
                    absences.check(absence, self._of_its_job(life))

            self.network.at(self.network.now + wait, check)

        def came_back() -> None:
            absence.until = self.network.now

        return came_back

    def _of_its_job(self, life: Life) -> list[Life | Contributing]:
        """All that are there of its job."""
        job = self._job_of(life.host)
        return [other for other in self._alive() if self._job_of(other.host) is job]

    def _die(self, event: Event) -> bool:
        life = self.lives[event.who]
        if not self._gathered(event.who):
            return False
        self.network.crash(life.address)
        self._is_missed(event.who)
        return self._over()

    def _leave(self, event: Event) -> bool:
        life = self.lives[event.who]
        if not life.alive:
            return self._over()
        if not life.ready or not (event.lasting or self._gathered(event.who)):
            return False
        assert isinstance(life, Life)
        life.comes_back = event.lasting or None
        life.leave()
        self.network.poke(life.address)
        return True

    def _has_left(self, life: Life) -> None:
        """Its Leave was answered."""
        self._ends(life)
        came_back = self._is_missed(life.host, life.comes_back, left=True)
        self.open -= 1
        if life.comes_back is not None:
            self.open += 1
            event = Event(0.0, "leave", life.host, life.comes_back)

            def start() -> None:
                self._spawn(life.host)
                came_back()

            self._later(event, start)

    def _join(self, event: Event) -> bool:
        if not self._gathered(event.who):
            return False
        self._spawn(event.who)
        return self._over()

    def _speaker(self, host: str) -> Life | None:
        """Who gives a command: the worker at a host, or else another of its job."""
        job = self._job_of(host)
        hosts = (host, *job.hosts)
        lives = (self.lives[name] for name in hosts if name in self.lives)
        return next((life for life in lives if isinstance(life, Life) and life.ready), None)

    def _command(self, event: Event, give: Callable[[Life], object]) -> bool:
        life = self._speaker(event.who)
        if life is None or not self._gathered(event.who):
            return False
        give(life)
        self.network.poke(life.address)
        return self._over()

    def _halt(self, event: Event) -> bool:
        def resume() -> None:
            self.network.at(self.network.now + event.lasting, partial(self._resume, event.who))

        return self._command(event, lambda life: life.ask(Action.HALT, None, resume))

    def _resume(self, host: str) -> None:
        life = self._speaker(host)
        if life is not None:
            life.ask(Action.RESET, None)
            self.network.poke(life.address)

    def _reset(self, event: Event) -> bool:
        return self._command(event, lambda life: life.ask(Action.RESET, None))

    def _seth(self, event: Event) -> bool:
        return self._command(event, lambda life: life.set_threshold(event.value))

    def _fbcast(self, event: Event) -> bool:
        def force(life: Life) -> None:
            life.oracle.forced.add(life.session.round)
            named = Segments(life.session.round, 0, life.session.shape.segments)
            life.ask(Action.FBCAST, named)

        return self._command(event, force)

    def _intrude(self, event: Event) -> bool:
        """A stranger sends, again and again; a job that nobody is in yet would be anybody's."""
        if event.what == "impostor" and not self.scenario.ports:
            return self._over()  # nothing is bridged
        send: Callable[[Address], None] = getattr(self.stranger, event.what)
        if not all(oracle.finished for oracle in self.oracles.values()):
            return False
        node = self.simulation.address(event.who)
        times = max(1, min(TIMES, round(event.lasting / PACE)))
        for i in range(times):
            when = self.network.now + i * event.lasting / times
            self.network.at(when, partial(send, node))
        return self._later(event, lambda: None)

    # The end

    def _end_faults(self) -> None:
        """Everybody has to do some rounds more."""
        for life in self._alive():
            life.goal = life.rounds + ENOUGH
        if self.scenario.has("halt"):
            self._tidy()

    def _mend_links(self) -> None:
        for link in self.network.links.values():
            link.impairment = Impairment()

    def _tidy(self) -> None:
        """Somebody resets a job that is halted still: its Halt came late, or who gave it died."""
        for job in self.scenario.jobs:
            lives = [life for life in self._alive() if self._job_of(life.host) is job]
            if any(isinstance(life, Life) and life.session.halted for life in lives):
                self._resume(job.hosts[0])
        self.network.at(self.network.now + TIDY, self._tidy)

    def _alive(self) -> Iterator[Life | Contributing]:
        return (life for life in self.lives.values() if life.alive)

    def _states(self) -> str:
        return "; ".join(life.state() for life in self.lives.values())

    def _look(self) -> None:
        """Look into the switches."""
        for job in self.scenario.jobs:
            lives = (life for life in self._alive() if self._job_of(life.host) is job)
            check_ranks(self.simulation, job, lives)
        rounds = [oracle for oracle in self.oracles.values() if isinstance(oracle, Rounds)]
        begun = {o.job.number: o.job.shape().segments * len(o.begun) for o in rounds}
        for name, books in self.books.items():
            if self.simulation.switch(name) is books.switch:
                books.look()
                if len(rounds) == len(self.oracles) and not any(o.is_reset for o in rounds):
                    books.made_once(begun)


def round_of(burst: Burst) -> int:
    """The round (or number) of a burst's first packet."""
    return int.from_bytes(burst.rows[0, :4].tobytes(), "big")
