"""Sessions at a switch that lost its state, packet by packet."""

from __future__ import annotations

import pytest

from iswitch.core.format.packets import Burst
from iswitch.core.format.wire import (
    TOS_CONTROL,
    Ack,
    Action,
    Control,
    Round,
    Segments,
    Status,
)
from iswitch.core.switch import Switch
from tests.support.scene import Scene
from tests.support.world import SWITCH, worker_address
from worker_lib.protocol.session import Answered, Dropped, WasReset

pytestmark = pytest.mark.unit


def test_switch_restarted_in_mid_round() -> None:
    """A has contributed, B has not begun: both come back to round 1 and its sum is exact."""
    scene = Scene(2).start()
    scene.round_of_all()
    scene.quiet()
    out_a = scene.begin(0)[0]
    scene.let_pass(0.001)
    scene.switch = Switch()
    scene.let_pass(0.05)
    assert scene.told() == [
        *(f"A> seg 1.{i}" for i in range(5)),
        "A> help 1.0+5", "A< ack help NOT_MEMBER",
        "A> join 1 1", "A< ack join",
        *(f"A> seg 1.{i}" for i in range(5)),
    ]  # fmt: skip
    scene.lines.clear()
    out_b = scene.begin(1)[1]
    scene.end(0, 1)
    assert (out_a == scene.total(1, 0, 1)).all()
    assert (out_b == scene.total(1, 0, 1)).all()
    assert scene.told().count("B> join 1 1") == 1
    assert [s.stats["rejoins"] for s in scene.workers] == [1, 1]
    for _ in range(3):
        scene.round_of_all()


def test_switch_restarted_between_one_workers_rounds_and_anothers() -> None:
    """A has all of round 1, B lacks segment 3: A gives its contribution to round 1 again."""
    scene = Scene(2).start()
    scene.round_of_all()
    scene.quiet().lose("B< seg 1.3")
    out_b = scene.begin(0, 1)[1]
    scene.end(0)
    out_a = scene.begin(0)[0]
    scene.let_pass(0.001)
    scene.switch = Switch()
    scene.lines.clear()
    scene.end(1)
    assert (out_b == scene.total(1, 0, 1)).all()
    assert [line for line in scene.told() if line.startswith("A> seg 1")] == ["A> seg 1.3"]
    assert [line for line in scene.told() if line.startswith("B> seg 1")] == ["B> seg 1.3"]
    outs = scene.begin(1)
    scene.end(0, 1)
    assert (out_a == scene.total(2, 0, 1)).all()
    assert (outs[1] == scene.total(2, 0, 1)).all()
    scene.round_of_all()


def test_not_restart_safe() -> None:
    """Without its last contribution A cannot help B, which waits for it rather than be wrong."""
    scene = Scene(2, restart_safe=False).start()
    scene.round_of_all()
    scene.quiet().lose("B< seg 1.3")
    scene.begin(0, 1)
    scene.end(0)
    scene.begin(0)
    scene.let_pass(0.001)
    scene.switch = Switch()
    scene.lines.clear()
    scene.let_pass(5.0)
    assert "A> join 1 2" in scene.told()
    assert "B> join 1 1" in scene.told()
    assert not any(line.startswith("A> seg 1") for line in scene.told())
    b = scene.workers[1]
    assert b.transfer is not None
    assert b.transfer.missing() == [(3, 4)]
    assert b.waiting_for == 1 << 0  # the seat of A


def test_not_restart_safe_without_a_restart() -> None:
    scene = Scene(3, restart_safe=False).start()
    for round_ in range(4):
        scene.quiet().lose(f"A> seg {round_}.1", f"B< seg {round_}.2")
        scene.round_of_all()
        assert not scene.to_lose


