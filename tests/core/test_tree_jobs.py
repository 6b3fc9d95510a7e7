"""Several jobs in one tree: random histories against an oracle, and the lines that keep them apart.

The oracle knows which workers take part in each round of each job, and adds up their vectors.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace

import numpy as np
import pytest

from iswitch.core.format.lines import FIRST, LINES, line_at, line_of, port_of
from iswitch.core.format.packets import Address, Burst
from iswitch.core.format.wire import (
    FLAG_NEW,
    TOS_CONTROL,
    TOS_DATA,
    Ack,
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
from tests.support.parts import JOB, PARENT, Below, Bench, controls, peer, seg
from tests.support.tree import TYPICAL, Tree
from tests.support.world import SWITCH
from worker_lib.protocol.session import Answered, Session

pytestmark = pytest.mark.unit

SEEDS = int(os.environ.get("ISWITCH_MODEL_SEEDS", "8"))  # `make model` takes more
SHAPES = [
    Shape.of(23, DType.FLOAT32, elements=4),
    Shape.of(9, DType.INT32, elements=4),
    Shape.of(40, DType.FLOAT32, elements=8),
    Shape.of(1, DType.INT32),
]


@dataclass
class OneJob:
    """A job of the history: its workers, and the round that is under way."""

    number: int
    shape: Shape
    workers: list[Session]
    outs: list[np.ndarray] = field(default_factory=list)
    total: np.ndarray | None = None


class Jobs(Tree):
    """A tree without workers of its own, in which jobs come and go."""

    def __init__(self, *fan_outs: int, seed: int) -> None:
        super().__init__(*fan_outs, 0, seed=seed, faults=TYPICAL)
        above = set(self.above.values())
        self.leaves = [address for address in self.above if address not in above]
        self.under_way: dict[int, OneJob] = {}
        self.count = 0
        self.most = 4
        self.shapes = dict(zip(self.random.sample(range(65536), 4), SHAPES, strict=True))

    def begin_job(self) -> None:
        """Have new workers join a job that is not under way, at some or all of the leaves.

        There are four job numbers only: switches may still remember the last job of that number.
        """
        number = self.random.choice([n for n in self.shapes if n not in self.under_way])
        places = [at for at in self.leaves for _ in range(self.random.randrange(3))]
        places = places or [self.random.choice(self.leaves)]
        shape = self.shapes[number]
        workers = []
        for at in places:
            ways = {"at": at, "expected": len(places), "heartbeat": 1.0}
            workers.append(self.join(self.count, shape, number, **ways))
            self.count += 1
        self.under_way[number] = OneJob(number, shape, workers)

    def begin_round(self, job: OneJob) -> None:
        vectors = [
            np.array([self.random.randrange(1000) for _ in range(job.shape.numel)])
            for _ in job.workers
        ]
        job.total = np.sum(vectors, 0)
        job.outs = []
        for session, vector in zip(job.workers, vectors, strict=True):
            given = vector.astype(job.shape.dtype.numpy)
            job.outs.append(np.zeros_like(given))
            session.begin(given, job.outs[-1], self.now)

    def end_round(self, job: OneJob) -> None:
        self.run(lambda: all(s.transfer is not None and s.transfer.done for s in job.workers))
        for session, out in zip(job.workers, job.outs, strict=True):
            session.finish()
            assert (out == job.total).all(), job.number
        job.total = None

    def end_job(self, job: OneJob) -> None:
        asked = [(self.address(s), s.request(Action.LEAVE, None, self.now)) for s in job.workers]

        def is_answered(address: Address, request: int) -> bool:
            answers = (e for e in self.events[address] if isinstance(e, Answered))
            return any(answer.request == request for answer in answers)

        self.run(lambda: all(is_answered(*one) for one in asked))
        for session in job.workers:
            del self.sessions[self.address(session)]
        del self.under_way[job.number]

    def step_of_history(self) -> None:
        jobs = list(self.under_way.values())
        idle = [job for job in jobs if job.total is None]
        busy = [job for job in jobs if job.total is not None]
        what = self.random.random()
        if len(jobs) < self.most and (not jobs or what < 0.2):
            self.begin_job()
        elif what < 0.3 and idle:
            self.end_job(self.random.choice(idle))
        elif what < 0.4:
            self.restart(self.random.choice([SWITCH, *self.above]))
            self.let_pass(3.0)  # idle workers notice it when they renew their leases
        elif what < 0.7 and idle:
            job = self.random.choice(idle)
            self.run(lambda: all(s.member for s in job.workers))
            self.begin_round(job)
        elif busy:
            self.end_round(self.random.choice(busy))
        for _ in range(self.random.randrange(40)):
            self.step()


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(SEEDS))
def test_random_histories_of_several_jobs(seed: int) -> None:
    """Jobs begin and end, switches restart, packets are lost; every sum is that of its own job."""
    tree = Jobs(*[(2,), (3,), (2, 2), (1, 2)][seed % 4], seed=seed)
    for _ in range(40):
        tree.step_of_history()
    for job in list(tree.under_way.values()):
        if job.total is not None:
            tree.end_round(job)


def test_who_leaves_while_its_join_waits_for_the_parent_is_not_taken_in() -> None:
    """Neither when the parent answers nor by a late copy of the Join."""
    bench = Below()
    shape = Shape.of(4)
    (asked,) = bench.comes(0, shape)
    assert bench.comes(1, shape) == []
    (told,) = controls(bench.send(1, TOS_CONTROL, Control(Action.LEAVE, JOB, 1001).build()))
    assert told.status == Status.NOT_MEMBER
    answers = [packet for packet in bench.answers(asked) if packet.action is Action.ACK]
    assert [packet.status for packet in answers] == [Status.OK]
    assert len(bench.switch.jobs[JOB].members) == 1
    (told,) = bench.comes(1, shape)
    assert told.status == Status.NOT_MEMBER


@pytest.mark.parametrize("kind", [Bench, Below])
def test_a_leave_that_overtakes_its_join_leaves_no_member(kind: type[Bench]) -> None:
    """Nor a Join that waits; a later process is let in at once."""
    bench = kind()
    join = Join.for_shape(Shape.of(4), MemberType.WORKER, 1, FLAG_NEW)
    gone, late, new = (
        Control(Action.LEAVE, JOB, 1001),
        Control(Action.JOIN, JOB, 1000, join),
        Control(Action.JOIN, JOB, 1002, join),
    )
    for packet in (gone, late):
        (told,) = controls(bench.send(0, TOS_CONTROL, packet.build()))
        assert (told.action, told.status) == (Action.ACK, Status.NOT_MEMBER)
    (told,) = controls(bench.send(0, TOS_CONTROL, new.build()))
    assert (told.action, told.status) == (Action.JOIN if kind is Below else Action.ACK, Status.OK)


def test_an_old_leave_withdraws_no_join_of_a_later_process() -> None:
    bench = Below()
    shape = Shape.of(4)
    (asked,) = bench.comes(0, shape, request=2000)
    bench.send(0, TOS_CONTROL, Control(Action.LEAVE, JOB, 1001).build())
    answers = [packet for packet in bench.answers(asked) if packet.action is Action.ACK]
    assert [packet.status for packet in answers] == [Status.OK]


def test_a_job_waits_for_no_more_workers_than_present_switches_expect() -> None:
    """A switch that was restarted has no workers of the job before, which had more."""
    bench = Bench()
    shape = Shape.of(4)

    def joins(who: int, request: int, workers: int, expected: int) -> None:
        join = TreeJoin.for_shape(shape, MemberType.SWITCH, expected)
        value = replace(join, workers=workers, statement=1)
        bench.send(who, TOS_CONTROL, Control(Action.JOIN, JOB, request, value).build())

    joins(0, 1000, 1, 5)
    joins(1, 1000, 2, 3)
    members = bench.switch.jobs[JOB].members
    assert (members.expected, members.gathered) == (5, False)
    joins(0, 1000, 1, 3)  # under one Request the larger number counts
    assert members.expected == 5
    joins(0, 2000, 1, 3)
    assert (members.expected, members.gathered) == (3, True)


def test_a_switch_that_expects_fewer_workers_says_so_under_a_larger_request() -> None:
    bench = Below()
    join = Join.for_shape(Shape.of(4), MemberType.WORKER, 3)
    (asked,) = controls(
        bench.send(
            0, TOS_CONTROL, Control(Action.JOIN, JOB, 1000, replace(join, expected=5)).build()
        )
    )
    *_, first = bench.answers(asked)
    bench.send(1, TOS_CONTROL, Control(Action.JOIN, JOB, 1000, join).build())
    bench.send(0, TOS_CONTROL, Control(Action.LEAVE, JOB, 1001).build())
    sent = controls(bench.send(2, TOS_CONTROL, Control(Action.JOIN, JOB, 1000, join).build()))
    (again,) = (packet for packet in sent if packet.action is Action.JOIN)
    assert isinstance(first.value, TreeJoin)
    assert isinstance(again.value, TreeJoin)
    assert (first.value.expected, again.value.expected) == (5, 3)
    assert again.request > first.request


def test_a_line_is_a_port_of_its_own() -> None:
    for listening in (1, 1024, 26963, 26964, FIRST - 1, FIRST, FIRST + 17, 65535):
        ports = {port_of(line, listening): line for line in range(LINES + 1)}
        assert len(ports) == LINES + 1
        assert all(0 < port < 1 << 16 for port in ports)
        for port in range(1, 1 << 16):
            assert line_at(port, listening) == ports.get(port)


def test_neighbours_on_one_host_speak_from_different_ports() -> None:
    """As those of `iswitch switch --listen 127.0.0.1:26964` and the next."""
    ports = [{port_of(line_of(job), 26963 + n) for job in range(200)} for n in range(8)]
    assert len(set[int]().union(*ports)) == 8 * 200


def test_jobs_of_one_line_exclude_each_other() -> None:
    """The second is told of the first; others are not concerned."""
    bench = Below()
    shape = Shape.of(4)
    (asked,) = bench.comes(0, shape)
    bench.answers(asked)
    join = Join.for_shape(shape, MemberType.WORKER, 1)

    def answer(job: int) -> Control:
        payload = Control(Action.JOIN, job, 1, join).build()
        (said,) = controls(bench.send(1, TOS_CONTROL, payload))
        return said

    refused = answer(JOB + LINES)
    told = Ack(Action.JOIN, contributors=1 + JOB)
    assert (refused.status, refused.value) == (Status.DENIED, told)
    above = answer(JOB + LINES + 1)
    assert (above.action, above.job) == (Action.JOIN, JOB + LINES + 1)


def test_a_line_takes_packets_of_its_job_only() -> None:
    """And of the parent only; a line that no job has takes nothing."""
    bench = Below()
    shape = Shape.of(4)
    (asked,) = bench.comes(0, shape)
    bench.answers(asked)
    halt = Control(Action.HALT, JOB, 1).build()
    aggregate = seg(0, 0) + bytes(shape.packet_size - 8)
    line = line_of(JOB)
    for source in (PARENT, PARENT._replace(line=line + 1), peer(5)._replace(line=line)):
        before = dict(bench.counters)
        for tos, payload in ((TOS_CONTROL, halt), (TOS_DATA, aggregate)):
            burst = Burst.single(source, tos, payload)
            assert bench.switch.receive(burst, bench.now) == []
        assert bench.counters["stranger"] == before["stranger"] + 1
        assert bench.counters["unmatched_ack"] == before["unmatched_ack"] + 1
    assert not bench.switch.jobs[JOB].halted
    assert bench.hears(TOS_CONTROL, [halt])
    assert bench.switch.jobs[JOB].halted


def test_a_halt_that_comes_down_before_its_answer_refuses_nobody() -> None:
    """The parent's own Halt may overtake its answer to the worker that asked for it."""
    bench = Below()
    (asked,) = bench.comes(0, Shape.of(4))
    bench.answers(asked)
    halt = Control(Action.HALT, JOB, 1001).build()
    (passed_on,) = controls(bench.send(0, TOS_CONTROL, halt))
    assert passed_on.action is Action.HALT
    bench.hears(TOS_CONTROL, [Control(Action.HALT, JOB, 1).build()])
    assert bench.send(0, TOS_CONTROL, halt) == []
    answers = [one for one in bench.answers(passed_on) if one.action is Action.ACK]
    assert [(one.request, one.status) for one in answers] == [(1001, Status.OK)]
    again = controls(bench.send(0, TOS_CONTROL, halt))
    assert again == answers


