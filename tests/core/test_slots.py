"""Jobs with fewer slots than segments (docs/protocol.md, "Slots"); test_slots_model.py: why."""

from __future__ import annotations

import os
import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from iswitch.core.format.packets import Address, Burst
from iswitch.core.format.wire import (
    FLAG_PARTIAL,
    FLAG_STANDS_AT,
    FLAG_WHOLE,
    SEG_SIZE,
    TOS_CONTROL,
    TOS_DATA,
    Ack,
    Action,
    Control,
    DType,
    Join,
    Segments,
    Shape,
    Status,
    Threshold,
    slots_flags,
)
from iswitch.core.jobs.limits import Limits
from iswitch.core.sums.paper import Counting
from iswitch.core.sums.slotted import SlottedAccelerator
from iswitch.core.switch import Switch
from tests.support.parts import JOB, Bench, peer, seg
from tests.support.tree import Tree, switch_address
from tests.support.world import SWITCH, Faults, World, worker_address
from worker_lib.protocol.events import Answered
from worker_lib.protocol.session import Session

pytestmark = pytest.mark.unit

SEEDS = int(os.environ.get("ISWITCH_MODEL_SEEDS", "4"))  # `make model` takes more
EVERY = 1 if "ISWITCH_MODEL_SEEDS" in os.environ else 3  # data packet of a tree is lost in turn
TYPICAL = Faults(loss=0.05, duplicate=0.1, jitter=400e-6)
SHAPE = Shape.of(203, DType.INT32, elements=2)  # 102 segments, the last one shorter


def slotted(slots: int = 16, **limits: Any) -> Switch:
    return Switch(Limits(slots=slots, **limits))


def join_all(world: World, workers: int, shape: Shape = SHAPE, **ways: Any) -> list[Session]:
    sessions = [world.join(i, shape, expected=workers, whole=True, **ways) for i in range(workers)]
    world.gather(sessions)
    return sessions


def vector(rng: random.Random, numel: int = SHAPE.numel) -> np.ndarray:
    return np.array([rng.randrange(1 << 20) for _ in range(numel)], np.int32)


def test_a_vector_goes_through_few_slots() -> None:
    world = World(slotted(), Faults())
    sessions = join_all(world, 3)
    assert [session.slots for session in sessions] == [16] * 3
    for round_ in range(3):
        vectors = [np.arange(SHAPE.numel, dtype=np.int32) * (i + round_) for i in range(3)]
        for out in world.allreduce(sessions, vectors):
            assert (out == sum(vectors)).all()
    job = world.switch.jobs[7]
    assert isinstance(job.accelerator, SlottedAccelerator)
    assert world.switch.counters["late"] == world.switch.counters["duplicate"] == 0
    whole = Switch()
    other = World(whole, Faults())
    join_all(other, 3)
    assert world.switch.record.reserved < whole.record.reserved


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(SEEDS))
def test_whatever_happens_to_packets(seed: int) -> None:
    """Sums are exact in every round, of vectors of any length; nobody is told that one is gone."""
    rng = random.Random(seed)
    slots, workers = rng.choice((2, 4, 8, 32)), rng.randint(1, 4)
    world = World(slotted(slots), TYPICAL, seed)
    sessions = join_all(world, workers, reproducible=rng.random() < 0.3)
    for _ in range(4):
        numel = rng.choice((SHAPE.numel, rng.randint(1, SHAPE.numel)))
        vectors = [vector(rng, numel) for _ in sessions]
        outs = [np.empty_like(one) for one in vectors]
        for session, one, out in zip(sessions, vectors, outs, strict=True):
            session.begin(one, out, world.now)
        restarts = sorted(world.now + rng.random() * 0.1 for _ in range(rng.choice((0, 0, 1, 2))))

        def done(restarts: list[float] = restarts) -> bool:
            if restarts and world.now >= restarts[0]:
                restarts.pop(0)
                world.switch = slotted(slots)
            return all(s.transfer is not None and s.transfer.done for s in sessions)

        world.run(done)
        for session, out in zip(sessions, outs, strict=True):
            session.finish()
            assert (out == sum(vectors)).all()
    events = [event for one in world.events.values() for event in one]
    assert all(isinstance(event, Answered) for event in events), events


