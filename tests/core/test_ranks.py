"""Ranks: one for each worker of a tree, no two with the same, whatever is lost and whoever dies."""

from __future__ import annotations

import os
import random
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from iswitch.core.format.packets import Address
from iswitch.core.format.wire import (
    FLAG_NEW,
    FLAG_REPRODUCIBLE,
    FLAG_STANDS_AT,
    FLAG_WHOLE,
    NO_RANK,
    RANKS,
    TOS_CONTROL,
    Ack,
    AckRanks,
    Action,
    Control,
    DType,
    Join,
    MemberType,
    Shape,
    Status,
    TreeJoin,
)
from iswitch.core.jobs.limits import Limits
from iswitch.core.switch import Switch
from tests.conftest import StartSwitch
from tests.support.parts import JOB, Below, Bench, controls, peer
from tests.support.states import LEASE
from tests.support.world import SWITCH, Faults, World, worker_address
from topologies import Topology
from topologies.simulated import Simulation
from worker_lib import Refused, TooFewWorkers, Worker, environment
from worker_lib.protocol.session import Answered, Session
from worker_lib.protocol.terms import RoundTerms

pytestmark = pytest.mark.unit

SEEDS = int(os.environ.get("ISWITCH_MODEL_SEEDS", "60"))  # `make model` takes more
SHAPE = Shape.of(3, DType.FLOAT32, elements=3)
OTHER = Shape.of(99, DType.FLOAT32, elements=3)
OK, TAKEN, MISMATCH = Status.OK, Status.RANK_TAKEN, Status.MISMATCH


def ask(
    bench: Bench, who: int, rank: int = NO_RANK, expected: int = 0, request: int = 1000, **kw: int
) -> tuple[Status, Ack]:
    join = Join.for_shape(SHAPE, MemberType.WORKER, expected, kw.get("flags", 0)).asking(rank)
    status, ack, _ = bench.control(who, Action.JOIN, join, request=request)
    return status, ack


def ranks(bench: Bench) -> dict[int, int]:
    """By worker, as the switch has them."""
    members = bench.switch.jobs[JOB].members.by_address
    return {who: members[peer(who)].rank for who in range(20) if peer(who) in members}


# At one switch


def test_who_asks_gets_it_and_who_does_not_the_lowest_that_is_free() -> None:
    bench = Bench()
    wanted = (2, NO_RANK, 4, NO_RANK, 100)
    assert [ask(bench, who, rank)[1].rank for who, rank in enumerate(wanted)] == [2, 0, 4, 1, 100]


def test_with_num_workers_those_who_ask_come_first() -> None:
    """Whoever asks for none learns its rank when all are there: nobody's is given away."""
    bench = Bench()
    assert [ask(bench, 0, expected=3)[1].rank, ask(bench, 1, expected=3)[1].rank] == [NO_RANK] * 2
    assert ask(bench, 2, 0, expected=3)[1].rank == 0
    assert [ask(bench, who, expected=3)[1].rank for who in (0, 1)] == [1, 2]


def test_who_asks_after_the_start_may_find_its_rank_given() -> None:
    """A mix: rank 1, asked for, dies; who asks for none is there first, and has it from then on."""
    bench = Bench()
    wanted = (0, 1, NO_RANK)
    for who, rank in enumerate(wanted):
        ask(bench, who, rank, expected=3)
    assert ask(bench, 2, expected=3)[1].rank == 2
    bench.now = LEASE
    for who in (0, 2):
        bench.heartbeat(who, SHAPE)
    bench.switch.handle_timer(bench.now)
    assert ask(bench, 7, expected=3)[1].rank == 1
    bench.now += 1.0
    status, ack = ask(bench, 8, 1, expected=3)
    where = ".".join(map(str, ack.threshold.to_bytes(4, "big"))), ack.round
    assert (status, where) == (TAKEN, tuple(peer(7)[:2]))
    bench.control(7, Action.LEAVE)
    assert ask(bench, 8, 1, expected=3)[1].rank == 1
    assert ranks(bench) == {0: 0, 2: 2, 8: 1}


def test_a_rank_that_a_living_worker_has_is_refused() -> None:
    bench = Bench()
    ask(bench, 0, 1)
    bench.now = 1.5
    status, ack = ask(bench, 5, 1)
    assert status is TAKEN
    where = ".".join(map(str, ack.threshold.to_bytes(4, "big"))), ack.round
    assert (ack.rank, where, ack.contributors) == (1, tuple(peer(0)[:2]), 1500)
    assert bench.counters["ranks_refused"] == 1
    assert ranks(bench) == {0: 1}


def test_a_rank_is_free_when_its_owner_has_left() -> None:
    bench = Bench()
    ask(bench, 0, 1)
    bench.control(0, Action.LEAVE)
    assert ask(bench, 5, 1)[0] is OK


