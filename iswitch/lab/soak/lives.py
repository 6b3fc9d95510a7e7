"""Plays the applications of workers, from the Join of a session to its crash or Leave."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

import numpy as np

from iswitch.core.format.packets import Address
from iswitch.core.format.wire import (
    NO_RANK,
    Action,
    Segments,
    Status,
    Threshold,
)
from iswitch.sim.network import VirtualNetwork
from worker_lib.errors import MemberLost
from worker_lib.protocol.events import Event
from worker_lib.protocol.owned_session import session_of
from worker_lib.protocol.session import Answered, Dropped, Gone, Session, WasReset
from worker_lib.protocol.terms import RoundTerms
from worker_lib.protocol.versions import AsynchronousSession
from worker_lib.waiting import LOOK_PAUSE, OnMemberLost, Waiting

from .oracle import Rounds
from .scenario import WHOLE, Job, Scenario
from .strangers import key_of
from .violation import Violation

HEARTBEAT = 0.1  # seconds
AGAIN = 0.05  # seconds until a Join that was refused is tried again
JOIN_PAUSE = 0.02  # and one that was answered before all had come
WAITS_ON = 0.5  # seconds from a MemberLost until the round is waited for again
RECOVERY = "probes", "helps", "helped", "sent_again"  # what a session counts of it
ENOUGH = 3  # rounds that everybody has to do when faults are over
ROUNDS = 20  # that the first job tells, the others more; some do more, some fewer
PRIORITIES = 3  # different ones, which jobs ask for by number


def rank_of(job: Job, host: str) -> int:
    """Choose the rank that a worker asks for: none in jobs of even numbers, else its host's index.

    A newcomer's rank lies beyond those of the first workers, and no other newcomer asks for it.
    """
    if not job.number % 2:
        return NO_RANK
    return job.hosts.index(host) if host in job.hosts else len(job.hosts) + int(host[1:])


@dataclass(frozen=True)
class Process:
    """The identity and the place of a worker's process.

    Attributes:
        scenario: scenario of the whole history.
        network: network of its host.
        host: name of its host.
        address: address of its host.
        switch: address of the switch that it joins.
        identity: its number among the processes of its job.
        incarnation: larger than the previous process's.
        look: function that is called after every round.
    """

    scenario: Scenario
    network: VirtualNetwork
    host: str
    address: Address
    switch: Address
    identity: int
    incarnation: int
    look: Callable[[], None]


class Application:
    """Plays what a process does with its session.

    Args:
        process: identity and place of the process.
        job: its job.
    """

    session: Session | AsynchronousSession

    def __init__(self, process: Process, job: Job) -> None:
        self.network = process.network
        self.host = process.host
        self.address = process.address
        self.identity = process.identity
        self.look = process.look
        self.think = process.scenario.think
        self.rng = Random(f"life {process.scenario.seed} {job.number} {process.identity}")
        self.goal: int | None = None
        self.rounds = 0  # allreduces done, or versions received of all segments
        self._all_came = True  # that this one waits for before it stops asking to join

    @property
    def done(self) -> bool:
        """Return whether the process has done its rounds after the end of the faults."""
        return self.goal is not None and self.rounds >= self.goal

    @property
    def alive(self) -> bool:
        """Return whether the process runs."""
        return self.network.nodes[self.address].machine is self.session

    def _join_again(self) -> None:
        if self.alive and not (self.session.member and self._all_came):
            self.session.join(self.network.now)
            self.network.poke(self.address)


class Life(Application):
    """A worker of a synchronous job: one allreduce after the other.

    Args:
        process: identity and place of the process.
        oracle: oracle of its job.
        expected: number of workers that it waits for.
        leave_done: called when its Leave was answered.
        is_told: called when it is told that members are lost.
    """

    def __init__(
        self,
        process: Process,
        oracle: Rounds,
        expected: int,
        leave_done: Callable[[Life], None],
        is_told: Callable[[Life, MemberLost], None],
    ) -> None:
        job = oracle.job
        super().__init__(process, job)
        self.oracle = oracle
        self.leave_done = leave_done
        self.is_told = is_told
        terms = RoundTerms(
            process.switch,
            job.number,
            job.shape(),
            expected=expected,
            rank=rank_of(job, self.host),
            whole=job.mode == WHOLE,
            reproducible=job.reproducible,
            heartbeat=LOOK_PAUSE if job.tells else HEARTBEAT,
            key=key_of(job),
            rounds=ROUNDS * job.number,
            priority=job.number % PRIORITIES,
        )
        self.session: Session = session_of(terms, process.incarnation)
        wanted: OnMemberLost = "raise" if job.tells else "wait"
        if job.mode != WHOLE:
            wanted = "continue"
        self.waiting = Waiting(self.session, len(job.hosts), wanted)
        self.thinking = False
        self.leaving = False
        self.comes_back: float | None = None  # seconds after it has left, another one starts
        self.begun: Callable[[], None] | None = None  # called when it begins a round
        self.answers: dict[int, Callable[[], None]] = {}
        self._out = np.empty(0)
        # Else none is missed before all have been there, and no rank is known.
        self._all_came = not (job.tells or job.collective)
        self.session.join(self.network.now)

    @property
    def who(self) -> str:
        """Return the worker's name in reports."""
        return f"{self.host} (life {self.identity})"

    @property
    def ready(self) -> bool:
        """Return whether the worker can give a command."""
        return self.alive and self.session.member and not self.leaving

    @property
    def _may_begin(self) -> bool:
        """Return whether a worker without a round under way may begin one."""
        waits = self.leaving or self.thinking or not self._all_came
        return self.session.member and not waits

    def state(self) -> str:
        """Say where it stands, for reports."""
        session = self.session
        lacks = session.transfer.missing() if session.transfer else "nothing"
        return (
            f"{self.who}: {self.rounds} rounds, at {session.round}, "
            f"{'member' if session.member else 'no member'}{', halted' * session.halted}, "
            f"lacks {lacks}"
        )

    def ask(
        self,
        action: Action,
        value: Threshold | Segments | None,
        then: Callable[[], None] | None = None,
    ) -> None:
        """Send a request.

        Args:
            action: action of the request.
            value: value of the action.
            then: called when the request is answered.
        """
        request = self.session.request(action, value, self.network.now)
        if then is not None:
            self.answers[request] = then

    def set_threshold(self, value: int) -> None:
        """Ask for a threshold."""
        self.oracle.asks_for_threshold(value)
        self.ask(Action.SETH, Threshold(value), self.oracle.has_threshold)

    def leave(self) -> None:
        """Send a Leave; the process ends when that is answered."""
        self.leaving = True
        self.ask(Action.LEAVE, None, lambda: self.leave_done(self))

    def heed(self) -> None:
        """Finish the round that is done, and begin the next."""
        session, now = self.session, self.network.now
        while (event := session.next_event()) is not None:
            self._hears(event)
        under_way = session.transfer or session.express
        if under_way is not None and under_way.done:
            self._finish()
        elif (lost := self.waiting.lost(now)) is not None:
            self.is_told(self, lost)
            session.abandon()
            self._think(WAITS_ON)
        if session.transfer is None and session.express is None and self._may_begin:
            self._begin()

    def _hears(self, event: Event) -> None:
        if isinstance(event, Gone | Dropped):
            dropped = isinstance(event, Dropped)
            self.oracle.falls_behind(self.who, event.round, event.now_at, dropped)
        elif isinstance(event, WasReset):
            self.oracle.is_reset_to(self.who, self.identity, event.round)
        elif isinstance(event, Answered):
            self.waiting.answered(event)
            if event.action is not Action.JOIN:
                self._command_is_done(event)
            elif event.status is Status.OK:
                self._joined()
            else:
                self._check_refusal(event.status)
                # Its place in a whole job is not free yet.
                self.network.at(self.network.now + AGAIN, self._join_again)

    def _begin(self) -> None:
        self._contribute()
        self.waiting.begin(self.network.now)
        if self.begun is not None:
            self.begun()
            self.begun = None

    def _contribute(self) -> None:
        """Begin the round of the session."""
        session, now = self.session, self.network.now
        vector = self.oracle.begins(self.identity, session.round)
        self._out = np.zeros_like(vector)
        if not session.begin_express(vector, self._out, now, own=True):
            session.begin(vector, self._out, now, own=True)

    def _check(self) -> None:
        """Have the oracle judge what has come."""
        self.oracle.gets(self.who, self.identity, self.session.round, self._out)

    def _finish(self) -> None:
        session = self.session
        self._check()
        self.oracle.took(self.identity, sum(session.stats[name] for name in RECOVERY))
        session.finish()
        self.rounds += 1
        self.look()
        self._think(self.rng.expovariate(1 / self.think) if self.think else 0.0)

    def _think(self, seconds: float) -> None:
        self.thinking = True
        self.network.at(self.network.now + seconds, self._go_on)

    def _check_refusal(self, status: Status) -> None:
        """Judge a refusal: only a former process can have the rank, since no two ask for one.

        Raises:
            Violation: there was no former process.
        """
        if status is Status.RANK_TAKEN and self.identity < len(self.oracle.job.hosts):
            raise Violation("refused in error", f"{self.who}: nobody else asks for its rank")

    def _command_is_done(self, event: Answered) -> None:
        if event.action is Action.RESET and event.status is Status.OK:
            self.oracle.has_reset(self.identity, event.ack.round)
        if then := self.answers.pop(event.request, None):
            then()

    def _joined(self) -> None:
        job = self.oracle.job
        if not self._all_came:
            numbered = self.session.rank != NO_RANK
            self._all_came = self.session.joined >= len(job.hosts) and numbered
            if not self._all_came:  # ask again, as `Worker` does
                self.network.at(self.network.now + JOIN_PAUSE, self._join_again)
        if job.threshold and self.identity == 0 and self.oracle.automatic:
            self.set_threshold(job.threshold)

    def _go_on(self) -> None:
        self.thinking = False
        if self.alive:
            self.network.poke(self.address)
