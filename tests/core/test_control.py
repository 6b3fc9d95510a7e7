"""Requests and their answers: a table of (state, packet, status, effects) drives the tests."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import pytest

from iswitch.core.format.wire import (
    NO_RANK,
    TOS_CONTROL,
    Ack,
    Action,
    Control,
    MemberType,
    Round,
    Segments,
    Shape,
    Status,
    Threshold,
    Value,
)
from iswitch.core.format.wire import Action as A
from iswitch.core.format.wire import Status as S
from iswitch.core.jobs.answers import PER_MEMBER, REMEMBERED
from tests.support.parts import JOB, Bench, packets_of, peer
from tests.support.states import (
    ALL,
    CONTROLLER,
    LEASE,
    SHAPE,
    all_three,
    commander,
    effects,
    fresh,
    half,
    halted,
    nothing,
    third_round,
    versions,
)

pytestmark = pytest.mark.unit


# What a request does, in words


class Case(NamedTuple):
    """A request in a state, and its answer; None: that field does not matter."""

    state: Callable[[], Bench]
    who: int
    action: Action
    value: Value
    status: Status
    threshold: int = 0
    round: int = 0
    contributors: int = 0
    sends: tuple[str, ...] = ()
    job: int = JOB


C = Case
CASES = {
    # Who may ask
    "help of a stranger": C(fresh, 5, A.HELP, ALL, S.NOT_MEMBER),
    "leave of a stranger": C(fresh, 5, A.LEAVE, None, S.NOT_MEMBER),
    "reset without a job": C(nothing, 0, A.RESET, None, S.NOT_MEMBER),
    "seth to another job": C(fresh, 0, A.SETH, Threshold(1), S.NOT_MEMBER, job=8),
    "halt of a stranger": C(fresh, 5, A.HALT, None, S.NOT_MEMBER),
    "fbcast of a stranger": C(half, 5, A.FBCAST, ALL, S.NOT_MEMBER),
    # Leave
    "leave": C(fresh, 1, A.LEAVE, None, S.OK, 2),
    "leave completes": C(half, 1, A.LEAVE, None, S.OK, 2, sends=all_three("0", 0, 1)),
    "leave of a contributor": C(half, 0, A.LEAVE, None, S.OK, 2),
    "leave of a controller": C(half, CONTROLLER, A.LEAVE, None, S.OK, 2),
    "leave in a halt": C(halted, 0, A.LEAVE, None, S.OK, 2),
    # Reset
    "reset": C(half, 0, A.RESET, None, S.OK, 2, 2, sends=("0: RESET 2", "1: RESET 2")),
    "reset ends a halt": C(
        halted, CONTROLLER, A.RESET, None, S.OK, 2, 2, sends=("0: RESET 2", "1: RESET 2")
    ),
    "reset with a round": C(half, 0, A.RESET, Round(5), S.BAD_REQUEST),
    "reset of a controller alone": C(commander, CONTROLLER, A.RESET, None, S.OK, 0, 2),
    # SetH
    "seth": C(fresh, 0, A.SETH, Threshold(2), S.OK, 2),
    "seth above": C(half, CONTROLLER, A.SETH, Threshold(9), S.OK, 9),
    "seth completes": C(half, 0, A.SETH, Threshold(1), S.OK, 1, sends=all_three("0,1", 0, 1)),
    "seth automatic": C(half, 0, A.SETH, Threshold(0), S.OK, 2),
    "seth in a halt": C(halted, 0, A.SETH, Threshold(1), S.HALTED, 2),
    "seth of versions": C(
        versions, 0, A.SETH, Threshold(1), S.OK, 1, 10, sends=all_three("0,1", 10, 1)
    ),
    # FBcast
    "fbcast": C(half, 1, A.FBCAST, ALL, S.OK, 2, 0, 1, all_three("0,1", 0, 1)),
    "fbcast of one": C(half, 1, A.FBCAST, Segments(0, 1, 1), S.OK, 2, 0, 1, ("0,1: 0.1 = 1",)),
    "fbcast of nothing": C(half, 1, A.FBCAST, Segments(0, 0, 0), S.OK, 2),
    "fbcast of nothing at the end": C(half, 1, A.FBCAST, Segments(0, 3, 0), S.OK, 2),
    "fbcast not begun": C(half, 1, A.FBCAST, Segments(1, 0, 3), S.OK, 2),
    "fbcast complete": C(third_round, 0, A.FBCAST, Segments(2, 0, 3), S.OK, 2, 2),
    "fbcast past the end": C(half, 1, A.FBCAST, Segments(0, 1, 3), S.BAD_REQUEST, 2),
    "fbcast far past the end": C(
        half, 1, A.FBCAST, Segments(0, 2**32 - 1, 2**32 - 1), S.BAD_REQUEST, 2
    ),
    "fbcast gone": C(third_round, 0, A.FBCAST, Segments(0, 0, 1), S.GONE, 2, 2),
    "fbcast without contributors": C(
        commander, CONTROLLER, A.FBCAST, Segments(0, 0, 0), S.BAD_REQUEST
    ),
    "fbcast in a halt": C(halted, 0, A.FBCAST, ALL, S.HALTED, 2),
    "fbcast of the version to be made": C(
        versions, 1, A.FBCAST, Segments(10, 0, 3), S.OK, 2, 10, 1, all_three("0,1", 10, 1)
    ),
    "fbcast of a version after": C(versions, 1, A.FBCAST, Segments(11, 0, 3), S.OK, 2, 9),
    # Help
    "help for a contribution": C(half, 0, A.HELP, ALL, S.OK, 0, 0, 0b10, ("1: HELP 0.0+3",)),
    "help of who is missing": C(half, 1, A.HELP, ALL, S.OK, 0, 0, 0b10, ("1: HELP 0.0+3",)),
    "help not begun": C(
        fresh, 0, A.HELP, Segments(0, 2, 1), S.OK, 0, 0, 0b11, ("0: HELP 0.2+1", "1: HELP 0.2+1")
    ),
    "help for an aggregate": C(
        third_round, 0, A.HELP, Segments(1, 1, 2), S.OK, 0, 2, 0, ("0: 1.1 = 2", "0: 1.2 = 2")
    ),
    "help for a controller": C(
        third_round, CONTROLLER, A.HELP, Segments(2, 0, 1), S.OK, 0, 2, 0, ("9: 2.0 = 2",)
    ),
    "help gone": C(third_round, 0, A.HELP, Segments(0, 0, 3), S.GONE, 0, 2),
    "help ahead of the window": C(
        half, 0, A.HELP, Segments(5, 0, 1), S.OK, 0, 0, 0b01, ("0: HELP 5.0+1",)
    ),
    "help with nothing": C(half, 0, A.HELP, Segments(0, 1, 0), S.OK),
    "help past the end": C(half, 0, A.HELP, Segments(0, 0, 4), S.BAD_REQUEST, 2),
    "help in a halt": C(halted, 1, A.HELP, ALL, S.HALTED, 2),
    "help without contributors": C(commander, CONTROLLER, A.HELP, ALL, S.BAD_REQUEST),
    "help for a version": C(versions, 1, A.HELP, Segments(2, 0, 1), S.OK, 0, 9, 0, ("1: 2.0 = 2",)),
    "help for a version gone": C(versions, 1, A.HELP, Segments(1, 0, 1), S.GONE, 0, 9),
    "help for a version to come": C(versions, 1, A.HELP, Segments(10, 0, 1), S.OK, 0, 9),
    # Halt
    "halt": C(half, 1, A.HALT, None, S.OK, 2, sends=("0: HALT", "1: HALT")),
    "halt of a controller": C(
        half, CONTROLLER, A.HALT, None, S.OK, 2, sends=("0: HALT", "1: HALT")
    ),
    "halt in a halt": C(halted, 0, A.HALT, None, S.HALTED, 2),
}
each_case = pytest.mark.parametrize("case", CASES.values(), ids=CASES)


@each_case
def test_answer_and_effects(case: Case) -> None:
    bench = case.state()
    status, ack, sends = bench.control(case.who, case.action, case.value, case.job)
    assert status is case.status
    assert (ack.threshold, ack.round, ack.contributors) == (
        case.threshold,
        case.round,
        case.contributors,
    )
    assert tuple(effects(sends)) == case.sends


@each_case
def test_repeated_request_gets_the_kept_answer_alone(case: Case) -> None:
    """The very same Ack, and nothing is executed again: no counter but those of the packet."""
    bench = case.state()
    packet = Control(case.action, case.job, 77, case.value).build()
    first = packets_of(bench.send(case.who, TOS_CONTROL, packet)[0])
    before = dict(bench.counters)
    again = bench.send(case.who, TOS_CONTROL, packet)
    assert [packets_of(out) for out in again] == [first]
    changed = {name for name, count in bench.counters.items() if count != before[name]}
    assert changed == {"rx_packets", "rx_bytes", "tx_packets", "tx_bytes", "control"}


@each_case
def test_bare_answers_are_bare(case: Case) -> None:
    """NOT_MEMBER and what does not parse: zero in all fields; others tell the member's rank."""
    bench = case.state()
    _, ack, _ = bench.control(case.who, case.action, case.value, case.job)
    unparsed = isinstance(case.value, Round)
    if case.status is Status.NOT_MEMBER or unparsed:
        assert ack == Ack(case.action)
    else:
        assert ack.rank == {CONTROLLER: NO_RANK}.get(case.who, case.who)


