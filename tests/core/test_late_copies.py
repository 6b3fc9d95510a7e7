"""Late copies, of Joins and contributions, at a switch that was restarted."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from iswitch.core.format.keys import Key
from iswitch.core.format.packets import Address
from iswitch.core.format.wire import (
    FLAG_HEARTBEAT,
    FLAG_NEW,
    FLAG_STANDS_AT,
    TOS_CONTROL,
    TOS_DATA,
    Ack,
    Action,
    Control,
    DType,
    Join,
    MemberType,
    Mode,
    Shape,
    Status,
    SwitchJoin,
)
from iswitch.core.jobs.limits import Limits
from iswitch.core.switch import Switch
from tests.support.keyed import KEY, mac
from tests.support.parts import JOB, Bench, packets_of, seg
from tests.support.world import World, worker_address

pytestmark = pytest.mark.unit

SHAPE = Shape.of(10, DType.INT32, elements=2)
WORKERS = 2


def fresh() -> Switch:
    return Switch(Limits(lease=float("inf")))


def gets_on(late: tuple[int, ...], rounds: int, again: bool = False) -> bool:
    """Return whether a round completes after a restart at which first Joins come once more.

    Args:
        late: the workers whose first Join comes again.
        rounds: the rounds done before.
        again: restart the switch once more.
    """
    world = World(fresh())
    sessions = [world.join(n, SHAPE, expected=WORKERS, heartbeat=0.1) for n in range(WORKERS)]
    world.gather(sessions)
    one = np.ones(SHAPE.numel, np.int32)
    for _ in range(rounds):
        world.allreduce(sessions, [one] * WORKERS)
    world.switch = fresh()
    join = Join.for_shape(SHAPE, MemberType.WORKER, WORKERS, FLAG_NEW)
    for n in late:
        packet = Control(Action.JOIN, 7, 1000, join).build()
        world.switch.execute(worker_address(n), packet, world.now)
    outs = [np.empty_like(one) for _ in sessions]
    for session, out in zip(sessions, outs, strict=True):
        session.begin(one, out, world.now)
    for last in (not again, True):
        end = world.now + 3
        while world.now < end:
            if all(s.transfer is not None and s.transfer.done for s in sessions):
                return all((out == WORKERS).all() for out in outs)
            assert world.step()
        if last:
            break
        world.switch = fresh()
    return False


@pytest.mark.parametrize("late", [(), (0,), (1,)])
def test_the_first_joins_of_some_hold_nobody_up(late: tuple[int, ...]) -> None:
    assert gets_on(late, 6)


def test_another_restart_frees_workers_whose_first_joins_came_again() -> None:
    assert gets_on((0, 1), 6, again=True)


@pytest.mark.parametrize("rounds", [2, 6])
@pytest.mark.xfail(strict=True, reason="docs/protocol.md, A switch that lost its state")
def test_the_first_joins_of_all_hold_nobody_up(rounds: int) -> None:
    assert gets_on((0, 1), rounds)


@pytest.mark.xfail(strict=True, reason="docs/protocol.md, A switch that lost its state")
def test_a_late_first_join_makes_no_sum_smaller() -> None:
    """A has all of round 5, B nothing, when the switch restarts and B's first Join comes again."""
    world = World(fresh())
    sessions = [world.join(n, SHAPE, expected=WORKERS, heartbeat=0.1) for n in range(WORKERS)]
    world.gather(sessions)
    vectors = [np.full(SHAPE.numel, 1, np.int32), np.full(SHAPE.numel, 10, np.int32)]
    for _ in range(5):
        world.allreduce(sessions, vectors)
    outs = [np.zeros_like(vector) for vector in vectors]
    for session, vector, out in zip(sessions, vectors, outs, strict=True):
        session.begin(vector, out, world.now)
    world.pump()
    deaf = worker_address(1)
    world.network.lose = lambda _source, peer, _tos, _payload: world.network.home(peer) == deaf
    world.run(lambda: sessions[0].transfer is not None and sessions[0].transfer.done)
    sessions[0].finish()
    assert (outs[0] == 11).all()
    world.network.lose = world.lost
    world.switch = fresh()
    join = Join.for_shape(SHAPE, MemberType.WORKER, WORKERS, FLAG_NEW)
    world.switch.execute(deaf, Control(Action.JOIN, 7, 1000, join).build(), world.now)
    sessions[0].begin(vectors[0], np.empty_like(outs[0]), world.now)
    world.run(lambda: sessions[1].transfer is None or sessions[1].transfer.done)
    assert sessions[1].transfer is None or (outs[1] == 11).all()


