"""How workers that are behind go on: whatever happens, equal versions have equal states."""

from __future__ import annotations

import random
from hashlib import blake2b

import numpy as np
import pytest

from iswitch.core.format.packets import Address
from iswitch.core.format.wire import Action, DType, Mode, Op, Shape
from iswitch.core.jobs.limits import Limits
from iswitch.core.switch import Switch
from tests.support.world import SWITCH, Faults, World, worker_address
from worker_lib.asynchronous.standing import Standing, Way, choose, is_needed
from worker_lib.protocol.versions import AsynchronousSession

pytestmark = pytest.mark.unit

SHAPE = Shape.of(3 * 7 + 3, DType.INT32, Op.SUM, Mode.ASYNCHRONOUS, elements=7)

A, B, C = (Standing(identity, 5, True) for identity in (10, 20, 30))


@pytest.mark.parametrize(
    ("own", "others", "all_asked", "way", "whose"),
    [
        (B, [A, C], True, Way.WAIT, 20),  # A goes on
        (A, [B, C], True, Way.GO_ON, 10),
        (A, [B], False, Way.WAIT, 10),  # C may be anywhere
        (A, [B, C._replace(behind=False)], True, Way.WAIT, 10),  # C goes on, or finds out
        (A, [B, C._replace(version=7)], True, Way.TAKE, 30),
        (A, [B, C._replace(version=7, behind=False)], False, Way.TAKE, 30),
        (A._replace(version=4), [B, C], True, Way.TAKE, 20),
        (C._replace(version=6), [A, B], True, Way.GO_ON, 30),
        (A._replace(version=2**32 - 1), [B._replace(version=1)], True, Way.TAKE, 20),  # wraps
        (A._replace(version=1), [B._replace(version=2**32 - 1)], True, Way.GO_ON, 10),
        (C._replace(version=None), [A], False, Way.TAKE, 10),
        (A._replace(version=None), [B._replace(version=None)], True, Way.GO_ON, 10),
        (B._replace(version=None), [A._replace(version=None)], True, Way.WAIT, 20),
        (A._replace(version=None), [B._replace(version=0)], True, Way.TAKE, 20),
        (A, [B._replace(version=None)], True, Way.GO_ON, 10),
        (A, [], True, Way.GO_ON, 10),
    ],
)
def test_choose(
    own: Standing, others: list[Standing], all_asked: bool, way: Way, whose: int
) -> None:
    chosen, standing = choose(own, others, all_asked)
    assert (chosen, standing.identity) == (way, whose)


class Process:
    """A worker whose state is a digest of all updates since the start."""

    def __init__(self, crew: Crew, number: int, incarnation: int) -> None:
        self.crew = crew
        self.number = number
        self.session: AsynchronousSession = crew.join_asynchronous(
            number,
            SHAPE,
            incarnation=incarnation,
            expected=crew.size,
            heartbeat=0.1,
            threshold=crew.threshold,
        )
        self.version: int | None = None
        self.state = bytes([number])  # all begin differently
        self.states: dict[int, bytes] = {}
        self.due = 0.0
        self.awake = self.answers_others = True
        self.leaves = self.skipped = False  # `skipped`: it went on without versions it lacked
        self.answers: list[tuple[Process, Standing] | None] = []

    def act(self) -> None:
        session, now = self.session, self.crew.now
        while (made := session.next_made()) is not None:
            version, total = made
            assert self.version is not None
            assert version == (self.version + 1) % 2**32
            self.is_at(version, blake2b(self.state + total.tobytes()).digest())
        if now < self.due:
            return
        self.due = now + self.crew.chance.expovariate(1 / 0.006)
        if session.member and session.behind:
            self.catch_up()
            self.due = now + self.crew.chance.expovariate(1 / 0.001)
        elif self.leaves:
            self.leave()
        elif session.can_contribute:
            noise = self.crew.chance.randrange(1000)
            session.contribute(np.full(SHAPE.numel, noise, np.int32))
        self.crew.network.at(self.due, lambda: None)

    def is_at(self, version: int, state: bytes) -> None:
        self.version, self.state = version, state
        self.states[version] = state

    def standing(self) -> Standing:
        return Standing(self.number, self.version, self.session.behind)

    def survey(self) -> tuple[dict[Standing, Process], bool] | None:
        """As an AsynchronousWorker does: ask one after the other, some in vain; None: go on so."""
        others = [p for p in self.crew.processes if p is not self]
        if len(self.answers) < len(others):
            other = others[len(self.answers)]
            reached = other.answers_others and self.crew.chance.random() < 0.9
            self.answers.append((other, other.standing()) if reached else None)
            return None
        reached_all = None not in self.answers
        found = {answer[1]: answer[0] for answer in self.answers if answer}
        self.answers.clear()
        return found, reached_all

    def leave(self) -> None:
        """As an AsynchronousWorker does to whose questions all answer."""
        if (asked := self.survey()) is None:
            return
        found, reached_all = asked
        if reached_all and not is_needed(self.standing(), found.keys(), self.session.newest):
            self.session.request(Action.LEAVE, None, self.crew.now)
            self.crew.processes.remove(self)
            self.crew.departed.append(self)

    def catch_up(self) -> None:
        if (asked := self.survey()) is None:
            return
        found, reached_all = asked
        way, whose = choose(self.standing(), found.keys(), reached_all)
        if way is Way.GO_ON:
            self.skipped |= self.version is not None
            self.session.resume_at(self.session.newest, self.crew.now)
            self.is_at(self.session.version, self.state)
        elif way is Way.TAKE:
            giver = found[whose]
            if giver in self.crew.processes and giver.version is not None:  # it lives
                self.session.resume_at(giver.version, self.crew.now)
                self.is_at(giver.version, giver.state)


