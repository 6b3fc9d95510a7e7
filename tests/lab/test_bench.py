"""iswitch bench: what is to be measured, turns, checks, what follows from rounds, and real runs."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from math import inf
from typing import Any

import numpy as np
import pytest

from iswitch.faults.units import QuantityError
from iswitch.lab.bench.choosing import NOT_HERE
from iswitch.lab.bench.group import Done, Group, Round, WrongSum, cpu_seconds
from iswitch.lab.bench.measure import measure
from iswitch.lab.bench.member import FRESH, BenchWorker, nothing, traffic
from iswitch.lab.bench.plan import (
    PAPER,
    Plan,
    Setting,
    Size,
    Way,
    fits,
    in_words,
    networks,
    split,
)
from iswitch.lab.bench.result import Results, Series
from iswitch.lab.bench.vectors import given
from worker_lib.strategies import STRATEGIES, options

pytestmark = pytest.mark.serial

SMALL = Size("4kB", 1000)
STAR = Setting("star:4")


# What is to be measured


def test_sizes() -> None:
    assert Size.parse("dqn") == PAPER["dqn"]
    assert [size.bytes for size in PAPER.values()] == [40_988, 161_308, 3_465_756, 6_724_248]
    assert Size.parse("40kB") == Size("40kB", 10_000)
    assert Size.parse("1MiB").numel == 2**18
    assert Size.parse("1B").numel == 1
    with pytest.raises(QuantityError, match="write size=40kB"):
        Size.parse("big")
    with pytest.raises(QuantityError, match="0kB: a vector has an element or more"):
        Size.parse("0kB")


def test_ways() -> None:
    assert Way.parse("ring") == Way("ring", "ring")
    way = Way.parse("ps:servers=2:tau=inf:block=100")
    assert (way.label, way.name) == ("ps:servers=2:tau=inf:block=100", "ps")
    assert way.options == {"servers": 2, "tau": inf, "block": 100}
    assert (way.servers, way.adds) == (2, False)
    way = Way.parse("iswitch:offload=false:restart_safe=true:partial=False")
    assert way.options == {"offload": False, "restart_safe": True, "partial": False}
    assert (Way.parse("ps").servers, Way.parse("ring").servers) == (1, 0)
    assert Way.parse("ps").adds
    assert not Way.parse("forward").adds
    with pytest.raises(ValueError, match="write ps:OPTION=VALUE"):
        Way.parse("ps:servers")


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_every_option_has_a_kind(strategy: str) -> None:
    """A wrong value of any option that a benchmark takes is refused, with words for a right one."""
    found = options(strategy)
    for name in found.keys() - set(NOT_HERE):
        assert in_words(found[name])
        assert not fits(1j, found[name])
    assert fits(2, found["timeout"])
    assert not fits("2s", found["timeout"])


def test_kinds_in_words() -> None:
    btl = options("mpi")["btl"]
    assert fits("shm", btl)
    assert not fits("smh", btl)
    assert in_words(btl) == "one of tcp, shm"
    servers = options("ps")["servers"]
    assert fits(2, servers)
    assert not fits(True, servers)


def test_networks() -> None:
    found = networks(["star", "rack"], [6, 9], ["1Gbit", "none"], ["0", "1%"])
    assert len(found) == 16
    assert found[0] == Setting("star:6", "1Gbit", None)
    assert found[-1].text == "rack:3x3,loss=1%"
    assert networks(["tree:2x2x3,delay=1ms"], [4], ["0"], ["0"])[0].text == "tree:2x2x3,delay=1ms"
    with pytest.raises(ValueError, match="three workers in each rack"):
        networks(["rack"], [4], ["0"], ["0"])


def test_commas_of_lists_and_of_forms() -> None:
    assert split("star:4,delay=1ms,rack:2x3") == ["star:4,delay=1ms", "rack:2x3"]
    assert split("") == []


# Turns and checks


class Recorded(Group):
    """Takes rounds of known length, and notes what it was told."""

    def __init__(self, label: str, log: list[str], wrong: int = 0, seconds: float = 0.001) -> None:
        super().__init__(Way.parse(label), 4)
        self.log = log
        self.wrong = wrong
        self.seconds = seconds

    def order(self, *order: Any) -> list[Any]:
        self.log.append(f"{self.way.label} {order[0]}")
        return [0, 0, self.wrong, 0] if order[0] == "check" else [{}] * 4

    def row(
        self, count: int, warm: int = 0, compute: float = 0.0, update: bool = False
    ) -> list[Round]:
        turn = f"{warm}+{count}" if warm else "iteration" if update else "round"
        self.log.append(f"{self.way.label} {turn}")
        one = Round(compute, self.seconds, 0.0005 * update, 0.002, 0.004, 4000, 8000)
        return [one] * count


def run(groups: list[Group], plan: Plan) -> Results:
    results = Results()
    measure(plan, STAR, groups, results, lambda *_: None)
    return results


def test_rounds_are_taken_in_turns() -> None:
    log: list[str] = []
    plan = Plan([SMALL], [STAR], [], rounds=2, warmup=1, iterations=1, compute=0.01)
    results = run([Recorded("iswitch", log), Recorded("forward", log)], plan)
    turn = ["iswitch round", "forward round"]
    checks = ["iswitch round", "iswitch check", "forward round"]  # which adds nothing
    assert log == [
        "iswitch join", "forward join", *checks, *turn, *turn, *turn,
        "iswitch iteration", "forward iteration", *checks, "iswitch leave", "forward leave",
    ]  # fmt: skip
    assert [(len(one.rounds), len(one.iterations)) for one in results.series] == [(2, 1), (2, 1)]
    assert [one.exact for one in results.series] == [True, None]


def test_turns_of_rounds_in_a_row() -> None:
    """The last turn is shorter, and iterations are single."""
    log: list[str] = []
    plan = Plan([SMALL], [STAR], [], rounds=5, in_a_row=3, warmup=0, iterations=1, compute=0.01)
    results = run([Recorded("iswitch", log), Recorded("ring", log)], plan)
    first, last = log.index("iswitch 2+3"), log.index("ring iteration")
    assert log[first : last + 1] == [
        "iswitch 2+3", "ring 2+3", "iswitch 2+2", "ring 2+2", "iswitch iteration", "ring iteration",
    ]  # fmt: skip
    assert [(len(one.rounds), len(one.iterations)) for one in results.series] == [(5, 1), (5, 1)]
    plan = replace(plan, rounds=None, seconds=1e-9, least=7)
    assert [len(one.rounds) for one in run([Recorded("iswitch", [])], plan).series] == [9]


def test_a_round_in_a_row_lasts_from_the_end_of_the_one_before() -> None:
    """Of the last worker; all are said to cost the same."""
    group = Group(Way.parse("ring"), 2)
    orders: list[Any] = []

    def order(what: str, *arguments: Any) -> list[Any]:
        orders.append((what, *arguments[1:]))
        if what == "prepare":
            return [None, None]
        ends = [arguments[0] + seconds for seconds in (0.5, 1.0, 3.0)]
        done = Done(0.0, ends, ends[-1], 6.0, 300, 60)
        return [done, done._replace(ends=[ends[0] + 0.25, *ends[1:]], cpu=3.0, received=0)]

    group.order = order  # type: ignore[method-assign]
    found = group.row(3, warm=2)
    assert orders == [("prepare",), ("go", 0.0, False, 2), ("go", 0.0, False, 3)]
    assert [round(one.aggregate, 6) for one in found] == [0.75, 0.25, 2.0]
    assert {one[3:] for one in found} == {(3.0, 0.0, 50.0, 20.0)}


class Doubling:
    """A strategy of two workers that have the same vector."""

    def __init__(self) -> None:
        self.took: list[float] = []

    def allreduce(self, vector: Any) -> Any:
        self.took.append(vector[0])
        vector *= 2
        return vector


def test_a_vector_gets_its_numbers_anew_before_it_overflows() -> None:
    member = BenchWorker(0, 2, nothing)
    member._own = given(0, 100)
    member._vector = member._own.copy()
    member._strategy = Doubling()
    member.prepare()
    done = member.go(time.monotonic(), 0.0, False, FRESH + 2)
    assert member._strategy.took == [member._own[0] * 2**i for i in (*range(FRESH), 0, 1)]
    assert done.ends == sorted(done.ends)
    assert len(done.ends) == FRESH + 2
    most = abs(member._own).max()
    assert np.isfinite(np.float32(most) * np.float32(200) ** FRESH)


def test_seconds_end_the_turns_but_not_before_the_least() -> None:
    plan = Plan([SMALL], [STAR], [], seconds=1e-9, least=7)
    assert len(run([Recorded("iswitch", [])], plan).series[0].rounds) == 7


def test_a_wrong_sum_is_an_error() -> None:
    with pytest.raises(WrongSum, match="ring: 3 elements of rank 2's sum are wrong"):
        run([Recorded("ring", [], wrong=3)], Plan([SMALL], [STAR], [], rounds=1))


def test_a_member_finds_wrong_elements() -> None:
    member = BenchWorker(0, 3, traffic)
    member._own = given(0, 100)
    member._numel = 100
    member._sum = sum((given(rank, 100) for rank in range(3)), member._own * 0)
    assert member.check() == 0
    member._sum[[3, 70]] += 1
    assert member.check() == 2


def test_who_comes_late_is_waited_for_longer() -> None:
    """And that round does not count."""
    group = Group(Way.parse("ring"), 1)
    answers = [Done(0.1, [inf], inf, 0.5, 10, 20), Done(0.0, [], 0.0, 0.5, 10, 20)]
    starts: list[float] = []

    def order(what: str, *arguments: Any) -> list[Any]:
        if what == "prepare":
            return [None]
        answer = answers.pop(0)
        starts.append(arguments[0] - time.monotonic())
        return [answer._replace(ends=[arguments[0] + 0.25], updated=arguments[0] + 0.5)]

    group.order = order  # type: ignore[method-assign]
    found = group.round(update=True)
    assert not answers
    assert starts[1] > 1.5 * starts[0]
    assert (round(found.aggregate, 6), round(found.update, 6)) == (0.25, 0.25)
    assert (found.workers_cpu, found.received, found.sent) == (0.5, 10, 20)


def test_clocks_and_counters_of_the_kernel() -> None:
    before = cpu_seconds(os.getpid())
    while time.process_time() < before + 0.02:
        pass
    assert 0.015 < cpu_seconds(os.getpid()) - before < 0.5


# What follows from rounds


def series(label: str, seconds: list[float], rate: str | None = None) -> Series:
    rounds = [Round(0.0, s, 0.0, 0.2, 0.1, 4e6, 8e6) for s in seconds]
    setting = Setting("star:4", rate)
    return Series(Way.parse(label), Size("4 MB", 1_000_000), setting, 4, rounds, exact=True)


def results() -> Results:
    found = Results([series("iswitch", [0.001, 0.002]), series("ring", [0.002, 0.004])])
    found.series.append(Series(Way.parse("gloo"), SMALL, STAR, 4))  # nothing measured yet
    return found
