"""Workers that are replaced, also while switches lose their state: who is lost, who goes on where.

A newcomer's vector never meets, in one sum, one of a worker that has finished a round since it was
last told of a reset, if that was before the newcomer came: it may be anywhere in its work.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from iswitch.core.format.packets import Address
from iswitch.core.format.wire import (
    FLAG_FIRST,
    FLAG_HEARTBEAT,
    FLAG_NEW,
    FLAG_STANDS_AT,
    FLAG_WHOLE,
    TOS_CONTROL,
    Ack,
    Action,
    DType,
    Join,
    MemberType,
    Segments,
    Shape,
    Status,
    SwitchJoin,
    Threshold,
)
from iswitch.core.switch import Switch
from tests.support.parts import Below, Bench
from tests.support.states import LEASE, ONES, effects
from tests.support.states import SHAPE as THREE
from tests.support.tree import TYPICAL, Tree
from tests.support.world import SWITCH, Faults, World, worker_address
from worker_lib.errors import MemberLost
from worker_lib.protocol.session import Answered, Dropped, Gone, Session, WasReset
from worker_lib.waiting import ELSEWHERE, LOOK_PAUSE, Waiting

pytestmark = pytest.mark.unit

SEEDS = int(os.environ.get("ISWITCH_MODEL_SEEDS", "60"))  # `make model` takes more
MOST = 24  # incarnations in a history
SHAPE = Shape.of(4 * (MOST + 1), DType.INT32, elements=MOST + 1)


def come(bench: Bench, who: int, round_: int | None, flags: int = 0) -> tuple[Ack, list[str]]:
    """A worker of a whole job of three joins, having been at this round (None: a new one)."""
    flags |= FLAG_WHOLE | (0 if round_ is None else FLAG_STANDS_AT)
    join = replace(Join.for_shape(THREE, MemberType.WORKER, 3, flags), round=round_ or 0)
    status, ack, sends = bench.control(who, Action.JOIN, join, request=1000)
    assert status is Status.OK
    return ack, effects(sends)


# At one switch


@pytest.mark.parametrize("newcomer", [0, 1, 2])
def test_a_restarted_switch_with_a_new_worker_among_the_others_begins_anew(newcomer: int) -> None:
    bench = Bench()
    acks, said = zip(*(come(bench, w, None if w == newcomer else 7) for w in range(3)), strict=True)
    assert said[:2] == ([], [])
    # A new one that comes last has it from its Ack.
    assert said[2] == [f"{who}: RESET 9" for who in range(3 if newcomer < 2 else 2)]
    assert acks[2].round == 9
    for who in range(3):
        assert len(bench.contribute(who, THREE, 9, ONES)) == 3 * (who == 2)


def test_those_that_came_back_go_on() -> None:
    bench = Bench()
    assert [come(bench, who, at)[1] for who, at in [(0, 7), (1, 8), (2, 7)]] == [[], [], []]


def test_a_switch_that_restarts_while_all_gather() -> None:
    """Who had joined already names round 0; nobody has begun, so nobody minds the reset."""
    bench = Bench()
    found = [come(bench, 0, 0, FLAG_FIRST), come(bench, 1, None), come(bench, 2, None)]
    assert [said for _, said in found] == [[], [], ["0: RESET 2", "1: RESET 2"]]
    for who in range(3):
        assert len(bench.contribute(who, THREE, 2, ONES)) == 3 * (who == 2)


def test_one_that_is_replaced_while_all_gather() -> None:
    """It may not begin where its packets could be the old one's; so all begin where it does."""
    bench = Bench()
    for who in range(2):
        bench.join(who, THREE, expected=3, flags=FLAG_WHOLE)
        bench.contribute(who, THREE, 0, ONES)
    assert bench.join(1, THREE, expected=3, flags=FLAG_WHOLE, request=1001)[2] == []
    _, ack, sends = bench.join(2, THREE, expected=3, flags=FLAG_WHOLE)
    assert (ack.round, effects(sends)) == (2, ["0: RESET 2", "1: RESET 2"])


def test_a_newcomer_of_whom_the_others_have_not_heard_yet() -> None:
    """It had taken a place, and the switch died before the Reset could reach the others."""
    bench = Bench()
    found = [come(bench, 0, 7), come(bench, 1, 9, FLAG_FIRST), come(bench, 2, 8)]
    assert found[2][1] == [f"{who}: RESET 11" for who in range(3)]


def test_a_job_that_is_not_whole_takes_everybody_as_they_come() -> None:
    bench = Bench()
    for who in range(3):
        flags = FLAG_STANDS_AT * (who > 0)
        join = replace(Join.for_shape(THREE, MemberType.WORKER, 3, flags), round=7 * (who > 0))
        assert bench.control(who, Action.JOIN, join, request=1000)[2] == []