class Crew(World):
    """Workers at a switch, to which bad things happen."""

    def __init__(self, size: int, faults: Faults, seed: int, threshold: int = 0) -> None:
        super().__init__(Switch(Limits(lease=1e6)), faults, seed)
        self.size, self.threshold = size, threshold
        self.chance = random.Random(seed)
        self.processes: list[Process] = []
        self.processes = [Process(self, number, 1000) for number in range(size)]
        self.departed: list[Process] = []

    def pump(self) -> None:
        for process in tuple(self.processes):
            if process.awake:
                process.act()
        super().pump()

    def least(self) -> int:
        return min(process.version or 0 for process in self.processes)

    def let_pass(self, seconds: float) -> None:
        end = self.now + seconds
        while (when := self.network.next_time()) is not None and when <= end:
            self.step()

    # What happens

    def restart_switch(self) -> None:
        self.switch = Switch(Limits(lease=1e6))

    def reset(self) -> None:
        process = self.chance.choice(self.processes)
        if process.session.member and process.awake:
            process.session.request(Action.RESET, None, self.now)

    def kill(self) -> None:
        """A process ends, and another begins in its place; what both did need not agree."""
        number = self.chance.randrange(self.size)
        if self.processes[number].awake:
            self.processes[number] = Process(self, number, 1000 + int(1e4 * self.now))

    def pause(self, answers: bool = False) -> None:
        """A process gets no core for a while; `answers`: but for answering others."""
        process = self.chance.choice(self.processes)
        address: Address = worker_address(process.number)
        if not process.awake:
            return
        process.awake, process.answers_others = False, answers
        self.network.pause(address)

        def resume() -> None:
            self.network.resume(address)
            process.awake = process.answers_others = True

        self.network.at(self.now + self.chance.choice((0.01, 0.2)), resume)

    def check(self) -> int:
        """Equal versions, equal states; how many were compared."""
        compared, all_ = 0, (*self.processes, *self.departed)
        for version in set().union(*(p.states for p in all_)):
            held = [p.states[version] for p in all_ if version in p.states]
            assert len(set(held)) == 1, version
            compared += len(held) > 1
        return compared


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10))
def test_equal_versions_have_equal_states(seed: int) -> None:
    faults = Faults(loss=0.05, duplicate=0.05, jitter=2e-4 * (seed % 3))
    crew = Crew(2 + seed % 3, faults, seed)
    crew.run(lambda: crew.least() >= 5)
    assert crew.check()
    happenings = [crew.restart_switch, crew.reset, crew.pause, crew.kill]
    for _ in range(4):
        crew.chance.choice(happenings[: 2 + seed % 3])()
        crew.let_pass(crew.chance.choice((0.005, 0.05, 0.2)))
        crew.check()
    crew.let_pass(0.2)
    goal = max(process.version or 0 for process in crew.processes) + 8
    crew.run(lambda: crew.least() >= goal)
    assert crew.check() >= 5
    assert crew.switches[SWITCH] is crew.switch


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(30))
def test_who_leaves_takes_no_version_along(seed: int) -> None:
    """All but one leave while one gets no core, and lacks versions that the others make."""
    faults = Faults(loss=0.05, duplicate=0.05, jitter=2e-4 * (seed % 3))
    crew = Crew(2 + seed % 3, faults, seed, threshold=1)
    crew.run(lambda: crew.least() >= 5)
    crew.pause(answers=True)
    crew.let_pass(crew.chance.choice((0.02, 0.05, 0.15)))
    stays = crew.chance.choice(crew.processes)
    for process in crew.processes:
        process.leaves = process is not stays
    crew.run(lambda: crew.processes == [stays])
    goal = max(process.version or 0 for process in crew.departed) + 8
    crew.run(lambda: crew.least() >= goal)
    assert crew.check()
    assert not stays.skipped
