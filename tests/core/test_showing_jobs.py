"""What Show tells of a job: who is silent, how many are still to come, and what it waits for."""

from __future__ import annotations

import random

import numpy as np
import pytest

from iswitch.core.format.wire import (
    FLAG_WHOLE,
    NO_RANK,
    TOS_DATA,
    AckJob,
    Action,
    JobState,
    Join,
    MemberType,
    Shape,
    Show,
    Shown,
    Status,
)
from iswitch.core.jobs.limits import Limits
from iswitch.core.switch import Switch
from tests.support.joined import state
from tests.support.parts import JOB, Below, Bench, controls, peer, segments_of

pytestmark = pytest.mark.unit

SHAPE = Shape.of(3, elements=3)
LEASE = 10.0  # seconds
CONTROLLER, WORKERS = 60, range(6)
OK = Status.OK


def shown(bench: Bench, what: Shown = Shown.MEMBERS, who: int = CONTROLLER) -> AckJob:
    first = JOB if what is Shown.JOBS else 0
    status, ack, sends = bench.control(who, Action.SHOW, Show(what, first))
    assert (status, sends) == (OK, [])
    assert isinstance(ack, AckJob)
    return ack


class Oracle:
    """A job of few workers that come, speak, fall silent and leave; and what is true of it."""

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)
        self.bench = Bench(Switch(Limits(lease=LEASE)))
        self.whole = self.draw.random() < 0.5
        self.heard: dict[int, float] = {}  # seconds, by worker
        self.named: dict[int, int] = {}  # how many each expects
        self.expected = self.met = 0
        self.joined = self.halted = False
        self.bench.join(CONTROLLER, None, MemberType.CONTROLLER)

    def control(self, action: Action) -> Status:
        return self.bench.control(CONTROLLER, action)[0]

    def state(self) -> JobState:
        if self.halted:
            return JobState.HALTED
        if not self.heard:
            return JobState.DORMANT
        return JobState.RUNNING if self.met >= self.expected else JobState.GATHERING

    def check(self) -> JobState:
        """Compare both answers to what is true, and learn from them whose lease has ended."""
        now, ack = self.bench.now, shown(self.bench)
        there = {one.host: one for one in ack.members}
        at = {who: peer(who).host for who in self.heard}
        assert set(there) <= set(at.values())
        for who, heard in list(self.heard.items()):
            if at[who] in there:
                assert there[at[who]].silent == round(1000 * (now - heard))
            else:
                assert now - heard >= LEASE
                del self.heard[who]
        if self.joined:
            self.expected = max((self.named[who] for who in self.heard), default=0)
            self.joined = False
        if not self.heard:
            self.expected = self.met = 0
        elif len(self.heard) >= self.expected:
            self.met = max(self.met, self.expected)
        assert (ack.expected, ack.lease) == (self.expected, 1000 * LEASE)
        assert JobState(ack.state) is self.state()
        keeps = self.whole and self.met >= self.expected
        lost = sum(now - heard >= LEASE for heard in self.heard.values())
        assert ack.contributors == len(self.heard) - lost * keeps
        numbers = shown(self.bench, Shown.JOBS)
        assert numbers == AckJob(
            Action.SHOW, 0, JOB, ack.threshold, ack.round, ack.contributors, ack.expected,
            ack.lease, ack.state,
        )  # fmt: skip
        return self.state()

    def joins(self, who: int) -> None:
        expected = self.draw.choice([0, 2, 4])
        flags = FLAG_WHOLE * self.whole
        join = Join.for_shape(SHAPE, MemberType.WORKER, expected, flags)
        status, _, sends = self.bench.control(who, Action.JOIN, join)
        if any(packet.action is Action.RESET for packet in controls(sends)):
            self.halted = False  # a whole job that has all its workers again
        if status is OK:
            self.heard[who] = self.bench.now
            self.named[who] = expected
            self.joined = True

    def speaks(self, who: int) -> None:
        (data,) = segments_of(SHAPE, 0, np.ones(3, np.float32))
        self.bench.send(who, TOS_DATA, data)
        self.heard[who] = self.bench.now

    def leaves(self, who: int) -> None:
        assert self.bench.control(who, Action.LEAVE)[0] is OK
        del self.heard[who]

    def step(self) -> None:
        draw = self.draw
        who = draw.choice(WORKERS)
        if who not in self.heard:
            self.joins(who)
        else:
            draw.choice([self.speaks] * 4 + [self.leaves])(who)
        if draw.random() < 0.1:
            self.halted |= self.control(Action.HALT) is OK
        if draw.random() < 0.2:
            assert self.control(Action.RESET) is OK
            self.halted = False

    def passes(self) -> None:
        self.bench.now += self.draw.choice([0.0, 0.001, 1.5, 4.0])
        self.bench.join(CONTROLLER, None, MemberType.CONTROLLER)  # repeated: a heartbeat
        self.bench.switch.handle_timer(self.bench.now)


def test_jobs_are_shown_as_they_are() -> None:
    """Random histories against an oracle; all that can be told is told in some."""
    states, silent, lost = set(), 0, 0
    for seed in range(20):
        world = Oracle(seed)
        for _ in range(60):
            world.step()
            states.add(world.check())
            world.passes()
            states.add(world.check())
            ages = [world.bench.now - heard for heard in world.heard.values()]
            silent += any(LEASE > age > LEASE / 2 for age in ages)
            lost += any(age >= LEASE for age in ages)
    assert states == set(JobState) - {JobState.AWAITING_RESET}  # which needs a switch above
    assert min(silent, lost) > 20


def test_a_switch_below_is_shown_with_its_silence() -> None:
    bench = Bench()
    state(bench, 9, 1, 1 << 70)
    bench.join(CONTROLLER, None, MemberType.CONTROLLER)
    bench.now = 100_000_000.0  # more milliseconds than the field holds
    (there,) = shown(bench).members
    assert there == (*peer(9)[:2], NO_RANK, 0xFFFFFFFF)


def test_below_a_switch_a_whole_job_awaits_the_parents_word() -> None:
    below = Below()
    (join,) = below.comes(0, SHAPE)
    below.answers(join)
    assert shown(below, Shown.JOBS).state == JobState.GATHERING
    below.switch.jobs[JOB].await_reset()
    assert shown(below, Shown.JOBS).state == JobState.AWAITING_RESET
