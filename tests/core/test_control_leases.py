"""What stays of a job whose members have left, fall silent or must all be there."""

from __future__ import annotations

import numpy as np
import pytest

from iswitch.core.format.wire import (
    FLAG_HEARTBEAT,
    FLAG_WHOLE,
    TOS_CONTROL,
    Ack,
    Control,
    DType,
    Join,
    MemberType,
    Segments,
    Shape,
    Threshold,
)
from iswitch.core.format.wire import Action as A
from iswitch.core.format.wire import Status as S
from iswitch.core.jobs.leases import AWAKE
from tests.support.parts import JOB, Bench, peer, seg
from tests.support.states import (
    ALL,
    ASYNC,
    CONTROLLER,
    LEASE,
    ONES,
    SHAPE,
    effects,
    fresh,
    half,
    third_round,
)

pytestmark = pytest.mark.unit


# Jobs that sleep


def test_a_job_lasts_a_lease_after_its_last_member() -> None:
    bench = fresh()
    bench.contribute(0, SHAPE, 0, ONES)
    bench.now = 10.0
    bench.control(0, A.LEAVE)
    bench.control(1, A.LEAVE)
    bench.control(CONTROLLER, A.LEAVE)
    assert bench.switch.handle_timer(LEASE) == []
    assert JOB in bench.switch.jobs
    assert bench.switch.deadline() == 10.0 + LEASE
    assert bench.switch.handle_timer(10.0 + LEASE) == []
    assert bench.switch.jobs == {}
    assert bench.switch.deadline() is None


def test_a_job_goes_on_from_its_place() -> None:
    bench = third_round()
    for who in (0, 1, CONTROLLER):
        bench.control(who, A.LEAVE)
    bench.now = 5.0
    other = Shape.of(4, DType.FLOAT32)
    status, ack, _ = bench.join(3, other)
    assert (status, ack.rank, ack.threshold, ack.round) == (S.OK, 0, 1, 4)
    assert bench.switch.deadline() == LEASE
    bench.contribute(3, other, 3, np.ones(4, np.float32))
    assert bench.counters.drops() == {"before_join": 1}
    sent = bench.contribute(3, other, 4, np.ones(4, np.float32))
    assert sent == {seg(4, 0) + np.ones(4, np.float32).tobytes(): {peer(3)}}


def test_threshold_and_halt_stay_with_a_controller() -> None:
    bench = fresh()
    bench.control(CONTROLLER, A.SETH, Threshold(5))
    bench.control(CONTROLLER, A.HALT)
    for who in (0, 1):
        bench.control(who, A.LEAVE)
    assert bench.join(2, SHAPE)[1].threshold == 5
    assert bench.control(2, A.SETH, Threshold(1))[0] is S.HALTED
    for who in (2, CONTROLLER):
        bench.control(who, A.LEAVE)
    assert bench.join(3, SHAPE)[1].threshold == 1
    assert bench.control(3, A.SETH, Threshold(1))[0] is S.OK


def test_leave_cancels_relays_to_who_left() -> None:
    bench = half()
    bench.control(0, A.HELP, ALL)
    assert bench.switch.deadline() == 0.02
    bench.control(1, A.LEAVE)
    assert bench.switch.deadline() == LEASE


def test_reset_voids_help_under_way() -> None:
    bench = half()
    bench.control(0, A.HELP, ALL)
    bench.control(0, A.RESET)
    assert effects(bench.switch.handle_timer(0.02)) == ["0: RESET 2", "1: RESET 2"]


def test_who_has_left_is_a_stranger_and_may_join_elsewhere() -> None:
    bench = fresh()
    bench.control(1, A.LEAVE)
    assert bench.contribute(1, SHAPE, 0, ONES) == {}
    assert bench.counters.drops() == {"stranger": 3}
    assert bench.control(1, A.HELP, ALL)[0] is S.NOT_MEMBER
    assert bench.join(1, SHAPE, job=8)[0] is S.OK


# Leases