@pytest.mark.parametrize("asks", [1, NO_RANK])
def test_a_new_process_at_an_address_has_the_rank_of_the_old_one(asks: int) -> None:
    bench = Bench()
    ask(bench, 0, 0)
    ask(bench, 1, 1)
    ask(bench, 2, 2)
    bench.control(0, Action.LEAVE)  # so that a lower one is free
    assert ask(bench, 1, asks, request=1001)[1].rank == 1


@pytest.mark.parametrize("whole", [False, True])
def test_who_dies_makes_room_for_who_asks_for_its_rank(whole: bool) -> None:
    """In a whole job, too, where two are silent: the right one of them goes."""
    bench = Bench()
    flags = FLAG_WHOLE * whole
    for who in range(3):
        ask(bench, who, who, expected=3, flags=flags)
    bench.now = LEASE
    bench.heartbeat(0, SHAPE)
    assert ask(bench, 7, 2, expected=3, flags=flags)[0] is OK
    assert ranks(bench)[7] == 2
    assert 2 not in ranks(bench)
    assert 1 in ranks(bench)


def silent_owner() -> Bench:
    """A whole job of three, whose rank 2 is silent."""
    bench = Bench()
    for who in range(3):
        ask(bench, who, who, expected=3, flags=FLAG_WHOLE)
    bench.now = LEASE + 5.0
    for who in range(2):
        bench.heartbeat(who, SHAPE)
    return bench


def test_a_misfit_takes_no_silent_worker_out() -> None:
    bench = silent_owner()
    for shape, flags in ((OTHER, FLAG_WHOLE), (SHAPE, FLAG_WHOLE | FLAG_REPRODUCIBLE)):
        join = Join.for_shape(shape, MemberType.WORKER, 3, flags).asking(2)
        assert bench.control(9, Action.JOIN, join, request=1) == (MISMATCH, Ack(Action.JOIN), [])
    assert ranks(bench) == {0: 0, 1: 1, 2: 2}
    assert ask(bench, 9, 2, expected=3, flags=FLAG_WHOLE)[0] is OK
    assert ranks(bench) == {0: 0, 1: 1, 9: 2}


