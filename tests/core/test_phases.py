"""Each step that a table of phases allows is made by some packet; each other raises.

`SCRIPTS` has a history for each step of each table, and the tests are made of the tables: a step
that is added to one without its history fails, as does a history that makes its step no more.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from enum import Enum
from itertools import product
from typing import Any

import numpy as np
import pytest

from iswitch.core.format.wire import (
    FLAG_FIRST,
    FLAG_HEARTBEAT,
    FLAG_STANDS_AT,
    FLAG_WHOLE,
    TOS_CONTROL,
    Ack,
    Action,
    Control,
    DType,
    Join,
    MemberType,
    Round,
    Shape,
    Status,
)
from iswitch.core.jobs import job, member, uplink, window
from iswitch.core.jobs.phases import (
    JOB,
    NAMED,
    STANDING,
    UPLINK,
    JobPhase,
    Named,
    Standing,
    UplinkPhase,
    WrongStep,
    follow,
)
from tests.support.parts import JOB as NUMBER
from tests.support.parts import Below, Bench, controls

pytestmark = [pytest.mark.unit, pytest.mark.usefixtures("quiet")]

SHAPE = Shape.of(4, DType.FLOAT32, elements=4)
ONES = np.ones(4, np.float32)
TABLES: tuple[Mapping[Any, set[Any]], ...] = (JOB, STANDING, NAMED, UPLINK)
ALLOWED = {(before, after) for table in TABLES for before in table for after in table[before]}
Script = Callable[[], None]


# Stars


def joins(bench: Bench, who: int, expected: int = 0, flags: int = 0, round_: int = 0) -> None:
    join = Join.for_shape(SHAPE, MemberType.WORKER, expected, flags)
    bench.control(who, Action.JOIN, replace(join, round=round_), request=1000)


def one_comes() -> Bench:
    bench = Bench()
    joins(bench, 0)
    return bench


def one_of_two_comes() -> Bench:
    bench = Bench()
    joins(bench, 0, 2)
    return bench


def two_come() -> None:
    joins(one_of_two_comes(), 1, 2)


def more_are_expected() -> None:
    joins(one_comes(), 1, 3)


def the_only_one_leaves() -> None:
    one_comes().control(0, Action.LEAVE)


def the_first_of_two_leaves() -> None:
    one_of_two_comes().control(0, Action.LEAVE)


def one_contributes() -> Bench:
    bench = one_comes()
    bench.contribute(0, SHAPE, 0, ONES)
    return bench


def one_moves_on() -> None:
    one_contributes().contribute(0, SHAPE, 1, ONES)


def one_comes_back_in_its_first_round() -> Bench:
    bench = Bench()
    joins(bench, 0, 2, FLAG_STANDS_AT | FLAG_FIRST, 5)
    return bench


def another_comes_back_later() -> None:
    joins(one_comes_back_in_its_first_round(), 1, 2, FLAG_STANDS_AT, 6)


def one_held_back_contributes_once_all_are_there() -> None:
    bench = one_comes_back_in_its_first_round()
    joins(bench, 1, 2, FLAG_STANDS_AT | FLAG_FIRST, 5)
    bench.contribute(0, SHAPE, 5, ONES)


def one_held_back_is_reset() -> None:
    one_comes_back_in_its_first_round().control(0, Action.RESET)


# Trees


def asked(packets: list[Control], action: Action) -> Control:
    """The last such request to the parent."""
    return [packet for packet in packets if packet.action is action][-1]


def sent(bench: Below, who: int, action: Action, value: Any = None, request: int = 0) -> Any:
    bench.numbers += not request
    packet = Control(action, NUMBER, request or bench.numbers, value)
    return controls(bench.send(who, TOS_CONTROL, packet.build()))


def first_join() -> tuple[Below, Control]:
    """A worker comes; the parent is asked."""
    bench = Below()
    join = Join.for_shape(SHAPE, MemberType.WORKER, 2, FLAG_WHOLE)
    return bench, asked(sent(bench, 0, Action.JOIN, join, 1000), Action.JOIN)


def is_refused() -> None:
    bench, join = first_join()
    bench.answers(join, Status.MISMATCH)


def is_taken_in() -> tuple[Below, Control]:
    bench, join = first_join()
    return bench, asked(bench.answers(join), Action.JOIN)


def is_forgotten() -> tuple[Below, Control]:
    """The parent was restarted, and answers a heartbeat so."""
    bench, _ = is_taken_in()
    bench.now = 1.0
    join = asked(controls(bench.switch.handle_timer(bench.now)), Action.JOIN)
    assert isinstance(join.value, Join)
    assert join.value.flags & FLAG_HEARTBEAT
    return bench, asked(bench.answers(join, Status.NOT_MEMBER), Action.JOIN)


def is_taken_in_again() -> None:
    bench, join = is_forgotten()
    bench.answers(join)


def leaves() -> None:
    bench, _ = is_taken_in()
    bench.answers(asked(sent(bench, 0, Action.LEAVE), Action.LEAVE))


def leaves_while_it_joins_again() -> None:
    bench, _ = is_forgotten()
    sent(bench, 0, Action.LEAVE)


def is_refused_while_its_only_worker_waits_for_a_rank() -> None:
    bench = Below()
    join = Join.for_shape(SHAPE, MemberType.WORKER, 8).asking(5)
    first = asked(sent(bench, 0, Action.JOIN, join, 1000), Action.JOIN)
    undecided = Ack(Action.JOIN).telling(0, 0, 0)
    packet = Control(Action.ACK, NUMBER, first.request, undecided)
    bench.hears(TOS_CONTROL, [packet.build()])
    bench.answers(first, Status.MISMATCH)


def whole_job(expected: int = 2) -> Below:
    """Two workers of a whole job below a parent have gathered, and one has left."""
    bench, _ = is_taken_in()
    joins_below(bench, 1, 2)
    tells(bench, 2)
    sent(bench, 1, Action.LEAVE)
    joins_below(bench, 2, expected)
    return bench


def joins_below(bench: Below, who: int, expected: int) -> None:
    join = Join.for_shape(SHAPE, MemberType.WORKER, expected, FLAG_WHOLE)
    sent(bench, who, Action.JOIN, join, 1000)


def tells(bench: Below, workers: int) -> None:
    """The parent answers the last Join: so many workers are there."""
    link = bench.switch.control.hierarchy
    assert link is not None
    ack = Ack(Action.JOIN, contributors=workers)
    packet = Control(Action.ACK, NUMBER, link.uplinks[NUMBER].incarnation, ack)
    bench.hears(TOS_CONTROL, [packet.build()])


def is_reset(bench: Below) -> None:
    packet = Control(Action.RESET, NUMBER, 1, Round(10))
    bench.hears(TOS_CONTROL, [packet.build()])


def all_leave_that_wait_for_a_reset() -> None:
    bench = whole_job()
    for who in (0, 2):
        sent(bench, who, Action.LEAVE)


def waits_for_a_reset(expected: int) -> Script:
    """The step into it; the third worker expects as many."""
    return lambda: _do(whole_job(expected))


def is_reset_while_it_waits(expected: int) -> Script:
    return lambda: is_reset(whole_job(expected))


def _do(_: object) -> None:
    """What has been done to get this is all there is to do."""


DORMANT, GATHERING, RUNNING, AWAITING_RESET = JobPhase
HELD_BACK, NEWCOMER, SETTLED = Standing
NOBODY, NEWCOMERS, SURE = Named
ABSENT, JOINING, MEMBER, REJOINING, LEAVING = UplinkPhase
SCRIPTS: dict[tuple[Enum, Enum], Script] = {
    (DORMANT, GATHERING): lambda: _do(one_of_two_comes()),
    (GATHERING, RUNNING): two_come,
    (GATHERING, AWAITING_RESET): waits_for_a_reset(3),
    (GATHERING, DORMANT): the_first_of_two_leaves,
    (RUNNING, GATHERING): more_are_expected,
    (RUNNING, AWAITING_RESET): waits_for_a_reset(2),
    (RUNNING, DORMANT): the_only_one_leaves,
    (AWAITING_RESET, GATHERING): is_reset_while_it_waits(3),
    (AWAITING_RESET, RUNNING): is_reset_while_it_waits(2),
    (AWAITING_RESET, DORMANT): all_leave_that_wait_for_a_reset,
    (HELD_BACK, NEWCOMER): one_held_back_contributes_once_all_are_there,
    (HELD_BACK, SETTLED): one_held_back_is_reset,
    (NEWCOMER, SETTLED): one_moves_on,
    (SETTLED, NEWCOMER): lambda: _do(one_comes()),
    (SETTLED, HELD_BACK): lambda: _do(one_comes_back_in_its_first_round()),
    (NOBODY, NEWCOMERS): lambda: _do(one_comes_back_in_its_first_round()),
    (NOBODY, SURE): lambda: _do(one_contributes()),
    (NEWCOMERS, SURE): another_comes_back_later,
    (JOINING, MEMBER): lambda: _do(is_taken_in()),
    (JOINING, ABSENT): is_refused,
    (MEMBER, REJOINING): lambda: _do(is_forgotten()),
    (MEMBER, LEAVING): leaves,
    (REJOINING, MEMBER): is_taken_in_again,
    (REJOINING, LEAVING): leaves_while_it_joins_again,
    (REJOINING, ABSENT): is_refused_while_its_only_worker_waits_for_a_rank,
    (LEAVING, ABSENT): leaves,
}


# The tables


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> set[tuple[Enum, Enum]]:
    """The steps that are made from now on."""
    made: set[tuple[Enum, Enum]] = set()

    def noting(table: Mapping[Any, set[Any]], before: Any, after: Any) -> Any:
        made.add((before, after))
        return follow(table, before, after)

    for module in (job, member, window, uplink):
        monkeypatch.setattr(module, "follow", noting)
    return made


def test_each_allowed_step_has_a_history() -> None:
    assert set(SCRIPTS) == ALLOWED


@pytest.mark.parametrize(
    "step", sorted(ALLOWED, key=str), ids=lambda step: " to ".join(map(str, step))
)
def test_an_allowed_step_is_made_by_packets(
    step: tuple[Enum, Enum], steps: set[tuple[Enum, Enum]]
) -> None:
    SCRIPTS[step]()
    assert step in steps


@pytest.mark.parametrize("table", TABLES, ids=["job", "standing", "named", "uplink"])
def test_each_other_step_raises(table: Mapping[Any, set[Any]]) -> None:
    kind: type[Enum] = type(next(iter(table)))
    assert set(table) == set(kind)
    for before, after in product(kind, kind):
        if before is after or after in table[before]:
            assert follow(table, before, after) is after
        else:
            with pytest.raises(WrongStep, match=f"{after} cannot follow {before}"):
                follow(table, before, after)