@pytest.mark.parametrize(("back", "begins"), [((7, 8), 7), ((8, 7), 8)])
def test_nobody_waits_for_a_newcomer_where_it_does_not_begin(
    back: tuple[int, int], begins: int
) -> None:
    """It is first at a restarted switch, and loses its Ack; then those come back who are on."""
    bench = Bench()
    bench.join(0, THREE, expected=3)
    for who, at in enumerate(back, 1):
        join = replace(Join.for_shape(THREE, MemberType.WORKER, 3, FLAG_STANDS_AT), round=at)
        bench.control(who, Action.JOIN, join, request=1000)
    assert bench.join(0, THREE, expected=3)[1].round == begins
    for round_ in (7, 8):
        for who in range(3) if round_ >= begins else (1, 2):
            sends = bench.contribute(who, THREE, round_, ONES)
        assert len(sends) == 3


def test_who_is_lost_is_not_counted_and_is_named() -> None:
    """Though it keeps its place, and though others lack contributions, too."""
    bench = Bench()
    bench.gather(THREE, 3, FLAG_WHOLE)
    bench.contribute(0, THREE, 0, ONES)
    bench.now = LEASE
    for who in (0, 1):
        bench.heartbeat(who, THREE)
    bench.switch.handle_timer(LEASE)
    assert bench.join(0, THREE, flags=FLAG_HEARTBEAT)[1].contributors == 2
    assert bench.control(0, Action.HELP, Segments(0, 0, 1))[1].missing == 0b110
    status, ack, sends = bench.control(0, Action.HELP, Segments(0, 0, 0))
    assert (status, ack.missing, sends) == (Status.OK, 0b100, [])
    bench.heartbeat(2, THREE)  # it was only stopped
    assert bench.join(0, THREE, flags=FLAG_HEARTBEAT)[1].contributors == 3
    assert bench.control(0, Action.HELP, Segments(0, 0, 0))[1].missing == 0


def test_an_old_count_of_a_switch_below_changes_nothing() -> None:
    """A Join from before, late or recorded by somebody; fewer workers come with a new Request."""
    bench = Bench()

    def counted(workers: int, request: int) -> int:
        join = SwitchJoin.for_shape(THREE, MemberType.SWITCH, 2)
        assert isinstance(join, SwitchJoin)
        join = replace(join, workers=workers)
        return bench.control(0, Action.JOIN, join, request=request)[1].contributors

    assert [counted(0, 1000), counted(2, 1000), counted(0, 1000), counted(1, 1000)] == [0, 2, 2, 2]
    assert [counted(1, 1001), counted(2, 1001)] == [1, 2]


def test_a_new_switch_process_has_to_outdo_the_number_that_told_of_fewer() -> None:
    """Else it would be taken for the old one: what it has lost would never be sent again."""
    bench = Bench()
    join = SwitchJoin.for_shape(THREE, MemberType.SWITCH, 3, FLAG_WHOLE)
    assert isinstance(join, SwitchJoin)
    for workers, request, flags in [(3, 1000, FLAG_NEW), (2, 1001, FLAG_HEARTBEAT)]:
        told = replace(join, workers=workers, flags=flags | FLAG_WHOLE)
        assert bench.control(0, Action.JOIN, told, request=request)[0] is Status.OK
    new = replace(join, workers=1, flags=FLAG_NEW | FLAG_WHOLE)
    status, ack, _ = bench.control(0, Action.JOIN, new, request=1001)
    assert (status, ack.round) == (Status.DENIED, 1001)
    status, ack, sends = bench.control(0, Action.JOIN, new, request=1002)
    assert (status, ack.round, effects(sends)) == (Status.OK, 2, ["0: RESET 2"])


def test_a_new_switch_process_is_not_given_the_old_one_s_answers() -> None:
    """Its Request numbers begin anew, and may be those of the old one's."""
    bench = Bench()
    join = SwitchJoin.for_shape(THREE, MemberType.SWITCH, 1)
    bench.control(0, Action.JOIN, join, request=1000)
    assert bench.control(0, Action.SETH, Threshold(5), request=1002)[1].threshold == 5
    assert bench.control(0, Action.SETH, Threshold(6), request=1002)[1].threshold == 5  # a repeat
    bench.control(0, Action.JOIN, join, request=1001)
    assert bench.control(0, Action.SETH, Threshold(7), request=1002)[1].threshold == 7


def switch_comes(
    bench: Bench, who: int, request: int, at: int | None, workers: int, flags: int = 0
) -> list[str]:
    """A switch below joins a whole job of two; its worker stands there (None: is a new one)."""
    flags |= FLAG_WHOLE | (0 if at is None else FLAG_STANDS_AT)
    join = SwitchJoin.for_shape(THREE, MemberType.SWITCH, 2, flags)
    assert isinstance(join, SwitchJoin)
    join = replace(join, round=at or 0, workers=workers)
    return effects(bench.control(who, Action.JOIN, join, request=request)[2])