@pytest.mark.parametrize("rank", [2, NO_RANK])
def test_who_finds_no_memory_takes_no_silent_worker_out(
    rank: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = silent_owner()

    def lacks(_seat: int) -> None:
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(bench.switch.jobs[JOB].accelerator, "join", lacks)
        assert ask(bench, 9, rank, expected=3, flags=FLAG_WHOLE)[0] is Status.FULL
    assert ranks(bench) == {0: 0, 1: 1, 2: 2}
    assert ask(bench, 9, rank, expected=3, flags=FLAG_WHOLE)[0] is OK
    assert ranks(bench) == {0: 0, 1: 1, 9: 2}


def test_a_misfit_is_not_told_who_has_a_rank() -> None:
    bench = Bench()
    ask(bench, 0, 1)
    join = Join.for_shape(OTHER, MemberType.WORKER).asking(1)
    assert bench.control(5, Action.JOIN, join, request=1) == (MISMATCH, Ack(Action.JOIN), [])
    assert ask(bench, 5, 1)[0] is TAKEN


@pytest.mark.parametrize(("rank", "expected"), [(3, 3), (RANKS, 0), (NO_RANK - 1, 0)])
def test_there_is_no_such_rank(rank: int, expected: int) -> None:
    assert ask(Bench(), 0, rank, expected, flags=FLAG_NEW)[0] is Status.BAD_REQUEST


def test_who_comes_back_keeps_a_rank_beyond_expected() -> None:
    """Three workers of two that were expected: a restarted switch gives each the rank it had."""
    bench = Bench()
    for who in (2, 0, 1):
        status, ack = ask(bench, who, who, expected=2, flags=FLAG_STANDS_AT)
        assert (status, ack.rank) == (OK, who)
    assert ask(Bench(), 0, RANKS, expected=2)[0] is Status.BAD_REQUEST


@pytest.mark.parametrize("type_", [MemberType.SWITCH, MemberType.CONTROLLER])
def test_only_workers_have_ranks(type_: MemberType) -> None:
    join = Join.for_shape(SHAPE, type_).asking(0)
    assert Bench().control(0, Action.JOIN, join)[0] is Status.BAD_REQUEST


def test_a_repeat_changes_nothing() -> None:
    bench = Bench()
    ask(bench, 0, 1)
    assert ask(bench, 0, 2)[1].rank == 1


def test_sums_in_rank_order() -> None:
    """The seats are in the order of joining, the sum is not: its bits tell."""
    values = np.array([1e8, 1.0, -1e8], np.float32)
    order = [2, 0, 1]  # ranks by worker; 64 more: seats are other numbers
    bench = Bench(Switch(reproducible=True))
    for who, rank in enumerate(order):
        assert ask(bench, who, rank + 64, expected=0)[1].rank == rank + 64
    for who in (1, 0, 2):
        sent = bench.contribute(who, SHAPE, 0, np.full(3, values[order[who]]))
    (packet,) = sent
    in_order = (values[0] + values[1]) + values[2]
    assert (np.frombuffer(packet[8:], np.float32) == in_order).all()
    assert in_order != (values[2] + values[0]) + values[1]


# What a switch below states


def state(
    bench: Bench, who: int, statement: int, ranks: int, unranked: int = 0, request: int = 1000
) -> AckRanks:
    join = Join.for_shape(SHAPE, MemberType.SWITCH)
    fields = [getattr(join, name) for name in Join.__match_args__]
    fields += [1, statement, unranked, ranks]
    value = TreeJoin(*fields)
    status, ack, _ = bench.control(who, Action.JOIN, value, request=request)
    assert status is OK
    assert isinstance(ack, AckRanks)
    return ack


def test_the_root_decides() -> None:
    bench = Bench()
    ask(bench, 9, 0)
    assert state(bench, 0, 1, 0b0111).ranks == 0b0110
    ack = state(bench, 1, 1, 0b1010, unranked=2)
    assert (ack.statement, ack.given, ack.ranks) == (1, 2, 0b111000)
    assert ask(bench, 8, 4)[0] is TAKEN
    assert ask(bench, 8)[1].rank == 6


def test_an_older_statement_is_not_heeded() -> None:
    bench = Bench()
    state(bench, 0, 2, 0b11)
    assert state(bench, 0, 1, 0b0).ranks == 0b11
    assert ask(bench, 8, 1)[0] is TAKEN
    assert state(bench, 0, 3, 0b01).ranks == 0b01
    assert ask(bench, 8, 1)[0] is OK


def test_numbers_are_given_once() -> None:
    """The answer to a statement that is repeated is the same."""
    bench = Bench()
    first = state(bench, 0, 1, 0, unranked=3)
    assert state(bench, 0, 1, 0, unranked=3) == first
    assert first.ranks == 0b111


def test_a_restarted_switch_finds_the_ranks_that_it_had() -> None:
    """For a lease: its workers come back one by one."""
    bench = Bench()
    state(bench, 0, 5, 0b111)
    assert state(bench, 0, 1, 0b010, request=1001).ranks == 0b010
    assert ask(bench, 8, 2)[0] is TAKEN
    assert ask(bench, 8)[1].rank == 3
    assert state(bench, 0, 2, 0b110, request=1001).ranks == 0b110
    bench.now = LEASE
    state(bench, 0, 2, 0b110, request=1001)
    assert ask(bench, 9, 0)[0] is OK


def test_a_switch_that_restarts_twice_finds_the_ranks_of_those_who_were_not_back() -> None:
    """For a lease from the last time; what is no longer kept by then is not kept again."""
    bench = Bench()
    state(bench, 0, 5, 0b011)
    bench.now = LEASE / 2
    state(bench, 0, 1, 0b010, request=1001)
    bench.now = LEASE
    state(bench, 0, 1, 0b010, request=1002)
    assert ask(bench, 8, 0)[0] is TAKEN
    assert ask(bench, 8)[1].rank == 2
    bench.now = 2 * LEASE
    bench.heartbeat(8, SHAPE)
    state(bench, 0, 1, 0b010, request=1003)
    assert ask(bench, 9)[1].rank == 0


def test_one_answer_confirms_the_ranks_of_all_who_wait() -> None:
    """Taking one in states anew what the others ask for: none of them is refused by that."""
    bench = Below()

    def hears(to: Control, statement: int, ranks: int) -> list[Control]:
        value = Ack(Action.JOIN).telling(statement, 0, ranks)
        answer = Control(Action.ACK, JOB, to.request, value)
        return controls(bench.hears(TOS_CONTROL, [answer.build()]))

    def comes(who: int) -> list[Control]:
        join = Join.for_shape(SHAPE, MemberType.WORKER, 3, FLAG_NEW).asking(who)
        return controls(bench.send(who, TOS_CONTROL, Control(Action.JOIN, JOB, 1000, join).build()))

    (up,) = comes(0)
    assert comes(1) + comes(2) == []
    (up,) = hears(up, 0, 0)  # not decided: the parent has to ask the root
    assert isinstance(up.value, TreeJoin)
    assert up.value.ranks == 0b111
    told = hears(up, up.value.statement, 0b011)  # rank 2 is another's
    answers = [packet.status for packet in told if packet.action is Action.ACK]
    assert answers == [OK, OK, TAKEN]
    assert ranks(bench) == {0: 0, 1: 1}


# A model: processes that want ranks, at random places of random trees


@dataclass
class Process:
    """A worker's process; `Worker` joins in the same way."""

    session: Session
    address: Address
    wants: int
    refused: bool = False
    full: bool = False
    status: Status = OK
    asked: float = 0.0
    born: float = 0.0
    confirmed: float = 0.0  # when its rank last was, and which
    rank: int = NO_RANK


@dataclass
class Plan:
    loss: float
    restarts: bool
    doubles: bool
    whole: bool


@dataclass
class History:
    """Processes join, leave, die and come again; switches lose their state."""

    seed: int
    lease: float = 10.0  # three heartbeats of a switch, and more
    running: dict[int, Process] = field(default_factory=dict)  # by the number of their address
    # By switch, the workers that it has known since it began, each with the member it is behind.
    known: dict[Address, dict[Address, Address]] = field(default_factory=dict)
    asked: Counter[int] = field(default_factory=Counter)  # by rank, how many processes ever did

    def __post_init__(self) -> None:
        draw = self.draw = random.Random(self.seed)
        self.plan = Plan(
            loss=draw.choice([0, 0.05, 0.2]),
            restarts=draw.random() < 0.5,
            doubles=draw.random() < 0.3,
            whole=draw.random() < 0.4,
        )
        faults = Faults(self.plan.loss, 0.05 * (draw.random() < 0.5), draw.choice([0, 3e-4, 5e-3]))
        self.world = World(Switch(self.limits), faults, self.seed)
        self.above: dict[Address, Address] = {}
        level, number = [SWITCH], 0
        fan_outs = draw.choice([(), (2,), (3,), (2, 2), (1, 2)])
        for fan_out in fan_outs:
            below = []
            for parent in level:
                for _ in range(fan_out):
                    number += 1
                    at = Address(f"10.0.1.{number}", 26963)
                    self.above[at] = parent
                    self.world.switches[at] = self.new_switch(at)
                    below.append(at)
            level = below
        self.leaves = level
        self.n = len(level) * draw.randint(1, 3)
        ranks: list[int] = list(range(self.n))
        draw.shuffle(ranks)
        self.expects = draw.random() < 0.7
        # Once all are there, who asks for none may be given what another will ask for later.
        asks = draw.choice([0.0, 0.5, 1.0] if self.expects else [0.0, 1.0])
        self.mixed = asks == 0.5
        self.wants = [rank if draw.random() < asks else NO_RANK for rank in ranks]
        self.numbers = 0
        self.incarnations = 1000

    @property
    def limits(self) -> Limits:
        return Limits(lease=self.lease)

    def new_switch(self, at: Address) -> Switch:
        self.incarnations_of_switches = getattr(self, "incarnations_of_switches", 1000) + 1000
        return Switch(self.limits, False, self.above[at], self.incarnations_of_switches)

    def restart(self, at: Address) -> None:
        self.known.pop(at, None)
        if at == SWITCH:
            self.world.switch = Switch(self.limits)
        else:
            self.world.switches[at] = self.new_switch(at)

    def start(self, wants: int, at: Address, number: int | None = None) -> int:
        if number is None:
            number, self.numbers = self.numbers, self.numbers + 1
        self.incarnations += 1
        self.asked[wants] += 1
        session = self.world.join(
            number,
            SHAPE,
            at=at,
            incarnation=self.incarnations,
            expected=self.n if self.expects else 0,
            whole=self.plan.whole and self.expects,
            rank=wants,
            heartbeat=self.draw.uniform(0.3, 3.0),  # so they come back one by one
        )
        process = Process(session, worker_address(number), wants, born=self.world.now)
        self.running[number] = process
        return number

    def kill(self, number: int, leaves: bool = False) -> Process:
        process = self.running.pop(number)
        if leaves and process.session.member:
            process.session.request(Action.LEAVE, None, self.world.now)
            self.run(0.002)
        del self.world.sessions[process.address]
        for known in self.known.values():
            known.pop(process.address, None)
        return process

    def run(self, seconds: float) -> None:
        """Let time pass; what `Worker` does when it joins, and what is promised at any time."""
        world, end = self.world, self.world.now + seconds
        while world.now < end:
            for process in self.running.values():
                self.attend(process)
            self.check()
            if not world.step() or world.now > end:
                break
        world.now = max(world.now, end)
        world.pump()

    def attend(self, process: Process) -> None:
        session, now = process.session, self.world.now
        for event in self.world.events[process.address]:
            if isinstance(event, Answered) and event.action is Action.JOIN:
                process.refused = event.status is not OK
                process.status = event.status
                process.full = event.status is Status.FULL
                if event.status is TAKEN:  # by another that ever asked for it, or was given it
                    assert self.asked[process.wants] > 1 or self.mixed, (self.seed, process.wants)
        self.world.events[process.address].clear()
        waits = session.member and session.rank == NO_RANK
        if process.full and now >= process.asked + 0.5:  # the place of a dead one becomes free
            process.full, process.asked = False, now
            session.join(now)
        elif waits and now >= process.asked + 0.02:
            process.asked = now
            session.join(now)

    # What is promised

    def is_confirmed(self, process: Process) -> bool:
        """Whether every switch up to the root has this process's rank as its own."""
        session, peer_ = process.session, process.address
        if not session.member or session.rank == NO_RANK:
            return False
        at: Address | None = session.switch
        while at is not None:
            job = self.world.switches[at].jobs.get(JOB)
            member = job.members.by_address.get(peer_) if job else None
            if member is None or not member.ranks >> session.rank & 1:
                return False
            if peer_ == process.address and member.incarnation != session.incarnation:
                return False
            peer_, at = at, self.above.get(at)
        return True

    def check(self) -> None:
        """No two have the same rank."""
        sessions = [p.session for p in self.running.values() if p.session.member]
        if self.plan.restarts:  # a switch that forgot whom it knew may take others in first
            sessions = [p.session for p in self.running.values() if self.is_confirmed(p)]
        told = [s.rank for s in sessions if s.rank != NO_RANK]
        assert len(told) == len(set(told)), sorted(told)
        for process in self.running.values():
            rank = process.session.rank
            assert process.wants == NO_RANK or rank in (NO_RANK, process.wants)
        for at, switch in self.world.switches.items():
            for job in switch.jobs.values():
                self.check_switch(at, [m.ranks for m in job.members.contributors()])
        self.check_kept()

    def check_kept(self) -> None:
        """Nobody elsewhere has the rank of a worker whose switch was restarted, for a lease.

        As far as the switches above know of it, and the one that was restarted does not leave them.
        """
        for process in self.running.values():
            if self.is_confirmed(process):
                process.confirmed, process.rank = self.world.now, process.session.rank
                member, at = process.address, process.session.switch
                while True:
                    self.known.setdefault(at, {})[process.address] = member
                    if at not in self.above:
                        break
                    member, at = at, self.above[at]
            elif self.world.now < process.confirmed + self.lease:
                self.check_kept_for(process)

    def check_kept_for(self, process: Process) -> None:
        for at, known in self.known.items():
            job = self.world.switches[at].jobs.get(JOB)
            members = job.members.by_address if job else {}
            behind = known.get(process.address)
            if behind is not None and behind not in members:
                del known[process.address]
            elif behind is not None and process.session.rank == process.rank:
                others = (m.ranks for address, m in members.items() if address != behind)
                assert not any(bits >> process.rank & 1 for bits in others), (at, process.rank)

    def check_switch(self, at: Address, held: list[int]) -> None:
        together = 0
        for bits in held:
            assert not together & bits, at
            together |= bits

    def play(self) -> None:
        draw = self.draw
        places = [self.leaves[i % len(self.leaves)] for i in range(self.n)]
        order = list(range(self.n))
        draw.shuffle(order)
        for i in order:
            self.start(self.wants[i], places[i])
            self.run(draw.choice([0, 0.001, 0.05]))
        for _ in range(draw.randint(0, 8)):
            self.happens()
            self.run(draw.choice([0.001, 0.02, 0.3, 15.0]))
        self.world.faults = Faults()
        # Those who are missing come again, as they were; who was refused is in nobody's place.
        while self.missing and sum(not p.refused for p in self.running.values()) < self.n:
            lacks = self.missing.pop()
            self.start(lacks.wants, lacks.session.switch)
        self.run(5 * self.lease)
        self.check_end()

    missing: list[Process] = field(default_factory=list)

    def happens(self) -> None:
        draw = self.draw
        what = draw.choice(["leave", "kill", "again", "elsewhere", "restart", "double"])
        if what == "restart" and self.plan.restarts:
            self.restart(at := draw.choice(list(self.world.switches)))
            if draw.random() < 0.5:
                self.run(0.5)
                self.restart(at)
        elif what == "double" and self.plan.doubles and len(self.running) >= self.n:
            like = draw.choice(list(self.running.values()))
            if like.wants != NO_RANK:
                self.doubles += 1
                self.start(like.wants, draw.choice(self.leaves))
        elif what in ("leave", "kill", "again", "elsewhere") and self.running:
            number = draw.choice(list(self.running))
            gone = self.kill(number, leaves=what == "leave")
            if what == "again":
                self.start(gone.wants, gone.session.switch, number)
            elif what == "elsewhere":
                self.start(gone.wants, gone.session.switch)
            else:
                self.missing.append(gone)

    doubles: int = 0

    def check_end(self) -> None:
        """Everybody has got one in the end, but who asks for another's.

        (In a whole job a place is kept where it was, and a switch may have none for who comes.)
        """
        if any(p.status is Status.FULL for p in self.running.values()):
            assert self.plan.whole
            return
        outdone = 0  # asked for a rank that another was given meanwhile, without having asked
        for rank in {p.wants for p in self.running.values()} - {NO_RANK}:
            rivals = [p for p in self.running.values() if p.wants == rank]
            have = [p for p in self.running.values() if p.session.member and p.session.rank == rank]
            assert len(have) == 1, (rank, [(p.session.member, p.refused) for p in rivals])
            assert have[0] in rivals or (self.mixed and have[0].wants == NO_RANK)
            outdone += sum(p.refused for p in rivals) if have[0] not in rivals else 0
            if len(rivals) == 1 and have[0] in rivals:
                assert not rivals[0].refused
        if outdone:  # they are not all there: who has come since, and asks for none, waits for them
            told = [p.session.rank for p in self.running.values() if p.session.member]
            given = [rank for rank in told if rank != NO_RANK]
            assert len(set(given)) == len(given)
        elif not self.doubles:
            told = sorted(p.session.rank for p in self.running.values())
            assert len(set(told)) == len(told) == self.n
            if self.expects and not self.keeps_a_dead_one():
                assert told == list(range(self.n))

    def keeps_a_dead_one(self) -> bool:
        """In a whole job its place is kept where it was, and so is its rank."""
        alive = {process.address for process in self.running.values()}
        return any(
            m.address not in alive and m.type is MemberType.WORKER
            for switch in self.world.switches.values()
            for job in switch.jobs.values()
            for m in job.members.contributors()
        )


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(SEEDS))
def test_histories(seed: int) -> None:
    History(seed).play()


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_switch_restarts_again_and_again(seed: int) -> None:
    """Whoever comes elsewhere has no rank of those below it who are not back yet."""
    history = History(seed)
    draw = history.draw
    history.plan.restarts = True
    for i in range(history.n):
        history.start(history.wants[i], history.leaves[i % len(history.leaves)])
    history.run(2.0)
    at = draw.choice(list(history.above) or [SWITCH])
    for _ in range(draw.randint(2, 3)):
        history.restart(at)
        history.run(draw.choice([0.3, 0.6]))
    history.expects = False  # so that nobody waits for the others
    for process in [p for p in history.running.values() if not history.is_confirmed(p)][:3]:
        history.start(process.wants, draw.choice(list(history.world.switches)))
        history.run(0.3)
    history.run(3.0)


