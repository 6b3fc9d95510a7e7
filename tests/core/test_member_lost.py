"""Who is lost to a job that raises MemberLost, and when the others are told, in virtual time."""

from __future__ import annotations

import numpy as np
import pytest

from iswitch.core.format.wire import (
    TOS_CONTROL,
    Action,
    DType,
    Shape,
    Threshold,
)
from tests.support.tree import Tree
from tests.support.world import Faults, World, worker_address
from worker_lib.errors import MemberLost
from worker_lib.protocol.session import Answered
from worker_lib.waiting import ELSEWHERE, LOOK_PAUSE, Waiting

pytestmark = pytest.mark.unit

SHAPE = Shape.of(100, DType.INT32, elements=25)  # four segments


def watched(world: World) -> list[Waiting]:
    return [Waiting(s, len(world.sessions), "raise") for s in world.sessions.values()]


def until_lost(world: World, watching: list[Waiting], limit: float = 20.0) -> list[MemberLost]:
    """Let time pass until each of these gives somebody up."""
    lost: dict[int, MemberLost] = {}

    def all_told() -> bool:
        for i, waiting in enumerate(watching):
            events = world.events[
                next(a for a, s in world.sessions.items() if s is waiting.session)
            ]
            for event in events:
                if isinstance(event, Answered):
                    waiting.answered(event)
            events.clear()
            if i not in lost and (found := waiting.lost(world.now)) is not None:
                lost[i] = found
        return len(lost) == len(watching)

    world.run(all_told, limit)
    return [lost[i] for i in range(len(watching))]


def begun(world: World, numbers: list[int]) -> None:
    for number in numbers:
        session = world.sessions[worker_address(number)]
        out = np.zeros(session.shape.numel, session.shape.dtype.numpy)
        session.begin(out.copy(), out, world.now)


def test_all_are_told_of_a_dead_worker_soon_after_its_lease() -> None:
    tree = Tree(3, lease=5.0, whole=True)
    tree.all_there()
    tree.round_of_all()
    watching = watched(tree)
    del tree.sessions[worker_address(1)]
    died = tree.now
    begun(tree, [0, 2])
    rank = tree.workers[1].rank
    for error in until_lost(tree, [watching[0], watching[2]]):
        assert (error.ranks, error.round) == ([rank], 1)
        assert "is lost: 2 of 3 workers are there" in str(error)
    assert 4.0 < tree.now - died < 5.0 + 2 * LOOK_PAUSE + 1.0


def test_in_a_tree_all_are_told_by_name() -> None:
    tree = Tree(2, 2, lease=5.0, whole=True)
    tree.all_there()
    tree.round_of_all()
    watching = watched(tree)
    del tree.sessions[worker_address(3)]
    begun(tree, [0, 1, 2])
    died = tree.now
    errors = until_lost(tree, watching[:3], limit=30.0)
    lost = tree.workers[3]
    where = (*worker_address(3)[:2], lost.rank, *lost.switch[:2])
    assert [error.ranks for error in errors] == [[lost.rank]] * 3
    assert [list(error.awaited) for error in errors] == [[where]] * 3
    assert f"rank {lost.rank} at switch {lost.switch} ({worker_address(3)}) is lost" in str(
        errors[0]
    )
    assert tree.now - died < 5.0 + 3.0 + LOOK_PAUSE + ELSEWHERE + 3.0  # the switches' heartbeats


def test_a_slow_worker_is_not_lost() -> None:
    tree = Tree(3, lease=5.0, whole=True)
    tree.all_there()
    watching = watched(tree)
    begun(tree, [0, 2])
    end = tree.now + 30
    while tree.now < end:
        tree.step()
        assert not any(waiting.lost(tree.now) for waiting in watching)


def test_who_leaves_when_all_is_done_is_not_missed_by_one_that_lacks_aggregates() -> None:
    world = World()
    sessions = [world.join(i, SHAPE, expected=2, whole=True, heartbeat=0.2) for i in range(2)]
    world.run(lambda: all(s.joined == 2 or world.sessions for s in sessions) and sessions[1].member)
    for session in sessions:
        session.join(world.now)
    world.run(lambda: all(s.joined == 2 for s in sessions))
    watching = watched(world)
    lossy = Faults(lose=lambda up, tos, _: not up and tos != TOS_CONTROL and world.now < 1.5)
    begun(world, [0, 1])
    world.faults = lossy
    leaver = sessions[1]
    world.run(lambda: world.switch.counters["aggregates"] == SHAPE.segments)
    leaver.abandon()
    leaver.request(Action.LEAVE, None, world.now)
    world.run(lambda: not leaver.requests)
    del world.sessions[worker_address(1)]
    noticed = False
    transfer = sessions[0].transfer
    assert transfer is not None
    while not transfer.done:
        world.step()
        assert watching[0].lost(world.now) is None
        noticed |= sessions[0].joined == 1
    assert noticed


def test_with_h_set_by_hand_nobody_is_missed() -> None:
    tree = Tree(3, lease=5.0, whole=True)
    tree.all_there()
    watching = watched(tree)
    assert not any(waiting.lost(tree.now) for waiting in watching)
    begun(tree, [0, 1, 2])
    for waiting in watching:
        waiting.lost(tree.now)
    tree.end(0, 1, 2)
    del tree.sessions[worker_address(2)]
    tree.ask(0, Action.SETH, Threshold(2))
    begun(tree, [0])
    tree.let_pass(20.0)  # the other computes for long
    assert watching[0].session.joined == 2
    assert watching[0].lost(tree.now) is None
