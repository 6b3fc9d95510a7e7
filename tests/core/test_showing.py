"""Show: what a switch tells of its jobs, to whom, at what cost."""

from __future__ import annotations

import random
import sys
from contextlib import nullcontext
from types import FrameType
from unittest.mock import patch

import pytest

from iswitch.core.format.keys import Key, Keys
from iswitch.core.format.packets import Address, Burst
from iswitch.core.format.wire import (
    MAX_MEMBERS,
    MOST_NAMED,
    NO_RANK,
    TOS_CONTROL,
    UNRANKED,
    Ack,
    AckJob,
    Action,
    Control,
    Join,
    MemberType,
    Shape,
    Show,
    Shown,
    Status,
    Value,
)
from iswitch.core.jobs.limits import Limits
from iswitch.core.jobs.table import Jobs
from iswitch.core.switch import Switch
from tests.support.joined import ask, state
from tests.support.parts import JOB, Bench, packets_of, peer, rows_of
from worker_lib.command_errors import CommandRefused, JobWaits, NoSuchJob
from worker_lib.controller import Controller

pytestmark = pytest.mark.unit

SHAPE = Shape.of(3, elements=3)
STRANGER = 90
OK, NOT_MEMBER = Status.OK, Status.NOT_MEMBER


def shown(bench: Bench, who: int, what: int, first: int = 0, job: int = JOB) -> tuple[Status, Ack]:
    status, ack, sends = bench.control(who, Action.SHOW, Show(what, first), job)
    assert sends == []
    return status, ack


class Asking(Controller):
    """A controller of a switch in this process."""

    def __init__(self, bench: Bench, who: int, job: int = JOB) -> None:
        self.bench, self.who, self.job = bench, who, job
        self.switch = Address("10.0.0.254", 26963)
        self._key = None

    def request(self, action: Action, value: Value = None) -> Ack:
        status, ack, _ = self.bench.control(self.who, action, value, self.job)
        if status is not OK:
            raise CommandRefused(action, status, self.job, ack)
        return ack


def test_a_job_that_waits_is_told_from_one_that_is_unknown() -> None:
    asking = Asking(Bench(), 60)
    waits = Ack(Action.SHOW, rank=JOB, round=2, contributors=3)
    said = (
        f"job {JOB} waits for memory of the switch at 10.0.0.254:26963, at place 2 of 3; `iswitch "
        "ctl queue --switch 10.0.0.254:26963` shows who has it"
    )
    joined = patch.object(asking, "membership", lambda: nullcontext(Ack(Action.JOIN)))
    with patch.object(asking, "queue", lambda: iter([waits])), joined:
        with pytest.raises(JobWaits) as raised:
            asking.look()
        assert (str(raised.value), raised.value.place) == (said, 2)
        with pytest.raises(JobWaits), asking.settings():
            raise AssertionError("it is not there")
    with pytest.raises(NoSuchJob, match=f"there is no job {JOB} at the switch") as unknown:
        asking.look()
    assert type(unknown.value) is NoSuchJob


# To whom


def test_members_are_named_to_members_only() -> None:
    """Contributors and controllers of the very job; nobody else, be it a member of another job."""
    bench = Bench()
    for who in range(3):
        ask(bench, who)
    bench.join(60, None, MemberType.CONTROLLER)
    bench.join(61, SHAPE, job=JOB + 1)
    for who in (0, 2, 60):
        status, ack = shown(bench, who, Shown.MEMBERS)
        assert status is OK
        assert isinstance(ack, AckJob)
        assert [one.host for one in ack.members] == [peer(n).host for n in range(3)]
    for who in (61, STRANGER):
        assert shown(bench, who, Shown.MEMBERS) == (NOT_MEMBER, Ack(Action.SHOW))
    bench.control(2, Action.LEAVE)
    assert shown(bench, 2, Shown.MEMBERS) == (NOT_MEMBER, Ack(Action.SHOW))