class Node:
    """A worker of many, which does one round after the other."""

    def __init__(self, simulation: Simulation, host: str, number: int, many: int) -> None:
        self.network, self.address = simulation.network, simulation.address(host)
        self.switch = simulation.switch_of(host)
        rank = number if number % 2 else NO_RANK
        terms = RoundTerms(self.switch, 1, MANY, expected=many, rank=rank)
        self.session = Session(terms, 1000 + number)
        self.vector = np.arange(MANY.numel, dtype=np.float32) % 7 + number
        self.out = np.zeros_like(self.vector)
        self.rounds, self.goal = 0, 1
        self.session.join(self.network.now)
        simulation.start_worker(host, self.session)
        simulation.node(host).heed = self.heed

    def heed(self) -> None:
        session = self.session
        while session.next_event() is not None:
            pass
        if session.transfer is not None and session.transfer.done:
            session.finish()
            self.rounds += 1
        idle = session.transfer is None and self.rounds < self.goal
        if idle and session.member and session.rank < RANKS:
            session.begin(self.vector, self.out, self.network.now)

    def ask(self) -> None:
        """Join again as long as no rank is known, as `Worker` does."""
        if self.session.rank == NO_RANK:
            self.session.join(self.network.now)
            self.network.poke(self.address)


MANY = Shape.of(10_000)


