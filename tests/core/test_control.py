"""Requests and their answers: a table of (state, packet, status, effects) drives the tests."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pytest

from iswitch.core.format.packets import Outgoing
from iswitch.core.format.wire import (
    FLAG_FIRST,
    FLAG_HEARTBEAT,
    FLAG_NEW,
    FLAG_REPRODUCIBLE,
    FLAG_STANDS_AT,
    FLAG_WHOLE,
    NO_RANK,
    TOS_CONTROL,
    TOS_DATA,
    Ack,
    Action,
    Control,
    DType,
    Join,
    MemberType,
    Mode,
    Op,
    Round,
    Segments,
    Shape,
    Show,
    Shown,
    Status,
    SwitchJoin,
    Threshold,
    Value,
)
from iswitch.core.jobs.answers import LINGER, PER_MEMBER, REMEMBERED
from iswitch.core.jobs.leases import AWAKE
from iswitch.core.jobs.limits import Limits
from iswitch.core.sums.numpy_plane import memory_needed
from iswitch.core.switch import Switch
from tests.support.parts import JOB, Bench, packets_of, peer, seg, segments_of

pytestmark = pytest.mark.unit

SHAPE = Shape.of(6, DType.INT32, elements=2)  # three segments
ASYNC = Shape.of(6, DType.INT32, mode=Mode.ASYNCHRONOUS, elements=2)
ONES = np.ones(6, np.int32)
LEASE = Limits().lease
CONTROLLER = 9  # the address of the controller in the states below


def sums(round_: int, workers: int) -> list[bytes]:
    """The aggregates of a round to which so many have contributed ones."""
    return segments_of(SHAPE, round_, workers * ONES)


# States


def nothing() -> Bench:
    return Bench()


def fresh() -> Bench:
    """Two workers and a controller, nothing contributed yet."""
    bench = Bench()
    bench.gather(SHAPE, 2)
    status, ack, _ = bench.join(CONTROLLER, None, MemberType.CONTROLLER)
    assert (status, ack.rank) == (Status.OK, NO_RANK)
    return bench


def half() -> Bench:
    """Worker 0 has contributed to round 0."""
    bench = fresh()
    assert bench.contribute(0, SHAPE, 0, ONES) == {}
    return bench


def third_round() -> Bench:
    """Rounds 0 to 2 are complete."""
    bench = fresh()
    for round_ in range(3):
        bench.contribute(0, SHAPE, round_, ONES)
        bench.contribute(1, SHAPE, round_, ONES)
    return bench


def halted() -> Bench:
    bench = half()
    assert bench.control(CONTROLLER, Action.HALT)[0] is Status.OK
    return bench


def commander() -> Bench:
    """A controller alone."""
    bench = Bench()
    bench.join(CONTROLLER, None, MemberType.CONTROLLER)
    return bench


def versions() -> Bench:
    """Two workers of an asynchronous job; 9 versions, and one contribution to the tenth."""
    bench = Bench()
    bench.gather(ASYNC, 2)
    for number in range(1, 20):
        bench.contribute(0, ASYNC, number, ONES)
    return bench


# What a request does, in words


def effects(sends: list[Outgoing]) -> list[str]:
    """What goes out besides the Ack: "to whom: what"."""
    found = []
    for out in sends:
        to = ",".join(str(who.port - 40000) for who in out.peers)
        for packet in packets_of(out):
            if out.tos == TOS_DATA:
                round_, index = (int.from_bytes(packet[a : a + 4], "big") for a in (0, 4))
                number = int.from_bytes(packet[8:12], "little")
                found.append(f"{to}: {round_}.{index} = {number}")
                continue
            relayed = Control.parse(packet)
            value = relayed.value
            if isinstance(value, Segments):
                what = f" {value.round}.{value.index}+{value.count}"
            else:
                what = f" {value.round}" if isinstance(value, Round) else ""
            found.append(f"{to}: {relayed.action.name}{what}")
    return found


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


def all_three(to: str, round_: int, value: int) -> tuple[str, ...]:
    return tuple(f"{to}: {round_}.{index} = {value}" for index in range(3))


A, S, C = Action, Status, Case
ALL = Segments(0, 0, 3)
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
    assert asked == set(Status) - {S.MISMATCH, S.FULL, S.DENIED, S.RANK_TAKEN}  # these answer Joins


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


# Join


def join(**fields: int) -> Join:
    named = {"type": 0, "dtype": DType.INT32, "elements": 2, "last": 2, "segments": 3}
    return Join(**(named | fields))


MISFITS: list[dict[str, Any]] = [
    {"dtype": 0},
    {"op": Op.MAX},
    {"mode": 1},
    {"elements": 3},
    {"last": 1},
    {"segments": 4},
]
JOINS = [
    # state, who, job, Join, status, rank, threshold, round, contributors
    (nothing, 0, JOB, join(), S.OK, 0, 1, 0, 1),
    (nothing, 0, JOB, join(type=1), S.OK, NO_RANK, 1, 0, 1),
    (nothing, 0, JOB, Join(2), S.OK, NO_RANK, 0, 0, 0),
    (nothing, 0, JOB, join(type=2), S.OK, NO_RANK, 0, 0, 0),
    (nothing, 0, JOB, join(flags=FLAG_STANDS_AT, round=41), S.OK, 0, 1, 41, 1),
    (nothing, 0, JOB, join(flags=FLAG_REPRODUCIBLE), S.OK, 0, 1, 0, 1),
    (nothing, 0, JOB, join(flags=FLAG_REPRODUCIBLE, mode=1), S.BAD_REQUEST, 0, 0, 0, 0),
    (nothing, 0, JOB, Join(0), S.BAD_REQUEST, 0, 0, 0, 0),
    (nothing, 0, JOB, Join(1), S.BAD_REQUEST, 0, 0, 0, 0),
    (nothing, 0, JOB, join(type=3), S.BAD_REQUEST, 0, 0, 0, 0),
    (nothing, 0, JOB, join(segments=0), S.BAD_REQUEST, 0, 0, 0, 0),
    (nothing, 0, JOB, join(elements=16375), S.BAD_REQUEST, 0, 0, 0, 0),
    (nothing, 0, JOB, join(segments=2**32 - 1), S.FULL, 0, 0, 0, 0),
    *((fresh, 5, JOB, join(**misfit), S.MISMATCH, 0, 0, 0, 0) for misfit in MISFITS[:3]),
    *((fresh, 5, JOB, join(**misfit), S.MISMATCH, 0, 0, 0, 0) for misfit in MISFITS[3:]),
    (fresh, 5, JOB, join(type=2, op=1), S.MISMATCH, 0, 0, 0, 0),
    (fresh, 5, JOB, join(flags=FLAG_REPRODUCIBLE), S.MISMATCH, 0, 0, 0, 0),
    (fresh, 5, JOB, join(), S.OK, 2, 3, 0, 3),
    (half, 5, JOB, join(), S.OK, 2, 3, 1, 3),
    (third_round, 5, JOB, join(), S.OK, 2, 3, 3, 3),
    (halted, 5, JOB, join(), S.OK, 2, 3, 1, 3),
    (commander, 5, JOB, join(expected=3), S.OK, NO_RANK, 1, 0, 1),
    (fresh, 5, JOB, Join(2), S.OK, NO_RANK, 2, 0, 2),
    (fresh, 0, 8, join(), S.OK, 0, 1, 0, 1),  # a later process: it takes the address over
    (fresh, 0, 8, Join(2), S.OK, NO_RANK, 0, 0, 0),
    (fresh, CONTROLLER, 8, join(), S.OK, 0, 1, 0, 1),
    (versions, 5, JOB, join(mode=1), S.OK, 2, 3, 9, 3),
]


@pytest.mark.parametrize(
    ("state", "who", "job", "value", "status", "wanted"), [(*case[:5], case[5:]) for case in JOINS]
)
def test_join(
    state: Callable[[], Bench],
    who: int,
    job: int,
    value: Join,
    status: Status,
    wanted: tuple[int, int, int, int],
) -> None:
    rank, threshold, round_, contributors = wanted
    bench = state()
    before = bench.switch.record.reserved
    found, ack, sends = bench.control(who, A.JOIN, value, job, request=2000)
    assert found is status
    known = int(status is S.OK and bool(value.flags & FLAG_STANDS_AT))
    if status is S.FULL:  # asked and free, in KiB
        assert ack.threshold > ack.round > 0
        ack = replace(ack, threshold=threshold, round=round_)
    assert ack == Ack(A.JOIN, known, rank, threshold, round_, contributors)
    assert sends == []
    if status is not S.OK:
        assert bench.switch.record.reserved == before


@pytest.mark.parametrize(
    ("value", "status"),
    [
        (join(), S.OK),
        (join(type=1), S.MISMATCH),
        (join(type=2), S.MISMATCH),
        (Join(2), S.MISMATCH),
        *((join(**misfit), S.MISMATCH) for misfit in MISFITS),
    ],
)
def test_heartbeat(value: Join, status: Status) -> None:
    """The member's own number: nothing changes, whatever the Join says."""
    bench = half()
    found, ack, sends = bench.control(1, A.JOIN, value, request=1000)
    assert (found, sends) == (status, [])
    assert ack == (Ack(A.JOIN, 0, 1, 2, 0, 2) if status is S.OK else Ack(A.JOIN))
    assert bench.contribute(1, SHAPE, 0, ONES) != {}


