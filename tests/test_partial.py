"""Rounds of some workers only: each is summed by itself; who is late is told at its own call."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from iswitch.wire import Action, DType, Shape, Threshold
from worker_lib import AllreduceTimeout, RoundGone, Worker
from worker_lib.session import Gone, Session

from .conftest import Where
from .world import Faults, World, worker_address

SEEDS = int(os.environ.get("ISWITCH_MODEL_SEEDS", "60"))  # `make model` takes more
WORKERS, ROUNDS, H = 4, 12, 2
SEGMENTS = 3
SIZE = WORKERS + 1  # elements of a segment: one for each worker, and the number of the round
SHAPE = Shape.of(SEGMENTS * SIZE, DType.INT32, elements=SIZE)
PATIENCE = 20.0


def vector(number: int, round_: int) -> np.ndarray:
    """Whose it is, and of which round of the program, in every segment."""
    grid = np.zeros((SEGMENTS, SIZE), np.int32)
    grid[:, number] = 1
    grid[:, -1] = round_ + 1
    return grid.reshape(-1)


def check(out: np.ndarray, round_: int, who: set[int]) -> None:
    """A sum is of one round of the program: of H or more, all of whom take part in that round."""
    for segment in out.reshape(SEGMENTS, SIZE):
        inside = set(np.flatnonzero(segment[:-1]).tolist())
        assert segment[:-1].max() == 1
        assert len(inside) >= H
        assert inside <= who, f"round {round_} of {who} holds {inside}"
        assert segment[-1] == (round_ + 1) * len(inside), f"round {round_} holds others: {segment}"


def plan(seed: int) -> list[set[int]]:
    """Who takes part in each round."""
    rng = random.Random(seed)
    return [set(rng.sample(range(WORKERS), rng.randint(H, WORKERS))) for _ in range(ROUNDS)]


class Life:
    """A worker that does the rounds it takes part in, each when it pleases."""

    def __init__(self, world: World, number: int, rounds: list[set[int]], seed: int) -> None:
        self.world, self.number, self.rounds = world, number, rounds
        self.rng = random.Random(f"{seed} {number}")
        self.session: Session = world.join(
            number, SHAPE, expected=WORKERS, whole=True, incarnation=1000
        )
        self.mine = [i for i, who in enumerate(rounds) if number in who]
        self.out = np.zeros(SHAPE.numel, np.int32)
        self.done: list[int] = []
        self.gone: list[int] = []  # rounds of which it was told that they are over
        self.starts = 0.0

    def act(self) -> None:
        session, now = self.session, self.world.now
        events = self.world.events[worker_address(self.number)]
        for event in events:
            if isinstance(event, Gone) and event.round in self.mine:
                self.mine.remove(event.round)
                self.gone.append(event.round)
                session.skip_to(event.round + 1)
        events.clear()
        if session.transfer is not None:
            if session.transfer.done:
                check(self.out, self.mine[0], self.rounds[self.mine[0]])
                self.done.append(self.mine.pop(0))
                session.finish()
                self.starts = now + self.rng.choice((0.0, 0.001, 0.02))
        elif self.mine and now >= self.starts:
            while self.mine and self.mine[0] < session.round:  # as Worker.allreduce tells it
                self.gone.append(self.mine.pop(0))
            if self.mine:
                session.skip_to(self.mine[0])
                session.begin(vector(self.number, self.mine[0]), self.out, now)


@pytest.mark.parametrize("seed", range(SEEDS))
def test_rounds_do_not_mix(seed: int) -> None:
    faults = Faults(random.Random(seed).choice((0.0, 0.1, 0.3)), duplicate=0.1, jitter=500e-6)
    world = World(faults=faults, seed=seed)
    rounds = plan(seed)
    lives = [Life(world, i, rounds, seed) for i in range(WORKERS)]
    world.run(lambda: all(life.session.member for life in lives))
    lives[0].session.request(Action.SETH, Threshold(H), world.now)
    world.run(lambda: not lives[0].session.asks(Action.SETH))

    def at_end() -> bool:
        world.pump()  # what has happened is known before anything else is done
        for life in lives:
            life.act()
        return not any(life.mine for life in lives)

    world.run(at_end, limit=120.0)
    for life in lives:
        named = [i for i, who in enumerate(rounds) if life.number in who]
        assert sorted(life.done + life.gone) == named  # each was summed, or told at its own call


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(WORKERS) as pool:
        yield pool


def test_workers_name_their_rounds(switch: Where, job: int, pool: ThreadPoolExecutor) -> None:
    """As docs/worker.md has it: a random half of them in every round, over a switch's socket."""
    rounds = plan(7)

    def run(number: int) -> int:
        summed = 0
        with Worker(
            switch, job, SHAPE.numel, WORKERS, dtype=np.int32, partial=True, timeout=PATIENCE
        ) as worker:
            worker.set_threshold(H)
            first = worker.round
            for step, who in enumerate(rounds):
                if number in who:
                    try:
                        out = worker.allreduce(vector(number, step), round_=first + step)
                    except RoundGone:  # two rounds further already: told at this very call
                        continue
                    check(out, step, who)
                    summed += 1
        return summed

    assert sum(pool.map(run, range(WORKERS))) >= H * (ROUNDS - 2)  # those are the rule


def test_a_threshold_that_could_mix_rounds_is_refused(
    switch: Where, job: int, pool: ThreadPoolExecutor
) -> None:
    """The naive program: each calls allreduce in the rounds it takes part in, unnamed."""
    made = [
        future.result(PATIENCE)
        for future in [pool.submit(Worker, switch, job, 5, 3, timeout=PATIENCE) for _ in range(3)]
    ]
    first, second, _ = made
    for threshold in (1, 2):
        with pytest.raises(ValueError, match=r"3 workers are in the job.*partial=True"):
            first.set_threshold(threshold)
    assert first.set_threshold(3) == 3
    assert first.set_threshold(4) == 4  # whoever is still to come
    assert first.set_threshold(0) == 3
    ones = np.ones(5, np.float32)
    late = pool.submit(first.allreduce, ones, timeout=0.5)
    with pytest.raises(AllreduceTimeout):
        second.allreduce(ones, timeout=0.5)
    assert isinstance(late.exception(PATIENCE), AllreduceTimeout)
    assert second.set_threshold(2) == 2  # the third does not contribute: go on without it
    assert (second.allreduce(ones) == 2).all()
    for worker in made:
        worker.leave()


def test_rounds_are_named_where_they_have_to_be(switch: Where, job: int) -> None:
    ones = np.ones(5, np.float32)
    with Worker(switch, job, 5) as plain, pytest.raises(ValueError, match="partial=True, or leave"):
        plain.allreduce(ones, round_=0)
    with Worker(switch, job, 5, partial=True) as partial:
        with pytest.raises(ValueError, match="round_ is missing"):
            partial.allreduce(ones)
        first = partial.round
        assert (partial.allreduce(ones, round_=first + 1) == 1).all()
        with pytest.raises(RoundGone, match=f"round {first} is no longer kept"):
            partial.allreduce(ones, round_=first)
        with pytest.raises(ValueError, match="a round is a number"):
            partial.allreduce(ones, round_=-1)
