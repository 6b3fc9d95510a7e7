"""Plays the applications of workers of asynchronous jobs."""

from __future__ import annotations

from collections.abc import Callable

from iswitch.core.format.wire import VERSIONS_KEPT, Action, Segments, Status, Vector
from worker_lib.protocol.session import Answered
from worker_lib.protocol.terms import VersionTerms
from worker_lib.protocol.versions import AsynchronousSession

from .lives import AGAIN, HEARTBEAT, Application, Process, rank_of
from .oracle import Versions
from .strangers import key_of

ASKS = 0.2  # of the contributions to versions are followed by Help for an old one


class Contributing(Application):
    """A worker of an asynchronous job: contributions at its own pace."""

    def __init__(self, process: Process, oracle: Versions) -> None:
        job = oracle.job
        super().__init__(process, job)
        self.oracle = oracle
        terms = VersionTerms(
            process.switch,
            job.number,
            job.shape(),
            expected=len(job.hosts),
            rank=rank_of(job, self.host),
            threshold=job.threshold if self.identity == 0 else 0,
            heartbeat=HEARTBEAT,
            key=key_of(job),
        )
        self.session: AsynchronousSession = AsynchronousSession(terms, process.incarnation)
        self.session.join(self.network.now)
        self.number = 0
        self.started = False
        self.made: Callable[[], int] = lambda: 0  # the newest version that a root has known
        self.may_start: Callable[[], bool] = lambda: True  # H has been set

    @property
    def done(self) -> bool:
        """Return whether the process has done its rounds, or can neither contribute nor learn more.

        A worker that slept through the last versions of the others skips them.
        """
        ended = self.number >= self.oracle.numbers and not self.session.in_flight
        return super().done or (ended and self.session.version >= self.oracle.newest)

    @property
    def ready(self) -> bool:
        """Return False: this worker takes no commands."""
        return False

    def state(self) -> str:
        """Say where it stands, for reports."""
        session = self.session
        member = "" if session.member else ", no member"
        return (
            f"{self.host}: {self.number} contributions, {session.in_flight} in flight, version "
            f"{session.version} of {session.newest}{member}"
        )

    def heed(self) -> None:
        """Take the versions that have come; begin when all workers are there."""
        session, shape = self.session, self.session.shape
        while (event := session.next_event()) is not None:
            if isinstance(event, Answered) and event.status is Status.FULL:  # memory lacks
                self.network.at(self.network.now + AGAIN, self._join_again)
        if session.member and session.behind:  # as if it had taken a snapshot of another
            session.resume_at(session.newest, self.network.now)
        self.oracle.hears(self.host, session.newest, self.made())
        while (whole := session.next_made()) is not None:
            version, vector = whole
            self.rounds += 1
            for index, total in enumerate(vector.reshape(shape.segments, shape.elements)):
                self.oracle.gets(self.host, version, index, total)
            self.look()
        all_there = session.member and session.joined >= session.terms.expected
        if all_there and not self.started and self.may_start():
            self.started = True
            self._contribute()

    def _contribute(self) -> None:
        if not self.alive or self.number >= self.oracle.numbers:
            return
        # Half of its numbers are for when the faults are over.
        wanted = self.goal is not None or self.number < self.oracle.numbers // 2
        if wanted and self.session.can_contribute:
            vector: Vector = self.oracle.contributes(self.identity, self.number)
            self.session.contribute(vector)
            self.number += 1
            self._ask_for_old()
            self.network.poke(self.address)
        self.network.at(self.network.now + self.rng.expovariate(1 / self.think), self._contribute)

    def _ask_for_old(self) -> None:
        """Now and then ask for the oldest version that is kept, as if it had been missed."""
        session = self.session
        oldest = session.newest - VERSIONS_KEPT + self.rng.randint(0, 2)
        if oldest > 0 and self.rng.random() < ASKS:
            named = Segments(oldest, 0, session.shape.segments)
            session.request(Action.HELP, named, self.network.now)
