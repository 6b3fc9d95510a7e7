"""Workers that are replaced in a tree at random, while its switches restart."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from iswitch.core.format.packets import Address
from iswitch.core.format.wire import (
    Action,
    DType,
    Shape,
)
from iswitch.core.switch import Switch
from tests.support.keyed import KEY
from tests.support.tree import TYPICAL, Tree
from tests.support.world import SWITCH, Faults, worker_address
from worker_lib.protocol.session import Answered, Dropped, Gone, Session, WasReset

pytestmark = pytest.mark.unit

SEEDS = int(os.environ.get("ISWITCH_MODEL_SEEDS", "12"))  # `make model` takes more
MOST = 24  # incarnations in a history
SHAPE = Shape.of(4 * (MOST + 1), DType.INT32, elements=MOST + 1)


@dataclass
class Life:
    """One incarnation of a worker."""

    identity: int
    born: float
    told: float  # when it began, or was last told that all begin anew
    out: np.ndarray
    finished: bool = False  # a round since then
    rounds: int = 0


class History(Tree):
    """Workers that do one allreduce after the other, and go on after a reset as the demo's do."""

    def __init__(self, *fan_outs: int, seed: int, key: bytes | None) -> None:
        self.key = key
        super().__init__(*fan_outs, seed=seed, faults=TYPICAL, whole=True, key=key)
        self.places = [(a, s.switch) for a, s in self.sessions.items()]
        for address in list(self.sessions):
            del self.sessions[address]
        self.lives: dict[int, Life] = {}
        self.born: list[float] = []
        self.begun: dict[tuple[int, int], float] = {}  # by identity and round: up to date when
        for place in range(len(self.places)):
            self.be_born(place)

    def be_born(self, place: int) -> None:
        identity = len(self.born)
        self.born.append(self.now)
        ways: dict[str, Any] = {"expected": len(self.places), "heartbeat": 1.0, "whole": True}
        ways["key"] = self.key
        second = 1000 + identity - self.random.choice((0, 0, 1, 2, 5, 900))  # clocks step back
        self.join(place, SHAPE, at=self.places[place][1], incarnation=second, **ways)
        out = np.zeros(SHAPE.numel, np.int32)
        self.lives[place] = Life(identity, self.now, self.now, out)

    def session(self, place: int) -> Session:
        return self.sessions[worker_address(place)]

    def die(self, place: int) -> None:
        del self.lives[place], self.sessions[worker_address(place)]

    def go_on(self) -> None:
        self.pump()
        for place, life in self.lives.items():
            session = self.session(place)
            for event in self.events[worker_address(place)]:
                has_reset = isinstance(event, Answered) and event.action is Action.RESET
                if has_reset or isinstance(event, WasReset | Dropped | Gone):
                    life.told, life.finished = self.now, False
                if isinstance(event, Dropped | Gone):
                    session.request(Action.RESET, None, self.now)
            self.events[worker_address(place)].clear()
            transfer = session.transfer
            if transfer is not None and transfer.done:
                self.check(life, transfer.round)
                session.finish()
                life.rounds += 1
                life.finished = True
            waits = session.asks(Action.RESET)  # as `Worker.reset` does
            if session.transfer is None and session.member and not waits:
                grid = np.zeros((SHAPE.segments, MOST + 1), np.int32)
                grid[:, life.identity] = 1
                session.begin(grid.reshape(-1), life.out, self.now)
                up_to_date = life.told if life.finished else float("inf")
                self.begun[life.identity, session.round] = up_to_date

    def check(self, life: Life, round_: int) -> None:
        counts = life.out.reshape(SHAPE.segments, MOST + 1)
        assert counts.max() <= 1, "counted twice"
        assert (counts.sum(1) == len(self.places)).all(), "a sum of fewer, or of more"
        assert (counts[:, life.identity] == 1).all()
        last = 0.0
        for row in counts:
            inside = np.flatnonzero(row).tolist()
            newest = max(self.born[identity] for identity in inside)
            for identity in inside:
                told = self.begun[identity, round_]
                assert told >= newest, (
                    f"round {round_} mixes {identity}, told at {told}, and one born at {newest}"
                )
            last = max(last, newest)
        life.told = max(life.told, last)  # from here on they go together

    def reset_before_a_restart(self) -> None:
        """Workers ask for Resets, of which not all below the root hear before that restarts."""
        below = self.above or [worker_address(place) for place in self.lives]
        deaf = self.random.sample(sorted(below), self.random.randrange(1, len(below) + 1))
        home = self.network.home
        self.network.lose = lambda source, peer, *_: source == SWITCH and home(peer) in deaf
        for _ in range(self.random.randrange(1, 4)):
            asker = self.random.choice(sorted(self.lives))
            self.session(asker).request(Action.RESET, None, self.now)
            self.live(self.random.choice((3e-4, 2e-3, 3e-2)))
        self.network.lose = self.lost

    def new_switch(self, address: Address) -> Switch:
        """A process whose clock stands anywhere, also before that of the one before."""
        switch = super().new_switch(address)
        assert switch.control.hierarchy is not None
        switch.control.hierarchy._incarnation -= self.random.choice((0, 0, 1, 3, 900))
        return switch

    def live(self, seconds: float) -> None:
        end = self.now + seconds
        while self.now < end:
            self.go_on()
            self.step()

    def everybody_gets_on(self) -> None:
        self.faults = Faults()
        goal = {place: life.rounds + 3 for place, life in self.lives.items()}
        end = self.now + 60
        while any(self.lives[place].rounds < goal[place] for place in goal):
            self.go_on()
            assert self.step()
            state = [(p, x.rounds, self.session(p).round) for p, x in self.lives.items()]
            assert self.now < end, f"no progress: {state}\n" + "\n".join(self.trace[-40:])
        self.faults = TYPICAL


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(SEEDS))
def test_workers_are_replaced_while_switches_restart(seed: int) -> None:
    """No sum mixes a newcomer with who has not heard of it, and everybody gets on.

    Nobody needs a Reset for that, also where some have heard of one before the root restarts.

    What a dead process sent has arrived when the new one comes, as ever (a switch that knows
    nothing of it could not tell its packets from the new one's).
    """
    fan_outs = [(3,), (2, 2), (2, 1), (1, 3)][seed % 4]
    history = History(*fan_outs, seed=seed, key=KEY if seed // 4 % 2 else None)
    rng = history.random
    switches: list[Address] = [SWITCH, *history.above]
    for _ in range(4):
        history.live(rng.choice((1e-3, 5e-3, 2e-2)))
        place = rng.choice(list(history.lives))
        history.die(place)
        restarts = rng.sample(switches, rng.randrange(len(switches) + 1))
        moments = sorted(rng.choice((0.0, 1e-3, 3e-3, 3e-2)) for _ in range(len(restarts) + 1))
        birth = rng.randrange(len(restarts) + 1)
        for i, moment in enumerate(moments):
            history.live(2e-3 + moment)
            if i == birth:
                history.be_born(place)
                continue
            address = restarts.pop()
            if address == SWITCH and rng.random() < 0.5:
                history.reset_before_a_restart()
            history.restart(address)
        history.everybody_gets_on()
