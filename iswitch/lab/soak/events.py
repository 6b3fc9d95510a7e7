"""Makes the events of a scenario happen to the machines on the stage."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from iswitch.core.format.packets import Address
from iswitch.core.format.wire import Action, Segments

from .absence import TOLD
from .contributing import Contributing
from .lives import Life
from .scenario import ELASTIC, STRANGE, Event
from .stage import Stage
from .strangers import PACE, TIMES

SOON = 0.005  # seconds until an event that cannot happen yet is tried again
TIDY = 0.25  # seconds between two looks whether a job is still halted


class Events:
    """Makes events happen.

    A method `_NAME` does the event of that name. It returns False if it is too early, so that
    `happen` tries again soon.
    """

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.scenario = stage.scenario
        self.network = stage.network
        self.simulation = stage.simulation
        stage.has_left = self.has_left

    def happen(self, event: Event) -> None:
        """Do an event, or try again soon if it is too early for it."""
        strange = event.what in STRANGE
        if self._intrude(event) if strange else getattr(self, f"_{event.what}")(event):
            return
        self.network.at(self.network.now + SOON, partial(self.happen, event))

    def _later(self, event: Event, action: Callable[[], object]) -> bool:
        """Call `action` when the event ends."""

        def end() -> None:
            action()
            self.stage.open -= 1

        self.network.at(self.network.now + event.lasting, end)
        return True

    def _over(self) -> bool:
        """Count an event as done: it has no end, or its node cannot have it now."""
        self.stage.open -= 1
        return True

    def _gathered(self, host: str) -> bool:
        """Tell whether a host's job has begun; if a worker leaves before, others wait for good."""
        return self.stage.oracles[self.stage.job_of(host).number].finished > 0

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
        """Pause a process repeatedly: so it handles packets at once, even those of two rounds."""
        node = self.simulation.node(event.who)
        if node.machine is None or node.paused:
            return self._over()
        end, process = self.network.now + event.lasting, node.machine

        def look() -> None:
            if node.machine is not process:  # it has crashed
                self.stage.open -= 1
                return
            self.network.resume(node.address)
            if self.network.now >= end:
                self.stage.open -= 1
                return
            self.network.pause(node.address)
            self.network.at(self.network.now + self.scenario.think, look)

        look()
        return True

    def _echo(self, event: Event) -> bool:
        """Repeat half of the packets from and to a node."""
        address = self.simulation.address(event.who)
        self.stage.echoes.near[address] += 1

        def end() -> None:
            self.stage.echoes.near[address] -= 1

        self.network.echo = self.stage.echoes.after
        self.network.ahead = self.stage.echoes.older
        return self._later(event, end)

    def _cut(self, event: Event) -> bool:
        if not self._plug(event.who, up=False):
            return self._over()
        return self._later(event, partial(self._plug, event.who, up=True))

    def _plug(self, node: str, up: bool) -> bool:
        """Plug the upward cable in, or pull it out; return whether that changes anything."""
        topology = self.simulation.topology
        above = topology.parents.get(node) or topology.ports(node)[0].peer
        a, b = self.simulation.address(node), self.simulation.address(above)
        if self.network.links[a, b].up is up:
            return False
        self.network.plug(a, b, up=up)
        return True

    def _restart(self, event: Event) -> bool:
        node = self.simulation.node(event.who)
        if node.machine is None:
            return self._over()
        self.stage.look()
        self.network.crash(node.address)

        def start() -> None:
            seconds = self.simulation.incarnations
            life = round(event.at * 1e6)
            seconds[event.who] = self.stage.stepped_back(seconds[event.who], event.who, life)
            self.simulation.start_switch(event.who)
            self.stage.books[event.who] = self.stage.open_books(event.who)

        return self._later(event, start)

    def _reborn(self, event: Event) -> bool:
        life = self.stage.lives[event.who]
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
            self.stage.echoes.held[life.address] = event.value / 1e6
            self.network.at(at, last_words)

        def last_words() -> None:
            self._plug(event.who, up=True)
            self.stage.heard_late.add(event.who)
            del self.stage.echoes.held[life.address]
            if life.alive:
                self._replace(event)
            else:
                self._over()

        life.begun = begun
        self.network.echo = self.stage.echoes.after
        return True

    def _ends(self, life: Life | Contributing) -> None:
        """End a process, and cancel the event that waits for its next round."""
        if isinstance(life, Life) and life.begun is not None:
            life.begun = None
            self.stage.open -= 1
        self.network.crash(life.address)

    def _replace(self, event: Event, left: bool = False) -> bool:
        """End a process, and start another one at its host when the event ends."""
        self._ends(self.stage.lives[event.who])
        came_back = self._is_missed(event.who, event.lasting, left)

        def start() -> None:
            self.stage.spawn(event.who)
            came_back()

        return self._later(event, start)

    def _is_missed(
        self, host: str, lasting: float | None = None, left: bool = False
    ) -> Callable[[], None]:
        """Check that the others are told of a worker that is away for some time, or for good.

        Args:
            host: host of the worker.
            lasting: seconds until it is back; None: it never is.
            left: whether it has sent a Leave.

        Returns:
            a function to be called when the worker is back.
        """
        life = self.stage.lives.get(host)
        if not self.scenario.lease or not isinstance(life, Life):
            return lambda: None
        job = self.stage.job_of(host)
        absences = self.stage.absences[job.number]
        absence = absences.goes(life, self.stage.alive_in(job), left)
        wait = self.scenario.lease + TOLD
        joined = absences.rank_of(host) is not None  # nobody can miss who has not
        if joined and (job.tells or job.mode == ELASTIC) and (lasting is None or lasting > wait):
            self.stage.open += 1

            def check() -> None:
                self.stage.open -= 1
                if not job.threshold and not self.scenario.has("seth"):
                    absences.check(absence, self.stage.alive_in(job))

            self.network.at(self.network.now + wait, check)

        def came_back() -> None:
            absence.until = self.network.now

        return came_back

    def _die(self, event: Event) -> bool:
        life = self.stage.lives[event.who]
        if not self._gathered(event.who):
            return False
        self.network.crash(life.address)
        self._is_missed(event.who)
        return self._over()

    def _leave(self, event: Event) -> bool:
        life = self.stage.lives[event.who]
        if not life.alive:
            return self._over()
        if not life.ready or not (event.lasting or self._gathered(event.who)):
            return False
        assert isinstance(life, Life)
        life.comes_back = event.lasting or None
        life.leave()
        self.network.poke(life.address)
        return True

    def has_left(self, life: Life) -> None:
        """End a process whose Leave was answered."""
        if life.comes_back is not None:
            self._replace(Event(0.0, "leave", life.host, life.comes_back), left=True)
        else:
            self._ends(life)
            self._is_missed(life.host, left=True)
            self._over()

    def _join(self, event: Event) -> bool:
        if not self._gathered(event.who):
            return False
        self.stage.spawn(event.who)
        return self._over()

    def _come(self, event: Event) -> bool:
        for host in self.stage.job_of(event.who).hosts:
            self.stage.spawn(host)
        return self._over()

    def _go(self, event: Event) -> bool:
        lives = self.stage.alive_in(self.stage.job_of(event.who))
        workers = [life for life in lives if isinstance(life, Life) and life.ready]
        if not self._gathered(event.who) or len(workers) < len(lives):
            return False
        self.stage.open += len(workers) - 1
        for life in workers:
            life.leave()
            self.network.poke(life.address)
        return True

    def _speaker(self, host: str) -> Life | None:
        """Choose the worker that gives a command: a host's, or another of its job."""
        job = self.stage.job_of(host)
        hosts = (host, *job.hosts)
        lives = (self.stage.lives[name] for name in hosts if name in self.stage.lives)
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
            self.network.at(self.network.now + event.lasting, partial(self.resume, event.who))

        return self._command(event, lambda life: life.ask(Action.HALT, None, resume))

    def resume(self, host: str) -> None:
        """Reset the job of a host, which ends its Halt."""
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
        """Have a stranger send repeatedly, once all jobs have members; it could begin others."""
        if event.what == "impostor" and not self.scenario.ports:
            return self._over()  # nothing is bridged
        send: Callable[[Address], None] = getattr(self.stage.stranger, event.what)
        if not all(oracle.finished for oracle in self.stage.oracles.values()):
            return False
        node = self.simulation.address(event.who)
        times = max(1, min(TIMES, round(event.lasting / PACE)))
        for i in range(times):
            when = self.network.now + i * event.lasting / times
            self.network.at(when, partial(send, node))
        return self._later(event, lambda: None)

    def tidy(self) -> None:
        """Reset jobs that are still halted: the Halt came late, or its sender died."""
        for job in self.scenario.jobs:
            lives = self.stage.alive_in(job)
            if any(isinstance(life, Life) and life.session.halted for life in lives):
                self.resume(job.hosts[0])
        self.network.at(self.network.now + TIDY, self.tidy)
