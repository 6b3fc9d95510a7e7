"""Workers join, some leave as soon as they know that all are there: the others must learn it, too.

Random histories of stars and trees of switches under loss, against an oracle that watches who is a
member where:

- whoever is told that all are there: all have been members, each at its own switch;
- everybody who has joined is told so, and has a rank, within seconds, though others leave once they
  are told;
- in a whole job no sum lacks a worker, whatever is lost, and whichever switch is started again
  before anybody has left.
"""

from __future__ import annotations

import os
import random

import numpy as np
import pytest

from iswitch.core.format.packets import Address
from iswitch.core.format.wire import NO_RANK, Action, DType, Shape
from iswitch.core.switch import Switch
from tests.support.tree import Tree
from tests.support.world import SWITCH, Faults, worker_address

pytestmark = pytest.mark.unit

SEEDS = int(os.environ.get("ISWITCH_MODEL_SEEDS", "20"))  # `make model` takes more
FORMS = ((2,), (4,), (2, 2), (3, 2), (2, 1, 2), (2, 2, 2))  # fan-outs from the root down
SHAPE = Shape.of(9, DType.INT32, elements=4)
POLL = 0.02  # seconds between two questions of a worker whether all are there
STEP = 0.002
PATIENCE = 60.0  # seconds of virtual time in which all must have learned it
LOSSES = (0.0, 0.1, 0.3)  # what docs/guarantees.md promises progress under


class Life:
    """A worker's process: it asks until all are there, does its rounds, and leaves."""

    def __init__(self, history: History, place: int) -> None:
        self.history = history
        self.place = place
        self.session = history.tree.workers[place]
        self.starts = history.random.choice((0.0, history.random.uniform(0.0, 0.2)))
        self.lingers = history.random.choice((0.0, history.random.uniform(0.0, 0.1)))
        self.rounds = history.rounds
        self.asks_next = 0.0
        self.met = False
        self.told_at: float | None = None
        self.out: np.ndarray | None = None
        self.leaving = self.left = False

    def act(self, now: float) -> None:
        """Do what the process does at this moment."""
        session = self.session
        if now < self.starts or self.left:
            return
        self.history.tree.sessions.setdefault(worker_address(self.place), session)
        if self.told_at is None:
            self._ask(now)
        elif self.leaving:
            self.left = not session.asks(Action.LEAVE)
            if self.left:  # the process ends
                del self.history.tree.sessions[worker_address(self.place)]
        elif self.rounds:
            self._allreduce(now)
        elif now >= self.told_at + self.lingers and self.history.may_leave(self):
            self.leaving = True
            session.request(Action.LEAVE, None, now)

    def _ask(self, now: float) -> None:
        session = self.session
        if session.member and session.joined >= len(self.history.lives):
            self.history.check_that_all_have_come()
            self.met = True
        if self.met and session.member and session.rank != NO_RANK:
            self.told_at = now
        elif session.member and now >= self.asks_next and not session.asks(Action.JOIN):
            self.asks_next = now + POLL
            session.join(now)

    def _allreduce(self, now: float) -> None:
        session = self.session
        if session.transfer is None:  # or the job was reset, as the last of all came
            self.out = np.zeros(SHAPE.numel, np.int32)
            session.begin(np.full(SHAPE.numel, 1 << self.place, np.int32), self.out, now)
        elif session.transfer.done:
            assert self.out is not None
            assert (self.out == (1 << len(self.history.lives)) - 1).all(), self.out
            session.finish()
            self.rounds -= 1


class History:
    def __init__(self, seed: int, rounds: int, restarts: int = 0, whole: bool = True) -> None:
        self.random = random.Random(seed)
        self.rounds = rounds
        self.restarts = restarts
        form = self.random.choice(FORMS)
        faults = Faults(self.random.choice(LOSSES), duplicate=0.1, jitter=500e-6)
        self.tree = Tree(*form, seed=seed, faults=faults, shape=SHAPE, whole=whole)
        self.tree.sessions.clear()  # each comes when it starts
        self.lives = [Life(self, place) for place in range(len(self.tree.workers))]
        self.came: set[Address] = set()

    def may_leave(self, life: Life) -> bool:
        """One stays, so that the job is not forgotten; where switches restart, all do to the end.

        (A switch that has forgotten how far all were waits for as many as before.)
        """
        if self.restarts:
            return not any(other.rounds for other in self.lives)
        return not all(other.leaving for other in self.lives if other is not life)

    def check_that_all_have_come(self) -> None:
        missing = {worker_address(life.place) for life in self.lives} - self.came
        assert not missing, f"told that all are there, without {missing}"

    def play(self) -> None:
        """Until all have been told, and all but one have left."""
        times = sorted(self.random.uniform(0.0, 0.3) for _ in range(self.restarts))
        end = self.tree.now + PATIENCE + 0.4
        while sum(life.left for life in self.lives) < len(self.lives) - 1 or not self.all_told():
            now = self.tree.now
            if times and times[0] <= now:
                del times[0]
                if not any(life.leaving for life in self.lives):
                    self.tree.restart(self.random.choice(list(self.tree.switches)))
            for life in self.lives:
                life.act(now)
            self.tree.let_pass(STEP)
            self._watch()
            joined = [life.session.joined for life in self.lives]
            assert self.tree.now < end, (
                f"told of {joined}, {[x.left for x in self.lives]} have left"
            )

    def all_told(self) -> bool:
        return all(life.told_at is not None for life in self.lives)

    def _watch(self) -> None:
        for switch in self.switches():
            job = switch.jobs.get(7)
            if job is not None:
                self.came |= {m.address for m in job.members.contributors()}

    def switches(self) -> list[Switch]:
        return [self.tree.switch, *(s for a, s in self.tree.switches.items() if a != SWITCH)]


@pytest.mark.parametrize("seed", range(SEEDS))
def test_all_learn_that_all_are_there(seed: int) -> None:
    """Workers that join, look, and leave."""
    History(seed, rounds=0, whole=bool(seed % 3)).play()


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(SEEDS))
def test_sums_lack_nobody(seed: int) -> None:
    """The gate of no switch opens early: workers that join, sum once or twice, and leave."""
    History(seed, rounds=1 + seed % 2).play()


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(SEEDS))
def test_switches_start_again_while_workers_gather(seed: int) -> None:
    """A switch that is started again counts anew who is there."""
    History(seed, rounds=1, restarts=1 + seed % 3).play()


def test_who_has_contributed_is_told_who_is_there() -> None:
    """Not of those who were: it has learned already that all had come."""
    tree = Tree(3, shape=SHAPE)
    tree.all_there()
    tree.ask(2, Action.LEAVE)
    tree.drop(2)
    first, second = tree.workers
    for session in tree.workers:
        session.join(tree.now)
    tree.let_pass(0.1)
    assert [first.joined, second.joined] == [3, 3]
    first.begin(np.ones(SHAPE.numel, np.int32), np.zeros(SHAPE.numel, np.int32), tree.now)
    tree.let_pass(0.1)
    for session in tree.workers:
        session.join(tree.now)
    tree.let_pass(0.1)
    assert [first.joined, second.joined] == [2, 3]
