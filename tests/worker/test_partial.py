"""Rounds of some workers only: each is summed by itself; who is late is told at its own call."""

from __future__ import annotations

import os

import numpy as np
import pytest

from iswitch.core.format.wire import ROUND_MASK, Action, Threshold
from tests.support.partial import SHAPE, History, Life, end, vector
from tests.support.tree import Tree
from tests.support.world import World, worker_address
from worker_lib.protocol.session import Gone, Session

SEEDS = int(os.environ.get("ISWITCH_MODEL_SEEDS", "25"))  # `make model` takes more


@pytest.mark.parametrize("seed", range(SEEDS))
def test_rounds_do_not_mix(seed: int) -> None:
    """Workers come when they please, and answers to their Joins are lost."""
    history = History(seed).play()
    for life in history.lives:
        assert life is not None
        named = [i for i, who in enumerate(history.program.rounds) if life.place in who]
        assert sorted(life.done + life.told) == named  # each was summed, or told at its own call
    assert history.summed > 1 / 3  # those who are late for two rounds are not the rule


@pytest.mark.parametrize("seed", range(SEEDS))
def test_rounds_do_not_mix_whatever_happens(seed: int) -> None:
    """Processes are killed and started again, the switch is restarted, and reset."""
    History(seed, kills=1 + seed % 3, restarts=seed % 2, resets=seed // 2 % 3).play()


def test_the_oracle_sees_rounds_that_each_counts_from_its_own_first() -> None:
    """What a worker is told first is not the same for all: the answers to some Joins come late."""

    def named(life: Life, index: int) -> int:
        assert life.told_first is not None
        return (life.told_first + index) & ROUND_MASK

    def play_all() -> None:
        for seed in range(20):
            History(seed, named=named).play()

    with pytest.raises(AssertionError, match="holds others"):
        play_all()


def test_the_oracle_draws_what_it_is_for() -> None:
    """Some are told first of a round that others have passed."""
    late = 0
    for seed in range(20):
        history = History(seed).play()
        late += any(life and life.told_first != history.program.first for life in history.lives)
    assert late >= 5


def gathered(world: World, workers: int, **kwargs: int) -> list[Session]:
    """Sessions of partial workers that know of each other."""
    ways = {"expected": workers, "partial": True, **kwargs}
    sessions = [world.join(i, SHAPE, **ways) for i in range(workers)]
    world.run(lambda: all(session.member for session in sessions))
    return sessions


def begin(world: World, session: Session, round_: int, number: int) -> np.ndarray:
    """Have a session contribute to a round; where its sum will be."""
    assert session.skip_to(round_)
    out = np.zeros(SHAPE.numel, np.int32)
    session.begin(vector(number, round_), out, world.now)
    return out


def test_after_a_round_that_is_over_the_next_may_still_be_had() -> None:
    world = World()
    late, *others = gathered(world, 3)
    others[0].request(Action.SETH, Threshold(2), world.now)
    begin(world, late, 0, 0)
    for round_ in (1, 2):
        for number, session in enumerate(others, start=1):
            begin(world, session, round_, number)
        end(world, *others)
    told = world.events[worker_address(0)]
    world.run(lambda: any(isinstance(event, Gone) for event in told))
    out = begin(world, late, 1, 0)
    end(world, late)
    assert (out == vector(1, 1) + vector(2, 1)).all()


def test_who_comes_later_begins_with_a_number_of_its_own() -> None:
    """It may know better how far the program is than the others, and does not move them."""
    world = World()
    first, second = gathered(world, 2, first_round=5000)
    for round_ in (5000, 5001):
        outs = [begin(world, session, round_, i) for i, session in enumerate((first, second))]
        end(world, first, second)
        assert (outs[0] == vector(0, round_) + vector(1, round_)).all()
    later = world.join(2, SHAPE, expected=2, partial=True, first_round=5003)
    world.run(lambda: later.member)
    assert later.round == 5002
    assert first.skip_to(5002)
    for round_ in (5002, 5003):
        sessions = first, second, later
        outs = [begin(world, session, round_, i) for i, session in enumerate(sessions)]
        end(world, *sessions)
        assert (outs[2] == sum(vector(i, round_) for i in range(3))).all()


def test_a_program_begins_where_it_says_below_switches() -> None:
    first = 5000
    tree = Tree(2, 2, partial=True, first_round=first)
    tree.all_there()
    assert [session.round for session in tree.workers] == [first] * 4
    for _ in range(3):
        tree.round_of_all()