@pytest.mark.slow
def test_many_workers_below_one_root() -> None:
    """512 in three levels join, have 40 kB summed up, lose a rack, and go on."""
    topology = Topology.parse("tree:4x8x16")
    simulation = Simulation(topology, Limits(lease=5.0))
    network = simulation.network
    hosts = [host.name for host in topology.hosts]
    nodes = [Node(simulation, host, i, len(hosts)) for i, host in enumerate(hosts)]

    def run(nodes: list[Node], limit: float) -> None:
        end, look = network.now + limit, 0.0
        while not all(node.rounds == node.goal for node in nodes):
            if network.now >= look:
                look = network.now + 0.1
                for node in nodes:
                    node.ask()
            assert network.step()
            assert network.now < end

    run(nodes, 10.0)
    assert sorted(node.session.rank for node in nodes) == list(range(512))
    for node in nodes[1::2]:
        assert nodes[node.session.rank] is node
    total = np.sum([node.vector for node in nodes], 0)
    assert all((node.out == total).all() for node in nodes)
    lost = nodes[0].switch
    gone = [node for node in nodes if node.switch == lost]
    for address in (lost, *(node.address for node in gone)):
        network.crash(address)
    left = [node for node in nodes if node not in gone]
    for node in left:
        node.goal = 2
        node.heed()
        network.poke(node.address)
    run(left, 20.0)
    total = np.sum([node.vector for node in left], 0)
    assert all((node.out == total).all() for node in left)