def test_a_silent_member_is_out_as_if_by_leave() -> None:
    bench = half()
    for now in (10.0, 20.0, 30.0):
        bench.now = now
        bench.heartbeat(0, SHAPE)
        assert bench.switch.handle_timer(now) == [] or now == 30.0
    assert bench.counters["leases_run_out"] == 2  # worker 1, and the controller
    assert [m.address for m in bench.switch.jobs[JOB].members.by_address.values()] == [peer(0)]
    assert bench.contribute(1, SHAPE, 0, ONES) == {}
    assert bench.counters["stranger"] == 3
    assert bench.control(1, A.HELP, ALL)[0] is S.NOT_MEMBER


def test_what_waited_only_for_the_silent_completes() -> None:
    bench = half()
    bench.now = LEASE - 1
    bench.heartbeat(0, SHAPE)
    bench.now = LEASE
    assert bench.switch.deadline() == LEASE
    assert effects(bench.switch.handle_timer(LEASE)) == [f"0: 0.{index} = 1" for index in range(3)]


@pytest.mark.parametrize("what", ["data", "request", "heartbeat", "ack"])
def test_any_packet_renews_a_lease(what: str) -> None:
    bench = fresh()
    bench.now = LEASE - 1
    if what == "data":
        bench.contribute(0, SHAPE, 0, ONES)
    elif what == "request":
        bench.control(0, A.HELP, ALL)
    elif what == "heartbeat":
        bench.heartbeat(0, SHAPE)
    else:
        bench.send(0, TOS_CONTROL, Control(A.ACK, JOB, 1, Ack(A.HELP)).build())
    bench.switch.handle_timer(LEASE)
    assert list(bench.switch.jobs[JOB].members.by_address) == [peer(0)]


def test_a_switch_that_slept_hears_its_members_first() -> None:
    """A stopped process, a suspended machine: what they sent meanwhile waits in its socket."""
    bench = fresh()
    bench.now = 1000.0
    assert bench.switch.handle_timer(bench.now) == []
    assert bench.switch.deadline() == 1000.0 + AWAKE
    bench.heartbeat(1, SHAPE)
    bench.switch.handle_timer(1000.0 + AWAKE)
    assert list(bench.switch.jobs[JOB].members.by_address) == [peer(1)]


def test_a_heartbeat_makes_nobody_a_member() -> None:
    """Neither where there is no job, nor after the lease; of a new process not either."""
    bench = Bench()
    beat = Join.for_shape(SHAPE, MemberType.WORKER, 0, FLAG_HEARTBEAT)
    assert bench.control(0, A.JOIN, beat)[0] is S.NOT_MEMBER
    assert bench.switch.jobs == {}
    bench = fresh()
    assert bench.control(5, A.JOIN, beat)[0] is S.NOT_MEMBER
    assert bench.join(0, SHAPE, flags=FLAG_HEARTBEAT)[0] is S.OK
    assert bench.join(0, SHAPE, flags=FLAG_HEARTBEAT, request=1001)[0] is S.NOT_MEMBER
    assert peer(0) not in bench.switch.jobs[JOB].members.by_address


# Whole jobs


def whole(workers: int = 3) -> Bench:
    bench = Bench()
    bench.gather(SHAPE, workers, FLAG_WHOLE)
    return bench


def test_a_whole_job_makes_no_sum_of_fewer() -> None:
    bench = whole()
    bench.contribute(0, SHAPE, 0, ONES)
    bench.contribute(1, SHAPE, 0, ONES)
    assert bench.control(2, A.LEAVE)[2] == []
    assert bench.join(0, SHAPE)[1] == Ack(A.JOIN, 0, 0, 3, 0, 2)  # two are members now
    # When another takes its place, the job is reset, so that all go on together.
    status, ack, sends = bench.join(3, SHAPE, expected=3)
    assert (status, ack.round) == (S.OK, 2)
    assert effects(sends) == ["0: RESET 2", "1: RESET 2"]
    for who in (0, 1):
        assert bench.contribute(who, SHAPE, 2, ONES) == {}
    assert len(bench.contribute(3, SHAPE, 2, ONES)) == 3


