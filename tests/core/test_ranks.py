"""Ranks: one for each worker of a tree, no two with the same, whatever is lost and whoever dies."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from iswitch.core.format.wire import (
    FLAG_NEW,
    FLAG_REPRODUCIBLE,
    FLAG_STANDS_AT,
    FLAG_WHOLE,
    NO_RANK,
    RANKS,
    TOS_CONTROL,
    Ack,
    AckRanks,
    Action,
    Control,
    Join,
    MemberType,
    Status,
    TreeJoin,
)
from iswitch.core.switch import Switch
from tests.support.joined import MISMATCH, OK, OTHER, SHAPE, TAKEN, ask, ranks, state, tree_join
from tests.support.parts import JOB, Below, Bench, controls, peer
from tests.support.states import LEASE

pytestmark = pytest.mark.unit


# At one switch


def test_who_asks_gets_it_and_who_does_not_the_lowest_that_is_free() -> None:
    bench = Bench()
    wanted = (2, NO_RANK, 4, NO_RANK, 100)
    assert [ask(bench, who, rank)[1].rank for who, rank in enumerate(wanted)] == [2, 0, 4, 1, 100]


def test_with_num_workers_those_who_ask_come_first() -> None:
    """Whoever asks for none learns its rank when all are there: nobody's is given away."""
    bench = Bench()
    assert [ask(bench, 0, expected=3)[1].rank, ask(bench, 1, expected=3)[1].rank] == [NO_RANK] * 2
    assert ask(bench, 2, 0, expected=3)[1].rank == 0
    assert [ask(bench, who, expected=3)[1].rank for who in (0, 1)] == [1, 2]


def test_who_asks_after_the_start_may_find_its_rank_given() -> None:
    """A mix: rank 1, asked for, dies; who asks for none is there first, and has it from then on."""
    bench = Bench()
    wanted = (0, 1, NO_RANK)
    for who, rank in enumerate(wanted):
        ask(bench, who, rank, expected=3)
    assert ask(bench, 2, expected=3)[1].rank == 2
    bench.now = LEASE
    for who in (0, 2):
        bench.heartbeat(who, SHAPE)
    bench.switch.handle_timer(bench.now)
    assert ask(bench, 7, expected=3)[1].rank == 1
    bench.now += 1.0
    status, ack = ask(bench, 8, 1, expected=3)
    where = ".".join(map(str, ack.threshold.to_bytes(4, "big"))), ack.round
    assert (status, where) == (TAKEN, tuple(peer(7)[:2]))
    bench.control(7, Action.LEAVE)
    assert ask(bench, 8, 1, expected=3)[1].rank == 1
    assert ranks(bench) == {0: 0, 2: 2, 8: 1}


def test_a_rank_that_a_living_worker_has_is_refused() -> None:
    bench = Bench()
    ask(bench, 0, 1)
    bench.now = 1.5
    status, ack = ask(bench, 5, 1)
    assert status is TAKEN
    where = ".".join(map(str, ack.threshold.to_bytes(4, "big"))), ack.round
    assert (ack.rank, where, ack.contributors) == (1, tuple(peer(0)[:2]), 1500)
    assert bench.counters["ranks_refused"] == 1
    assert ranks(bench) == {0: 1}


def test_a_rank_is_free_when_its_owner_has_left() -> None:
    bench = Bench()
    ask(bench, 0, 1)
    bench.control(0, Action.LEAVE)
    assert ask(bench, 5, 1)[0] is OK


@pytest.mark.parametrize("asks", [1, NO_RANK])
def test_a_new_process_at_an_address_has_the_rank_of_the_old_one(asks: int) -> None:
    bench = Bench()
    ask(bench, 0, 0)
    ask(bench, 1, 1)
    ask(bench, 2, 2)
    bench.control(0, Action.LEAVE)  # so that a lower one is free
    assert ask(bench, 1, asks, request=1001)[1].rank == 1


@pytest.mark.parametrize("whole", [False, True])
def test_who_dies_makes_room_for_who_asks_for_its_rank(whole: bool) -> None:
    """In a whole job, too, where two are silent: the right one of them goes."""
    bench = Bench()
    flags = FLAG_WHOLE * whole
    for who in range(3):
        ask(bench, who, who, expected=3, flags=flags)
    bench.now = LEASE
    bench.heartbeat(0, SHAPE)
    assert ask(bench, 7, 2, expected=3, flags=flags)[0] is OK
    assert ranks(bench)[7] == 2
    assert 2 not in ranks(bench)
    assert 1 in ranks(bench)


def silent_owner() -> Bench:
    """A whole job of three, whose rank 2 is silent."""
    bench = Bench()
    for who in range(3):
        ask(bench, who, who, expected=3, flags=FLAG_WHOLE)
    bench.now = LEASE + 5.0
    for who in range(2):
        bench.heartbeat(who, SHAPE)
    return bench


