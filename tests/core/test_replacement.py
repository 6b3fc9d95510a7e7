"""Workers that are replaced, also while switches lose their state: who is lost, who goes on where.

A newcomer's vector never meets, in one sum, one of a worker that has finished a round since it was
last told of a reset, if that was before the newcomer came: it may be anywhere in its work.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from iswitch.core.format.wire import (
    FLAG_FIRST,
    FLAG_HEARTBEAT,
    FLAG_NEW,
    FLAG_STANDS_AT,
    FLAG_WHOLE,
    Ack,
    Action,
    Join,
    MemberType,
    Segments,
    Status,
    SwitchJoin,
    Threshold,
)
from tests.support.parts import Below, Bench
from tests.support.states import LEASE, ONES, effects
from tests.support.states import SHAPE as THREE
from tests.support.tree import Tree
from tests.support.world import SWITCH, worker_address

pytestmark = pytest.mark.unit


def come(bench: Bench, who: int, round_: int | None, flags: int = 0) -> tuple[Ack, list[str]]:
    """A worker of a whole job of three joins, having been at this round (None: a new one)."""
    flags |= FLAG_WHOLE | (0 if round_ is None else FLAG_STANDS_AT)
    join = replace(Join.for_shape(THREE, MemberType.WORKER, 3, flags), round=round_ or 0)
    status, ack, sends = bench.control(who, Action.JOIN, join, request=1000)
    assert status is Status.OK
    return ack, effects(sends)


# At one switch


@pytest.mark.parametrize("newcomer", [0, 1, 2])
def test_a_restarted_switch_with_a_new_worker_among_the_others_begins_anew(newcomer: int) -> None:
    bench = Bench()
    acks, said = zip(*(come(bench, w, None if w == newcomer else 7) for w in range(3)), strict=True)
    assert said[:2] == ([], [])
    # A new one that comes last has it from its Ack.
    assert said[2] == [f"{who}: RESET 9" for who in range(3 if newcomer < 2 else 2)]
    assert acks[2].round == 9
    for who in range(3):
        assert len(bench.contribute(who, THREE, 9, ONES)) == 3 * (who == 2)


def test_those_that_came_back_go_on() -> None:
    bench = Bench()
    assert [come(bench, who, at)[1] for who, at in [(0, 7), (1, 8), (2, 7)]] == [[], [], []]


def test_a_switch_that_restarts_while_all_gather() -> None:
    """Who had joined already names round 0; nobody has begun, so nobody minds the reset."""
    bench = Bench()
    found = [come(bench, 0, 0, FLAG_FIRST), come(bench, 1, None), come(bench, 2, None)]
    assert [said for _, said in found] == [[], [], ["0: RESET 2", "1: RESET 2"]]
    for who in range(3):
        assert len(bench.contribute(who, THREE, 2, ONES)) == 3 * (who == 2)


def test_one_that_is_replaced_while_all_gather() -> None:
    """It may not begin where its packets could be the old one's; so all begin where it does."""
    bench = Bench()
    for who in range(2):
        bench.join(who, THREE, expected=3, flags=FLAG_WHOLE)
        bench.contribute(who, THREE, 0, ONES)
    assert bench.join(1, THREE, expected=3, flags=FLAG_WHOLE, request=1001)[2] == []
    _, ack, sends = bench.join(2, THREE, expected=3, flags=FLAG_WHOLE)
    assert (ack.round, effects(sends)) == (2, ["0: RESET 2", "1: RESET 2"])


def test_a_newcomer_of_whom_the_others_have_not_heard_yet() -> None:
    """It had taken a place, and the switch died before the Reset could reach the others."""
    bench = Bench()
    found = [come(bench, 0, 7), come(bench, 1, 9, FLAG_FIRST), come(bench, 2, 8)]
    assert found[2][1] == [f"{who}: RESET 11" for who in range(3)]


def test_a_job_that_is_not_whole_takes_everybody_as_they_come() -> None:
    bench = Bench()
    for who in range(3):
        flags = FLAG_STANDS_AT * (who > 0)
        join = replace(Join.for_shape(THREE, MemberType.WORKER, 3, flags), round=7 * (who > 0))
        assert bench.control(who, Action.JOIN, join, request=1000)[2] == []