def test_every_action_and_status_is_in_the_table() -> None:
    assert {case.action for case in CASES.values()} == set(Action) - {
        A.JOIN,
        A.ACK,
        A.SHOW,
    }  # that: tests/commands/test_ctl.py
    asked = {case.status for case in CASES.values()}
    assert asked == set(Status) - {
        S.MISMATCH,
        S.FULL,
        S.DENIED,
        S.RANK_TAKEN,
        S.SLOTS,
        S.WAITING,
        S.DRAINED,
        S.QUOTA,
    }  # these answer Joins


# Requests that are none


@pytest.mark.parametrize(
    "payload",
    [
        bytes([0, 0, 0, 7, 0, 0, 0, 9]),
        bytes([255, 0, 0, 7, 0, 0, 0, 9]),
        bytes([2, 1, 0, 7, 0, 0, 0, 9]),
        bytes([2, 0, 0, 7, 0, 0, 0, 9, 0]),
        bytes([6, 0, 0, 7, 0, 0, 0, 9]) + bytes(11),
    ],
)
def test_bad_request_is_answered_and_not_kept(payload: bytes) -> None:
    bench = fresh()
    (out,) = bench.send(0, TOS_CONTROL, payload)
    answer = Control(A.ACK, 7, 9, Ack(payload[0]), S.BAD_REQUEST)
    assert packets_of(out) == [answer.build()]
    assert bench.control(0, A.SETH, Threshold(5), request=9)[0] is S.OK