# In trees


class SlottedTree(Tree):
    """A tree whose switches have slots, each a number of its own: the root, and those below."""

    def __init__(self, slots: Sequence[int], *fan_outs: int, **ways: Any) -> None:
        self.slots = slots
        super().__init__(*fan_outs, whole=True, **{"shape": SHAPE, **ways})

    def new_root(self) -> Switch:
        return Switch(Limits(slots=self.slots[0]))

    def new_switch(self, address: Address) -> Switch:
        switch = super().new_switch(address)
        number = int(address.host.rpartition(".")[2])
        switch.record.limits = replace(switch.record.limits, slots=self.slots[number])
        return switch


@pytest.mark.slow
@pytest.mark.parametrize(
    "slots", [(8, 8, 8), (16, 0, 0), (0, 8, 8), (4, 16, 0)], ids=lambda slots: str(slots)
)
@pytest.mark.parametrize("seed", range(-(-SEEDS // 4)))
def test_all_windows_of_a_tree_are_equal(slots: tuple[int, ...], seed: int) -> None:
    """Racks have other slots than the root, or none; packets are lost, switches restarted."""
    rng = random.Random(seed)
    tree = SlottedTree(slots, 2, 2, seed=seed, faults=TYPICAL)
    tree.gather(tree.workers)
    assert {session.slots for session in tree.workers} == {min(filter(None, slots))}
    for round_ in range(3):
        vectors = [vector(rng) for _ in tree.workers]
        outs = [np.empty_like(one) for one in vectors]
        for session, one, out in zip(tree.workers, vectors, outs, strict=True):
            session.begin(one, out, tree.now)
        if round_:
            end = tree.now + rng.random() * 0.02
            tree.let_pass(end - tree.now)
            tree.restart(rng.choice((SWITCH, switch_address(1), switch_address(2))))
        tree.run(lambda: all(s.transfer is not None and s.transfer.done for s in tree.workers))
        for session, out in zip(tree.workers, outs, strict=True):
            session.finish()
            assert (out == sum(vectors)).all()


SHORT = Shape.of(20, DType.INT32, elements=2)  # ten segments


class Losing:
    """Loses one data packet: the one of this number; None: none."""

    def __init__(self, number: int | None) -> None:
        self.number = number
        self.count = 0

    def __call__(self, _to_switch: bool, tos: int, _payload: bytes) -> bool:
        self.count += tos == TOS_DATA
        return tos == TOS_DATA and self.count - 1 == self.number


def play_losing(number: int | None, tree: bool) -> int:
    """Two rounds of a network of two workers and four slots; return how many data packets went."""
    world: World
    if tree:
        world = SlottedTree((4, 4, 4), 2, 1, shape=SHORT)
        world.gather(world.workers)
        sessions = world.workers
    else:
        world = World(slotted(4), Faults())
        sessions = join_all(world, 2, SHORT)
    world.faults.lose = losing = Losing(number)
    for _ in range(2):
        vectors = [np.arange(SHORT.numel, dtype=np.int32) + 100 * i for i in range(2)]
        for out in world.allreduce(sessions, vectors):
            assert (out == sum(vectors)).all()
    assert all(isinstance(e, Answered) for events in world.events.values() for e in events)
    return losing.count


@pytest.mark.slow
@pytest.mark.parametrize("tree", [False, True], ids=("star", "tree"))
def test_every_data_packet_lost_in_turn(tree: bool) -> None:
    count = play_losing(None, tree)
    assert count == 2 * 10 * (8 if tree else 4)
    for number in range(0, count, EVERY if tree else 1):
        assert play_losing(number, tree) > count


# Who may join


def answer(bench: Bench, who: int, join: Join, request: int) -> tuple[Status, Ack]:
    return bench.control(who, Action.JOIN, join, request=request)[:2]


def named(slots: int, flags: int = FLAG_WHOLE, shape: Shape = SHAPE) -> Join:
    return Join.for_shape(shape, expected=2, flags=flags | slots_flags(slots))


def test_how_slots_are_agreed() -> None:
    """The first Join names what there is, or less; all others the same number."""
    bench = Bench(slotted(16))
    for who, wrong, most in ((0, (0, 32), 16), (1, (0, 4, 16), 8)):
        for slots in wrong:
            status, ack = answer(bench, who, named(slots), 1000)
            assert (status, ack.threshold) == (Status.SLOTS, most)
            assert len(bench.switch.sources) == who
        assert answer(bench, who, named(8), 1000)[0] is Status.OK
        assert answer(bench, who, named(0), 1000)[0] is Status.OK  # a late copy, of a member
    assert bench.switch.jobs[JOB].slots == 8
    bench = Bench()  # it could have a slot for each segment
    assert answer(bench, 0, named(0), 1000)[0] is Status.OK
    status, ack = answer(bench, 1, named(8), 1000)
    assert (status, ack.threshold) == (Status.SLOTS, 0)


def test_jobs_that_need_no_slots_have_none() -> None:
    """Short vectors, and sums that are not of all: each segment has a place of its own."""
    for join in (named(0, shape=Shape.of(32, elements=2)), named(0, flags=0)):
        bench = Bench(slotted(16))
        assert answer(bench, 0, join, 1000)[0] is Status.OK
        assert bench.switch.jobs[JOB].slots == 0
    bench = Bench(slotted(16))
    for flags in (0, FLAG_WHOLE | FLAG_PARTIAL):
        assert answer(bench, 0, named(8, flags=flags), 1000)[0] is Status.BAD_REQUEST


@pytest.mark.parametrize("numel", [20, 400])
def test_another_layout_is_a_mismatch(numel: int) -> None:
    """And no matter of slots, of which a worker with a shorter vector would be told for ever."""
    world = World(slotted(16), Faults())
    join_all(world, 1)
    world.join(1, Shape.of(numel, DType.INT32, elements=2), expected=1, whole=True)
    found = world.events[worker_address(1)]
    world.run(lambda: bool(found))
    assert isinstance(found[0], Answered)
    assert found[0].status is Status.MISMATCH


def test_a_switch_that_only_counts_packets_has_no_slots() -> None:
    with pytest.raises(ValueError, match="leave out slots"):
        Switch(Limits(slots=16), counting=Counting.PAPER)
    bench = Bench(Switch(counting=Counting.PAPER))
    assert answer(bench, 0, named(16), 1000)[0] is Status.BAD_REQUEST
    assert answer(bench, 0, named(0), 1000)[0] is Status.OK


def test_a_refusal_leaves_the_process_before_in_its_place() -> None:
    """Else the second Join of the new one would be a newcomer's, and begin a round too early."""
    bench = Bench(slotted(16))
    assert answer(bench, 0, named(16), 1000)[0] is Status.OK
    assert answer(bench, 0, named(0), 2000)[0] is Status.SLOTS
    assert bench.switch.jobs[JOB].members.by_address[peer(0)].incarnation == 1000
    _, ack = answer(bench, 0, named(16), 2000)
    member = bench.switch.jobs[JOB].members.by_address[peer(0)]
    assert (member.incarnation, ack.round) == (2000, 2)  # as after the last one's Leave


def test_an_answer_to_a_former_process_tells_nothing_of_slots() -> None:
    """The former one had the same number, by a coarse clock, and named slots; this one has not."""
    world = World(slotted(16), Faults())
    (former,) = join_all(world, 1)
    session = world.join(0, SHAPE, expected=1, whole=True)
    ok = Control(Action.ACK, JOB, former.incarnation, Ack(Action.JOIN, contributors=1))
    session.receive(Burst.single(SWITCH, TOS_CONTROL, ok.build()), world.now)
    assert not session.member
    world.gather([session])
    assert session.slots == 16


def test_nobody_is_left_out() -> None:
    """H and FBcast would complete a segment that not everybody has contributed to."""
    world = World(slotted(), Faults())
    sessions = join_all(world, 2)
    for action, value in ((Action.SETH, Threshold(1)), (Action.FBCAST, Segments(0, 0, 1))):
        world.events[worker_address(0)].clear()
        sessions[0].request(action, value, world.now)
        world.run(lambda: bool(world.events[worker_address(0)]))
        (event,) = world.events[worker_address(0)]
        assert isinstance(event, Answered)
        assert event.status is Status.BAD_REQUEST


def test_a_rack_with_fewer_slots_than_the_tree_is_refused() -> None:
    """Its workers are told; else it would give slots away that other racks still need."""
    tree = SlottedTree((0, 8, 4), 2, 2)
    tree.let_pass(1.0)
    assert len({session.slots for session in tree.workers if session.member}) == 1
    refused = [w for w, s in enumerate(tree.workers) if not s.member]
    for who in refused:
        last = tree.events[worker_address(who)][-1]
        assert isinstance(last, Answered)
        assert last.status is Status.SLOTS
    assert refused in ([0, 1], [2, 3], [])


def test_help_that_came_late_ends_nothing() -> None:
    """It is answered GONE for a segment that its sender has by then, whose slot is another's."""
    world = World(slotted(4), Faults())
    (session,) = join_all(world, 1)
    out = np.zeros(SHAPE.numel, np.int32)
    session.begin(np.ones(SHAPE.numel, np.int32), out, world.now)
    world.run(lambda: session.transfer is not None and session.transfer.remaining < 90)
    transfer = session.transfer
    gone = Ack(Action.HELP, round=1)
    session._help_answered(Segments(0, 0, 102), world.now, Status.GONE, gone, world.now)
    assert session.transfer is transfer
    session._help_answered(Segments(0, 90, 1), world.now, Status.GONE, gone, world.now)
    assert session.transfer is None  # it lacks that one: the round is gone


def test_help_that_came_late_takes_nobody_out_of_a_round() -> None:
    """A slot is gone, not the round: who asks still takes part in it."""
    bench = Bench(slotted(4))
    for who, stands in ((0, 1), (1, 0)):  # both return to a switch that was restarted
        join = replace(named(4, FLAG_WHOLE | FLAG_STANDS_AT), round=stands)
        assert answer(bench, who, join, 1000)[0] is Status.OK
    data = bytes(SHAPE.packet_size - SEG_SIZE)
    last = SHAPE.segments - 2
    bench.send(0, TOS_DATA, seg(1, 0) + data)
    bench.send(0, TOS_DATA, seg(0, last) + data)  # again, for the other
    late = bench.control(1, Action.HELP, Segments(0, last - 4, 1))
    assert late[0] is Status.GONE
    (out,) = bench.send(1, TOS_DATA, seg(0, last) + data)
    assert out.peers == (peer(0), peer(1))


def test_a_round_that_was_given_up_sends_nothing_new() -> None:
    """Help names segments that were not sent yet: they hold nothing, or another round's."""
    world = World(slotted(4), Faults())
    sessions = join_all(world, 2)
    session = sessions[0]
    session.begin(np.ones(SHAPE.numel, np.int32), np.empty(SHAPE.numel, np.int32), world.now)
    world.pump()
    session.abandon()
    for start, sent in ((1, 1), (2, 0)):  # two of them were sent
        session._help_the_switch(Segments(session.round, start, 4), world.now)
        again = [out for out in session.transmissions(world.now) if out.tos == TOS_DATA]
        assert sum(len(out.rows) for out in again) == sent


def test_a_member_does_not_follow_a_switch_with_fewer_slots() -> None:
    """More of its segments may be under way than that has slots for."""
    world = World(slotted(16), Faults())
    (session,) = join_all(world, 1)
    world.switch = slotted(8)
    session.join(world.now)
    world.run(lambda: any(isinstance(e, Answered) for e in world.events[worker_address(0)][1:]))
    event = world.events[worker_address(0)][-1]
    assert isinstance(event, Answered)
    assert event.status is Status.SLOTS
    assert session.slots == 16
