"""Processes that take the place of others while clocks step back, and ports that are used again."""

from __future__ import annotations

import logging
from dataclasses import replace
from random import Random

import numpy as np
import pytest

from iswitch.core.format.packets import Burst
from iswitch.core.format.wire import (
    FLAG_FIRST,
    FLAG_STANDS_AT,
    FLAG_WHOLE,
    NO_RANK,
    TOS_CONTROL,
    Ack,
    Action,
    Control,
    Join,
    MemberType,
    Mode,
    Shape,
    Status,
    Threshold,
)
from iswitch.core.sums.numbered import LATE
from iswitch.core.switch import Switch
from tests.conftest import StartSwitch
from tests.support.parts import JOB, Below, Bench, packets_of, peer
from tests.support.world import World, worker_address
from worker_lib import Worker
from worker_lib.controller import Controller
from worker_lib.errors import Refused
from worker_lib.protocol.session import Answered
from worker_lib.protocol.versions import NUMBERS

pytestmark = pytest.mark.unit

SHAPE = Shape.of(8, elements=4)
ASYNC = Shape.of(8, elements=4, mode=Mode.ASYNCHRONOUS)


@pytest.mark.slow
@pytest.mark.parametrize("key", [None, b"of the job"])
@pytest.mark.parametrize("back", [0, 1, 600])
def test_the_next_process_outdoes_the_one_before(
    start_switch: StartSwitch,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    key: bytes | None,
    back: int,
) -> None:
    """The one before is killed, or leaves; asked in a process whose clock was stepped back."""
    if key is not None:
        monkeypatch.setenv("ISWITCH_KEY", key.decode())
    _, switch = start_switch("127.0.0.1:0")
    ways = {"timeout": 10.0, "key": key}
    with Worker(switch, 1, 8, **ways) as other:  # type: ignore[arg-type]
        now = 2_000_000_000.0
        monkeypatch.setattr("worker_lib.arguments.time.time", lambda: now)
        first = Worker(switch, 1, 8, **ways)  # type: ignore[arg-type]
        here = first._port.address.host, first._port.address.port
        vector = np.ones(8, np.float32)
        first._left.set()  # as if killed: it says no more
        first._port.close()
        monkeypatch.setattr("worker_lib.arguments.time.time", lambda: now - back)
        with caplog.at_level(logging.WARNING):
            second = Worker(switch, 1, 8, bind=here, **ways)  # type: ignore[arg-type]
        if back:
            assert second._session.incarnation > now
        if back == 600:
            assert f"{back} s ahead of this host's clock: did it step back?" in caplog.text
            assert f"joined as incarnation {second._session.incarnation}" in caplog.text
        else:
            assert caplog.text == ""
        assert second.rank == 1
        other.leave()
        for _ in range(3):
            assert (second.allreduce(vector) == 1).all()
        second.leave()
        third = Worker(switch, 1, 8, bind=here, **ways)  # type: ignore[arg-type]
        assert third._session.incarnation > second._session.incarnation or not back
        third.leave()