def test_a_switch_below_that_restarts_again_brings_a_new_worker() -> None:
    """What its process before named, when the root had just lost its state, is void."""
    bench = Bench()
    assert switch_comes(bench, 0, 1000, 14, 0) == []
    assert switch_comes(bench, 0, 1001, None, 0, FLAG_NEW) == []
    assert switch_comes(bench, 0, 1001, None, 1, FLAG_HEARTBEAT) == []
    assert switch_comes(bench, 1, 1000, 14, 1) == ["0: RESET 16", "1: RESET 16"]


@pytest.mark.parametrize("ahead", [9, 12])
def test_a_switch_below_that_restarts_while_the_root_knows_less_than_its_worker(ahead: int) -> None:
    """The worker was told of a Reset before the root was restarted."""
    bench = Bench()
    assert [switch_comes(bench, who, 1000, 7, 1) for who in range(2)] == [[], []]
    said = switch_comes(bench, 0, 1001, ahead, 1, FLAG_FIRST | FLAG_NEW)
    assert said == [f"{who}: RESET {ahead + 2}" for who in range(2)]


# At a switch with a parent


def test_who_is_replaced_while_its_switch_joins_anew_counts_once() -> None:
    """The new process waits for the parent, and what the old one contributed is in a buffer."""
    bench = Below()
    (join,) = bench.comes(0, THREE)
    bench.answers(join)
    *_, count = bench.comes(1, THREE)
    bench.contribute(0, THREE, 0, ONES)
    (anew,) = bench.answers(count, Status.NOT_MEMBER)
    assert isinstance(anew.value, Join)
    assert anew.value.flags & FLAG_STANDS_AT
    assert (
        bench.comes(0, THREE, 1001) == []
    )  # and what says where the others stand is under way still
    told = [packet.value for packet in bench.answers(anew)]
    (ack,) = [value for value in told if isinstance(value, Ack)]
    assert (ack.action, ack.round) == (Action.JOIN, 2)
    for round_ in (0, 1):
        bench.contribute(0, THREE, round_, ONES)
    assert bench.counters["before_join"] == 2 * THREE.segments


@pytest.mark.parametrize("fan_outs", [(2, 2), (4,)], ids=str)
@pytest.mark.parametrize("resets", [1, 2, 3])
def test_a_reset_that_some_have_not_heard_before_the_root_restarts(
    fan_outs: tuple[int, ...], resets: int
) -> None:
    """Nobody needs another: the root goes on beyond what those name who have heard of it."""
    tree = Tree(*fan_outs, whole=True)
    tree.all_there()
    tree.round_of_all()
    deaf = list(tree.above)[1:] or [worker_address(i) for i in (2, 3)]
    tree.network.lose = lambda source, peer, *_: source == SWITCH and peer in deaf
    for _ in range(resets):
        tree.ask(0, Action.RESET)
    tree.let_pass(0.5)
    reached = 2 * resets
    assert [session.round for session in tree.workers] == [reached, reached, 1, 1]
    tree.restart(SWITCH)
    tree.network.lose = tree.lost
    tree.run(lambda: {session.round for session in tree.workers} == {reached + 2}, limit=15.0)
    tree.all_there()
    tree.round_of_all()


# on_member_lost="raise", in virtual time


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


# In a tree, at random


@dataclass
class Life:
    """One incarnation of a worker."""

    identity: int
    born: float
    told: float  # when it began, or was last told that all begin anew
    out: np.ndarray
    finished: bool = False  # a round since then
    rounds: int = 0