def test_the_parent_has_an_allowance_for_each_line() -> None:
    """As long as it is in use."""
    bench = Below()
    (asked,) = bench.comes(0, Shape.of(4))
    bench.answers(asked)
    above = PARENT._replace(line=line_of(JOB))
    assert above in bench.switch.sources
    *_, leave = controls(bench.send(0, TOS_CONTROL, Control(Action.LEAVE, JOB, 1001).build()))
    bench.answers(leave)
    assert above not in bench.switch.sources
    assert PARENT in bench.switch.sources


def test_no_more_lines_than_jobs() -> None:
    """While the parent is silent, too: strangers may ask for ever new jobs."""
    bench = Below(Switch(Limits(jobs=2), parent=PARENT, incarnation=1000))
    join = Join.for_shape(Shape.of(4), MemberType.WORKER, 1)
    told = []
    for job in (1, 2, 3):
        payload = Control(Action.JOIN, job, 1000, join).build()
        told += controls(bench.send(0, TOS_CONTROL, payload))
    assert [said.action for said in told] == [Action.JOIN, Action.JOIN, Action.ACK]
    assert told[-1].status == Status.FULL
    assert len(bench.switch.sources) == 1 + 2


def test_a_line_answers_no_stranger() -> None:
    """Not even that a MAC is missing."""
    bench = Below(Switch(parent=PARENT, incarnation=1000, keys={JOB: bytes(32)}))
    halt = Control(Action.HALT, JOB, 1).build()
    stranger = peer(5)._replace(line=line_of(JOB))
    assert bench.switch.receive(Burst.single(stranger, TOS_CONTROL, halt), bench.now) == []
    assert bench.counters["bad_mac"] == 1


def test_a_number_to_outdo_in_one_job_does_not_lower_those_of_others() -> None:
    """Else the parent would take a later Join of the first for one of a process before."""
    bench = Below()
    shape = Shape.of(4)
    hierarchy = bench.switch.control.hierarchy
    assert hierarchy is not None
    join = Join.for_shape(shape, MemberType.WORKER, 1)
    asked = {}
    for job in (1, 2):
        payload = Control(Action.JOIN, job, 1000, join).build()
        (asked[job],) = controls(bench.send(job, TOS_CONTROL, payload))
    for job, last in ((1, 2000), (2, 1500)):
        outdone = Ack(Action.JOIN, threshold=last, round=last)
        answer = Control(Action.ACK, job, asked[job].request, outdone, Status.DENIED).build()
        source = PARENT._replace(line=line_of(job))
        sends = bench.switch.receive(Burst.single(source, TOS_CONTROL, answer), bench.now)
        (again,) = controls(sends)
        assert again.request == last + 1
    assert hierarchy._incarnation == 2001