def test_the_numbers_of_a_restarted_switch_are_new() -> None:
    """It relays under those that the one before had used up; what it relays is executed."""
    scene = Scene(1).start()
    scene.begin(0)
    (a,) = scene.workers
    told = Control(Action.HELP, 7, 1, Segments(0, 0, 1)).build()

    def hear(payload: bytes) -> int:
        a.receive(Burst.single(SWITCH, TOS_CONTROL, payload), scene.now)
        return a.stats["helped"]

    assert [hear(told), hear(told)] == [1, 1]
    for status in (Status.NOT_MEMBER, Status.OK):  # to a heartbeat, and to the Join that follows
        if a.member:
            a.join(scene.now)
        hear(Control(Action.ACK, 7, a.incarnation, Ack(Action.JOIN), status).build())
    assert a.member
    assert a.stats["rejoins"] == 1
    assert hear(told) == 2


def test_the_halts_of_a_restarted_switch_are_new() -> None:
    """An older number would be a repeat's, were it the same switch."""
    scene = Scene(1).start()
    (a,) = scene.workers

    def hear(action: Action, request: int, value: Ack | Round | None, status: int = 0) -> bool:
        payload = Control(action, 7, request, value, Status(status)).build()
        a.receive(Burst.single(SWITCH, TOS_CONTROL, payload), scene.now)
        return a.halted

    assert hear(Action.HALT, 5, None)
    assert not hear(Action.RESET, 6, Round(3))
    assert not hear(Action.HALT, 4, None)
    a.join(scene.now)
    hear(Action.ACK, a.incarnation, Ack(Action.JOIN), Status.NOT_MEMBER)
    assert not hear(Action.ACK, a.incarnation, Ack(Action.JOIN, round=3))
    assert hear(Action.HALT, 1, None)


@pytest.mark.parametrize("stale", [2, 3, 4])
def test_a_reset_for_the_process_before_at_this_address_is_not_taken(stale: int) -> None:
    """Nor is a late copy: it names no round ahead of the worker's own."""
    scene = Scene(1).start()
    (a,) = scene.workers
    a.resume_at(4)
    scene.begin(0)
    scene.news(0)

    def hear(request: int, round_: int) -> None:
        payload = Control(Action.RESET, 7, request, Round(round_)).build()
        a.receive(Burst.single(SWITCH, TOS_CONTROL, payload), scene.now)

    hear(1, stale)
    assert a.round == 4
    assert a.transfer is not None
    hear(2, 6)
    assert a.round == 6
    assert scene.news(0) == [WasReset(6)]


def test_restarted_switch_while_idle() -> None:
    """Its loss is found out by the next round, which begins where the workers stand."""
    scene = Scene(2).start()
    for _ in range(3):
        scene.round_of_all()
    scene.switch = Switch()
    scene.round_of_all()
    scene.round_of_all()


def test_the_job_went_on_without_it() -> None:
    """The switch took B out; B comes back later and is told from where."""
    scene = Scene(2).start()
    scene.round_of_all()
    scene.quiet().news(1)
    job = scene.switch.jobs[7]
    scene.switch.control.lifecycle.remove(job, job.members.by_address[worker_address(1)], scene.now)
    for round_ in range(1, 4):
        out = scene.begin(0)[0]
        scene.end(0)
        assert (out == scene.total(round_, 0)).all()
    scene.begin(1)
    scene.let_pass(0.1)
    assert [e for e in scene.news(1) if not isinstance(e, Answered)] == [Dropped(1, 4)]
    assert scene.workers[1].transfer is None
    scene.round_of_all()
    assert scene.workers[0].round == 5


def test_the_denial_of_a_late_copy_of_its_first_join_ends_no_membership() -> None:
    """One that names a later process does."""
    scene = Scene(1).start()
    (a,) = scene.workers

    def hear(status: Status, named: int = 0, known: int = 0) -> None:
        ack = Ack(Action.JOIN, round=named, threshold=named, known=known)
        payload = Control(Action.ACK, 7, a.incarnation, ack, status).build()
        a.receive(Burst.single(SWITCH, TOS_CONTROL, payload), scene.now)

    for later in (0, 1):
        a.join(scene.now)
        hear(Status.NOT_MEMBER)
        hear(Status.DENIED, a.incarnation + later)
        assert (a.member, a.asks(Action.JOIN)) == (False, not later)
        if not later:
            hear(Status.OK, 0, 1)
            assert (a.member, a.asks(Action.JOIN)) == (True, False)
