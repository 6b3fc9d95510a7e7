"""The room at the switch: what its socket holds is divided among the workers of a job."""

from __future__ import annotations

import random

import numpy as np
import pytest

from iswitch.core.format.packets import Burst
from iswitch.core.format.wire import TOS_CONTROL, Ack, Action, Control, DType, Shape, Status
from iswitch.core.switch import Switch
from tests.support.tree import TYPICAL
from tests.support.world import SWITCH, Faults, World
from worker_lib.protocol.session import Session
from worker_lib.protocol.terms import RoundTerms
from worker_lib.protocol.window import CEILING

pytestmark = pytest.mark.unit

SHAPE = Shape.of(20_000, DType.INT32)
SIZE = SHAPE.packet_size
ROOMS = [64 << 10, 208 << 10, 1 << 20, 16 << 20]  # bytes that sockets hold


def switch_with(room: int) -> Switch:
    switch = Switch()
    switch.record.room = room
    return switch


def fair(own: int, told: int, workers: int) -> int:
    """Return the most segments that a worker may have under way.

    Args:
        own: bytes that its socket holds.
        told: bytes that the switch's socket holds; 0: the switch does not know.
        workers: their number in the job.
    """
    ceiling = max(min(CEILING, own) // SIZE, Session(terms(own), 1).window.burst)
    narrow = own // workers // SIZE < ceiling
    return min(ceiling, max(1, (told if told and narrow else own) // workers // SIZE))


def terms(own: int) -> RoundTerms:
    return RoundTerms(SWITCH, 7, SHAPE, ceiling=min(CEILING, own), room=own)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(30))
def test_workers_divide_what_the_switch_tells(seed: int) -> None:
    """Each by its own socket and the switch's, also after a restart with another one."""
    rng = random.Random(seed)
    workers = rng.choice([1, 2, 3, 5, 12])
    owns = [rng.choice(ROOMS) for _ in range(workers)]
    world = World(Switch(), TYPICAL, seed)
    told = rng.choice([0, *ROOMS])
    world.switch = switch_with(told)
    sessions = [
        world.join(i, SHAPE, expected=workers, heartbeat=0.1, ceiling=min(CEILING, own), room=own)
        for i, own in enumerate(owns)
    ]

    def divided() -> bool:
        joined = all(s.member and s.joined == workers for s in sessions)
        return joined and not any(s.asks(Action.SHOW) for s in sessions)

    for _ in range(2):
        world.faults = TYPICAL
        world.run(divided)
        found = [session.window.ceiling for session in sessions]
        assert found == [fair(own, told, workers) for own in owns]
        if told and max(owns) <= told:
            assert sum(found) * SIZE <= max(told, workers * SIZE)
        world.faults = Faults()
        for out in world.allreduce(sessions, [np.ones(SHAPE.numel, np.int32)] * workers):
            assert (out == workers).all()
        told = rng.choice([0, *ROOMS])
        world.switch = switch_with(told)
        world.run(lambda: not any(s.joined == workers and not s.stats["rejoins"] for s in sessions))


def test_a_switch_that_does_not_tell_leaves_each_its_own() -> None:
    """An older one refuses the question."""
    session = Session(terms(208 << 10), 1000)

    def hears(action: Action, status: Status, request: int, workers: int = 0) -> None:
        ack = Control(Action.ACK, 7, request, Ack(action, contributors=workers), status)
        session.receive(Burst.single(SWITCH, TOS_CONTROL, ack.build()), 0.0)

    session.join(0.0)
    hears(Action.JOIN, Status.OK, 1000, 1)
    assert not session.asks(Action.SHOW)
    hears(Action.JOIN, Status.OK, 1000, 4)
    session.join(0.0)
    hears(Action.JOIN, Status.OK, 1000, 4)
    assert session.asks(Action.SHOW)
    hears(Action.SHOW, Status.BAD_REQUEST, 1001)
    assert not session.asks(Action.SHOW)
    assert session.window.ceiling == fair(208 << 10, 0, 4)
    while (event := session.next_event()) is not None:
        assert getattr(event, "action", None) is not Action.SHOW