@pytest.mark.xfail(strict=True, reason="docs/protocol.md, A switch that lost its state")
def test_a_late_return_holds_nobody_up() -> None:
    """A worker comes back to a switch in round 2, and a copy of that Join to the next one."""
    world = World(fresh())
    sessions = [world.join(0, SHAPE, expected=1, heartbeat=0.1)]
    world.gather(sessions)
    one = np.ones(SHAPE.numel, np.int32)
    joins: list[bytes] = []

    def lose(source: Address, peer: Address, tos: int, payload: bytes) -> bool:
        if tos == TOS_CONTROL and isinstance(Control.parse(payload).value, Join):
            joins.append(payload)
        return world.lost(source, peer, tos, payload)

    world.network.lose = lose
    world.allreduce(sessions, [one])
    world.allreduce(sessions, [one])
    world.switch = fresh()
    for _ in range(6):
        world.allreduce(sessions, [one])
    returned = joins[-1]
    world.switch = fresh()
    world.switch.execute(worker_address(0), returned, world.now)
    sessions[0].begin(one, np.empty_like(one), world.now)
    world.run(lambda: sessions[0].transfer is not None and sessions[0].transfer.done)


@pytest.mark.xfail(strict=True, reason="docs/protocol.md, A switch that lost its state")
def test_a_late_contribution_of_an_asynchronous_job_counts_once() -> None:
    """It made version 1 at the old switch, and its copy comes when its sender is back."""
    shape = Shape.of(2, DType.INT32, mode=Mode.ASYNCHRONOUS, elements=2)
    bench = Bench(fresh())
    assert bench.join(0, shape, expected=1, flags=FLAG_NEW)[0] is Status.OK
    payload = seg(1000 << 12, 0) + bytes(8)
    assert bench.send(0, TOS_DATA, payload)
    bench.switch = fresh()
    back = replace(Join.for_shape(shape, MemberType.WORKER, 1, FLAG_STANDS_AT), round=1)
    assert bench.control(0, Action.JOIN, back, request=1000)[0] is Status.OK
    assert not bench.send(0, TOS_DATA, payload)


LIMIT = pytest.mark.xfail(strict=True, reason="docs/protocol.md, A switch that lost its state")


@pytest.mark.parametrize("key", [None, pytest.param(KEY, marks=LIMIT)])
def test_a_late_heartbeat_of_a_switch_ends_no_membership_of_its_next_process(
    key: bytes | None,
) -> None:
    """Both switches were restarted; the new one below began with the smaller number."""
    bench = Bench(Switch(Limits(lease=float("inf")), keys={} if key is None else {JOB: key}))

    def answer(workers: int, flags: int, request: int) -> tuple[Status, object]:
        join = SwitchJoin.for_shape(SHAPE, MemberType.SWITCH, WORKERS, flags)
        assert isinstance(join, SwitchJoin)
        packet = Control(Action.JOIN, JOB, request, replace(join, workers=workers)).build()
        sealed = packet if key is None else packet + mac(packet, key)
        said = packets_of(bench.send(0, TOS_CONTROL, sealed)[0])[0]
        opened = said if key is None else Key(key).opened(said)
        assert opened is not None
        said_back = Control.parse(opened)
        return Status(said_back.status), said_back.value

    assert answer(1, FLAG_NEW, 1000)[0] is Status.OK
    answer(2, FLAG_HEARTBEAT, 1007)  # of the process before
    assert answer(1, FLAG_NEW, 1001)[0] is Status.DENIED  # a new process has to outdo it
    assert answer(1, FLAG_HEARTBEAT, 1000)[0] is Status.NOT_MEMBER
    assert answer(1, FLAG_NEW, 1000)[0] is Status.DENIED
    status, ack = answer(1, 0, 1000)
    assert status is Status.OK
    assert isinstance(ack, Ack)
    assert ack.contributors == 1
    assert answer(2, FLAG_HEARTBEAT, 1000)[0] is Status.OK
    status, ack = answer(1, FLAG_HEARTBEAT, 1001)  # it tells of fewer
    assert status is Status.OK
    status, ack = answer(2, 0, 1000)  # a late copy
    assert isinstance(ack, Ack)
    assert ack.contributors == 1
