"""Switches above switches: the sums of a flat star whatever is lost, and every action in a tree."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from iswitch.core.format.lines import LINES
from iswitch.core.format.packets import Burst
from iswitch.core.format.wire import (
    MAX_MEMBERS,
    TOS_CONTROL,
    TOS_DATA,
    Ack,
    Action,
    Control,
    Join,
    MemberType,
    Shape,
    Status,
    Threshold,
)
from tests.conftest import StartSwitch
from tests.support.parts import JOB, Below, assert_accounted, controls, packets_of, seg
from tests.support.tree import (
    ALL,
    SHAPE,
    TYPICAL,
    Tree,
    halt_and_reset,
    leave,
    reset,
    switch_address,
    tree,
)
from tests.support.world import SWITCH, Faults, worker_address
from worker_lib import JobReset, Worker
from worker_lib.protocol.session import Dropped, Gone, Halted, WasReset

__all__ = ["tree"]  # fixtures

pytestmark = pytest.mark.unit

SEEDS = int(os.environ.get("ISWITCH_MODEL_SEEDS", "8"))  # `make model` takes more
EVERY = 1 if "ISWITCH_MODEL_SEEDS" in os.environ else 3  # packet is lost in turn


def test_sums_are_those_of_a_flat_star(tree: Tree) -> None:
    tree.gather(tree.workers)
    for _ in range(4):
        tree.round_of_all()
    for switch in tree.switches.values():
        assert_accounted(switch.counters)


def test_a_job_that_begins_again_is_not_outdone_by_itself() -> None:
    """The switch joins its parent with a number above all that it has used there."""
    tree = Tree(1, 1)
    tree.round_of_all()
    for _ in range(5):
        assert tree.ask(0, Action.RESET).status is Status.OK
    assert tree.ask(0, Action.LEAVE).status is Status.OK
    (below,) = tree.switches.keys() - {SWITCH}
    assert not tree.switches[below].jobs or not tree.switches[below].jobs[7].members
    tree.workers = [tree.join(1, SHAPE, at=below, expected=1, heartbeat=1.0)]
    tree.all_there()
    assert tree.switches[below].counters["joins_outdone"] == 0


def test_a_join_that_has_to_come_again_is_counted() -> None:
    """The switch leaves a job above; another of its line cannot join until that is answered."""
    bench = Below()
    one = Shape.of(4)
    to_join = Join.for_shape(one, MemberType.WORKER, 1)
    (to_parent,) = bench.comes(0, one)
    bench.answers(to_parent)
    *_, leave = controls(bench.send(0, TOS_CONTROL, Control(Action.LEAVE, JOB, 1001).build()))
    assert leave.action is Action.LEAVE
    second = Control(Action.JOIN, JOB + LINES, 1000, to_join).build()
    assert bench.send(0, TOS_CONTROL, second) == []
    assert bench.counters["busy_join"] == 1
    bench.answers(leave)
    (above,) = controls(bench.send(0, TOS_CONTROL, second))
    assert (above.action, above.job) == (Action.JOIN, JOB + LINES)
    for who in range(1, MAX_MEMBERS + 3):
        bench.send(who, TOS_CONTROL, second)
    assert bench.counters["busy_join"] == 1 + 3


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(SEEDS))
def test_under_loss(seed: int) -> None:
    """Sixteen workers under two levels, and others; everything is lost, doubled and reordered."""
    fan_outs = [(4, 4), (2, 3), (2, 2, 2), (1, 5)][seed % 4]
    tree = Tree(*fan_outs, seed=seed, faults=TYPICAL, whole=bool(seed & 4))
    tree.gather(tree.workers)
    for _ in range(5):
        tree.round_of_all()
    for switch in tree.switches.values():
        assert_accounted(switch.counters)


def test_nothing_completes_before_all_are_there() -> None:
    tree = Tree(2, 2)
    late = tree.sessions.pop(worker_address(3))
    tree.run(lambda: all(s.member for s in tree.workers[:3]))
    outs = tree.begin(0, 1, 2)
    tree.let_pass(2.0)
    assert all(s.counters["aggregates"] == 0 for s in tree.switches.values())
    tree.sessions[worker_address(3)] = late
    tree.run(lambda: late.member)
    outs |= tree.begin(3)
    tree.end(0, 1, 2, 3)
    for out in outs.values():
        assert (out == sum(tree.vector(i, 0) for i in range(4))).all()


def test_how_many_workers_are_there_is_told_from_the_root(tree: Tree) -> None:
    tree.all_there()
    told = {switch.jobs[7].members.workers for switch in tree.switches.values()}
    assert told == {len(tree.workers)}


# Each packet lost in turn


@pytest.mark.slow
@pytest.mark.parametrize("say", [Tree.round_of_all, reset, halt_and_reset, leave])
def test_each_packet_lost_in_turn(say: Callable[[Tree], None]) -> None:
    """Of a conversation, in both directions and on every link: all of them in `make model`."""
    for victim in itertools.count(0, EVERY):
        tree = Tree(2, 2)
        tree.all_there()
        tree.round_of_all()
        sent = itertools.count()
        tree.faults = Faults(lose=lambda *_, sent=sent, victim=victim: next(sent) == victim)
        say(tree)
        tree.round_of_all()
        tree.round_of_all()
        if next(sent) <= victim:
            break
    assert victim > 10


# Actions


def test_reset_from_anywhere(tree: Tree) -> None:
    tree.all_there()
    tree.round_of_all()
    everybody = range(len(tree.workers))
    for number in {0, everybody[-1]}:
        reset(tree, number)
        for i in everybody:
            assert i == number or tree.news(i, WasReset)
        tree.round_of_all()


def test_halt_reaches_all_and_reset_resumes() -> None:
    tree = Tree(2, 2, 2)
    tree.all_there()
    tree.round_of_all()
    halt_and_reset(tree)
    assert all(tree.news(i, Halted) for i in range(8))
    tree.round_of_all()


def test_leave_completes_what_waited_for_it() -> None:
    tree = Tree(2, 2)
    tree.all_there()
    tree.round_of_all()
    outs = tree.begin(0, 1, 2)
    tree.let_pass(0.1)
    leave(tree)
    tree.end(0, 1, 2)
    for out in outs.values():
        assert (out == sum(tree.vector(i, 1) for i in range(3))).all()
    tree.round_of_all()


def test_a_rack_that_leaves_and_comes_back() -> None:
    """With the last worker below it the switch leaves its parent; the others go on."""
    tree = Tree(2, 2)
    tree.all_there()
    tree.round_of_all()
    for number in (3, 2):
        tree.ask(number, Action.LEAVE)
        tree.drop(number)
    tree.let_pass(0.1)
    assert len(tree.switch.jobs[7].members) == 1
    for _ in range(3):
        tree.round_of_all()
    ways: dict[str, Any] = {"heartbeat": 1.0, "incarnation": 2000}
    tree.workers += [tree.join(i, SHAPE, at=switch_address(2), **ways) for i in (2, 3)]
    tree.all_there()
    while len(rounds := {s.round for s in tree.workers}) > 1:  # the newcomers begin at the next
        behind = [i for i, s in enumerate(tree.workers) if s.round != max(rounds)]
        tree.begin(*behind)
        tree.end(*behind)
    tree.round_of_all()


def test_fbcast_forces_what_is_there() -> None:
    tree = Tree(2, 2)
    tree.all_there()
    outs = tree.begin(0)
    tree.let_pass(0.01)
    answer = tree.ask(0, Action.FBCAST, ALL)
    assert (answer.status, answer.ack.contributors) == (Status.OK, 1)
    tree.end(0)
    assert (outs[0] == tree.vector(0, 0)).all()


def test_seth_counts_at_the_switch_that_is_asked() -> None:
    """A worker's at its own switch; the root's counts switches."""
    tree = Tree(2, 2)
    tree.all_there()
    tree.ask(0, Action.SETH, Threshold(1))
    outs = tree.begin(0, 2, 3)
    tree.end(0, 2, 3)
    want = sum(tree.vector(i, 0) for i in (0, 2, 3))
    assert all((out == want).all() for out in outs.values())


def test_three_rounds_from_above_in_one_burst() -> None:
    """Where H is set above: the third round takes over the set that the first is sent from."""
    bench = Below()
    (join,) = bench.comes(0, SHAPE)
    bench.answers(join)
    sums = [seg(round_, 0) + np.full(4, 10 + round_, np.float32).tobytes() for round_ in range(3)]
    sends = bench.hears(TOS_DATA, sums)
    assert [packet for out in sends for packet in packets_of(out)] == sums


def test_an_aggregate_from_before_the_window_is_dropped() -> None:
    """It would take the set of a newer round."""
    bench = Below()
    (join,) = bench.comes(0, SHAPE)
    bench.answers(join)
    sums = [seg(round_, 0) + np.full(4, 10 + round_, np.float32).tobytes() for round_ in range(3)]
    for payload in sums:
        assert bench.hears(TOS_DATA, [payload])
    assert bench.hears(TOS_DATA, sums[:1]) == []
    assert bench.counters["out_of_window"] == 1
    assert bench.hears(TOS_DATA, sums[2:]) == []
    assert bench.counters["repeated"] == 1


# Who dies


def test_a_worker_that_dies_is_leased_out() -> None:
    tree = Tree(2, 2, lease=5.0)
    tree.all_there()
    tree.round_of_all()
    tree.drop(3)
    tree.round_of_all()


def test_a_switch_that_dies_is_leased_out() -> None:
    tree = Tree(2, 2, lease=5.0)
    tree.all_there()
    tree.round_of_all()
    del tree.switches[switch_address(2)]
    for number in (3, 2):
        tree.drop(number)
    tree.round_of_all()


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(SEEDS))
def test_switches_restart(seed: int) -> None:
    """Any switch of the tree loses its state, at any time; the sums stay those of all."""
    tree = Tree(*((2, 2), (2, 1, 2))[seed % 2], seed=seed, faults=TYPICAL)
    tree.all_there()
    victims = list(tree.switches)
    for _ in range(3):
        tree.round_of_all()
        outs = tree.begin(0, 1, 2, 3)
        round_ = tree.workers[0].round
        for _ in range(tree.random.randrange(60)):
            tree.step()
        tree.restart(tree.random.choice(victims))
        tree.end(0, 1, 2, 3)
        for out in outs.values():
            assert (out == sum(tree.vector(i, round_) for i in range(4))).all()
        assert not any(tree.news(i, Gone, Dropped) for i in range(4))


# In processes


@pytest.mark.slow
def test_a_tree_of_processes(start_switch: StartSwitch) -> None:
    """Two switches below a root, four workers of two jobs; sums, a restart of each switch."""
    root_process, root = start_switch()
    parent = ["--parent", "{}:{}".format(*root)]
    below = [start_switch("127.0.0.1:0", *parent) for _ in range(2)]
    places = [where for _, where in below for _ in range(2)]
    numel = 100_000
    vector = np.arange(numel, dtype=np.float32)
    with ThreadPoolExecutor(8) as pool:
        workers = list(pool.map(lambda at: Worker(at, 1, numel, 4, timeout=20), places))
        others = list(pool.map(lambda at: Worker(at, 2, 1000, 4, timeout=20), places))

        def sums() -> None:
            few = [pool.submit(others[i].allreduce, vector[:1000] * i) for i in range(4)]
            outs = pool.map(lambda i: workers[i].allreduce(vector + i), range(4))
            assert all((out == 4 * vector + 6).all() for out in outs)
            assert all((out.result() == 6 * vector[:1000]).all() for out in few)

        for _ in range(3):
            sums()
        for process, where, options in [
            (below[0][0], below[0][1], parent),
            (root_process, root, []),
        ]:
            process.kill()
            process.wait()
            time.sleep(1.1)  # a new process is told from the old one by the second
            start_switch("{}:{}".format(*where), *options)
            sums()
            sums()
        assert {worker.stats()["round"] for worker in workers} == {7}
        workers[3].reset()
        for worker in workers[:3]:
            with pytest.raises(JobReset):
                worker.allreduce(vector)
        sums()
        for worker in workers + others:
            worker.leave()


def test_aggregates_come_from_the_parent_where_the_parent_is() -> None:
    """Whoever takes its address and port at another switch port is a stranger."""
    tree = Tree(2, 1)
    tree.all_there()
    tree.round_of_all()
    switch = tree.switches[switch_address(1)]
    forged = np.frombuffer(seg(tree.workers[0].round, 0) + bytes(SHAPE.packet_size - 8), np.uint8)
    before = dict(switch.counters)
    elsewhere = SWITCH._replace(ingress=SWITCH.ingress + 1)
    assert not switch.receive(
        Burst(elsewhere, TOS_DATA, forged.reshape(1, -1), forged.size), tree.now
    )
    assert switch.counters["stranger"] == before["stranger"] + 1
    assert switch.counters["from_parent"] == before["from_parent"]
    tree.round_of_all()


def test_why_the_switch_above_denies_a_job_is_passed_on() -> None:
    """It carries another; a number to outdo is the switch's own affair."""
    bench = Below()
    (asked,) = bench.comes(0, SHAPE)
    denied = Ack(Action.JOIN, contributors=1 + 9)
    answer = Control(Action.ACK, JOB, asked.request, denied, Status.DENIED)
    (told,) = controls(bench.hears(TOS_CONTROL, [answer.build()]))
    assert (told.status, told.value) == (Status.DENIED, denied)


def test_the_denial_of_a_late_copy_of_its_first_join_refuses_no_worker() -> None:
    """The parent was restarted, and denies the copy as soon as it has the switch back."""
    bench = Below()
    (first,) = bench.comes(0, SHAPE)
    bench.answers(first)
    bench.now = 1.0
    beat = controls(bench.switch.handle_timer(bench.now))[-1]
    (again,) = bench.answers(beat, Status.NOT_MEMBER)
    assert bench.comes(1, SHAPE) == []  # it waits
    late = Ack(Action.JOIN, round=again.request + 3, threshold=again.request)
    denied = Control(Action.ACK, JOB, again.request, late, Status.DENIED)
    assert bench.hears(TOS_CONTROL, [denied.build()]) == []
    told = bench.answers(again)
    assert [packet.status for packet in told if packet.action is Action.ACK] == [Status.OK]