def test_a_reproducible_sum_in_a_tree_is_by_rack_then_rank() -> None:
    """Whoever joins first: the values tell the order."""
    values = np.array([1e8, 1.0, -1e8, 3.0], np.float32)
    in_order = (values[0] + values[1]) + (values[2] + values[3])
    assert in_order != ((values[0] + values[2]) + values[1]) + values[3]  # as in a star
    for order in ((0, 1, 2, 3), (3, 2, 1, 0), (2, 0, 3, 1)):
        world = World(Switch())
        racks = [Address(f"10.0.1.{n}", 26963) for n in (1, 2)]
        for rack in racks:
            world.switches[rack] = Switch(Limits(), False, SWITCH, 1000)
        ways: dict[str, Any] = {"expected": 4, "reproducible": True}
        sessions: dict[int, Session] = {}
        for rank in order:
            sessions[rank] = world.join(rank, SHAPE, at=racks[rank // 2], rank=rank, **ways)
            world.run(lambda session=sessions[rank]: session.member)  # type: ignore[misc]
        vectors = [np.full(3, value) for value in values]
        outs = world.allreduce([sessions[rank] for rank in range(4)], vectors)
        assert all((out == in_order).all() for out in outs)


# Real workers


@pytest.mark.slow
def test_two_workers_that_ask_for_one_rank(
    start_switch: StartSwitch, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, where = start_switch()
    with Worker(where, 1, 3, rank=2) as first:
        at = "{}:{}".format(*first._port.socket.getsockname())
        said = rf"rank 2 is that of the worker at {at}, heard [\d.]+ s ago"
        with pytest.raises(Refused, match=said) as refused:
            Worker(where, 1, 3, rank=2, timeout=20.0)
        assert refused.value.status is TAKEN
        monkeypatch.setenv("ISWITCH_RANK", "2")
        monkeypatch.setenv("RANK", "1")
        with pytest.raises(Refused, match=f"{said}.*: ISWITCH_RANK=2 is in the environment"):
            Worker(where, 1, 3, rank=2, timeout=1.0)
        with Worker(where, 1, 3) as second:
            assert (first.rank, second.rank) == (2, 0)
    with Worker(where, 1, 3, rank=2) as third:
        assert third.rank == 2


@pytest.mark.slow
def test_a_rank_behind_another_switch_is_refused_with_the_way_there(
    start_switch: StartSwitch,
) -> None:
    """From the root the switch below is named, from another one below the root."""
    _, root = start_switch()
    above = "{}:{}".format(*root)
    leaves = [start_switch("127.0.0.1:0", "--parent", above)[1] for _ in range(2)]
    with Worker(leaves[0], 1, 3, rank=2), Worker(leaves[1], 1, 3, rank=0), Worker(root, 1, 3):
        for at, via in ((root, leaves[0]), (leaves[1], root)):
            way = "{}:{}".format(*via)
            said = rf"rank 2 is that of a worker behind the switch at {way}\)"
            with pytest.raises(Refused, match=said) as refused:
                Worker(at, 1, 3, rank=2, timeout=1.0)
            assert refused.value.status is TAKEN


@pytest.mark.parametrize("rank", [4, -1, "1", 1.5, True])
def test_a_rank_beyond_num_workers(rank: object) -> None:
    with pytest.raises(ValueError, match=r"the ranks of 4 workers are 0\.\.3; mend the rank"):
        Worker(("127.0.0.1", 9), 1, 3, 4, rank=rank)  # type: ignore[arg-type]


@pytest.mark.slow
def test_who_waits_for_a_rank_is_told_so(start_switch: StartSwitch) -> None:
    """Of three workers of two: nobody is missing."""
    _, where = start_switch()
    with ThreadPoolExecutor(2) as pool:
        made = [
            pool.submit(Worker, where, 1, 3, 2, on_member_lost="continue", timeout=20.0)
            for _ in range(2)
        ]
        first, second = (future.result(20.0) for future in made)
    with first, second, pytest.raises(TooFewWorkers, match=r"^joined job 1, but no rank was free"):
        Worker(where, 1, 3, 2, on_member_lost="continue", timeout=1.0)


JOB_OF_ALL = {"ISWITCH_SWITCH": "127.0.0.1:9", "ISWITCH_JOB": "1"}
TOLD = {  # by the variable of a rank: that of the number of ranks; in the order that they count
    "ISWITCH_RANK": "WORLD_SIZE",
    "RANK": "WORLD_SIZE",
    "OMPI_COMM_WORLD_RANK": "OMPI_COMM_WORLD_SIZE",
    "PMI_RANK": "PMI_SIZE",
    "SLURM_PROCID": "SLURM_STEP_NUM_TASKS",
}


def told(*given: tuple[str, int], size: int = 4) -> tuple[int, int | None]:
    """Number of workers and rank, by these ranks of so many each."""
    variables = {name: str(rank) for name, rank in given}
    variables |= {TOLD[name]: str(size) for name, _ in given}
    place = environment.read(JOB_OF_ALL | variables)
    return place.num_workers, place.rank


@pytest.mark.parametrize("name", TOLD)
def test_ranks_of_launchers(name: str) -> None:
    """Each is taken, with its number of processes; the first in the table before all others."""
    names = list(TOLD)
    later = names[names.index(name) + 1 :]
    assert told((name, 3)) == (4, 3)
    assert told((name, 3), *((other, 1) for other in later)) == (4, 3)
    of = TOLD[name]
    said = rf"{name} is 4, and there are 4 workers \({of}\): .*are 0 to 3.* as many .* as {of} says"
    with pytest.raises(ValueError, match=said):
        told((name, 4))


def test_the_number_of_workers_is_blamed_on_the_variable_that_tells_it() -> None:
    for rank, size in (("RANK", "WORLD_SIZE"), ("PMI_RANK", "PMI_SIZE")):
        with pytest.raises(ValueError, match=f"^{size} is 0: a job has 1 worker or more$"):
            told((rank, 0), size=0)
    with pytest.raises(ValueError, match=r"^there are 0 workers: a job has 1 worker or more$"):
        environment.rank({"RANK": "0"}, 0)  # the call says 0
    with pytest.raises(ValueError, match=r"^RANK is 'x': a rank, 0 to 3, is wanted$"):
        environment.rank({"RANK": "x"}, 4)
    with pytest.raises(ValueError, match=r"PMI_RANK is 1, and there is 1 worker \(PMI_SIZE\)"):
        told(("PMI_RANK", 1), size=1)
    with pytest.raises(ValueError, match=r"RANK is 3, and there are 2 workers \(world_size\)"):
        environment.rank({"RANK": "3", "WORLD_SIZE": "4"}, 2)  # the call says 2


def test_an_exported_rank_that_goes_before_a_launchers_is_named() -> None:
    exported = {"ISWITCH_RANK": "0", "RANK": "3"}
    said = environment.overridden(exported, 0)
    assert said.startswith(": ISWITCH_RANK=0 is in the environment, and goes before RANK=3; unset")
    for others in ({}, {"ISWITCH_RANK": "3"}, {"ISWITCH_RANK": ""}, {"ISWITCH_RANK": "2"}):
        assert not environment.overridden({"RANK": "3"} | others, 0)
    assert not environment.overridden({"ISWITCH_RANK": "0"}, 0)


@pytest.mark.parametrize("name", list(TOLD)[2:])
def test_a_launcher_numbers_all_workers_or_none(name: str) -> None:
    """Of four, an mpirun of two on each of two machines would number two 0, and two 1."""
    variables = JOB_OF_ALL | {"WORLD_SIZE": "4", name: "1", TOLD[name]: "2"}
    assert environment.read(variables).rank is None
    assert environment.read(variables | {"RANK": "3"}).rank == 3
    assert environment.read(JOB_OF_ALL | {"WORLD_SIZE": "4"}).rank is None


@pytest.mark.parametrize("step", [{}, {"SLURM_STEP_NUM_TASKS": "1"}])
def test_a_shell_of_slurms_is_no_rank(step: dict[str, str]) -> None:
    """That of sbatch has SLURM_PROCID 0, and so has all that is started in it without srun."""
    shell = JOB_OF_ALL | {"SLURM_PROCID": "0", "SLURM_NTASKS": "4"} | step
    assert environment.read(shell | {"WORLD_SIZE": "4"}).rank is None
    mpirun = {"OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_SIZE": "4"}
    place = environment.read(shell | mpirun)
    assert (place.num_workers, place.rank) == (4, 2)
    with pytest.raises(ValueError, match=r"WORLD_SIZE is not set: .*\(mpirun and srun tell"):
        environment.read(shell)
    srun = environment.read(shell | {"SLURM_PROCID": "3", "SLURM_STEP_NUM_TASKS": "4"})
    assert (srun.num_workers, srun.rank) == (4, 3)