def test_a_whole_job_takes_nobody_more() -> None:
    """Two runs at once under one number would wait for each other for good."""
    bench = whole()
    assert bench.join(3, SHAPE, expected=3) == (S.FULL, Ack(A.JOIN, contributors=3), [])
    other = Shape.of(7, DType.INT32, elements=2)
    assert bench.join(3, other, expected=3)[0] is S.MISMATCH
    bench.control(0, A.SETH, Threshold(2))  # by hand, it is no longer one
    assert bench.join(3, SHAPE, expected=3)[0] is S.OK


def test_a_silent_member_of_a_whole_job_stays_until_it_is_replaced() -> None:
    bench = whole()
    for who in (0, 1):
        bench.contribute(who, SHAPE, 0, ONES)
    bench.now = LEASE
    for who in (0, 1):
        bench.heartbeat(who, SHAPE)
    assert bench.switch.handle_timer(LEASE) == []
    bench.now += 50
    for who in (0, 1):
        bench.heartbeat(who, SHAPE)
    bench.switch.handle_timer(bench.now)
    assert len(bench.contribute(2, SHAPE, 0, ONES)) == 3  # it was only stopped
    bench.now += LEASE
    for who in (0, 1):
        bench.heartbeat(who, SHAPE)
    status, ack, sends = bench.join(3, SHAPE, expected=3)
    assert (status, ack.rank, ack.round) == (S.OK, 2, 2)
    assert effects(sends) == ["0: RESET 2", "1: RESET 2"]


def test_all_of_a_whole_job_are_silent() -> None:
    """Then it ends, and the next begin anew."""
    bench = whole()
    bench.contribute(0, SHAPE, 0, ONES)
    bench.switch.handle_timer(LEASE)
    assert bench.counters["leases_run_out"] == 3
    bench.now = LEASE + 1
    bench.gather(SHAPE, 3, FLAG_WHOLE)


def test_who_had_contributed_and_left_counts_in_a_whole_job() -> None:
    """What it gave is in the sum, which therefore has all it should."""
    bench = whole()
    for who in (0, 1):
        bench.contribute(who, SHAPE, 0, ONES)
    bench.control(1, A.LEAVE)
    assert len(bench.contribute(2, SHAPE, 0, ONES)) == 3


def test_a_set_threshold_and_fbcast_overrule_a_whole_job() -> None:
    bench = whole()
    bench.contribute(0, SHAPE, 0, ONES)
    bench.contribute(1, SHAPE, 0, ONES)
    bench.control(2, A.LEAVE)
    assert bench.control(0, A.FBCAST, Segments(0, 0, 1))[1].contributors == 2
    assert len(bench.control(0, A.SETH, Threshold(2))[2]) == 1
    assert bench.counters["aggregates"] == 3


def test_a_whole_asynchronous_job_waits_too() -> None:
    bench = Bench()
    bench.gather(ASYNC, 2, FLAG_WHOLE)
    bench.control(1, A.LEAVE)
    assert bench.contribute(0, ASYNC, 1, ONES) == {}
    assert len(bench.contribute(0, ASYNC, 2, ONES)) == 3


@pytest.mark.parametrize("asker", [0, 1])
def test_help_tells_the_asker_whether_its_own_is_missing(asker: int) -> None:
    """By its seat, whichever rank it has; a question without segments says nothing of it."""
    bench = Bench()
    for who, rank in ((0, 100), (1, 70)):
        join = Join.for_shape(SHAPE).asking(rank)
        assert bench.control(who, A.JOIN, join, request=1000)[0] is S.OK
    bench.contribute(0, SHAPE, 0, np.ones(SHAPE.numel, SHAPE.dtype.numpy))
    _, ack, _ = bench.control(asker, A.HELP, Segments(0, 0, SHAPE.segments))
    assert (ack.known, ack.missing) == (asker, 1 << 1)
    assert bench.control(asker, A.HELP, Segments(0, 0, 0))[1].known == 0
