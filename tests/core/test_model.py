"""Random histories of joins, leaves, crashes, restarts and losses, against what must always hold.

Every member (an incarnation of a worker) has an element of its own, to which it alone adds 1, and
adds another token to the last element with every vector. So a sum tells exactly whose
contributions it holds, how often, and of which vectors:

- exactly once: no member's element is above 1;
- rounds do not mix: the last element is the sum of the tokens of this round;
- whoever gets an aggregate of a round it contributed to finds itself in it;
- all who get an aggregate of a round get the same one (while the switch keeps its state);
- in a whole job no sum holds fewer contributions than expected;
- progress: when the faults stop, everybody gets on.
"""

from __future__ import annotations

import os
import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from iswitch.core.format.wire import Action, DType, Shape
from iswitch.core.jobs.limits import Limits
from iswitch.core.switch import Switch
from tests.support.world import Faults, World, worker_address
from worker_lib.protocol.session import Dropped, Gone, Session

pytestmark = pytest.mark.unit

SEEDS = int(os.environ.get("ISWITCH_MODEL_SEEDS", "12"))  # `make model` takes more
SEEDS_OF_LEASES = -(-SEEDS // 2)  # each takes ten times as long; soak draws such histories, too
MOST = 24  # members in all, over a history
SEGMENTS = 5
SHAPE = Shape.of(SEGMENTS * (MOST + 1), DType.INT32, elements=MOST + 1)
TYPICAL = Faults(loss=0.05, duplicate=0.05, jitter=200e-6)
LEASE = 0.3  # where leases run out at all


def patient_switch() -> Switch:
    """It never forgets a job, so that a round's number stands for one round."""
    return Switch(Limits(lease=float("inf")))


class Life:
    """One incarnation of a worker, which does one allreduce after the other."""

    def __init__(self, history: History, place: int, identity: int, expected: int) -> None:
        self.history = history
        self.place = place
        self.identity = identity
        self.session: Session = history.world.join(
            place, SHAPE, expected=expected, incarnation=1000 + identity, **history.ways
        )
        self.out = np.zeros(SHAPE.numel, np.int32)
        self.rounds = 0
        self.leaving = False

    def vector(self) -> np.ndarray:
        self.token = self.history.rng.randrange(1 << 20)
        grid = np.zeros((SEGMENTS, MOST + 1), np.int32)
        grid[:, self.identity] = 1
        grid[:, -1] = self.token
        return grid.reshape(-1)

    def go_on(self) -> None:
        """Take what is done, begin the next."""
        session, world = self.session, self.history.world
        for event in world.events[worker_address(self.place)]:
            if isinstance(event, Gone | Dropped):
                self.history.excused.append(event)
        world.events[worker_address(self.place)].clear()
        transfer = session.transfer
        if transfer is not None and transfer.done:
            self.history.check(self, transfer.round)
            session.finish()
            self.rounds += 1
        if session.transfer is None and session.member and not self.leaving:
            session.begin(self.vector(), self.out, world.now)
        if session.transfer is not None:
            self.history.tokens[self.identity, session.transfer.round] = self.token


class History:
    def __init__(
        self,
        seed: int,
        workers: int,
        expected: bool = True,
        switch: Switch | None = None,
        **ways: Any,
    ) -> None:
        self.rng = random.Random(seed)
        self.world = World(switch or patient_switch(), TYPICAL, seed)
        self.ways = ways
        self.least = workers if ways.get("whole") else 0  # contributions in any sum
        self.seen: dict[tuple[int, int], tuple[bytes, int]] = {}
        self.tokens: dict[tuple[int, int], int] = {}
        self.agree = True
        self.excused: list[object] = []
        self.identities = 0
        self.lives: dict[int, Life] = {}
        for place in range(workers):
            self.be_born(place, workers if expected else 0)

    def be_born(self, place: int, expected: int = 0) -> None:
        if self.identities < MOST:
            self.lives[place] = Life(self, place, self.identities, expected)
            self.identities += 1

    def check(self, life: Life, round_: int) -> None:
        sums = life.out.reshape(SEGMENTS, MOST + 1)
        counts = sums[:, :-1]
        assert counts.max() <= 1, f"counted twice in round {round_}: {counts}"
        assert counts.min() >= 0
        assert counts.sum(1).min() >= self.least, f"a sum of fewer in round {round_}: {counts}"
        assert (counts[:, life.identity] == 1).all(), f"{life.identity} not in round {round_}"
        for index in range(SEGMENTS):
            inside = np.flatnonzero(counts[index]).tolist()
            tokens = [self.tokens.get((identity, round_)) for identity in inside]
            assert None not in tokens, f"{inside} in round {round_}: {tokens}"
            assert sums[index, -1] == sum(token or 0 for token in tokens), (
                f"round {round_} holds others: {inside}"
            )
            mine = sums[index].tobytes()
            seen, who = self.seen.setdefault((round_, index), (mine, life.identity))
            if self.agree:
                assert seen == mine, f"{who} and {life.identity} differ in round {round_}"

    def live(self, seconds: float) -> None:
        """Let everybody work for a while."""
        end = self.world.now + seconds
        while self.world.now < end:
            for life in self.lives.values():
                life.go_on()
            if not self.world.step():
                assert not self.lives
                self.world.now = end

    def everybody_gets_on(self, rounds: int = 3) -> None:
        """Without further faults, all complete some rounds more."""
        self.world.faults = Faults()
        goal = {place: life.rounds + rounds for place, life in self.lives.items()}
        end = self.world.now + 30
        while any(self.lives[place].rounds < goal[place] for place in goal):
            for life in self.lives.values():
                life.go_on()
            assert self.world.step()
            state = {
                p: (x.rounds, x.session.round, x.session.member) for p, x in self.lives.items()
            }
            assert self.world.now < end, f"no progress: {state}\n" + "\n".join(
                self.world.trace[-30:]
            )

    def gathered(self) -> bool:
        """Whether all that are expected have been there."""
        job = self.world.switch.jobs.get(7)
        return job is not None and job.members.gathered

    # What can happen

    def leave(self, place: int) -> None:
        """A worker says that it leaves, and is gone when that is answered."""
        life = self.lives[place]
        if life.session.member and not life.leaving:
            life.leaving = True
            life.session.abandon()
            request = life.session.request(Action.LEAVE, None, self.world.now)
            for _ in range(10_000):
                if not life.session.requests.has(request):
                    break
                for other in self.lives.values():
                    other.go_on()
                assert self.world.step()
            self.die(place)

    def die(self, place: int) -> None:
        life = self.lives.pop(place)
        del self.world.sessions[worker_address(life.place)]

    def be_reborn(self, place: int, expected: int, pause: float) -> None:
        """A worker crashes; a new process takes its address."""
        self.die(place)
        self.live(pause)
        self.be_born(place, expected)

    def sleep(self, place: int, seconds: float) -> None:
        """A worker's process is stopped for a while."""
        life = self.lives.pop(place)
        self.world.stop(place)
        self.live(seconds)
        self.world.resume(place)
        self.lives[place] = life

    def restart_switch(self) -> None:
        self.world.switch = patient_switch()


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(SEEDS))
def test_members_come_and_go(seed: int) -> None:
    """Leaves, late joins and new incarnations, with H automatic and a switch that lasts."""
    history = History(seed, workers=history_size(seed))
    while not history.gathered():  # who leaves before is missed for good
        history.live(5e-3)
    for _ in range(8):
        places = list(history.lives)
        place = history.rng.choice(places)
        what = history.rng.choice(("leave", "join", "reborn"))
        if what == "leave" and len(places) > 1:
            history.leave(place)
        elif what == "reborn":
            history.be_reborn(place, 0, history.rng.choice((0.0, 1e-4, 2e-2)))
        elif len(places) < 6:
            history.be_born(max(places) + 1)
        history.live(history.rng.choice((1e-4, 1e-3, 5e-3)))
    history.everybody_gets_on()
    assert not history.excused


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(SEEDS))
def test_switch_restarts(seed: int) -> None:
    """The switch loses its state, several times; the members stay the same."""
    history = History(seed, workers=history_size(seed))
    for _ in range(4):
        history.live(history.rng.choice((1e-4, 1e-3, 5e-3, 5e-2)))
        history.restart_switch()
    history.everybody_gets_on()
    assert not history.excused


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(SEEDS))
def test_everything_at_once(seed: int) -> None:
    """Restarts of the switch and of workers together: nothing wrong, and everybody gets on.

    What a crashed worker had contributed may be in an aggregate that some got before the restart
    and not in the one others get after it, so that agreement cannot be asked for. A worker's crash
    and a restart are further apart than a packet can be late: a switch that knows nothing of the
    old process could not tell its packets from the new one's.
    """
    history = History(seed, workers=history_size(seed))
    history.agree = False
    for _ in range(6):
        history.live(history.rng.choice((1e-3, 2e-3, 5e-3)))
        if history.rng.random() < 0.5:
            history.restart_switch()
        else:
            place = history.rng.choice(list(history.lives))
            history.be_reborn(place, len(history.lives), pause=1e-3)
    history.everybody_gets_on()


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(SEEDS))
def test_gathering(seed: int) -> None:
    """Workers come, and crash, before all have joined: no sum lacks one that is there in time."""
    history = History(seed, workers=2)
    for life in history.lives.values():
        life.session.terms = replace(life.session.terms, expected=4)
    history.lives.clear()
    history.world = World(patient_switch(), TYPICAL, seed)
    for place in range(3):
        history.be_born(place, expected=4)
        history.live(1e-3)
    assert all(life.rounds == 0 for life in history.lives.values())
    history.die(1)
    history.be_born(1, expected=4)
    history.live(5e-3)
    assert all(life.rounds == 0 for life in history.lives.values())
    history.be_born(3, expected=4)
    history.everybody_gets_on()
    assert not history.excused


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(SEEDS_OF_LEASES))
def test_leases_run_out(seed: int) -> None:
    """Workers are stopped for a while, or die without a word.

    In every other history the switch restarts, too; then, as ever when it does, it must be told
    right how many members there are, so that none is born and none dies.
    """
    history = History(
        seed,
        workers=2 + seed % 3,
        switch=Switch(Limits(lease=LEASE)),
        heartbeat=LEASE / 3,
    )
    restarts = seed % 2
    history.agree = not restarts
    for _ in range(5):
        history.live(history.rng.choice((1e-4, 1e-3, 3e-3)))
        place = history.rng.choice(list(history.lives))
        what = history.rng.choice(("sleep", "die", "be born", "restart"))
        if what == "sleep" and len(history.lives) > 1:  # else nobody would be there to come back to
            history.sleep(place, history.rng.choice((LEASE / 4, 1.1 * LEASE, 3 * LEASE)))
        elif what == "die" and len(history.lives) > 1 and not restarts:
            history.die(place)
        elif what == "be born" and not restarts:
            history.be_born(max(history.lives) + 1)
        elif restarts:
            history.live(
                1e-3
            )  # as above: a Join on its way would be taken for one to the new switch
            history.world.switch = Switch(Limits(lease=LEASE))
    if restarts or history.gathered():  # else one died too early
        history.everybody_gets_on()


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(SEEDS_OF_LEASES))
def test_whole_jobs(seed: int) -> None:
    """Workers leave, die, are stopped and replaced; when all are there again, all get on."""
    workers = 2 + seed % 3
    history = History(
        seed,
        workers,
        switch=Switch(Limits(lease=LEASE)),
        whole=True,
        heartbeat=LEASE / 3,
    )
    while not history.gathered():
        history.live(5e-3)
    for _ in range(4):
        history.live(history.rng.choice((1e-4, 1e-3, 3e-3)))
        place = history.rng.choice(list(history.lives))
        what = history.rng.choice(("leave", "die", "sleep", "reborn"))
        if what == "leave":
            history.leave(place)
        elif what == "die":
            history.die(place)
            history.live(history.rng.choice((1e-3, 3 * LEASE)))
        elif what == "sleep" and workers > 1:
            history.sleep(place, history.rng.choice((LEASE / 2, 3 * LEASE)))
        elif what == "reborn":
            history.be_reborn(place, workers, history.rng.choice((1e-4, 2e-2)))
        while len(history.lives) < workers:
            newcomer = history.identities
            history.be_born(newcomer, workers)
            while not history.lives[newcomer].session.member:
                history.live(LEASE / 4)
                if not history.lives[newcomer].session.requests:  # its place is not free yet
                    history.lives[newcomer].session.join(history.world.now)
        history.everybody_gets_on()
        history.world.faults = TYPICAL
    # A Reset whose relay is lost is told by an answer GONE.
    assert not any(isinstance(event, Dropped) for event in history.excused)


def history_size(seed: int) -> int:
    return 1 + seed % 4
