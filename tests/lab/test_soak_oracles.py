"""The oracles of blocks and of versions: what they are content with, and what they see."""

from __future__ import annotations

from math import inf

import numpy as np
import pytest

from iswitch.core.format.division import Division
from iswitch.core.format.wire import Vector
from iswitch.lab.soak.blocks import Blocks, owners_of
from iswitch.lab.soak.oracle import Rounds, Versions
from iswitch.lab.soak.run import run
from iswitch.lab.soak.scenario import ASYNCHRONOUS, COLLECTIVES, WHOLE, Event, Job, Scenario
from iswitch.lab.soak.violation import Violation

pytestmark = pytest.mark.unit

RANKS = 3
ROUND = 7  # in which some block has two elements or more


def begun(collective: str) -> Blocks:
    """A job of three ranks, each a process of that number, that has begun a round."""
    job = Job(1, WHOLE, ("h1", "h2", "h3"), numel=7, elements=3, collective=collective)
    made = Blocks(Scenario(1, "star:3", (job,)), job, RANKS + 1)
    for rank in range(RANKS):
        made.gives(rank, rank, ROUND)
    return made


def of(made: Blocks, getter: int, giver: dict[int, tuple[int, ...]] | None = None) -> list[Vector]:
    """The blocks that a rank must get; `giver`: by block, the processes in it instead."""
    found = []
    for block, space in zip(made.owners.gets(getter), made.spaces(getter, ROUND), strict=True):
        lives = (giver or {}).get(block, tuple(made.owners.givers(block)))
        total = made.values.total(lives, ROUND) if lives else np.zeros(made.values.shape.numel)
        found.append(total[block * made.per_block :][: len(space)].astype(space.dtype))
    return found


def kind_of(made: Blocks, rank: int, got: list[Vector]) -> str:
    with pytest.raises(Violation) as caught:
        made.gets_blocks("h", rank, ROUND, got)
    return caught.value.kind


@pytest.mark.parametrize("collective", COLLECTIVES)
def test_exact_blocks(collective: str) -> None:
    made = begun(collective)
    for rank in range(RANKS):
        made.gets_blocks("h", rank, ROUND, of(made, rank))
    assert made.finished == RANKS


@pytest.mark.parametrize("collective", COLLECTIVES)
def test_owners_are_those_of_the_switch(collective: str) -> None:
    """Which the oracle does not look at."""
    shape = begun(collective).job.shape()
    owners, division = owners_of(shape), Division(shape)
    assert owners is not None
    for rank in range(RANKS):
        reach = np.zeros(shape.segments, bool)
        for start, stop, to in division.by_receiver(0, shape.segments):
            reach[start:stop] = to in (None, rank)
        assert (owners.reach(1 << rank) == reach).all()
        given = {a // owners.per_block for a, _, of in division.by_source(0, division.closing)
                 if of in (None, rank)}  # fmt: skip
        assert given <= set(owners.gives(rank))


@pytest.mark.parametrize("collective", COLLECTIVES)
def test_what_is_wrong_with_a_block(collective: str) -> None:
    made = begun(collective)
    sizes = made.sizes(ROUND)
    block = sizes.index(max(sizes))
    assert sizes[block] > 1
    rank, givers = made.owners.getters(block)[0], made.owners.givers(block)
    twice, fewer = (*givers, givers[0]), tuple(givers[1:])
    assert kind_of(made, rank, of(made, rank, {block: twice})) == "counted twice"
    assert kind_of(made, rank, of(made, rank, {block: (*givers, RANKS)})) == "not entitled"
    lacks = "too few" if fewer else "wrong sum"  # of nobody
    assert kind_of(made, rank, of(made, rank, {block: fewer})) == lacks
    if len(givers) == 1:
        of_another = ((givers[0] + 1) % RANKS,)
        assert kind_of(made, rank, of(made, rank, {block: of_another})) == "wrong sum"
    got = of(made, rank)
    got[made.owners.gets(rank).index(block)][1] += 1
    assert kind_of(made, rank, got) == "wrong sum"


def versions() -> tuple[Versions, Vector, Vector]:
    job = Job(1, ASYNCHRONOUS, ("h1", "h2"), numel=9, elements=9)
    made = Versions(job, 4, 1, inf)
    return made, made.contributes(0, 0), made.contributes(1, 0)


def test_versions_of_any_number() -> None:
    made, first, second = versions()
    made.gets("h1", 1, 0, first + second)
    made.gets("h2", 1, 0, first + second)
    third = made.contributes(0, 1)
    made.gets("h1", 2, 0, third)
    assert made.finished == 2
    made.hears("h1", 2, 2)


def test_what_is_wrong_with_a_version() -> None:
    made, first, second = versions()
    tells_two = np.append(first[:-1], 2)
    cases = {"counted twice": 2 * first, "wrong sum": tells_two, "too few": 0 * first}
    for kind, wrong in cases.items():
        with pytest.raises(Violation) as caught:
            versions()[0].gets("h1", 1, 0, wrong)
        assert caught.value.kind == kind
    made, first, second = versions()
    made.gets("h1", 1, 0, first)
    with pytest.raises(Violation, match="in another version"):
        made.gets("h1", 2, 0, first + second)
    third = made.contributes(0, 1)
    with pytest.raises(Violation, match="sent when that version had been made"):
        made.gets("h2", 0, 0, third)
    with pytest.raises(Violation, match="hears of version 3"):
        made.hears("h1", 3, 2)


def test_who_left_before_all_had_come_is_in_the_first_sum_only() -> None:
    """A round that was begun before, and of which nobody got a sum, is not the first."""
    job = Job(1, WHOLE, ("h1", "h2"), numel=4, elements=4)
    oracle = Rounds(Scenario(1, "star:2", (job,), events=(Event(0.1, "leave", "h1"),)), job, 3)
    first, second, third = 0, 1, 2  # the first has left, the third came instead
    oracle.begins(first, 0)
    for life in (first, second, third):
        oracle.begins(life, 2)
    oracle.gets("h2", second, 2, oracle.values.total((first, second, third), 2))
    for life in (second, third):
        oracle.begins(life, 3)
    oracle.begun[3].add(first)
    with pytest.raises(Violation) as caught:
        oracle.gets("h2", second, 3, oracle.values.total((first, second, third), 3))
    assert caught.value.kind == "too many"


def test_what_is_due_does_not_follow_from_a_stranger_s_packet() -> None:
    """Memory of the pool became free, and garbage comes before any packet of a member.

    It lets in the job that waits: so would the next packet of anybody, or the time.
    """
    scenario = Scenario(
        1305403, "star:1", (Job(1, WHOLE, ("h1",), numel=1, elements=1),), horizon=0.071339,
        events=(Event(0.022365, "restart", "s1", 1e-05), Event(0.066841, "spoof", "s1", 0.002)),
        think=0.0025, slots=4, policy="pool", memory=1609,
    )  # fmt: skip
    result = run(scenario)
    assert not result.violation, result.message