def outdone(bench: Bench, who: int, request: int, flags: int = 0, job: int = JOB) -> Ack:
    """A Join whose number is too small; what the answer says."""
    before = bench.counters["stale_join"]
    status, ack, sends = bench.join(who, SHAPE, flags=flags, request=request, job=job)
    assert (status, sends) == (S.DENIED, [])
    assert bench.counters["stale_join"] == before + 1
    return ack


def test_older_incarnation_is_told_the_last_number() -> None:
    bench = fresh()
    assert outdone(bench, 0, 999) == Ack(A.JOIN, 0, 0, 1000, 1000, 0)
    bench.control(0, A.SETH, Threshold(0), request=1007)
    assert outdone(bench, 0, 999) == Ack(A.JOIN, 0, 0, 1000, 1007, 0)
    status, ack, _ = bench.join(0, SHAPE, flags=FLAG_HEARTBEAT, request=999)
    assert (status, ack) == (S.NOT_MEMBER, Ack(A.JOIN))  # it is out, if it lives
    assert bench.join(0, SHAPE, request=1000)[1].rank == 0


def test_a_new_process_has_to_outdo_every_number_of_the_one_before() -> None:
    """With flags bit 5; also one that begins in the very second in which the one before did."""
    bench = Bench()
    for _ in range(2):  # a repeat: its Ack was lost
        assert bench.join(0, SHAPE, flags=FLAG_NEW)[0] is S.OK
    bench.control(0, A.SETH, Threshold(0), request=1007)
    for request in (1000, 1001, 1007):
        assert outdone(bench, 0, request, FLAG_NEW).round == 1007
    assert bench.join(0, SHAPE, flags=FLAG_NEW, request=1008)[0] is S.OK


