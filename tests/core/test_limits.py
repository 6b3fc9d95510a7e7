"""Allowances of control packets: who has which, what they cost, and that members' suffice."""

from __future__ import annotations

import os
import sys
from types import FrameType

import numpy as np
import pytest

from iswitch.core.format.lines import line_of, port_of
from iswitch.core.format.packets import Address, Burst
from iswitch.core.format.wire import TOS_CONTROL, Ack, Action, Control, MemberType, Segments, Shape
from iswitch.core.jobs.limits import STRANGERS, Bucket, Limits, Throttle
from iswitch.core.switch import Switch
from tests.support.parts import JOB, Bench, assert_accounted, packets_of, peer, rows_of
from tests.support.tree import Tree
from tests.support.world import Faults, World
from worker_lib.protocol.session import RANGES_PER_HELP

pytestmark = pytest.mark.unit

SHAPE = Shape.of(6, elements=2)
HELP = Control(Action.HELP, JOB, 9, Segments(0, 0, 3)).build()


def many(source: Address, payload: bytes, count: int) -> Burst:
    rows = np.frombuffer(payload * count, np.uint8).reshape(count, -1)
    return Burst(source, TOS_CONTROL, rows, len(payload))


def test_a_bucket_fills_at_its_rate_and_holds_a_second() -> None:
    bucket = Bucket(10.0, 100.0)
    assert bucket.take(25, 100.0) == 10
    assert bucket.take(1, 100.05) == 0
    assert bucket.take(9, 100.5) == 5
    assert not bucket.is_full(101.4)
    assert bucket.is_full(101.5)
    assert bucket.take(25, 200.0) == 10
    assert bucket.take(1, 199.0) == 0  # a clock that goes back gives nothing


def test_a_stranger_is_throttled_and_others_are_not() -> None:
    bench = Bench(Switch(Limits(control_rate=100.0)))
    stranger = peer(9)
    assert len(bench.switch.receive(many(stranger, HELP, 1000), 0.0)) == 100
    assert bench.counters["throttled"] == 900
    assert_accounted(bench.counters)
    assert bench.switch.receive(many(stranger._replace(port=1), HELP, 5), 0.0) == []  # same host
    assert len(bench.switch.receive(many(peer(8), HELP, 5), 0.0)) == 5
    assert len(bench.switch.receive(many(stranger, HELP, 1000), 0.5)) == 50


def test_a_throttled_burst_costs_no_python_for_each_packet() -> None:
    switch = Switch(Limits(control_rate=10.0))
    calls = 0

    def count(_frame: FrameType, event: str, _arg: object) -> None:
        nonlocal calls
        calls += event == "call"

    costs = []
    for packets in (64, 6400):
        switch.receive(many(peer(9), HELP, 10), 0.0)
        calls = 0
        sys.setprofile(count)
        try:
            assert switch.receive(many(peer(9), HELP, packets), 0.0) == []
        finally:
            sys.setprofile(None)
        costs.append(calls)
    assert costs[0] == costs[1] < 20


def test_a_member_has_an_allowance_that_no_one_else_uses() -> None:
    bench = Bench(Switch(Limits(control_rate=50.0)))
    bench.gather(SHAPE, 2)
    host = peer(0).host
    for port in range(1, 200):  # strangers on the member's own host
        bench.switch.receive(many(Address(host, port), HELP, 100), 0.0)
    for n in range(STRANGERS + 500):  # and from ever new hosts
        bench.switch.receive(many(Address(f"10.9.{n >> 8}.{n & 255}", 1), HELP, 100), 0.0)
    before = bench.counters["throttled"]
    for _ in range(25):
        bench.heartbeat(0, SHAPE)
    assert bench.counters["throttled"] == before
    bench.switch.receive(many(peer(0), HELP, 100), 0.0)  # but it has no more than that
    assert bench.counters["throttled"] == before + 75


def test_who_leaves_is_a_stranger_again() -> None:
    throttle = Throttle(10.0)
    throttle.admit(peer(0), 1, 0.0)
    assert throttle.take(peer(0), 20, 0.0) == 10
    assert throttle.take(peer(0)._replace(port=1), 20, 0.0) == 10
    throttle.dismiss(peer(0))
    assert throttle.take(peer(0), 20, 0.0) == 0


def test_a_controller_of_two_jobs_is_a_member_until_it_has_left_both() -> None:
    bench = Bench()
    for job in (1, 2):
        bench.join(0, None, MemberType.CONTROLLER, job=job)
    throttle = bench.switch.record.throttle
    bench.control(0, Action.LEAVE, job=1)
    assert peer(0) in throttle._members
    bench.control(0, Action.LEAVE, job=2)
    assert peer(0) not in throttle._members
    assert not bench.switch.record.sources.hosts


