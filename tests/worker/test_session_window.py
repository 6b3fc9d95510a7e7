"""How much a session has under way, how long it waits, and what it sends again unasked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from iswitch.core.format.packets import Burst
from iswitch.core.format.wire import (
    TOS_CONTROL,
    TOS_DATA,
    Action,
    Control,
    DType,
    Segments,
    Shape,
)
from iswitch.core.jobs.limits import Limits
from iswitch.core.switch import Switch
from tests.support.scene import Scene, bursts, in_round, outgoing
from tests.support.world import LATENCY, SWITCH, Faults, World, worker_address
from worker_lib.protocol.window import RoundTrip, SendWindow

pytestmark = pytest.mark.unit


# Timer and window


def test_round_trip_timer() -> None:
    """The numbers of RFC 6298, section 2, with alpha 1/8, beta 1/4, K 4."""
    timer = RoundTrip(floor=0.0, ceiling=100.0)
    assert timer.timeout == 0.05  # before the first sample
    timer.sample(1.0)
    assert (timer.smoothed, timer.deviation, timer.timeout) == (1.0, 0.5, 3.0)
    timer.sample(2.0)
    # RTTVAR = 3/4 * 0.5 + 1/4 * |1 - 2|, with the SRTT of before; SRTT = 7/8 * 1 + 1/8 * 2
    assert (timer.smoothed, timer.deviation, timer.timeout) == (1.125, 0.625, 3.625)
    timer.sample(1.125)
    assert (timer.smoothed, timer.deviation) == (1.125, 0.46875)
    timer.backoff = 4.0
    assert timer.timeout == 4 * (1.125 + 4 * 0.46875)


def test_round_trip_bounds() -> None:
    timer = RoundTrip(floor=0.02, ceiling=1.0)
    for _ in range(50):
        timer.sample(1e-4)
    assert timer.timeout == 0.02
    timer.backoff = 8.0
    assert timer.timeout == 0.16
    timer.backoff = 64.0
    assert timer.timeout == 1.0
    timer.sample(10.0)
    timer.backoff = 1.0
    assert timer.timeout == 1.0


def test_asked_for_segments_are_not_measured() -> None:
    """Karn: which of two copies an aggregate answers cannot be told."""
    scene = Scene(2).start()
    scene.lose(*(f"A> seg 0.{i}" for i in range(5)))
    scene.round_of_all()
    assert scene.workers[0].round_trip.smoothed is None
    scene.lose("A> seg 1.0", "A> seg 1.4")
    scene.round_of_all()
    assert scene.workers[0].round_trip.smoothed == pytest.approx(2 * LATENCY)


def test_send_window() -> None:
    window = SendWindow(burst=10, ceiling=200)
    assert window.size == 40
    window.returned(40)
    assert window.size == 80  # slow start: doubles with every window
    window.returned(80)
    assert window.size == 160
    window.lost()
    assert window.size == window.threshold == 80
    window.returned(80)
    assert window.size == 90  # a burst more with every window
    for _ in range(1000):
        window.returned(100)
    assert window.size == 200  # the ceiling
    for _ in range(10):
        window.lost()
    assert window.size == window.threshold == 10  # the floor: a burst


def test_send_window_smaller_than_four_bursts() -> None:
    window = SendWindow(burst=10, ceiling=25)
    assert window.size == 25
    window.lost()
    assert window.size == 12.5
    window.lost()
    assert window.size == 10
    tight = SendWindow(burst=10, ceiling=4)
    tight.lost()
    tight.returned(100)
    assert tight.size == 4


def test_data_waits_for_the_window() -> None:
    """Eight segments a burst, four bursts at first; then as many as come back, and as many more."""
    world = World()
    shape = Shape.of(2000 * 400, DType.INT32, elements=2000)
    session = world.join(0, shape, expected=1, ceiling=1 << 20)
    world.gather([session])
    out = np.empty(shape.numel, np.int32)
    session.begin(np.arange(shape.numel, dtype=np.int32), out, world.now)
    most = []
    while not session.transfer.done:  # type: ignore[union-attr]
        world.pump()
        most.append(session.transfer.in_flight)  # type: ignore[union-attr]
        assert most[-1] <= session.window.size
        world.step()
    assert most[0] == 32
    assert max(most) == 128  # whole bursts below 1 MiB
    assert (out == np.arange(shape.numel)).all()


def lose_first(world: World, *indices: int) -> None:
    """Lose the first worker's contributions to these segments, the first time they are sent."""
    left = set(indices)

    def lose(to_switch: bool, tos: int, payload: bytes) -> bool:
        index = int.from_bytes(payload[4:8], "big")
        mine = to_switch and tos == TOS_DATA and index in left
        left.discard(index) if mine else None
        return mine

    world.faults.lose = lose


