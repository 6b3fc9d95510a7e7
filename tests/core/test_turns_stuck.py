"""A worker that dies in the middle of a round keeps its job's lane for no longer than it must."""

from __future__ import annotations

import numpy as np
import pytest

from iswitch.core.format.wire import TOS_DATA, Shape
from iswitch.core.jobs.limits import Limits
from iswitch.core.jobs.turns import LOOK_PAUSE, SILENCE
from iswitch.core.sums.turns import TurnAccelerator
from iswitch.core.switch import Switch
from tests.support.world import World
from worker_lib.protocol.events import Gone
from worker_lib.protocol.session import Session

pytestmark = pytest.mark.unit

SHAPE = Shape.of(4000)
P, E = TurnAccelerator.persistent(SHAPE), TurnAccelerator.ephemeral(SHAPE)


def vector(round_: int) -> np.ndarray:
    return (np.arange(SHAPE.numel, dtype=np.float32) % 7) + round_


class TwoJobs(World):
    """Two jobs of two workers each, in one lane."""

    def __init__(self) -> None:
        super().__init__(Switch(Limits(policy="lanes:fifo", memory=2 * P + E)))
        ways = {"expected": 2, "whole": True}
        self.first = [self.join(i, SHAPE, 1, **ways) for i in range(2)]
        self.second = [self.join(i, SHAPE, 2, **ways) for i in range(2, 4)]
        self.everybody = [*self.first, *self.second]
        self.run(lambda: all(s.member and s.joined == 2 for s in self.everybody))

    def round(self, sessions: list[Session], round_: int) -> None:
        """A round of one job, with the right sum."""
        outs = self.allreduce(sessions, [vector(round_)] * 2)
        assert all((out == 2 * vector(round_)).all() for out in outs)
        self.check()

    def check(self) -> None:
        """What is allocated is never more than what may be reserved."""
        sums = [job.accelerator for job in self.switch.jobs.values()]
        held = sum(one.nbytes() for one in sums if isinstance(one, TurnAccelerator))
        assert 0 < held <= 2 * P + E

    def begin(self, sessions: list[Session], round_: int) -> list[np.ndarray]:
        outs = [np.empty(SHAPE.numel, np.float32) for _ in sessions]
        for session, out in zip(sessions, outs, strict=True):
            session.begin(vector(round_), out, self.now)
        return outs


@pytest.mark.parametrize("heard", [0, 3, 11], ids=["nothing", "some segments", "all segments"])
def test_a_lane_goes_on_when_a_member_is_silent(heard: int) -> None:
    """Whether none, some or all of its segments have come; its round is completed when it is back.

    Nothing is added twice, and no aggregate that somebody has is lost.
    """
    world = TwoJobs()
    for round_ in range(2):
        world.round(world.first, round_)
        world.round(world.second, round_)
    came = 0

    def lose(to_switch: bool, tos: int, payload: bytes) -> bool:
        """Of what worker 1 sends of round 2, so many segments come."""
        nonlocal came
        if not to_switch or tos != TOS_DATA or payload[:4] != (2).to_bytes(4, "big"):
            return False
        if payload[8:] != other[int.from_bytes(payload[4:8], "big")]:
            return False
        came += 1
        return came > heard

    odd = vector(2) + 100
    other = [
        odd[i * SHAPE.elements : (i + 1) * SHAPE.elements].tobytes() for i in range(SHAPE.segments)
    ]
    outs = world.begin(world.first[:1], 2)
    own = np.empty(SHAPE.numel, np.float32)
    world.first[1].begin(odd, own, world.now)
    world.faults.lose = lose
    world.run(lambda: came >= max(1, heard))
    world.stop(1)
    began = world.now
    world.round(world.second, 2)
    assert world.now - began <= SILENCE + 2 * LOOK_PAUSE
    world.round(world.second, 3)
    world.faults.lose = None
    world.resume(1)
    world.run(lambda: all(s.transfer is not None and s.transfer.done for s in world.first))
    for session in world.first:
        session.finish()
    for out in (*outs, own):
        assert (out == vector(2) + odd).all()
    world.check()
    for round_ in (3, 4):
        world.round(world.first, round_)
    world.round(world.second, 4)


def test_a_member_that_is_heard_of_keeps_the_lane() -> None:
    """A round that is slow, as its packets are lost, is not given up."""
    world = TwoJobs()
    world.round(world.first, 0)
    for round_ in range(2):
        world.round(world.second, round_)
    lost = (1).to_bytes(4, "big")  # the round of the first job
    world.faults.lose = lambda to_switch, tos, sent: (
        to_switch and tos == TOS_DATA and sent[:4] == lost
    )
    outs = world.begin(world.first, 1)
    world.run(lambda: world.switch.record.policy.has_turn(1))
    world.begin(world.second, 2)
    until = world.now + 3 * SILENCE
    world.network.at(until, lambda: None)
    world.run(lambda: world.now >= until)
    assert world.switch.record.policy.has_turn(1)
    world.faults.lose = None
    world.run(lambda: all(s.transfer is not None and s.transfer.done for s in world.everybody))
    assert all((out == 2 * vector(1)).all() for out in outs)


def test_what_is_kept_stays_when_the_lane_goes() -> None:
    """A round that one member has begun does not take the place of aggregates another lacks."""
    world = TwoJobs()
    world.round(world.first, 0)
    world.round(world.second, 0)
    one, other = world.first
    outs = world.begin(world.first, 1)
    lacking = world.address(other)
    world.network.lose = lambda _, peer, tos, __: peer == lacking and tos == TOS_DATA
    world.run(lambda: one.transfer is not None and one.transfer.done)
    one.finish()
    (next_out,) = world.begin([one], 2)
    world.round(world.second, 1)
    assert not world.switch.record.policy.has_turn(1)
    world.network.lose = world.lost
    world.run(lambda: other.transfer is not None and other.transfer.done)
    other.finish()
    (last_out,) = world.begin([other], 2)
    world.run(lambda: all(s.transfer is not None and s.transfer.done for s in world.first))
    assert all((out == 2 * vector(1)).all() for out in outs)
    assert all((out == 2 * vector(2)).all() for out in (next_out, last_out))
    assert world.switch.counters["aggregates"] == 5 * SHAPE.segments  # none is made again
    assert not any(isinstance(event, Gone) for all_ in world.events.values() for event in all_)
    world.check()
