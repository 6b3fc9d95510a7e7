"""Ranks in random trees whose workers and switches die and come back, and in one of 512 workers."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest

from iswitch.core.format.packets import Address
from iswitch.core.jobs.limits import Limits
from iswitch.core.switch import Switch
from tests.bench.many import STEPS, play
from tests.core.rank_histories import History
from tests.support.joined import SHAPE
from tests.support.world import SWITCH, World
from worker_lib.protocol.session import Session

pytestmark = pytest.mark.unit

SEEDS = int(os.environ.get("ISWITCH_MODEL_SEEDS", "8"))  # `make model` takes more


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(SEEDS))
def test_histories(seed: int) -> None:
    History(seed).play()


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_switch_restarts_again_and_again(seed: int) -> None:
    """Whoever comes elsewhere has no rank of those below it who are not back yet."""
    history = History(seed)
    draw = history.draw
    history.plan.restarts = True
    for i in range(history.n):
        history.start(history.wants[i], history.leaves[i % len(history.leaves)])
    history.run(2.0)
    at = draw.choice(list(history.above) or [SWITCH])
    for _ in range(draw.randint(2, 3)):
        history.restart(at)
        history.run(draw.choice([0.3, 0.6]))
    history.expects = False  # so that nobody waits for the others
    for process in [p for p in history.running.values() if not history.is_confirmed(p)][:3]:
        history.start(process.wants, draw.choice(list(history.world.switches)))
        history.run(0.3)
    history.run(3.0)


@pytest.mark.slow
def test_many_workers_below_one_root() -> None:
    """512 in three levels join, have 40 kB summed up, lose a worker and then a rack, and go on."""
    seconds = play()
    print(seconds)
    assert list(seconds) == STEPS
    assert seconds["joined"] + seconds["one round"] < 60, seconds


def test_a_reproducible_sum_in_a_tree_is_by_rack_then_rank() -> None:
    """Whoever joins first: the values tell the order."""
    values = np.array([1e8, 1.0, -1e8, 3.0], np.float32)
    in_order = (values[0] + values[1]) + (values[2] + values[3])
    assert in_order != ((values[0] + values[2]) + values[1]) + values[3]  # as in a star
    for order in ((0, 1, 2, 3), (3, 2, 1, 0), (2, 0, 3, 1)):
        world = World(Switch())
        racks = [Address(f"10.0.1.{n}", 26963) for n in (1, 2)]
        for rack in racks:
            world.switches[rack] = Switch(Limits(), False, SWITCH, 1000)
        ways: dict[str, Any] = {"expected": 4, "reproducible": True}
        sessions: dict[int, Session] = {}
        for rank in order:
            sessions[rank] = world.join(rank, SHAPE, at=racks[rank // 2], rank=rank, **ways)
            world.run(lambda session=sessions[rank]: session.member)  # type: ignore[misc]
        vectors = [np.full(3, value) for value in values]
        outs = world.allreduce([sessions[rank] for rank in range(4)], vectors)
        assert all((out == in_order).all() for out in outs)