def test_a_new_process_of_a_member_that_only_sent_data() -> None:
    bench = Bench()
    bench.join(0, SHAPE, expected=2, flags=FLAG_NEW)
    assert bench.join(0, SHAPE, expected=2, flags=FLAG_NEW)[0] is S.OK
    bench.send(0, TOS_DATA, bytes(9))  # of no length that there is: somebody else's, perhaps
    assert bench.join(0, SHAPE, expected=2, flags=FLAG_NEW)[0] is S.OK
    bench.contribute(0, SHAPE, 0, ONES)
    assert outdone(bench, 0, 1000, FLAG_NEW).round == 1000


@pytest.mark.parametrize("goes", [False, True])
def test_numbers_of_processes_wrap(goes: bool) -> None:
    """None is the last of all; 0 is not told as a number, since it says that none helps."""
    bench = Bench()
    bench.join(0, SHAPE, flags=FLAG_NEW, request=2**32 - 1)
    bench.control(0, A.SETH, Threshold(0), request=2**32 - 1)
    if goes:
        bench.send(0, TOS_CONTROL, Control(A.LEAVE, JOB, 0).build())
    assert outdone(bench, 0, 2**32 - 9, FLAG_NEW).round == (1 if goes else 2**32 - 1)
    assert bench.join(0, SHAPE, flags=FLAG_NEW, request=2)[0] is S.OK
    assert outdone(bench, 0, 2**32 - 1).round == 2