class History(Tree):
    """Workers that do one allreduce after the other, and go on after a reset as the demo's do."""

    def __init__(self, *fan_outs: int, seed: int) -> None:
        super().__init__(*fan_outs, seed=seed, faults=TYPICAL, whole=True)
        self.places = [(a, s.switch) for a, s in self.sessions.items()]
        for address in list(self.sessions):
            del self.sessions[address]
        self.lives: dict[int, Life] = {}
        self.born: list[float] = []
        self.begun: dict[tuple[int, int], float] = {}  # by identity and round: up to date when
        for place in range(len(self.places)):
            self.be_born(place)

    def be_born(self, place: int) -> None:
        identity = len(self.born)
        self.born.append(self.now)
        ways: dict[str, Any] = {"expected": len(self.places), "heartbeat": 1.0, "whole": True}
        second = 1000 + identity - self.random.choice((0, 0, 1, 2, 5, 900))  # clocks step back
        self.join(place, SHAPE, at=self.places[place][1], incarnation=second, **ways)
        out = np.zeros(SHAPE.numel, np.int32)
        self.lives[place] = Life(identity, self.now, self.now, out)

    def session(self, place: int) -> Session:
        return self.sessions[worker_address(place)]

    def die(self, place: int) -> None:
        del self.lives[place], self.sessions[worker_address(place)]

    def go_on(self) -> None:
        self.pump()
        for place, life in self.lives.items():
            session = self.session(place)
            for event in self.events[worker_address(place)]:
                has_reset = isinstance(event, Answered) and event.action is Action.RESET
                if has_reset or isinstance(event, WasReset | Dropped | Gone):
                    life.told, life.finished = self.now, False
                if isinstance(event, Dropped | Gone):
                    session.request(Action.RESET, None, self.now)
            self.events[worker_address(place)].clear()
            transfer = session.transfer
            if transfer is not None and transfer.done:
                self.check(life, transfer.round)
                session.finish()
                life.rounds += 1
                life.finished = True
            waits = session.asks(Action.RESET)  # as `Worker.reset` does
            if session.transfer is None and session.member and not waits:
                grid = np.zeros((SHAPE.segments, MOST + 1), np.int32)
                grid[:, life.identity] = 1
                session.begin(grid.reshape(-1), life.out, self.now)
                up_to_date = life.told if life.finished else float("inf")
                self.begun[life.identity, session.round] = up_to_date

    def check(self, life: Life, round_: int) -> None:
        counts = life.out.reshape(SHAPE.segments, MOST + 1)
        assert counts.max() <= 1, "counted twice"
        assert (counts.sum(1) == len(self.places)).all(), "a sum of fewer, or of more"
        assert (counts[:, life.identity] == 1).all()
        last = 0.0
        for row in counts:
            inside = np.flatnonzero(row).tolist()
            newest = max(self.born[identity] for identity in inside)
            for identity in inside:
                told = self.begun[identity, round_]
                assert told >= newest, (
                    f"round {round_} mixes {identity}, told at {told}, and one born at {newest}"
                )
            last = max(last, newest)
        life.told = max(life.told, last)  # from here on they go together

    def reset_before_a_restart(self) -> None:
        """Workers ask for Resets, of which not all below the root hear before that restarts."""
        below = self.above or [worker_address(place) for place in self.lives]
        deaf = self.random.sample(sorted(below), self.random.randrange(1, len(below) + 1))
        self.network.lose = lambda source, peer, *_: source == SWITCH and peer in deaf
        for _ in range(self.random.randrange(1, 4)):
            asker = self.random.choice(sorted(self.lives))
            self.session(asker).request(Action.RESET, None, self.now)
            self.live(self.random.choice((3e-4, 2e-3, 3e-2)))
        self.network.lose = self.lost

    def new_switch(self, address: Address) -> Switch:
        """A process whose clock stands anywhere, also before that of the one before."""
        switch = super().new_switch(address)
        assert switch.control.hierarchy is not None
        switch.control.hierarchy._incarnation -= self.random.choice((0, 0, 1, 3, 900))
        return switch

    def live(self, seconds: float) -> None:
        end = self.now + seconds
        while self.now < end:
            self.go_on()
            self.step()

    def everybody_gets_on(self) -> None:
        self.faults = Faults()
        goal = {place: life.rounds + 3 for place, life in self.lives.items()}
        end = self.now + 60
        while any(self.lives[place].rounds < goal[place] for place in goal):
            self.go_on()
            assert self.step()
            state = [(p, x.rounds, self.session(p).round) for p, x in self.lives.items()]
            assert self.now < end, f"no progress: {state}\n" + "\n".join(self.trace[-40:])
        self.faults = TYPICAL


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(SEEDS))
def test_workers_are_replaced_while_switches_restart(seed: int) -> None:
    """No sum mixes a newcomer with who has not heard of it, and everybody gets on.

    Nobody needs a Reset for that, also where some have heard of one before the root restarts.

    What a dead process sent has arrived when the new one comes, as ever (a switch that knows
    nothing of it could not tell its packets from the new one's).
    """
    history = History(*[(3,), (2, 2), (2, 1), (1, 3)][seed % 4], seed=seed)
    rng = history.random
    switches: list[Address] = [SWITCH, *history.above]
    for _ in range(4):
        history.live(rng.choice((1e-3, 5e-3, 2e-2)))
        place = rng.choice(list(history.lives))
        history.die(place)
        restarts = rng.sample(switches, rng.randrange(len(switches) + 1))
        moments = sorted(rng.choice((0.0, 1e-3, 3e-3, 3e-2)) for _ in range(len(restarts) + 1))
        birth = rng.randrange(len(restarts) + 1)
        for i, moment in enumerate(moments):
            history.live(2e-3 + moment)
            if i == birth:
                history.be_born(place)
                continue
            address = restarts.pop()
            if address == SWITCH and rng.random() < 0.5:
                history.reset_before_a_restart()
            history.restart(address)
        history.everybody_gets_on()