@pytest.mark.parametrize(("back", "begins"), [((7, 8), 7), ((8, 7), 8)])
def test_nobody_waits_for_a_newcomer_where_it_does_not_begin(
    back: tuple[int, int], begins: int
) -> None:
    """It is first at a restarted switch, and loses its Ack; then those come back who are on."""
    bench = Bench()
    bench.join(0, THREE, expected=3)
    for who, at in enumerate(back, 1):
        join = replace(Join.for_shape(THREE, MemberType.WORKER, 3, FLAG_STANDS_AT), round=at)
        bench.control(who, Action.JOIN, join, request=1000)
    assert bench.join(0, THREE, expected=3)[1].round == begins
    for round_ in (7, 8):
        for who in range(3) if round_ >= begins else (1, 2):
            sends = bench.contribute(who, THREE, round_, ONES)
        assert len(sends) == 3


def test_who_is_lost_is_not_counted_and_is_named() -> None:
    """Though it keeps its place, and though others lack contributions, too."""
    bench = Bench()
    bench.gather(THREE, 3, FLAG_WHOLE)
    bench.contribute(0, THREE, 0, ONES)
    bench.now = LEASE
    for who in (0, 1):
        bench.heartbeat(who, THREE)
    bench.switch.handle_timer(LEASE)
    assert bench.join(0, THREE, flags=FLAG_HEARTBEAT)[1].contributors == 2
    assert bench.control(0, Action.HELP, Segments(0, 0, 1))[1].missing == 0b110
    status, ack, sends = bench.control(0, Action.HELP, Segments(0, 0, 0))
    assert (status, ack.missing, sends) == (Status.OK, 0b100, [])
    bench.heartbeat(2, THREE)  # it was only stopped
    assert bench.join(0, THREE, flags=FLAG_HEARTBEAT)[1].contributors == 3
    assert bench.control(0, Action.HELP, Segments(0, 0, 0))[1].missing == 0


def test_an_old_count_of_a_switch_below_changes_nothing() -> None:
    """A Join from before, late or recorded by somebody; fewer workers come with a new Request."""
    bench = Bench()

    def counted(workers: int, request: int) -> int:
        join = SwitchJoin.for_shape(THREE, MemberType.SWITCH, 2)
        assert isinstance(join, SwitchJoin)
        join = replace(join, workers=workers)
        return bench.control(0, Action.JOIN, join, request=request)[1].contributors

    assert [counted(0, 1000), counted(2, 1000), counted(0, 1000), counted(1, 1000)] == [0, 2, 2, 2]
    assert [counted(1, 1001), counted(2, 1001)] == [1, 2]


def test_a_new_switch_process_has_to_outdo_the_number_that_told_of_fewer() -> None:
    """Else it would be taken for the old one: what it has lost would never be sent again."""
    bench = Bench()
    join = SwitchJoin.for_shape(THREE, MemberType.SWITCH, 3, FLAG_WHOLE)
    assert isinstance(join, SwitchJoin)
    for workers, request, flags in [(3, 1000, FLAG_NEW), (2, 1001, FLAG_HEARTBEAT)]:
        told = replace(join, workers=workers, flags=flags | FLAG_WHOLE)
        assert bench.control(0, Action.JOIN, told, request=request)[0] is Status.OK
    new = replace(join, workers=1, flags=FLAG_NEW | FLAG_WHOLE)
    status, ack, _ = bench.control(0, Action.JOIN, new, request=1001)
    assert (status, ack.round) == (Status.DENIED, 1001)
    status, ack, sends = bench.control(0, Action.JOIN, new, request=1002)
    assert (status, ack.round, effects(sends)) == (Status.OK, 2, ["0: RESET 2"])


def test_a_new_switch_process_is_not_given_the_old_one_s_answers() -> None:
    """Its Request numbers begin anew, and may be those of the old one's."""
    bench = Bench()
    join = SwitchJoin.for_shape(THREE, MemberType.SWITCH, 1)
    bench.control(0, Action.JOIN, join, request=1000)
    assert bench.control(0, Action.SETH, Threshold(5), request=1002)[1].threshold == 5
    assert bench.control(0, Action.SETH, Threshold(6), request=1002)[1].threshold == 5  # a repeat
    bench.control(0, Action.JOIN, join, request=1001)
    assert bench.control(0, Action.SETH, Threshold(7), request=1002)[1].threshold == 7