def test_newer_incarnation_leaves_and_joins() -> None:
    """What waited for the old process alone completes; the new one begins one round further."""
    bench = half()
    packet = Control(A.JOIN, JOB, 1001, join(expected=2)).build()
    *sends, answer = bench.send(1, TOS_CONTROL, packet)
    assert effects(sends) == list(all_three("0", 0, 1))
    ack = Control(A.ACK, JOB, 1001, Ack(A.JOIN, 0, 1, 2, 2, 2))
    assert packets_of(answer) == [ack.build()]
    bench.contribute(1, SHAPE, 1, ONES)
    assert bench.counters.drops() == {"before_join": 3}


def test_each_process_begins_beyond_the_one_before() -> None:
    """What the old ones may have under way counts for none that comes after them."""
    bench = fresh()
    rounds = []
    for request in (1001, 1002, 1003):
        status, ack, _ = bench.join(1, SHAPE, expected=2, request=request)
        assert status is S.OK
        rounds.append(ack.round)
    assert rounds == [1, 2, 3]
    for round_ in rounds[:-1]:
        bench.contribute(1, SHAPE, round_, ONES)
    assert bench.counters.drops() == {"before_join": 6}


def test_a_seat_whose_bit_is_held_is_not_given_away() -> None:
    """Worker 1 contributes and leaves before all have come; its bit is in the sum of round 0."""
    bench = Bench()
    for who in (0, 1):
        bench.join(who, SHAPE, expected=3)
    bench.contribute(1, SHAPE, 0, ONES)
    bench.control(1, A.LEAVE)
    assert [bench.join(who, SHAPE, expected=3)[1].rank for who in (2, 3)] == [NO_RANK, 2]
    members = bench.switch.jobs[JOB].members.by_address
    assert {who: members[peer(who)].seat for who in (0, 2, 3)} == {0: 0, 2: 2, 3: 3}
    assert {who: members[peer(who)].rank for who in (0, 2, 3)} == {0: 0, 2: 1, 3: 2}
    sent = [bench.contribute(who, SHAPE, 0, ONES) for who in (0, 2, 3)]
    assert sent == [{}, {}, {packet: {peer(0), peer(2), peer(3)} for packet in sums(0, 4)}]
    assert bench.counters.drops() == {}


def test_memory_beyond_what_an_ack_can_tell() -> None:
    """It tells the most it can; a number that does not fit would end the switch."""
    huge = join(elements=366, last=366, segments=2**32 - 1)
    status, ack, _ = Bench().control(0, A.JOIN, huge)
    assert (status, ack.threshold) == (S.FULL, 2**32 - 1)
    bench = Bench(Switch(Limits(memory=1 << 43)))
    status, ack, _ = bench.control(0, A.SHOW, Show(Shown.SWITCH))
    assert (status, ack.threshold) == (S.OK, 2**32 - 1)
    status, ack, _ = bench.control(0, A.JOIN, huge)
    assert (status, ack.threshold, ack.round) == (S.FULL, 2**32 - 1, 2**32 - 1)


def test_a_controller_is_told_of_who_is_there() -> None:
    """Not of who was, when all were: it contributes nothing that would make it one of them."""
    bench = Bench()
    bench.join(CONTROLLER, None, MemberType.CONTROLLER)
    for who in (0, 1):
        bench.join(who, SHAPE, expected=2)
    assert bench.control(1, A.LEAVE)[0] is S.OK
    assert bench.join(CONTROLLER, None, MemberType.CONTROLLER)[1].contributors == 1


def test_newer_incarnation_of_a_switch_goes_on() -> None:
    bench = Bench()
    for who in (0, 1):
        bench.join(who, SHAPE, MemberType.SWITCH, expected=2)
    bench.contribute(0, SHAPE, 0, ONES)
    status, ack, sends = bench.join(0, SHAPE, MemberType.SWITCH, request=1001)
    assert (status, ack.rank, ack.round, sends) == (S.OK, NO_RANK, 0, [])
    bench.contribute(0, SHAPE, 0, ONES)
    assert bench.counters.drops() == {"duplicate": 3}


def test_switches_cannot_claim_more_workers_than_an_ack_can_tell() -> None:
    bench = Bench()
    value = SwitchJoin(type=1, dtype=DType.INT32, elements=2, last=2, segments=3, workers=2**32 - 1)
    for who in range(3):
        status, ack, _ = bench.control(who, A.JOIN, value)
        assert (status, ack.contributors) == (S.OK, 2**32 - 1)