@pytest.mark.slow
def test_processes_that_follow_at_once_raise_no_alarm(
    start_switch: StartSwitch, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Each takes a number above all that the one before used, so they run ahead of the seconds."""
    _, switch = start_switch("127.0.0.1:0")
    monkeypatch.setattr("worker_lib.arguments.time.time", lambda: 2_000_000_000.0)
    here: tuple[str, int] = ("127.0.0.1", 0)
    for start in range(5):
        with Worker(switch, 1, 8, bind=here, timeout=10) as worker:
            here = worker._port.address.host, worker._port.address.port
            worker.set_threshold(0)
        assert worker._session.incarnation > 2_000_000_000 or not start
    assert caplog.text == ""


@pytest.mark.slow
def test_a_controller_outdoes_the_one_before(
    start_switch: StartSwitch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ISWITCH_KEY", "of the job")
    _, switch = start_switch("127.0.0.1:0")
    here: tuple[str, int] = ("127.0.0.1", 0)
    for second in (5_000, 4_000, 4_000):
        monkeypatch.setattr("worker_lib.arguments.time.time", lambda second=second: float(second))
        with Controller(switch, 1, bind=here, key=b"of the job") as controller:
            here = controller.address.host, controller.address.port
            assert controller.join().rank == NO_RANK
            controller.request(Action.SETH, Threshold(0))
            assert controller._incarnation >= 5_000


def test_who_was_replaced_does_not_take_its_place_back() -> None:
    """It lives still, at an address that another process has: it is told so, and that is all."""
    there = World()
    old = there.join(0, SHAPE, incarnation=1000, heartbeat=0.2)
    there.gather([old])
    new = there.join(0, SHAPE, incarnation=400, heartbeat=0.2)
    there.gather([new])
    assert (new.clock_behind, new.incarnation) == (600, 1001)
    there.run(lambda: there.now > 1.0)
    there.sessions[worker_address(0)] = old
    there.events[worker_address(0)].clear()
    there.run(lambda: bool(there.events[worker_address(0)]), limit=10.0)
    (answer,) = there.events[worker_address(0)]
    assert isinstance(answer, Answered)
    assert answer.status is Status.DENIED
    text = str(Refused(Action.JOIN, answer.status, 7, ack=answer.ack))
    assert "a process that began later has joined" in text
    (member,) = there.switch.jobs[7].members.by_address.values()
    assert member.incarnation == 1001
    there.sessions[worker_address(0)] = new
    vector = np.ones(8, np.float32)
    assert (there.allreduce([new], [vector])[0] == 1).all()


@pytest.mark.slow
@pytest.mark.parametrize("contributions", [5, NUMBERS - 3, NUMBERS + 5])
def test_no_number_of_a_contribution_is_used_again(contributions: int) -> None:
    """However many the process before made in its seconds."""
    there = World()
    first = there.join_asynchronous(0, ASYNC, incarnation=1000, expected=1)
    vector = np.ones(8, np.float32)
    there.run(lambda: first.member)
    first.resume_at(0, there.now)
    made = 0
    while made < contributions:
        if first.can_contribute:
            first.contribute(vector)
            made += 1
        else:
            assert there.step()
    there.run(lambda: not first.in_flight)
    last = first.number - 1
    second = there.join_asynchronous(0, ASYNC, incarnation=1000, expected=1)
    there.run(lambda: second.member)
    assert second.number > last
    assert second.number == second.incarnation * NUMBERS


def test_late_copies_of_old_joins_change_nothing() -> None:
    there = World()
    old = there.join(0, SHAPE, incarnation=1000)
    there.gather([old])
    new = there.join(0, SHAPE, incarnation=900, heartbeat=0.1)
    there.gather([new])
    old._settled = old.member = False
    old.join(there.now)  # a copy of its first
    late = old.transmissions(there.now)
    for out in late:
        burst = Burst(worker_address(0), out.tos, out.rows, out.tail)
        for answer in there.switch.receive(burst, there.now):
            new.receive(Burst(new.switch, answer.tos, answer.rows, answer.tail), there.now)
    assert new.member
    assert new.incarnation == 1001


def test_a_late_answer_to_the_process_before_makes_nobody_a_member() -> None:
    """It began in the same second, so the answer bears the number of the new one's Join."""
    there = World()
    old = there.join(0, SHAPE, incarnation=1000)
    there.gather([old])
    old.join(there.now)  # a heartbeat
    late = [
        answer
        for out in old.transmissions(there.now)
        for answer in there.switch.receive(
            Burst(worker_address(0), out.tos, out.rows, out.tail), there.now
        )
    ]
    assert late
    new = there.join(0, SHAPE, incarnation=1000)
    for answer in late:
        new.receive(Burst(new.switch, answer.tos, answer.rows, answer.tail), there.now)
    assert not new.member
    there.gather([new])
    assert new.incarnation == 1001


def test_a_late_answer_to_the_switch_process_before_lets_nobody_in() -> None:
    """It tells how many workers there were."""
    bench = Below()
    (join,) = bench.comes(0, Shape.of(8))
    there = Ack(Action.JOIN, known=1, contributors=3)
    late = Control(Action.ACK, JOB, join.request, there).build()
    assert bench.hears(TOS_CONTROL, [late]) == []
    assert bench.switch.counters["unmatched_ack"] == 1
    assert [packet.action for packet in bench.answers(join)] == [Action.ACK, Action.JOIN]


@pytest.mark.parametrize("action", [Action.LEAVE, Action.HALT, Action.RESET])
def test_late_requests_of_the_processes_before_are_not_executed(action: Action) -> None:
    """A copy of an old worker's Leave took its successor out of the job."""
    bench = Bench()
    bench.gather(SHAPE, 2, FLAG_WHOLE)
    assert bench.control(0, action, request=1001)[0] is Status.OK
    for request in (2000, 3000):
        bench.now += 1.0
        assert bench.join(0, SHAPE, expected=2, flags=FLAG_WHOLE, request=request)[0] is Status.OK
        at = bench.switch.jobs[JOB].window.high
        assert bench.control(0, action, request=1001)[0] is Status.NOT_MEMBER
        assert bench.switch.jobs[JOB].window.high == at
        assert len(bench.switch.jobs[JOB].members) == 2
    assert bench.control(0, action, request=3001)[0] is Status.OK
    assert bench.control(0, action, request=3001)[0] is Status.OK  # as kept


def test_late_contributions_of_the_process_before_count_in_no_second_version() -> None:
    """Any number may be the first of a worker, but for a copy of what had counted."""
    bench = Bench()
    bench.gather(ASYNC, 2)

    def counts(number: int) -> bool:
        before = bench.counters["accumulated"]
        bench.contribute(0, ASYNC, number, np.ones(8, np.float32))
        return bench.counters["accumulated"] == before + ASYNC.segments

    assert counts(9040)
    assert counts(9041)
    for process in (1, 2):  # the first contributes nothing itself
        bench.now += 1.0
        assert bench.join(0, ASYNC, expected=2, request=1000 + process)[0] is Status.OK
        assert not counts(9041)
        assert not counts(9040)
    assert counts(9042)
    bench.now += 1.0
    bench.control(0, Action.LEAVE, request=1003)
    bench.now += 1.0
    assert bench.join(0, ASYNC, expected=2, request=1004)[0] is Status.OK
    assert not counts(9042)
    assert counts(9042 - LATE)  # its numbers have wrapped
    assert not counts(9042 - LATE)


def test_an_earlier_join_does_not_take_the_place_of_one_that_waits() -> None:
    """Else a late copy of that would end the process which was let in instead."""
    bench = Below()
    (join,) = bench.comes(0, SHAPE, request=5000)
    (refused,) = bench.comes(0, SHAPE, request=4999)
    assert (refused.status, refused.request) == (Status.DENIED, 4999)
    assert isinstance(refused.value, Ack)
    assert refused.value.round == 5000  # the number to exceed
    assert bench.comes(0, SHAPE, request=5001) == []
    assert next(packet.request for packet in bench.answers(join)) == 5001


@pytest.mark.parametrize("seed", range(40))
def test_addresses_are_taken_over_as_the_oracle_says(seed: int) -> None:
    """Joins and Leaves of processes that use few ports for two jobs, with any numbers."""
    random, bench = Random(seed), Bench()
    there: dict[int, tuple[int, int]] = {}  # by address: job, incarnation
    for step in range(200):
        bench.now += 1.0
        who, job, number = random.randrange(3), random.randrange(7, 9), random.randrange(1, 60)
        known = there.get(who)
        if known is not None and random.random() < 0.2:
            request = random.randrange(1, 60) + 10_000 * step
            assert bench.control(who, Action.LEAVE, job=known[0], request=request)[0] is Status.OK
            del there[who]
            continue
        status, ack, _more = bench.join(who, SHAPE, job=job, request=number)
        taken = known is None or number > known[1] or known == (job, number)
        assert (status is Status.OK) == taken
        if taken:
            there[who] = job, number
        else:
            assert known is not None
            assert (status, ack.threshold) == (Status.DENIED, known[1])
            assert ack.round >= known[1]
        for one in (7, 8):
            found = bench.switch.jobs.get(one)
            members = {} if found is None else found.members.by_address
            wanted = {peer(w): inc for w, (at, inc) in there.items() if at == one}
            assert {a: m.incarnation for a, m in members.items()} == wanted
        sources = {a: j.number for a, (j, _) in bench.switch.record.by_source.items()}
        assert sources == {peer(w): at for w, (at, _) in there.items()}


def test_what_waited_for_the_process_before_goes_on() -> None:
    bench = Bench()
    bench.gather(SHAPE, 3)
    vector = np.ones(8, np.float32)
    for who in (0, 1):
        bench.contribute(who, SHAPE, 0, vector)
    join = Control(Action.JOIN, 8, 1001, Join.for_shape(SHAPE)).build()
    *sums, answer = bench.send(2, TOS_CONTROL, join)
    assert Control.parse(packets_of(answer)[0]).status == Status.OK
    assert {out.peers for out in sums} == {(peer(0), peer(1))}
    assert [p[8:] for out in sums for p in packets_of(out)] == [(2 * vector[:4]).tobytes()] * 2


def test_a_whole_job_keeps_the_place_of_who_was_taken_over() -> None:
    bench = Bench()
    bench.gather(SHAPE, 2, flags=8)
    vector = np.ones(8, np.float32)
    bench.contribute(0, SHAPE, 0, vector)
    status, _, sends = bench.join(1, SHAPE, job=8, request=1001)
    assert (status, sends) == (Status.OK, [])
    assert bench.join(0, SHAPE, flags=24)[1].contributors == 1  # it learns of the loss at once
    sums = bench.join(5, SHAPE, flags=8)[2]  # another takes the place: all begin anew
    assert [Action(out.rows[0][0]) for out in sums] == [Action.RESET]


@pytest.mark.parametrize(("first", "second", "taken"), [
    (b"a", None, False), (b"a", b"b", False), (b"a", b"a", True), (None, b"b", True),
])  # fmt: skip
def test_who_lacks_the_key_of_the_job_before_ends_nothing(
    first: bytes | None, second: bytes | None, taken: bool
) -> None:
    by_job = {job: key for job, key in ((7, first), (8, second)) if key is not None}
    there = World(Switch(keys=by_job))
    old = there.join(0, SHAPE, incarnation=1000, key=first)
    there.gather([old])
    new = there.join(0, SHAPE, job=8, incarnation=2000, key=second)
    there.run(lambda: new.member or bool(there.events[worker_address(0)]))
    assert new.member is taken
    assert (there.switch.jobs[7].shape is None) is taken
    if not taken:
        answer = there.events[worker_address(0)][0]
        assert isinstance(answer, Answered)
        assert (answer.status, answer.ack) == (Status.DENIED, Ack(Action.JOIN))


def test_two_that_come_back_from_before_the_window_begin_together() -> None:
    """Though the first has contributed before the second comes: else neither's round completes."""
    bench = Bench()
    bench.join(0, SHAPE, expected=2)
    bench.control(0, Action.LEAVE)  # the job ends, and goes on two rounds further
    flags = FLAG_STANDS_AT | FLAG_FIRST | FLAG_WHOLE
    back = replace(Join.for_shape(SHAPE, MemberType.WORKER, 2, flags), round=0)
    ones = np.ones(SHAPE.numel, np.float32)
    firsts = []
    for who in (1, 2):
        status, ack, _ = bench.control(who, Action.JOIN, back, request=2000)
        assert status is Status.OK
        firsts.append(ack.round)
        sent = bench.contribute(who, SHAPE, ack.round, ones)
    assert firsts == [2, 2]
    assert len(sent) == SHAPE.segments
