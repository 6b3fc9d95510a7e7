"""A model: processes that want ranks, at random places of random trees."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field

from iswitch.core.format.packets import Address
from iswitch.core.format.wire import (
    NO_RANK,
    Action,
    MemberType,
    Status,
)
from iswitch.core.jobs.limits import Limits
from iswitch.core.switch import Switch
from tests.support.joined import OK, SHAPE, TAKEN
from tests.support.parts import JOB
from tests.support.world import SWITCH, Faults, World, worker_address
from worker_lib.protocol.session import Answered, Session

TIMEOUT = 30.0  # seconds that `Worker` asks for a rank whose owner may be dead


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
        if session.taken is not None and now >= process.born + TIMEOUT:
            process.refused = True  # by another behind another switch, which may be alive
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
