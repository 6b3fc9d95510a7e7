"""Joins, leases and other requests of a session, each losing one chosen packet."""

from __future__ import annotations

import numpy as np
import pytest

from iswitch.core.format.wire import (
    Action,
    DType,
    Shape,
    Status,
    Threshold,
)
from iswitch.core.jobs.limits import Limits
from iswitch.core.switch import Switch
from tests.support.scene import SHAPE, Scene
from tests.support.world import SWITCH, worker_address
from worker_lib.protocol.session import Answered, Dropped, Session
from worker_lib.protocol.terms import RoundTerms

pytestmark = pytest.mark.unit


# Membership


def test_lost_join() -> None:
    scene = Scene(1).lose("A> join", "A> join")
    scene.gather(scene.workers)
    assert scene.told() == ["A> join"] * 3 + ["A< ack join"]
    assert scene.times("A> join") == [0.0, 50.0, 150.0]
    scene.round_of_all()


def test_requests_are_repeated_after_50_ms_doubling_to_1_s() -> None:
    scene = Scene(1).lose(*["A> join"] * 8)
    scene.gather(scene.workers)
    waits = np.diff(scene.times("A> join")).tolist()
    assert waits == pytest.approx([50, 100, 200, 400, 800, 1000, 1000, 1000])


def test_lost_ack_of_join() -> None:
    """The repeat is a heartbeat: the same rank, and nobody joins twice."""
    scene = Scene(1, expected=1).lose("A< ack join")
    scene.gather(scene.workers)
    assert scene.told() == ["A> join", "A< ack join"] * 2
    assert scene.workers[0].rank == 0
    assert scene.workers[0].joined == 1
    assert len(scene.switch.jobs[7].members) == 1
    scene.round_of_all()


@pytest.mark.parametrize("lost", ["A> leave", "A< ack leave"])
def test_lost_leave_or_its_ack(lost: str) -> None:
    """What waits for A alone is completed by the first copy that comes, and by that alone."""
    scene = Scene(2).start()
    scene.round_of_all()
    scene.quiet().news(0)
    scene.lose(lost)
    out = scene.begin(1)[1]
    number = scene.workers[0].request(Action.LEAVE, None, scene.now)
    scene.let_pass(0.045)
    came = lost != "A> leave"
    assert scene.workers[1].transfer is not None
    assert scene.workers[1].transfer.done == came
    scene.let_pass(0.2)
    acks = [line for line in scene.told() if line == "A< ack leave"]
    assert len(acks) == 1 + came
    assert scene.times("A> leave") == [0.0, 50.0]
    assert scene.told().count("B< seg 1.0") == 1
    (answer,) = scene.news(0)
    assert isinstance(answer, Answered)
    assert (answer.request, answer.status) == (number, Status.OK)
    assert [m.rank for m in scene.switch.jobs[7].members.contributors()] == [1]
    scene.end(1)
    assert (out == scene.total(1, 1)).all()


@pytest.mark.parametrize("lost", ["A> seth 1", "A< ack seth"])
def test_lost_request_or_its_ack(lost: str) -> None:
    """Repeated under its number until answered, and executed once."""
    scene = Scene(2).start()
    scene.quiet().news(0)
    scene.lose(lost)
    number = scene.workers[0].request(Action.SETH, Threshold(1), scene.now)
    scene.run(lambda: not scene.workers[0].requests)
    scene.let_pass(3.0)
    answered = 2 if lost == "A< ack seth" else 1
    assert sorted(scene.told()) == ["A< ack seth"] * answered + ["A> seth 1"] * 2
    (answer,) = scene.news(0)
    assert isinstance(answer, Answered)
    assert (answer.request, answer.action, answer.ack.threshold) == (number, Action.SETH, 1)


