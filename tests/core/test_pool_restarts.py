"""Rounds under way that have fewer slots after a restart of the switch: docs/protocol.md, Pools."""

from __future__ import annotations

import numpy as np
import pytest

from iswitch.core.format.packets import Address, Burst
from iswitch.core.format.wire import TOS_CONTROL, TOS_DATA, Control, Join, Shape
from iswitch.core.jobs.limits import Limits
from iswitch.core.sums.resized import OneSlottedRound, ResizedAccelerator
from iswitch.core.switch import Switch
from tests.support.world import World
from worker_lib.protocol.events import Gone
from worker_lib.protocol.session import Session

pytestmark = pytest.mark.unit

SHAPE = Shape.of(40_000)  # 110 segments
WAYS = {"expected": 2, "whole": True}


def of(slots: int) -> int:
    return ResizedAccelerator.memory(SHAPE, slots)


def vector(round_: int) -> np.ndarray:
    return (np.arange(SHAPE.numel, dtype=np.float32) % 7) + round_


class Pooled(World):
    """Two jobs of two workers each, of which one may have 64 slots, or each of them 32."""

    LIMITS = Limits(policy="pool", memory=2 * of(32))

    def __init__(self) -> None:
        super().__init__(Switch(self.LIMITS))
        self.first = [self.join(i, SHAPE, 1, **WAYS) for i in range(2)]
        self.second: list[Session] = []
        self.run(lambda: all(s.member and s.joined == 2 for s in self.first))
        self.numbers = 0

    def rounds(self, sessions: list[Session], slots: int) -> None:
        """Rounds of one job, with the right sums, until it has so many slots."""
        for round_ in range(10):
            outs = self.allreduce(sessions, [vector(round_)] * 2)
            assert all((out == 2 * vector(round_)).all() for out in outs)
            assert self.switch.record.reserved <= self.LIMITS.memory
            if all(session.slots == slots for session in sessions):
                return
        raise AssertionError(f"never {slots} slots, but {[one.slots for one in sessions]}")

    def wait(self, seconds: float) -> None:
        until = self.now + seconds
        self.network.at(until, lambda: None)
        self.run(lambda: self.now >= until)

    def restart(self) -> None:
        self.switch = Switch(self.LIMITS)

    def sets(self, number: int = 1) -> list[OneSlottedRound]:
        sums = self.switch.jobs[number].accelerator
        assert isinstance(sums, ResizedAccelerator)
        return list(sums._sets.values())

    def under_way(self, sums_that_come: int) -> list[np.ndarray]:
        """Begin a round of the first job, of which one worker gets the first few sums alone."""
        came = 0

        def lose(to_switch: bool, tos: int, _: bytes) -> bool:
            nonlocal came
            if to_switch or tos != TOS_DATA:
                return False
            came += 1
            return came > sums_that_come

        outs = [np.empty(SHAPE.numel, np.float32) for _ in self.first]
        for session, out in zip(self.first, outs, strict=True):
            session.begin(vector(3), out, self.now)
        self.faults.lose = lose
        self.run(lambda: came >= 64)
        self.faults.lose = None
        return outs

    def complete(self, outs: list[np.ndarray]) -> None:
        self.run(lambda: all(s.transfer is not None and s.transfer.done for s in self.first))
        for session, out in zip(self.first, outs, strict=True):
            session.finish()
            assert (out == 2 * vector(3)).all()
        assert self.switch.record.reserved <= self.LIMITS.memory


@pytest.mark.parametrize("sums_that_come", [0, 5, 40])
def test_a_round_goes_on_with_fewer_slots_than_it_had(sums_that_come: int) -> None:
    """Another job has taken the rest of the memory, and keeps it, as it computes for long."""
    world = Pooled()
    world.rounds(world.first, 64)
    outs = world.under_way(sums_that_come)
    for number in range(2):
        world.stop(number)
    world.restart()
    world.second = [world.join(i, SHAPE, 2, **WAYS) for i in range(2, 4)]
    world.run(lambda: all(s.member and s.joined == 2 for s in world.second))
    world.rounds(world.second, 64)
    for number in range(2):
        world.resume(number)
    world.wait(1.0)  # they wait for their fewest
    for _ in range(3):  # the sets of the last two rounds are held
        world.rounds(world.second, 32)
    world.complete(outs)
    assert any(one.slots < 64 and one.positions.short for one in world.sets())
    world.rounds(world.first, 32)
    world.rounds(world.first, 32)
    assert not any(one.positions.short for one in world.sets())


def test_a_join_reserves_no_more_than_its_share() -> None:
    """A worker that claims to have had a slot for each segment gets what others would get."""
    world = Pooled()
    world.second = [world.join(i, SHAPE, 2, **WAYS) for i in range(2, 4)]
    world.run(lambda: all(s.member and s.joined == 2 for s in world.second))
    world.rounds(world.second, 32)
    claims = [world.join(i, SHAPE, 3, **WAYS) for i in range(4, 6)]
    for one in claims:
        one._slots.agree(128)
        one.join(world.now)
    world.run(lambda: len(world.switch.record.policy.queue()) == 1)
    world.run(lambda: True)
    policy = world.switch.record.policy
    assert {job: policy.room_of(job) for job in (1, 2)} == {1: 32, 2: 32}


class Recorder(Pooled):
    """Keeps the first Joins of the first job's workers."""

    def __init__(self) -> None:
        self.said: list[Burst] = []
        super().__init__()
        self.network.lose = super().lost

    def lost(self, source: Address, peer: Address, tos: int, payload: bytes) -> bool:
        to_switch = tos == TOS_CONTROL and self.network.home(peer) in self.switches
        if to_switch and isinstance(Control.parse(payload).value, Join):
            rows = np.frombuffer(payload, np.uint8)[None, :].copy()
            self.said.append(Burst(source, tos, rows, rows.shape[1]))
        return super().lost(source, peer, tos, payload)


def test_late_copies_of_the_first_joins_lose_nothing() -> None:
    """They make members of a restarted switch, which takes them to have their fewest slots.

    It says of no segment that it is gone, and the next heartbeats tell the number.
    """
    world = Recorder()
    outs = world.allreduce(world.first, [vector(0)] * 2)
    world.wait(0.5)  # they are told of 64 slots
    outs = world.under_way(5)
    assert all(session.slots == 64 for session in world.first)
    world.restart()
    for burst in world.said:
        world.switch.receive(burst, world.now)
    bounds = [member.bound for member in world.switch.jobs[1].contributors()]
    assert [bound.after for bound in bounds if bound is not None] == [16, 16]
    world.stop(1)
    world.wait(0.005)  # the other sends 32 segments, of which 16 have slots
    world.resume(1)
    world.complete(outs)
    assert not any(isinstance(one, Gone) for events in world.events.values() for one in events)
    assert not any(session.stats["rejoins"] for session in world.first)
    world.rounds(world.first, 64)
