"""Machines that are slow and links that lose nothing: what waits in a queue is not sent again.

On a busy machine sixty-four workers and their switch share two cores. Here the clock is virtual, so
that only counters are judged: a switch that looks into its socket now and then, workers that run a
short while each in turn, both at once, and all of it from seeds.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import closing
from functools import partial

import numpy as np
import pytest

from iswitch.core.format.packets import Address, Burst, Outgoing
from iswitch.core.format.wire import (
    TOS_CONTROL,
    TOS_DATA,
    Ack,
    Action,
    Control,
    DType,
    Segments,
    Shape,
)
from iswitch.core.switch import Switch
from iswitch.ports.udp import UdpPort
from tests.support.world import SWITCH, World, worker_address
from worker_lib.protocol.session import Session
from worker_lib.protocol.terms import RoundTerms
from worker_lib.protocol.window import CEILING, TOGETHER

pytestmark = pytest.mark.unit

SHAPE = Shape.of(2000, DType.INT32, elements=4)  # 500 segments
PLENTY = 1 << 40  # bytes in a socket
MOST_AGAIN = 0.01  # of all contributions
AWAKE = 1e-6  # seconds: it takes what has come, answers, and is away again


def gathered(workers: int, seed: int = 0) -> tuple[World, list[Session]]:
    world = World(seed=seed)
    sessions = [world.join(i, SHAPE, expected=workers, whole=True) for i in range(workers)]
    world.run(lambda: all(s.member and s.joined == workers for s in rejoined(world, sessions)))
    for node in world.network.nodes.values():
        node.room = PLENTY
    return world, sessions


def rejoined(world: World, sessions: list[Session]) -> list[Session]:
    """Have those ask again who came before the others, as `Worker` does."""
    for session in sessions:
        if session.member and session.joined < len(sessions) and not session.requests:
            session.join(world.now)
    return sessions


def slow_down(world: World, address: Address, away: Callable[[], float]) -> None:
    """Have a machine look at what has come now and then only; `away` are seconds."""
    network = world.network

    def stop() -> None:
        network.pause(address)
        network.at(network.now + away(), resume)

    def resume() -> None:
        network.resume(address)
        network.at(network.now + AWAKE, stop)

    network.at(network.now + AWAKE, stop)


def rounds(world: World, sessions: list[Session], number: int) -> None:
    vectors = [np.full(SHAPE.numel, 1 + i, np.int32) for i in range(len(sessions))]
    exact = sum(range(1, len(sessions) + 1))
    for _ in range(number):
        for out in world.allreduce(sessions, vectors):
            assert (out == exact).all()


def hardly_anything_is_sent_again(world: World, sessions: list[Session]) -> None:
    number = 3
    rounds(world, sessions, number)
    most = MOST_AGAIN * SHAPE.segments * len(sessions) * number
    counters = world.switch.counters
    assert sum(session.stats["sent_again"] for session in sessions) <= most
    assert counters["duplicate"] + counters["late"] <= most
    assert counters["retransmitted"] <= most


@pytest.mark.parametrize("away", [0.05, 0.5, 3.0])
def test_a_switch_that_is_away(away: float) -> None:
    world, sessions = gathered(8)
    slow_down(world, SWITCH, lambda: away)
    hardly_anything_is_sent_again(world, sessions)


@pytest.mark.parametrize("most", [0.1, 1.0])
def test_workers_that_share_a_core(most: float) -> None:
    rng = random.Random(1)
    world, sessions = gathered(16)
    for i in range(len(sessions)):
        slow_down(world, worker_address(i), lambda: rng.uniform(0, most))
    hardly_anything_is_sent_again(world, sessions)


@pytest.mark.parametrize("seed", range(8))
def test_all_share_a_core(seed: int) -> None:
    rng = random.Random(seed)
    world, sessions = gathered(6, seed)
    for address in (SWITCH, *map(worker_address, range(6))):
        slow_down(world, address, partial(rng.uniform, 0, 10 ** rng.uniform(-2.5, 0)))
    hardly_anything_is_sent_again(world, sessions)


@pytest.mark.parametrize("whose", ["contributions", "aggregates"])
def test_all_of_a_window_is_lost(whose: str) -> None:
    """It looks like a switch that is away, but for its answers."""
    world, sessions = gathered(4)
    rounds(world, sessions, 1)
    doomed = set(range(300))

    def lose(to_switch: bool, tos: int, payload: bytes) -> bool:
        if tos != TOS_DATA or to_switch is not (whose == "contributions"):
            return False
        index = int.from_bytes(payload[4:8], "big")
        lost = index in doomed
        doomed.discard(index)
        return lost

    world.faults.lose = lose
    began = world.now
    rounds(world, sessions, 1)
    assert not doomed
    assert world.now - began < 1.0


def relayed(session: Session, request: int, start: int, count: int) -> None:
    """The switch lacks these segments of round 0."""
    help_ = Control(Action.HELP, 7, request, Segments(0, start, count)).build()
    session.receive(Burst.single(SWITCH, TOS_CONTROL, help_), 1.0)


def said(session: Session, now: float) -> tuple[list[Control], int]:
    """The requests for Help that it sends now, and how many segments."""
    asked, segments = [], 0
    while sends := session.transmissions(now):
        for out in sends:
            packet = Control.parse(out.rows[0].tobytes()) if out.tos == TOS_CONTROL else None
            segments += len(out.rows) * (packet is None)
            if packet is not None and packet.action is Action.HELP:
                asked.append(packet)
    return asked, segments


@pytest.mark.parametrize("lacks", [True, False])
@pytest.mark.parametrize("asked_before", [True, False])
def test_what_is_under_way_is_not_sent_again(lacks: bool, asked_before: bool) -> None:
    """The switch may not have come to it yet; its answer to Help shows whether it lacks it."""
    world, (session,) = gathered(1)
    world.network.pause(SWITCH)
    session.begin(np.ones(SHAPE.numel, np.int32), np.empty(SHAPE.numel, np.int32), 0.99)
    sent = said(session, 0.99)[1]
    assert sent >= 200
    if asked_before:
        session.handle_timer(2.0)
        (asked,), data = said(session, 2.0)
        assert (asked.value, data) == (Segments(0, sent - 1, 1), 0)
    relayed(session, 1, 10, 100)
    helps, data = said(session, 2.0)
    assert data == 0
    if not asked_before:
        (asked,) = helps
        assert asked.value == Segments(0, 109, 1)
    told = Ack(Action.HELP, known=int(lacks), contributors=1 if lacks else 2)
    ack = Control(Action.ACK, 7, asked.request, told)
    session.receive(Burst.single(SWITCH, TOS_CONTROL, ack.build()), 2.0)
    assert said(session, 2.0) == ([], 100 if lacks else 0)
    relayed(session, 2, 10, 100)  # and so it is what has come to lack since
    assert said(session, 2.0)[1] == (0 if lacks else 100)


def test_a_switch_forgets_what_one_worker_lacks_and_the_others_have() -> None:
    """Those are at the next round, and only Help has them send the last one again."""
    world, sessions = gathered(3)
    slow, *fast = sessions
    vectors = [np.full(SHAPE.numel, 1 + i, np.int32) for i in range(3)]
    outs = [np.zeros(SHAPE.numel, np.int32) for _ in range(3)]

    def lose(_: Address, peer: Address, tos: int, payload: bytes) -> bool:
        late = int.from_bytes(payload[4:8], "big") >= 250
        return peer == worker_address(0) and tos == TOS_DATA and late

    world.network.lose = lose
    for session, vector, out in zip(sessions, vectors, outs, strict=True):
        session.begin(vector, out, world.now)
    world.run(lambda: all(s.transfer is not None and s.transfer.done for s in fast))
    for session, vector in zip(fast, vectors[1:], strict=True):
        session.finish()
        session.begin(vector, np.zeros(SHAPE.numel, np.int32), world.now)
    world.run(lambda: world.now > 0.2)
    assert slow.transfer is not None
    assert slow.transfer.remaining == 250
    world.network.lose = world.lost
    world.switch = Switch()
    began = world.now
    world.run(lambda: slow.transfer is not None and slow.transfer.done)
    assert (outs[0] == 6).all()
    assert world.now - began < 2.0


@pytest.mark.slow
@pytest.mark.parametrize("buffer", [212_992, TOGETHER], ids=["a user's", "root's"])
@pytest.mark.parametrize("workers", [4, 16, 64])
def test_workers_of_one_job_fit_into_a_switchs_socket(workers: int, buffer: int) -> None:
    """All send what they may at once, and the switch looks only then."""
    with closing(UdpPort(("127.0.0.1", 0), buffer=buffer)) as port:
        room = min(TOGETHER, port.buffer)
        session = Session(RoundTerms(SWITCH, 7, Shape.of(1_000_000), room=room), 1000)
        joined = Ack(Action.JOIN, contributors=workers)
        session.join(0.0)
        ack = Control(Action.ACK, 7, 1000, joined).build()
        session.receive(Burst.single(SWITCH, TOS_CONTROL, ack), 0.0)
        window = session.window
        assert 1 <= window.burst <= window.size <= window.ceiling
        size = session.shape.packet_size
        assert workers * window.ceiling * size <= room
        burst = np.zeros((window.burst, size), np.uint8)
        with closing(UdpPort(connect=port.address[:2])) as sender:
            for _ in range(workers * (window.ceiling // window.burst)):
                sender.push([Outgoing((port.address,), TOS_DATA, burst, size)])
            came = 0
            while bursts := list(port.pull()):
                came += sum(len(each.rows) for each in bursts)
        assert came == workers * (window.ceiling // window.burst) * window.burst
        port.count_dropped()
        assert port.counters["rx_overflow"] == 0


def test_few_workers_have_what_a_queue_of_the_kernel_holds() -> None:
    session = Session(RoundTerms(SWITCH, 7, Shape.of(1_000_000)), 1000)
    ceiling, burst = session.window.ceiling, session.window.burst
    assert ceiling == CEILING // session.shape.packet_size
    session._share(64)
    assert session.window.ceiling < ceiling
    session._share(12)
    assert (session.window.ceiling, session.window.burst) == (ceiling, burst)