def test_a_new_process_of_a_switch_is_not_given_answers_of_the_old_one() -> None:
    """It numbers its requests from its own incarnation on, which is not far from the old one's."""
    bench = Bench()
    bench.join(0, SHAPE, MemberType.SWITCH)
    assert bench.control(0, A.SETH, Threshold(1), request=1002)[0] is S.OK
    assert bench.join(0, SHAPE, MemberType.SWITCH, request=1001)[0] is S.OK
    assert bench.control(0, A.SETH, Threshold(2), request=1002)[1].threshold == 2


def test_late_copy_of_a_join_after_leave() -> None:
    """For a moment after a Leave; then the same process may join again."""
    bench = fresh()
    bench.control(1, A.LEAVE)
    bench.now = LINGER / 2
    outdone(bench, 1, 1000)
    bench.now = LINGER
    assert bench.join(1, SHAPE)[0] is S.OK


def test_join_opens_the_gate() -> None:
    bench = Bench()
    bench.join(0, SHAPE, expected=2)
    bench.control(0, A.SETH, Threshold(1))
    assert bench.contribute(0, SHAPE, 0, ONES) == {}
    status, _, sends = bench.join(1, SHAPE)
    assert status is S.OK
    assert effects(sends) == list(all_three("0,1", 0, 1))


def test_first_who_comes_back_names_the_round() -> None:
    bench = Bench()
    first = join(expected=3, flags=FLAG_STANDS_AT | FLAG_FIRST, round=42)
    assert bench.control(0, A.JOIN, first)[1].round == 42
    back = join(expected=3, flags=FLAG_STANDS_AT, round=41)
    assert bench.control(1, A.JOIN, back)[1].round == 41
    ahead = join(expected=3, flags=FLAG_STANDS_AT, round=42)
    assert bench.control(2, A.JOIN, ahead)[1].round == 42


def test_lost_place_moves_up() -> None:
    """Worker 1 slept while H was 1; Help tells it to go on at the newest round."""
    bench = fresh()
    bench.control(0, A.SETH, Threshold(1))
    for round_ in range(4):
        bench.contribute(0, SHAPE, round_, ONES)
    bench.control(0, A.SETH, Threshold(0))
    status, ack, sends = bench.control(1, A.HELP, Segments(0, 0, 3))
    assert (status, ack.round, sends) == (S.GONE, 3, [])
    assert bench.contribute(0, SHAPE, 4, ONES) == {}
    assert len(bench.contribute(1, SHAPE, 4, ONES)) == 3


def test_help_for_a_round_before_a_reset_is_answered_gone() -> None:
    """Nothing is held of it, but nothing ever will be."""
    bench = half()
    bench.control(0, A.RESET)
    status, ack, sends = bench.control(1, A.HELP, Segments(0, 0, 3))
    assert (status, ack.round, sends) == (S.GONE, 2, [])


def test_nothing_before_waits_for_who_lost_its_place() -> None:
    """Round 4 is open when a newcomer, while H is set, begins round 5, and H is automatic again."""
    bench = Bench()
    bench.gather(SHAPE, 3)
    bench.control(0, A.SETH, Threshold(1))
    for round_ in range(4):
        bench.contribute(0, SHAPE, round_, ONES)
    bench.control(0, A.SETH, Threshold(2))
    bench.contribute(0, SHAPE, 4, ONES)
    assert bench.join(3, SHAPE)[1].round == 5
    assert bench.contribute(3, SHAPE, 5, ONES) == {}
    assert bench.control(0, A.SETH, Threshold(0))[2] == []
    assert bench.control(1, A.HELP, Segments(0, 0, 3))[1].round == 5
    status, ack, sends = bench.control(2, A.HELP, Segments(0, 0, 3))
    assert (status, ack.round) == (S.GONE, 5)
    assert [packet for out in sends for packet in packets_of(out)] == sums(4, 1)
    assert [len(bench.contribute(who, SHAPE, 5, ONES)) for who in (0, 1, 2)] == [0, 0, 3]


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


# Limits


