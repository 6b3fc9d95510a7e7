"""Joins and their answers: who is taken, who is refused, who goes before whom."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from iswitch.core.format.wire import (
    FLAG_FIRST,
    FLAG_HEARTBEAT,
    FLAG_NEW,
    FLAG_REPRODUCIBLE,
    FLAG_STANDS_AT,
    NO_RANK,
    TOS_CONTROL,
    TOS_DATA,
    Ack,
    Control,
    DType,
    Join,
    MemberType,
    Op,
    Segments,
    Show,
    Shown,
    Status,
    SwitchJoin,
    Threshold,
)
from iswitch.core.format.wire import Action as A
from iswitch.core.format.wire import Status as S
from iswitch.core.jobs.answers import LINGER
from iswitch.core.jobs.limits import Limits
from iswitch.core.switch import Switch
from tests.support.parts import JOB, Bench, packets_of, peer
from tests.support.states import (
    CONTROLLER,
    ONES,
    SHAPE,
    all_three,
    commander,
    effects,
    fresh,
    half,
    halted,
    join,
    nothing,
    sums,
    third_round,
    versions,
)

pytestmark = pytest.mark.unit


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


def test_switches_cannot_claim_more_workers_than_a_join_can_tell() -> None:
    bench = Bench()
    value = SwitchJoin(type=1, dtype=DType.INT32, elements=2, last=2, segments=3, workers=2**16 - 1)
    for who in range(3):
        status, ack, _ = bench.control(who, A.JOIN, value)
        assert (status, ack.contributors) == (S.OK, 2**16 - 1)


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