def test_strangers_are_bounded_in_memory_and_in_what_they_get() -> None:
    throttle = Throttle(10.0)
    taken = 0
    for n in range(20 * STRANGERS):
        taken += throttle.take(Address(f"h{n}", 1), 1000, 0.0)
    assert len(throttle._strangers) == STRANGERS
    assert taken == 10 * (STRANGERS + 1)
    for n in range(20 * STRANGERS):  # who was silent for a second makes room
        assert throttle.take(Address(f"x{n}", 1), 1, 1.0 + n) == 1
    assert len(throttle._strangers) == STRANGERS


def test_one_who_never_rests_keeps_nobody_out_for_long() -> None:
    throttle = Throttle(10.0)
    throttle.take(Address("flood", 1), 1000, 0.0)
    for n in range(STRANGERS - 1):
        throttle.take(Address(f"h{n}", 1), 1, 0.0)
    throttle.take(Address("flood", 1), 1000, 5.0)
    throttle.take(Address("new", 1), 1, 5.0)
    throttle.take(Address("new", 1), 1, 5.0)
    assert ("new", 0) in throttle._strangers


def test_acks_that_the_switch_waits_for_cost_nothing() -> None:
    shape = Shape.of(60, elements=1)
    bench = Bench(Switch(Limits(control_rate=10.0)))
    bench.gather(shape, 2)
    relays: list[Control] = []
    for i in range(0, 60, 2):
        bench.numbers += 1
        asked = Control(Action.HELP, JOB, bench.numbers, Segments(0, i, 1)).build()
        sends = bench.switch.receive(Burst.single(peer(0), TOS_CONTROL, asked), i / 2)
        relays += [Control.parse(packets_of(out)[0]) for out in sends if out.peers == (peer(1),)]
    assert len(relays) == 30
    acks = [Control(Action.ACK, JOB, r.request, Ack(Action.HELP)).build() for r in relays]
    burst = Burst(peer(1), TOS_CONTROL, rows_of(acks), len(acks[0]))
    bench.switch.receive(burst, 30.0)
    assert bench.counters["throttled"] == 0
    bench.switch.receive(burst, 30.0)  # nobody waits for these any more
    assert bench.counters["throttled"] == 20


# Members in normal use


@pytest.mark.slow
def test_sixty_four_workers_are_never_throttled() -> None:
    """Joins every 20 ms while all gather, lost rounds, heartbeats; a tenth of the usual rate."""
    world = World(Switch(Limits(lease=1e6, control_rate=200.0)))
    workers = [world.join(i, SHAPE, expected=64, heartbeat=3.0) for i in range(63)]
    for _ in range(50):
        end = world.now + 0.02
        for session in workers:
            session.join(world.now)
        while world.now < end and world.step():
            pass
        world.now = max(world.now, end)
    workers.append(world.join(63, SHAPE, expected=64))
    world.gather(workers)
    ones = np.ones(6, np.float32)
    world.faults.loss = 0.3
    for _ in range(3):
        for out in world.allreduce(workers, [ones] * 64):
            assert (out == 64).all()
    assert world.switch.counters["control"] > 64 * 50
    assert world.switch.counters["throttled"] == 0


@pytest.mark.slow
@pytest.mark.parametrize("segments", [500, 2000] if "ISWITCH_MODEL_SEEDS" in os.environ else [500])
def test_help_for_a_whole_lost_vector_is_not_throttled(segments: int) -> None:
    """Packets one by one, each fifth of them lost, so that much is asked for in small pieces."""
    shape = Shape.of(segments, elements=1)
    world = World(Switch(Limits(lease=1e6)))
    workers = [world.join(i, shape, expected=4, resends=False) for i in range(4)]
    world.gather(workers)
    world.faults = Faults(loss=0.2)
    vectors = [np.ones(segments, np.float32)] * 4
    for out in world.allreduce(workers, vectors):
        assert (out == 4).all()
    helps = sum(session.stats["helps"] for session in workers)
    assert helps >= RANGES_PER_HELP
    assert world.switch.counters["throttled"] == 0


def test_a_switch_below_speaks_for_its_workers() -> None:
    tree = Tree(2, 16)
    for switch in (tree.switch, *tree.switches.values()):
        switch.record.throttle.rate = 100.0
    tree.all_there()
    tree.faults.loss = 0.1
    for _ in range(3):
        tree.round_of_all()
    assert tree.switch.counters["throttled"] == 0
    buckets = tree.switch.record.throttle._members
    lines = [address._replace(port=port_of(line_of(7), address.port)) for address in tree.above]
    assert [buckets[line].rate for line in lines] == [1600.0, 1600.0]
    assert len(tree.switch.receive(many(Address("10.8.0.1", 1), HELP, 200), tree.now)) == 100