def test_full_by_memory() -> None:
    """To the byte; who is refused changes nothing, and the last to leave gives all back."""
    base, each = (memory_needed(SHAPE, True, first) for first in (True, False))
    bench = Bench(Switch(Limits(memory=base + 2 * each - 1)))
    assert bench.join(0, SHAPE, flags=FLAG_REPRODUCIBLE)[0] is S.OK
    assert bench.join(1, SHAPE, flags=FLAG_REPRODUCIBLE) == (S.OK, Ack(A.JOIN, 0, 1, 2, 0, 2), [])
    assert bench.switch.record.reserved == base + each
    told = Ack(A.JOIN, threshold=-(-each // 1024), round=(each - 1) // 1024)  # asked and free, KiB
    assert bench.join(2, SHAPE, flags=FLAG_REPRODUCIBLE) == (S.FULL, told, [])
    assert bench.join(2, SHAPE, job=8)[0] is S.FULL
    assert bench.switch.record.reserved == base + each
    assert set(bench.switch.jobs) == {JOB}
    assert len(bench.switch.jobs[JOB].members) == 2
    assert peer(2) not in bench.switch.record.by_source
    bench.control(0, A.LEAVE)
    assert bench.switch.record.reserved == base + each  # the buffers are still there
    bench.control(1, A.LEAVE)
    assert bench.switch.record.reserved == 0
    assert bench.join(2, SHAPE, job=8)[0] is S.OK


def test_memory_is_for_all_jobs_to_the_byte() -> None:
    need = memory_needed(SHAPE, False, True)
    for spare, status in [(0, S.OK), (-1, S.FULL)]:
        bench = Bench(Switch(Limits(memory=2 * need + spare)))
        assert bench.join(0, SHAPE, job=1)[0] is S.OK
        assert bench.join(1, SHAPE, job=2)[0] is status


def test_first_contributor_is_refused_for_memory() -> None:
    bench = Bench(Switch(Limits(memory=memory_needed(SHAPE, False, True) - 1)))
    assert bench.join(0, SHAPE)[0] is S.FULL
    assert (bench.switch.jobs, bench.switch.record.by_source) == ({}, {})
    assert bench.join(0, None, MemberType.CONTROLLER)[0] is S.OK


def test_a_rank_that_is_taken_again_reserves_nothing_more() -> None:
    bench = Bench()
    bench.gather(ASYNC, 3)
    before = bench.switch.record.reserved
    for incarnation in range(1001, 1010):
        bench.join(1, ASYNC, request=incarnation)
        assert bench.switch.record.reserved == before


def test_full_by_jobs() -> None:
    bench = Bench(Switch(Limits(jobs=2)))
    assert [bench.join(who, SHAPE, job=who)[0] for who in range(3)] == [S.OK, S.OK, S.FULL]
    assert bench.join(5, SHAPE, job=1)[0] is S.OK
    assert bench.join(CONTROLLER, None, MemberType.CONTROLLER, job=3)[0] is S.FULL
    bench.control(0, A.LEAVE, job=0)
    assert bench.join(2, SHAPE, job=2)[0] is S.FULL  # its place is kept for a while
    bench.now = LEASE / 2
    for who in (1, 5):
        bench.heartbeat(who, SHAPE, job=1)
    bench.switch.handle_timer(LEASE)
    assert bench.join(CONTROLLER, None, MemberType.CONTROLLER, job=3)[0] is S.OK
    bench.control(CONTROLLER, A.LEAVE, job=3)  # never had a contributor: forgotten at once
    assert bench.join(2, SHAPE, job=2)[0] is S.OK


@pytest.mark.parametrize("type_", [MemberType.WORKER, MemberType.CONTROLLER])
def test_full_by_seats(type_: MemberType) -> None:
    bench = Bench()
    for who in range(64):
        shape = None if who % 2 else SHAPE
        assert (
            bench.join(who, shape, MemberType.CONTROLLER if who % 2 else MemberType.WORKER)[0]
            is S.OK
        )
    assert bench.join(99, SHAPE, type_) == (S.FULL, Ack(A.JOIN, rank=64), [])  # members
    bench.control(10, A.LEAVE)
    assert bench.join(99, SHAPE, type_)[:2] == (
        S.OK,
        Ack(A.JOIN, 0, NO_RANK if type_ == 2 else 5, 32 - (type_ == 2), 0, 32 - (type_ == 2)),
    )


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