def test_a_misfit_takes_no_silent_worker_out() -> None:
    bench = silent_owner()
    for shape, flags in ((OTHER, FLAG_WHOLE), (SHAPE, FLAG_WHOLE | FLAG_REPRODUCIBLE)):
        join = Join.for_shape(shape, MemberType.WORKER, 3, flags).asking(2)
        assert bench.control(9, Action.JOIN, join, request=1) == (MISMATCH, Ack(Action.JOIN), [])
    assert ranks(bench) == {0: 0, 1: 1, 2: 2}
    assert ask(bench, 9, 2, expected=3, flags=FLAG_WHOLE)[0] is OK
    assert ranks(bench) == {0: 0, 1: 1, 9: 2}


@pytest.mark.parametrize("rank", [2, NO_RANK])
def test_who_finds_no_memory_takes_no_silent_worker_out(
    rank: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = silent_owner()

    def lacks(_seat: int) -> None:
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(bench.switch.jobs[JOB].accelerator, "join", lacks)
        assert ask(bench, 9, rank, expected=3, flags=FLAG_WHOLE)[0] is Status.FULL
    assert ranks(bench) == {0: 0, 1: 1, 2: 2}
    assert ask(bench, 9, rank, expected=3, flags=FLAG_WHOLE)[0] is OK
    assert ranks(bench) == {0: 0, 1: 1, 9: 2}


def test_a_misfit_is_not_told_who_has_a_rank() -> None:
    bench = Bench()
    ask(bench, 0, 1)
    join = Join.for_shape(OTHER, MemberType.WORKER).asking(1)
    assert bench.control(5, Action.JOIN, join, request=1) == (MISMATCH, Ack(Action.JOIN), [])
    assert ask(bench, 5, 1)[0] is TAKEN


@pytest.mark.parametrize(("rank", "expected"), [(3, 3), (RANKS, 0), (NO_RANK - 1, 0)])
def test_there_is_no_such_rank(rank: int, expected: int) -> None:
    assert ask(Bench(), 0, rank, expected, flags=FLAG_NEW)[0] is Status.BAD_REQUEST


def test_who_comes_back_keeps_a_rank_beyond_expected() -> None:
    """Three workers of two that were expected: a restarted switch gives each the rank it had."""
    bench = Bench()
    for who in (2, 0, 1):
        status, ack = ask(bench, who, who, expected=2, flags=FLAG_STANDS_AT)
        assert (status, ack.rank) == (OK, who)
    assert ask(Bench(), 0, RANKS, expected=2)[0] is Status.BAD_REQUEST


@pytest.mark.parametrize("type_", [MemberType.SWITCH, MemberType.CONTROLLER])
def test_only_workers_have_ranks(type_: MemberType) -> None:
    join = Join.for_shape(SHAPE, type_).asking(0)
    assert Bench().control(0, Action.JOIN, join)[0] is Status.BAD_REQUEST


def test_a_repeat_changes_nothing() -> None:
    bench = Bench()
    ask(bench, 0, 1)
    assert ask(bench, 0, 2)[1].rank == 1


def test_sums_in_rank_order() -> None:
    """The seats are in the order of joining, the sum is not: its bits tell."""
    values = np.array([1e8, 1.0, -1e8], np.float32)
    order = [2, 0, 1]  # ranks by worker; 64 more: seats are other numbers
    bench = Bench(Switch(reproducible=True))
    for who, rank in enumerate(order):
        assert ask(bench, who, rank + 64, expected=0)[1].rank == rank + 64
    for who in (1, 0, 2):
        sent = bench.contribute(who, SHAPE, 0, np.full(3, values[order[who]]))
    (packet,) = sent
    in_order = (values[0] + values[1]) + values[2]
    assert (np.frombuffer(packet[8:], np.float32) == in_order).all()
    assert in_order != (values[2] + values[0]) + values[1]


# What a switch below states


def test_the_root_decides() -> None:
    bench = Bench()
    ask(bench, 9, 0)
    assert state(bench, 0, 1, 0b0111).ranks == 0b0110
    ack = state(bench, 1, 1, 0b1010, unranked=2)
    assert (ack.statement, ack.given, ack.ranks) == (1, 2, 0b111000)
    assert ask(bench, 8, 4)[0] is TAKEN
    assert ask(bench, 8)[1].rank == 6


def test_an_older_statement_is_not_heeded() -> None:
    bench = Bench()
    state(bench, 0, 2, 0b11)
    assert state(bench, 0, 1, 0b100).ranks == 0b11
    assert ask(bench, 8, 1)[0] is TAKEN
    assert state(bench, 0, 3, 0b01).ranks == 0b01
    assert ask(bench, 8, 1)[0] is OK


def test_numbers_are_given_once() -> None:
    """The answer to a statement that is repeated is the same."""
    bench = Bench()
    first = state(bench, 0, 1, 0, unranked=3)
    assert state(bench, 0, 1, 0, unranked=3) == first
    assert first.ranks == 0b111


def test_no_rank_is_given_before_all_have_come() -> None:
    """To a root that was restarted, too: those who had ranks have theirs first."""
    bench = Bench()

    def told(who: int, stated: int, unranked: int) -> int:
        value = replace(tree_join(1, stated, unranked), expected=2)
        _, ack, _ = bench.control(who, Action.JOIN, value, request=1000)
        assert isinstance(ack, AckRanks)
        return ack.ranks

    assert told(0, 0, unranked=1) == 0
    assert told(1, 0b01, unranked=0) == 0b01
    assert told(0, 0, unranked=1) == 0b10


def test_a_restarted_switch_finds_the_ranks_that_it_had() -> None:
    """For a lease: its workers come back one by one."""
    bench = Bench()
    state(bench, 0, 5, 0b111)
    assert state(bench, 0, 1, 0b010, request=1001).ranks == 0b010
    assert ask(bench, 8, 2)[0] is TAKEN
    assert ask(bench, 8)[1].rank == 3
    assert state(bench, 0, 2, 0b110, request=1001).ranks == 0b110
    bench.now = LEASE
    state(bench, 0, 2, 0b110, request=1001)
    assert ask(bench, 9, 0)[0] is OK


def test_a_switch_that_restarts_twice_finds_the_ranks_of_those_who_were_not_back() -> None:
    """For a lease from the last time; what is no longer kept by then is not kept again."""
    bench = Bench()
    state(bench, 0, 5, 0b011)
    bench.now = LEASE / 2
    state(bench, 0, 1, 0b010, request=1001)
    bench.now = LEASE
    state(bench, 0, 1, 0b010, request=1002)
    assert ask(bench, 8, 0)[0] is TAKEN
    assert ask(bench, 8)[1].rank == 2
    bench.now = 2 * LEASE
    bench.heartbeat(8, SHAPE)
    state(bench, 0, 1, 0b010, request=1003)
    assert ask(bench, 9)[1].rank == 0


def decided(bench: Below, asked: Control, statement: int, ranks: int) -> list[Control]:
    """What follows as the parent grants these ranks of a statement; 0: it has to ask the root."""
    value = Ack(Action.JOIN).telling(statement, 0, ranks)
    answer = Control(Action.ACK, JOB, asked.request, value)
    return controls(bench.hears(TOS_CONTROL, [answer.build()]))


def comes(bench: Below, who: int, join: Join) -> list[Control]:
    return controls(bench.send(who, TOS_CONTROL, Control(Action.JOIN, JOB, 1000, join).build()))


def worker(rank: int) -> Join:
    return Join.for_shape(SHAPE, MemberType.WORKER, 3, FLAG_NEW).asking(rank)


def test_one_answer_confirms_the_ranks_of_all_who_wait() -> None:
    """Taking one in states anew what the others ask for: none of them is refused by that."""
    bench = Below()
    (up,) = comes(bench, 0, worker(0))
    assert comes(bench, 1, worker(1)) + comes(bench, 2, worker(2)) == []
    (up,) = decided(bench, up, 0, 0)
    assert isinstance(up.value, TreeJoin)
    assert up.value.ranks == 0b111
    told = decided(bench, up, up.value.statement, 0b011)  # rank 2 is another's
    answers = [packet.status for packet in told if packet.action is Action.ACK]
    assert answers == [OK, OK, TAKEN]
    assert ranks(bench) == {0: 0, 1: 1}


def test_a_rank_of_a_worker_here_is_not_granted_to_a_switch_below() -> None:
    """The parent grants it to this switch: it does not know who has it."""
    bench = Below()
    (up,) = comes(bench, 0, worker(0))
    decided(bench, up, 1, 0b01)
    assert ranks(bench) == {0: 0}
    up = comes(bench, 1, tree_join(1, 0b11))[-1]
    decided(bench, up, 2, 0b11)
    assert [member.ranks for member in bench.switch.jobs[JOB].contributors()] == [0b01, 0b10]


def test_a_worker_whose_rank_the_parent_takes_back_is_out() -> None:
    bench = Below()
    (up,) = comes(bench, 0, worker(0))
    decided(bench, up, 1, 0b01)
    up = comes(bench, 1, tree_join(1, 0b10))[-1]
    decided(bench, up, 2, 0b10)  # rank 0 is another's
    assert [member.ranks for member in bench.switch.jobs[JOB].contributors()] == [0b10]
    assert bench.counters["ranks_lost"] == 1