@pytest.mark.parametrize("length", [0, 1, 15, 16, 17])
def test_acks_are_never_answered(length: int) -> None:
    bench = fresh()
    assert bench.send(0, TOS_CONTROL, bytes([8, 0, 0, 7, 0, 0, 0, 9]) + bytes(length)) == []
    assert bench.counters.drops() == {"unmatched_ack": 1}


def test_ack_ends_a_relay() -> None:
    bench = half()
    (relayed,) = bench.control(0, A.HELP, ALL)[2]
    assert bench.counters["helps_relayed"] == 1
    request = Control.parse(packets_of(relayed)[0]).request
    ack = Control(A.ACK, JOB, request, Ack(A.HELP)).build()
    assert bench.send(0, TOS_CONTROL, ack) == []  # from somebody else
    assert bench.counters["unmatched_ack"] == 1
    assert (bench.switch.deadline() or 0.0) < LEASE
    assert bench.send(1, TOS_CONTROL, ack) == []
    assert bench.counters["unmatched_ack"] == 1
    assert bench.switch.deadline() == LEASE


# Answers


def test_answers_are_kept_per_sender_and_job() -> None:
    bench = fresh()
    bench.join(CONTROLLER, None, MemberType.CONTROLLER, job=8)
    assert bench.control(CONTROLLER, A.SETH, Threshold(5), request=1)[1].threshold == 5
    assert bench.control(CONTROLLER, A.SETH, Threshold(6), job=8, request=1)[1].threshold == 6
    assert bench.control(0, A.SETH, Threshold(7), request=1)[1].threshold == 7
    again = bench.control(CONTROLLER, A.SETH, Threshold(8), request=1)
    assert again[1].threshold == 5


def test_another_request_under_a_used_number_gets_the_old_answer() -> None:
    bench = fresh()
    packet = Control(A.SETH, JOB, 1, Threshold(5)).build()
    (first,) = bench.send(0, TOS_CONTROL, packet)
    (again,) = bench.send(0, TOS_CONTROL, Control(A.HALT, JOB, 1).build())
    assert packets_of(again) == packets_of(first)
    assert not bench.switch.jobs[JOB].halted


def test_sixty_four_answers_are_kept() -> None:
    bench = fresh()
    for request in range(1, 102):
        bench.control(0, A.SETH, Threshold(request), request=request)
    kept = bench.switch.jobs[JOB].members.by_address[peer(0)].answers
    assert [request for request in range(200) if kept.get(request)] == list(range(38, 102))
    assert len(kept) == PER_MEMBER == 64
    assert bench.control(0, A.SETH, Threshold(5), request=38)[1].threshold == 38
    assert bench.control(0, A.SETH, Threshold(5), request=37)[1].threshold == 5  # executed again


def test_senders_remembered_are_bounded() -> None:
    bench = Bench()
    for who in range(REMEMBERED + 50):
        bench.join(who, None, MemberType.CONTROLLER)
        bench.control(who, A.LEAVE, request=1)
    record = bench.switch.record
    assert len(record.former) == REMEMBERED == 1024
    assert len(bench.switch.jobs) == 0
    assert bench.control(49, A.LEAVE, request=1)[0] is S.NOT_MEMBER
    assert bench.control(50, A.LEAVE, request=1)[0] is S.OK


def test_strangers_leave_no_trace() -> None:
    bench = fresh()
    for who in range(20, 60):
        bench.control(who, A.HELP, ALL)
        bench.join(who, Shape.of(99))
    record = bench.switch.record
    assert not len(record.former)
    assert len(bench.switch.jobs[JOB].members) == 3


def test_answers_are_dropped_when_a_new_member_comes() -> None:
    bench = fresh()
    assert bench.control(1, A.SETH, Threshold(5), request=1)[1].threshold == 5
    bench.join(1, SHAPE, request=1001)
    assert bench.control(1, A.SETH, Threshold(6), request=1)[1].threshold == 6