@pytest.mark.parametrize("resends", [True, False])
@pytest.mark.parametrize(
    ("lost", "halved"), [((8, 17, 33), False), (range(16, 24), True), (range(16, 48), True)]
)
def test_a_lost_burst_halves_the_window_once(
    lost: Sequence[int], halved: bool, resends: bool
) -> None:
    """Single packets are a link's to lose, and no reason to send less."""
    world, sessions = bursts(workers=1, resends=resends)
    (session,) = sessions
    session.window.threshold, session.window.size = float("inf"), 64.0
    lose_first(world, *lost)
    world.allreduce(sessions, [np.ones(session.shape.numel, np.int32)])
    assert session.stats["sent_again"] == len(lost)
    assert (session.window.threshold < 128) == halved
    if halved:
        assert session.window.threshold >= 32  # not halved twice


# What is sent again without being asked for


def second_round_with_resends(*lost: str, workers: int = 2) -> Scene:
    scene = Scene(workers, resends=True).start()
    scene.round_of_all()
    scene.quiet().lose(*lost)
    scene.round_of_all()
    scene.let_pass(1.0)
    assert not scene.to_lose, "that was not sent"
    return scene


@pytest.mark.parametrize("index", [0, 2])
def test_lost_contribution_is_sent_again_when_later_ones_come(index: int) -> None:
    """Neither knows whose was lost: both send theirs, and A's counts.

    B's comes when the sum is complete, so B gets it twice.
    """
    scene = second_round_with_resends(f"A> seg 1.{index}")
    said = len(scene.told()) - 5
    assert sorted(scene.told()[:said]) == in_round(1, lost=index)
    assert scene.told()[said:] == [
        f"A> seg 1.{index}", f"B> seg 1.{index}",
        f"A< seg 1.{index}", f"B< seg 1.{index}", f"B< seg 1.{index}",
    ]  # fmt: skip
    assert scene.times(f"A> seg 1.{index}")[1] < 0.5  # milliseconds
    assert scene.switch.counters.drops() == {"late": 1}


@pytest.mark.parametrize("index", [0, 2])
def test_lost_aggregate_is_sent_again_when_later_ones_come(index: int) -> None:
    scene = second_round_with_resends(f"B< seg 1.{index}")
    assert sorted(scene.told()[:20]) == in_round(1)
    assert scene.told()[20:] == [f"B> seg 1.{index}", f"B< seg 1.{index}"]
    assert scene.switch.counters["retransmitted"] == 1
    assert scene.switch.counters.drops() == {"late": 1}


@pytest.mark.parametrize("lost", ["A> seg 1.4", "A< seg 1.4"])
def test_the_last_segment_lost_is_sent_again_after_a_silence(lost: str) -> None:
    scene = second_round_with_resends(lost)
    assert scene.times("A> seg 1.4") == [0.0, 2.1]  # nothing comes for 2 ms
    assert not any("help" in line for line in scene.told())


def test_lost_again_and_again() -> None:
    """Sent again ever more rarely; then Help is asked for."""
    scene = second_round_with_resends(*["A> seg 1.2"] * 9)
    times = scene.times("A> seg 1.2")
    assert len(times) == 10
    assert times[4] < 10  # milliseconds
    assert times[-1] > 20
    assert scene.told().count("A> help 1.2+1") >= 1


