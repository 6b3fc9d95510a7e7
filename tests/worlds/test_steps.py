"""Programs of ranks: who waits for what, and what lanes carry next."""

from __future__ import annotations

import numpy as np
import pytest

from iswitch.sim.model.fabric import Floats
from iswitch.sim.model.steps import Call, Group, Item, Mismatch, Schedule, play

pytestmark = pytest.mark.unit

BOTH = Group([0, 1])
AS_MADE = Schedule()


def a_millisecond_each(group: Group, numel: int, starts: Floats) -> Floats:
    """A network in which an element takes a millisecond once all have begun."""
    return np.full(len(group.ranks), starts.max() + 0.001 * numel)


def ends(*programs: list[Item], schedule: Schedule = AS_MADE) -> list[list[float]]:
    """When each rank ends each step, in milliseconds."""
    found = 1e3 * play(programs, a_millisecond_each, schedule, lambda group: group).ends
    rounded: list[list[float]] = np.round(found.T, 9).tolist()
    return rounded


def item(ms: float, numel: int = 0, name: str = "", **options: object) -> Item:
    call = Call(BOTH, numel, int(str(options.pop("priority", 0))), name) if numel else None
    return Item(ms / 1e3, call, **options)  # type: ignore[arg-type]


def test_a_call_blocks_until_the_slowest_has_called() -> None:
    fast = [item(1, 4, blocks=True, ends=True), item(1, ends=True)]
    slow = [item(3, 4, blocks=True, ends=True), item(1, ends=True)]
    assert ends(fast, slow) == [[7, 8], [7, 8]]


def test_computing_goes_on_while_calls_travel() -> None:
    """The second call waits for the first, and the rank for both only where it says so."""
    program = [
        item(1, 5),
        item(1, 2, name="b"),
        item(1, ends=True),
        item(0, waits=("b",), ends=True),
    ]
    assert ends(program, program) == [[3, 8], [3, 8]]
    all_ = [item(1, 5), item(1, 2), item(1, waits_for_all=True, ends=True)]
    assert ends(all_, all_) == [[9], [9]]


def test_a_name_means_the_latest_call_before() -> None:
    """Nothing is waited for in the first step, the first step's call in the second."""
    step = [item(1, waits=("w",)), item(0, 3, name="w"), item(0, ends=True)]
    assert ends(step * 2, step * 2) == [[1, 5], [1, 5]]


def test_the_highest_priority_goes_first_between_pieces() -> None:
    program = [
        item(0, 6, name="late"),
        item(1.5, 2, name="soon", priority=1),
        item(0, waits=("soon",), ends=True),
        item(0, waits_for_all=True, ends=True),
    ]
    assert ends(program, program)[0] == [8, 8]
    assert ends(program, program, schedule=Schedule(1))[0] == [8, 8]
    assert ends(program, program, schedule=Schedule(1, by_priority=True))[0] == [4, 8]
    whole = ends(program, program, schedule=Schedule(by_priority=True))[0]
    assert whole == [8, 8]  # what is under way is not interrupted


def test_groups_without_common_lines_do_not_wait_for_each_other() -> None:
    left, right = Group([0, 1]), Group([2, 3])
    mine = [[Item(0, Call(group, 5), blocks=True, ends=True)] * 2 for group in (left, right)]
    programs = [mine[0], mine[0], mine[1], mine[1]]
    apart = play(programs, a_millisecond_each, lane_of=lambda group: group).ends
    assert apart.max(axis=1).tolist() == pytest.approx([0.005, 0.010])
    shared = play(programs, a_millisecond_each).ends
    assert shared.max(axis=1).tolist() == pytest.approx([0.010, 0.020])


def test_calls_that_do_not_match_are_named() -> None:
    with pytest.raises(Mismatch, match="call 0 of ranks 0, 1: rank 1 never makes it, and"):
        ends([item(0, 1, ends=True)], [item(0, ends=True)])
    with pytest.raises(Mismatch, match="rank 1 brings 2 elements, another 1"):
        ends([item(0, 1, ends=True)], [item(0, 2, ends=True)])