def test_strangers_see_numbers_only() -> None:
    """Jobs, H, rounds, workers, memory: nobody's address."""
    bench = Bench()
    for who in range(3):
        ask(bench, who)
    status, ack = shown(bench, STRANGER, Shown.JOBS)
    assert isinstance(ack, AckJob)
    assert (status, ack.rank, ack.threshold, ack.contributors) == (OK, JOB, 3, 3)
    assert ack.members == ()
    status, ack = shown(bench, STRANGER, Shown.SWITCH)
    assert (status, ack.rank, ack.contributors) == (OK, 1, 0)
    assert shown(bench, STRANGER, Shown.JOBS, JOB + 1)[0] is NOT_MEMBER
    bench.switch.record.room = 5000
    status, ack = shown(bench, STRANGER, Shown.ROOM)
    assert (status, ack) == (OK, Ack(Action.SHOW, threshold=4))  # whole KiB
    assert shown(bench, STRANGER, Shown.QUEUE, 1)[0] is NOT_MEMBER  # nobody waits
    assert shown(bench, STRANGER, max(Shown) + 1)[0] is Status.BAD_REQUEST


def keyed(payload: bytes, key: bytes) -> bytes:
    return payload + Key(key).mac(payload)


def test_of_keyed_jobs_only_those_with_the_key_are_told() -> None:
    """To others they are not there, but for the memory that they take."""
    keys = {1: b"one key", 2: b"one key", 3: b"another"}
    switch = Switch(keys=keys)

    def asks(number: int, value: Value, action: Action = Action.SHOW) -> Control:
        payload = Control(action, number, 1000, value).build()
        payload = keyed(payload, keys[number]) if number in keys else payload
        (out, *_) = switch.receive(Burst.single(peer(number), TOS_CONTROL, payload), 0.0)
        (answer,) = packets_of(out)
        return Control.parse(answer[:-16] if number in keys else answer)

    for number in (1, 2, 3, 9):
        assert asks(number, Join.for_shape(SHAPE), Action.JOIN).status == OK
    found = {}
    for number in (1, 3, 9):
        (seen, first) = ([], 0)
        while (answer := asks(number, Show(Shown.JOBS, first))).status == OK:
            assert isinstance(answer.value, Ack)
            seen.append(answer.value.rank)
            first = answer.value.rank + 1
        itself = asks(number, Show(Shown.SWITCH)).value
        assert isinstance(itself, Ack)
        assert itself.rank == len(seen)
        assert itself.round == -(-switch.record.reserved // 1024)
        found[number] = seen
    assert found == {1: [1, 2], 3: [3], 9: [9]}
    plain = Control(Action.SHOW, 3, 1, Show(Shown.MEMBERS)).build()
    (out,) = switch.receive(Burst.single(peer(3), TOS_CONTROL, plain), 0.0)
    assert packets_of(out) == [Control(Action.ACK, 3, 1, Ack(Action.SHOW), Status.DENIED).build()]


# What it costs


def test_no_answer_is_longer_than_its_request() -> None:
    """So a forged source is sent no more than was sent in its name; with keys and without."""
    for keys in ({}, {JOB: b"key"}):
        bench = Bench(Switch(keys=keys))
        for who in range(MAX_MEMBERS - 1):
            join = Control(Action.JOIN, JOB, 1000, Join.for_shape(SHAPE)).build()
            bench.send(who, TOS_CONTROL, keyed(join, b"key") if keys else join)
        longest = 0
        for who, what, first in (
            (0, 2, 0),
            (0, 2, 60),
            (0, 1, 0),
            (0, 0, 0),
            (0, 9, 0),
            (70, 2, 0),
        ):
            request = Control(Action.SHOW, JOB, 7000 + what, Show(what, first)).build()
            request = keyed(request, b"key") if keys else request
            (out,) = bench.send(who, TOS_CONTROL, request)
            (answer,) = packets_of(out)
            assert len(answer) <= len(request)
            longest = max(longest, len(answer) - len(request))
        assert longest == 0  # of members; padding beyond that would be of no use


def test_strangers_that_ask_are_throttled_and_members_are_not() -> None:
    bench = Bench(Switch(Limits(control_rate=100.0)))
    ask(bench, 0)
    show = Control(Action.SHOW, JOB, 9, Show(Shown.JOBS)).build()
    flood = rows_of([show] * 1000)
    sends = bench.switch.receive(Burst(peer(STRANGER), TOS_CONTROL, flood, len(show)), 0.0)
    assert len(sends) == 100
    assert bench.counters["throttled"] == 900
    for _ in range(50):
        assert shown(bench, 0, Shown.MEMBERS)[0] is OK
    assert bench.counters["throttled"] == 900


@pytest.mark.parametrize("what", [Shown.SWITCH, Shown.JOBS])
def test_it_costs_no_more_with_a_thousand_jobs(what: Shown) -> None:
    """Wherever in their order, and though most of them have another key."""
    calls = 0

    def count(_frame: FrameType, event: str, _arg: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    costs = []
    for jobs in (4, 1024):
        many = dict.fromkeys(range(1, 60000, 2), b"key")
        bench = Bench(Switch(Limits(jobs=1024, control_rate=1e9), keys=many))
        for number in range(jobs):
            payload = Control(Action.JOIN, number, 1000, Join(MemberType.CONTROLLER)).build()
            bench.send(number % 200, TOS_CONTROL, keyed(payload, b"key") if number % 2 else payload)
        assert len(bench.switch.jobs) == jobs
        show = Control(Action.SHOW, 0, 9, Show(what, jobs // 2)).build()
        bench.send(STRANGER, TOS_CONTROL, show)
        calls = 0
        sys.setprofile(count)
        try:
            bench.send(STRANGER, TOS_CONTROL, show)
        finally:
            sys.setprofile(None)
        costs.append(calls)
    assert costs[1] <= costs[0] + 10, costs


@pytest.mark.parametrize("seed", range(20))
def test_jobs_are_kept_in_order(seed: int) -> None:
    """Against a plain dictionary that is sorted."""
    draw = random.Random(seed)
    keys = Keys({n: draw.choice([b"a", b"b"]) for n in draw.sample(range(40), 20)})
    jobs, bench = Jobs(keys), Bench()
    for _ in range(300):
        number = draw.randrange(40)
        if number in jobs and draw.random() < 0.5:
            del jobs[number]
        else:
            jobs[number] = bench.switch.record.new_job(number)
        named, first = draw.randrange(50), draw.randrange(45)
        alike = [n for n in sorted(dict(jobs)) if keys.of(n) == keys.of(named)]
        assert jobs.many(named) == len(alike)
        assert jobs.next(named, first) == next((n for n in alike if n >= first), None)


# Page by page


def test_all_members_by_rank() -> None:
    """The ranks of the whole tree; then who has none so far, then switches."""
    bench = Bench()
    state(bench, 9, 1, 1 << 70)
    for who in range(18):
        ask(bench, who + 10, rank=99 - who)
    ask(bench, 0, expected=40)
    status, ack = shown(bench, 0, Shown.MEMBERS)
    assert isinstance(ack, AckJob)
    assert (status, len(ack.members), ack.contributors) == (OK, MOST_NAMED, 20)
    entries = Asking(bench, 0).members()
    hosts = [who + 10 for who in reversed(range(18))] + [0, 9]
    where = [tuple(peer(who)[:2]) for who in hosts]
    numbers = [*range(82, 100), UNRANKED, NO_RANK]
    assert [(one.host, one.port, one.rank) for one in entries] == [
        (*at, number) for at, number in zip(where, numbers, strict=True)
    ]


class Restless(Bench):
    """A job whose members come, go and begin anew before every answer."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.draw = random.Random(seed)
        self.request = 1000
        self.there: set[int] = set()
        self.always: set[int] = set()
        for who in self.draw.sample(range(60), 40):
            self.comes(who)
        self.bench = Bench(self.switch)

    def comes(self, who: int) -> None:
        self.request += 1
        if ask(self, who, request=self.request)[0] is OK:
            self.there.add(who)

    def moves(self) -> None:
        for _ in range(self.draw.randrange(6)):
            others = sorted(self.there - self.always)
            if others and self.draw.random() < 0.5:
                gone = self.draw.choice(others)
                self.bench.control(gone, Action.LEAVE)
                self.there.discard(gone)
            else:
                self.comes(self.draw.choice(sorted(set(range(60)) - self.always)))


@pytest.mark.parametrize("seed", range(30))
def test_who_is_there_all_the_while_is_named_once(seed: int) -> None:
    world = Restless(seed)
    world.always = set(world.draw.sample(sorted(world.there), 25))
    asker = min(world.always)

    class Among(Asking):
        def request(self, action: Action, value: Value = None) -> Ack:
            world.moves()
            return super().request(action, value)

    found = Among(world.bench, asker).members()
    at = [Address(one.host, one.port) for one in found]
    assert len(at) == len(set(at))
    assert {peer(who) for who in world.always} <= set(at)