@pytest.mark.parametrize("own", [True, False])
def test_what_has_come_need_not_come_again_when_a_round_is_taken_up_again(own: bool) -> None:
    """But where somebody else may have written over it."""
    world, (session,) = bursts(workers=1)
    vector = np.arange(session.shape.numel, dtype=np.int32)
    before = dict(session.stats)
    lost = range(40, 80)
    world.faults = Faults(lose=lambda up, tos, p: not up and tos == TOS_DATA and p[7] in lost)
    session.begin(vector, np.empty_like(vector), world.now, own)
    world.run(lambda: session.transfer is not None and session.transfer.remaining == 40)
    session.abandon()
    world.faults = Faults()
    out = np.empty_like(vector)
    session.begin(vector, out, world.now, own)
    world.run(lambda: session.transfer is not None and session.transfer.done)
    session.finish()
    assert (out == vector).all()
    assert session.stats["received"] - before["received"] == (80 if own else 120)
    # The next round is another one.
    out = world.allreduce([session], [vector])[0]
    assert (out == vector).all()


@pytest.mark.parametrize("seed", range(3))
def test_bursts_of_losses_in_a_long_vector(seed: int) -> None:
    """Help, probes and what is sent again may name the same segments; the window stays open."""
    shape = Shape.of(2000, DType.INT32, elements=1)
    world = World(faults=Faults(), seed=seed)
    sessions = [world.join(i, shape, expected=3, heartbeat=1e9) for i in range(3)]
    world.gather(sessions)
    world.faults = Faults(loss=0.2, burst=8)
    vectors = [np.full(2000, 10**i, np.int32) for i in range(3)]
    for out in world.allreduce(sessions, vectors):
        assert (out == 111).all()
    assert all(s.stats["sent_again"] < 5 * 2000 for s in sessions)


def test_no_more_than_a_window_of_a_finished_round_is_sent_at_once() -> None:
    shape = Shape.of(2000, DType.INT32, elements=1)
    world = World()
    sessions = [world.join(i, shape, expected=2, heartbeat=1e9, ceiling=800) for i in range(2)]
    world.gather(sessions)
    world.allreduce(sessions, [np.ones(2000, np.int32)] * 2)
    first = sessions[0]
    before, window = first.stats["sent_again"], first.window.size
    help_ = Control(Action.HELP, 7, 99, Segments(0, 0, 2000)).build()
    world.network.transmit(SWITCH, [outgoing(0, help_)])
    world.run(lambda: first.stats["helped"] == 1)
    assert first.stats["sent_again"] - before == window < 2000


def test_a_slow_worker_is_not_flooded_for() -> None:
    """A has sent everything and gets nothing: its window stays what it is, and Help is asked."""
    world, sessions = bursts(workers=2)
    first = sessions[0]
    out = np.empty(first.shape.numel, np.int32)
    sent = first.stats["sent"]
    first.begin(np.ones(first.shape.numel, np.int32), out, world.now)
    world.run(lambda: first.stats["helps"] == 3)
    assert first.stats["sent"] - sent == 80
    assert first.stats["sent_again"] <= 80  # as often as the switch asked, it did so once
    assert first.stats["probes"] == 0


@pytest.mark.parametrize("rank", [0, 100])
@pytest.mark.parametrize("lost", [True, False])
def test_what_the_switch_lacks_is_sent_again_whatever_the_rank(rank: int, lost: bool) -> None:
    """Its map is of seats, and a worker's rank is another number: the Ack says whether it lacks."""
    shape = Shape.of(30, DType.INT32, elements=1)
    world = World(Switch(Limits(lease=1e6)), Faults())
    ways: dict[str, Any] = {"heartbeat": float("inf"), "resends": True}
    other = world.join(1, shape, rank=rank + 1, **ways)
    worker = world.join(0, shape, rank=rank, **ways)
    world.gather([worker, other])
    world.network.lose = lambda source, peer, tos, _: (
        lost and tos == TOS_DATA and peer == SWITCH and source == worker_address(0)
    )
    ones = np.ones(30, np.int32)
    worker.begin(ones, np.zeros_like(ones), world.now)
    world.run(lambda: worker.transfer.outstanding == 30)  # type: ignore[union-attr]
    relayed = Control(Action.HELP, 7, 99, Segments(0, 0, 30)).build()
    worker.receive(Burst.single(SWITCH, TOS_CONTROL, relayed), world.now)
    before = worker.stats["sent_again"]
    world.run(lambda: not worker._help_requests)
    again = worker.stats["sent_again"] - before
    assert again >= 30 if lost else again == 0
