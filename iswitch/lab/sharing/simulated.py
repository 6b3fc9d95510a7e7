"""Plays an experiment in virtual time: the real switches and sessions, on simulated links."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from iswitch.core.format.counters import share_added
from iswitch.core.format.packets import Address
from iswitch.core.format.wire import Action, Status
from iswitch.core.jobs.limits import Limits
from iswitch.sim.grain import AUTO, Grain
from topologies.simulated import WORKER_PORT, Simulation, impairment
from worker_lib.protocol.events import Answered
from worker_lib.protocol.session import Session
from worker_lib.protocol.terms import RoundTerms

from .plan import Experiment, Sharing, Task
from .played import Failed, Played, Ran, Tell
from .watched import watched

AGAIN = 0.01  # seconds after which a program tries again that was refused memory
LIMIT = 3600.0  # seconds of virtual time
INCARNATION = 1000
CROWD = 32  # jobs; if more share a link to a fallback, runs of a few packets are moved as one event
COARSE = Grain(8)


class Player:
    """One worker of a job: joins when the job comes, computes, has its vectors summed, leaves.

    It has a link of its own to the switch of its host.

    Args:
        simulation: the network.
        task: the job.
        rank: which of its workers.
        ran: what becomes of the job; all its workers write there.
        tell: told of each round that the worker of rank 0 has done.
        has_priority: the job asks for its priority.
    """

    def __init__(
        self,
        simulation: Simulation,
        task: Task,
        rank: int,
        ran: Ran,
        tell: Callable[[], None],
        has_priority: bool,
    ) -> None:
        host = task.hosts[rank]
        self.task, self.rank, self.ran, self._tell = task, rank, ran, tell
        self.network = network = simulation.network
        own = simulation.address(host)
        self.address = Address(own.host, WORKER_PORT + task.number)
        switch = simulation.switch_of(host)
        self.node = network.add(f"{host}, {task.name}", self.address)
        (port,) = simulation.topology.ports(host)
        network.connect(self.address, switch, impairment(port.link))
        terms = RoundTerms(
            switch, task.number, task.shape, expected=len(task.hosts), whole=True,
            rounds=task.rounds, priority=task.priority * has_priority,
        )  # fmt: skip
        self.session = Session(terms, INCARNATION)
        numbers = np.arange(task.numel, dtype=np.float32) % 251
        self._vector = numbers + np.float32(rank)
        self._total = task.total(numbers)
        self._out = np.empty_like(self._vector)
        self._pauses = iter(task.pauses(rank))
        self.done = 0
        self.computing = self.over = False
        network.at(task.comes, self._come)

    def _come(self) -> None:
        self.session.join(self.network.now)
        self.network.start(self.address, self.session)
        self.node.heed = self.heed

    def _join_again(self) -> None:
        self.session.join(self.network.now)
        self.network.poke(self.address)

    def heed(self) -> None:
        """Take answers; finish a round whose sum has come, and begin the next."""
        session = self.session
        while (event := session.next_event()) is not None:
            if isinstance(event, Answered):
                self._answered(event)
        if session.transfer is not None and session.transfer.done:
            session.finish()
            self._finished()
        if self.over or self.computing or session.transfer is not None or not session.member:
            return
        if self.done < self.task.rounds:
            self.computing = True
            self.network.at(self.network.now + float(next(self._pauses)), self._begin)

    def _answered(self, event: Answered) -> None:
        if event.action is Action.JOIN and event.status is Status.FULL:
            self.network.at(self.network.now + AGAIN, self._join_again)
        elif event.action is Action.LEAVE:
            self.over = True
            self.ran.ends = max(self.ran.ends, self.network.now)
            self.network.at(self.network.now, lambda: self.network.crash(self.address))

    def _begin(self) -> None:
        self.computing = False
        now, rounds = self.network.now, self.ran.rounds
        if len(rounds) == self.done:
            rounds.append((now, now))
        self.session.begin(self._vector, self._out, now)
        self.network.poke(self.address)

    def _finished(self) -> None:
        if not np.array_equal(self._out, self._total):
            raise Failed(f"{self.task.name} has a wrong sum in round {self.done}")
        begin, end = self.ran.rounds[self.done]
        self.ran.rounds[self.done] = begin, max(end, self.network.now)
        self.done += 1
        if not self.rank:
            self._tell()
        if self.done == self.task.rounds:
            self.session.request(Action.LEAVE, None, self.network.now)


def play(experiment: Experiment, sharing: Sharing, tell: Tell) -> Played:
    """Play an experiment with one way to share memory.

    Args:
        experiment: the jobs and the network.
        sharing: how its root shares memory.
        tell: told of rounds that are done.

    Raises:
        Failed: the jobs do not end, a sum is wrong, or more memory is reserved than there is.
    """
    limits = Limits(sharing.memory, slots=sharing.slots, policy=sharing.policy)
    others = Limits(slots=0 if sharing.passes_on else sharing.slots)
    core = experiment.topology.root.name
    grain = COARSE if sharing.passes_on and len(experiment.tasks) > CROWD else AUTO
    simulation = Simulation(
        experiment.network(sharing), others, latency=0.0, grain=grain, named={core: limits}
    )
    network = simulation.network
    root = simulation.switch(core)
    assert root is not None
    policy = root.record.policy = watched(root.record.policy, lambda: network.now)
    done = 0

    def finished() -> None:
        nonlocal done
        done += 1
        tell(done)

    jobs = {task.number: Ran(task.comes) for task in experiment.tasks}
    players = [
        Player(simulation, task, rank, jobs[task.number], finished, sharing.has_priorities)
        for task in experiment.tasks
        for rank in range(len(task.hosts))
    ]
    left = players
    while left:
        for _ in range(1000):
            if not network.step():
                break
        left = [one for one in left if not one.over]
        if network.now > LIMIT:
            raise Failed(f"{sharing.label}: {left[0].task.name} does not end")
    most = max(reserved for _, reserved in policy.record.memory)
    if most > sharing.memory:
        raise Failed(f"{sharing.label}: {most:,} bytes are reserved of {sharing.memory:,}")
    return Played(experiment, sharing, jobs, policy.record, share_added(root.counters))
