"""When a process that has ended is started again."""

from __future__ import annotations

from math import inf

import pytest

from iswitch.lab.launch.restarts import Restarts

pytestmark = pytest.mark.unit


def test_pauses_grow_to_an_end() -> None:
    restarts = Restarts(6)
    now, pauses = 100.0, []
    restarts.began(now)
    now += 3
    while restarts.plan(now):
        assert restarts.due is not None
        pauses.append(restarts.due - now)
        assert not restarts.is_due(now)
        now = restarts.due
        assert restarts.is_due(now)
        assert not restarts.is_due(now)  # once
    assert pauses == [0.25, 0.5, 1.0, 2.0, 4.0, 4.0]
    assert (restarts.count, restarts.row) == (6, 6)


def test_what_ran_for_long_is_forgiven() -> None:
    restarts = Restarts(1, sound=10.0)
    now = 0.0
    for _ in range(5):
        restarts.began(now)
        assert restarts.plan(now + 10)
        now += 20
    restarts.began(now)
    assert not restarts.plan(now + 9)
    strict = Restarts(1, sound=inf)
    strict.began(0)
    assert strict.plan(1e9)
    strict.began(2e9)
    assert not strict.plan(3e9)


def test_one_that_never_began_is_not_forgiven() -> None:
    restarts = Restarts(2)
    restarts.began(0.0)
    assert restarts.plan(50.0)
    assert restarts.plan(100.0)  # it did not even begin
    assert not restarts.plan(150.0)


def test_starts_are_a_second_apart() -> None:
    """Processes at one address are told apart by the second in which they began."""
    restarts = Restarts(2)
    restarts.began(7.0)
    assert restarts.plan(7.1)
    assert restarts.due == 8.0