def test_forgotten_request_is_not_repeated() -> None:
    scene = Scene(2).start().lose("A> seth 1")
    scene.workers[0].forget(scene.workers[0].request(Action.SETH, Threshold(1), scene.now))
    scene.let_pass(3.0)
    assert scene.told() == ["A> seth 1"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("shape", "kwargs", "job", "status"),
    [
        (Shape.of(10, DType.INT32, elements=2), {}, 7, Status.MISMATCH),
        (Shape.of(9, DType.FLOAT32, elements=2), {}, 7, Status.MISMATCH),
        (SHAPE, {"reproducible": True}, 7, Status.MISMATCH),
        (SHAPE, {"partial": True}, 7, Status.MISMATCH),
        (Shape.of(1 << 28, DType.INT32), {}, 8, Status.FULL),
    ],
)
def test_refused_join(shape: Shape, kwargs: dict[str, bool], job: int, status: Status) -> None:
    scene = Scene(2).start()
    odd = scene.join(5, shape, job=job, **kwargs)
    scene.let_pass(5.0)
    assert scene.told()[1:] == [f"F< ack join {status.name}"]
    assert not odd.member
    (answer,) = scene.news(5)
    assert isinstance(answer, Answered)
    assert (answer.action, answer.status) == (Action.JOIN, status)
    scene.lines.clear()
    odd.begin(np.zeros(shape.numel, np.int32), np.zeros(shape.numel, np.int32), scene.now)
    scene.let_pass(5.0)
    assert scene.told() == []  # who is no member sends nothing
    del scene.sessions[worker_address(5)]
    scene.round_of_all()


# Leases


def test_heartbeats_keep_a_membership() -> None:
    scene = Scene(2, Switch(Limits(lease=10.0)), heartbeat=3.0).start()
    scene.let_pass(100.0)
    assert scene.switch.counters["leases_run_out"] == 0
    assert scene.told().count("A> join 16 0") == scene.told().count("A< ack join") == 33
    scene.round_of_all()


def test_repeated_heartbeats_when_the_switch_is_silent() -> None:
    scene = Scene(1, heartbeat=3.0).start().lose(*["A> join 16 0"] * 3)
    scene.let_pass(4.0)
    assert scene.times("A> join 16 0") == pytest.approx([3000, 3050, 3150, 3350], abs=0.5)
    assert scene.told()[-1] == "A< ack join"


@pytest.mark.parametrize("other_stands", ["before", "beyond"])
def test_lease_ran_out(other_stands: str) -> None:
    """A worker that was paused comes back by its heartbeat, and is told if the job went on."""
    scene = Scene(2, Switch(Limits(lease=10.0)), heartbeat=3.0).start()
    scene.round_of_all()
    paused = scene.sessions.pop(worker_address(1))
    if other_stands == "beyond":
        scene.begin(0)
    scene.let_pass(15.0)
    assert scene.switch.counters["leases_run_out"] == 1
    scene.sessions[worker_address(1)] = paused
    paused.handle_timer(scene.now)
    scene.let_pass(1.0)
    assert scene.switch.jobs[7].members.contributor_addresses() == tuple(scene.sessions)
    (answer,) = [event for event in scene.news(1) if not isinstance(event, Dropped)][-1:]
    assert isinstance(answer, Answered)
    assert answer.status is Status.OK
    if other_stands == "beyond":
        scene.end(0)
    assert scene.workers[0].round == paused.round == (1 if other_stands == "before" else 2)
    scene.round_of_all()


def test_a_second_job_takes_the_address_over() -> None:
    """A port that a process left behind in one job is used by the next one in another."""
    scene = Scene(1).start()
    first = scene.workers[0]
    second = Session(RoundTerms(SWITCH, 8, SHAPE), 400)  # its clock stepped back, too
    scene.sessions[worker_address(0)] = second
    second.join(scene.now)
    scene.let_pass(1.0)
    told = ["A> join", "A< ack join DENIED", "A> join", "A< ack join"]
    assert scene.told()[:4] == told
    assert second.incarnation > first.incarnation
    assert scene.switch.jobs[7].shape is None
    scene.sessions[worker_address(0)] = first  # if it lives, it is told, and takes nothing back
    first.join(scene.now)
    scene.let_pass(1.0)
    (answer,) = (e for e in scene.news(0) if isinstance(e, Answered) and e.ack.round)
    assert (answer.status, first.member) == (Status.DENIED, False)
    assert set(scene.switch.jobs[8].members.by_address) == {worker_address(0)}