def switch_comes(
    bench: Bench, who: int, request: int, at: int | None, workers: int, flags: int = 0
) -> list[str]:
    """A switch below joins a whole job of two; its worker stands there (None: is a new one)."""
    flags |= FLAG_WHOLE | (0 if at is None else FLAG_STANDS_AT)
    join = SwitchJoin.for_shape(THREE, MemberType.SWITCH, 2, flags)
    assert isinstance(join, SwitchJoin)
    join = replace(join, round=at or 0, workers=workers)
    return effects(bench.control(who, Action.JOIN, join, request=request)[2])


def test_a_switch_below_that_restarts_again_brings_a_new_worker() -> None:
    """What its process before named, when the root had just lost its state, is void."""
    bench = Bench()
    assert switch_comes(bench, 0, 1000, 14, 0) == []
    assert switch_comes(bench, 0, 1001, None, 0, FLAG_NEW) == []
    assert switch_comes(bench, 0, 1001, None, 1, FLAG_HEARTBEAT) == []
    assert switch_comes(bench, 1, 1000, 14, 1) == ["0: RESET 16", "1: RESET 16"]


@pytest.mark.parametrize("ahead", [9, 12])
def test_a_switch_below_that_restarts_while_the_root_knows_less_than_its_worker(ahead: int) -> None:
    """The worker was told of a Reset before the root was restarted."""
    bench = Bench()
    assert [switch_comes(bench, who, 1000, 7, 1) for who in range(2)] == [[], []]
    said = switch_comes(bench, 0, 1001, ahead, 1, FLAG_FIRST | FLAG_NEW)
    assert said == [f"{who}: RESET {ahead + 2}" for who in range(2)]


# At a switch with a parent


def test_who_is_replaced_while_its_switch_joins_anew_counts_once() -> None:
    """The new process waits for the parent, and what the old one contributed is in a buffer."""
    bench = Below()
    (join,) = bench.comes(0, THREE)
    bench.answers(join)
    *_, count = bench.comes(1, THREE)
    bench.contribute(0, THREE, 0, ONES)
    (anew,) = bench.answers(count, Status.NOT_MEMBER)
    assert isinstance(anew.value, Join)
    assert anew.value.flags & FLAG_STANDS_AT
    assert (
        bench.comes(0, THREE, 1001) == []
    )  # and what says where the others stand is under way still
    told = [packet.value for packet in bench.answers(anew)]
    (ack,) = [value for value in told if isinstance(value, Ack)]
    assert (ack.action, ack.round) == (Action.JOIN, 2)
    for round_ in (0, 1):
        bench.contribute(0, THREE, round_, ONES)
    assert bench.counters["before_join"] == 2 * THREE.segments


@pytest.mark.parametrize("fan_outs", [(2, 2), (4,)], ids=str)
@pytest.mark.parametrize("resets", [1, 2, 3])
def test_a_reset_that_some_have_not_heard_before_the_root_restarts(
    fan_outs: tuple[int, ...], resets: int
) -> None:
    """Nobody needs another: the root goes on beyond what those name who have heard of it."""
    tree = Tree(*fan_outs, whole=True)
    tree.all_there()
    tree.round_of_all()
    deaf = list(tree.above)[1:] or [worker_address(i) for i in (2, 3)]
    home = tree.network.home
    tree.network.lose = lambda source, peer, *_: source == SWITCH and home(peer) in deaf
    for _ in range(resets):
        tree.ask(0, Action.RESET)
    tree.let_pass(0.5)
    reached = 2 * resets
    assert [session.round for session in tree.workers] == [reached, reached, 1, 1]
    tree.restart(SWITCH)
    tree.network.lose = tree.lost
    tree.run(lambda: {session.round for session in tree.workers} == {reached + 2}, limit=15.0)
    tree.all_there()
    tree.round_of_all()
