"""Parameter servers: the table against an oracle, modes, ranges, filters, servers of their own."""

from __future__ import annotations

import os
import time
from math import inf
from typing import Any

import numpy as np
import pytest

from tests.support.groups import ELEMENTS, MADE, exact, floats, group, servers, sum_of, vector_of
from worker_lib.strategies import make
from worker_lib.strategies.errors import PeerSilent
from worker_lib.strategies.ps import ParameterServer, cost
from worker_lib.strategies.ps_table import Table

PATIENCE = 60.0
BLOCK = 100


def rank() -> int:
    return int(os.environ["RANK"])


def joined(numel: int, **options: Any) -> ParameterServer:
    made = make("ps", numel, timeout=MADE, block=BLOCK, **options)
    assert isinstance(made, ParameterServer)
    return made


# The table


def ones(value: float, size: int = 3) -> Any:
    return np.full(size, value, np.float32)


def test_a_table_of_rounds() -> None:
    """The faster is in the next round while the slower has not pulled."""
    table = Table(8, 3, 2, tau=0)
    assert [table.size(number) for number in range(3)] == [3, 3, 2]
    assert table.push(0, 1, ones(1)) is False
    assert not table.ready(0, 1)
    assert table.behind(0, 1) == [1]
    assert table.ready(1, 1)
    assert table.push(1, 1, ones(10)) is True
    assert table.ready(0, 1)
    slower = table.read(1, 1)
    assert table.read(0, 1).tolist() == [11] * 3
    table.push(0, 1, ones(100))
    assert slower.tolist() == [11] * 3
    table.push_some(1, 1, np.array([2], np.uint32), ones(5, 1))
    assert table.read(0, 1).tolist() == [100, 100, 105]
    assert table.push_some(0, 1, np.array([0], np.uint32), ones(7, 1)) is False
    assert table.push(1, 1, ones(1)) is True
    assert table.read(0, 1).tolist() == [8, 1, 1]  # what was of two rounds before is gone
    assert [sum(clock) for clock in table.clock] == [0, 6, 0]


@pytest.mark.parametrize("tau", [0, 1, 3, inf])
def test_a_table_against_an_oracle(tau: float) -> None:
    """Random pushes and pulls: what is ready, and what is read, follow from the list of pushes."""
    generator = np.random.default_rng(5)
    table = Table(50, 7, 3, tau)
    pushes: list[list[list[Any]]] = [[[] for _ in range(3)] for _ in range(8)]
    answered = 0
    for _ in range(600):
        worker, number = int(generator.integers(3)), int(generator.integers(8))
        clocks = [len(one) for one in pushes[number]]
        behind = [w for w in range(3) if clocks[w] < clocks[worker] - tau]
        assert table.behind(worker, number) == behind
        assert table.ready(worker, number) == (not behind)
        if not behind and clocks[worker]:
            answered += 1
            rounds = slice(clocks[worker] - 1, clocks[worker]) if tau == 0 else slice(None)
            parts = [values for one in pushes[number] for values in one[rounds]]
            assert np.array_equal(table.read(worker, number), np.sum(parts, axis=0))
        if clocks[worker] - min(clocks) > min(tau, 10):
            continue  # as one that waits for its pull
        values = generator.integers(-9, 9, table.size(number)).astype(np.float32)
        pushes[number][worker].append(values)
        if generator.integers(2):
            keys = np.flatnonzero(values).astype(np.uint32)
            moved = table.push_some(worker, number, keys, values[keys])
        else:
            moved = table.push(worker, number, values)
        assert moved == (min(map(len, pushes[number])) > min(clocks))
    assert answered > 100


# In a group


@pytest.mark.parametrize("size", [2, 5])
def test_exact_sums_with_many_servers(size: int) -> None:
    """And small blocks; what goes is what it is to cost."""
    with servers(2) as where:
        told = group(exact, size, "ps", {"servers": where, "block": 1000})
    for rank, stats in enumerate(told):
        for numel, found in zip(ELEMENTS, stats, strict=True):
            whole = cost(numel, size, servers=2, beside=False)
            assert found["bytes_sent"] == 3 * whole.sent(rank)
            assert found["bytes_received"] == 3 * whole.received(rank) == 3 * 4 * numel
            assert found["steps"] == 3 * whole.steps


def test_all_ranks_get_the_same_bits() -> None:
    assert len(set(group(floats, 4, "ps", {"servers": 3, "block": 700}))) == 1


def test_cost_of_links() -> None:
    numel, size = 1000, 4
    own = cost(numel, size, beside=False)
    assert own.received("server 0") == size * (4000 + 16)
    assert own.sent("server 0") == size * 4000
    beside = cost(numel, size)
    assert beside.received(0) == 3 * 4016
    assert [beside.sent(r) for r in range(1, 4)] == [4016] * 3
    two = cost(numel, size, servers=2)
    assert two.received(1) == 3 * 2016 + 2000


def asynchronous() -> None:
    """Nobody waits; in the end all is there."""
    with joined(250, tau=inf) as ps:
        for call in range(5):
            ps.allreduce(vector_of(rank(), 250, call))
        total = np.zeros(250, np.float32)
        wanted = sum((sum_of(3, 250, call) for call in range(5)), np.zeros(250, np.float32))
        limit = time.monotonic() + PATIENCE
        while not np.array_equal(total, wanted) and time.monotonic() < limit:
            ps.pull(total, 0, 250)
        assert np.array_equal(total, wanted)


def test_asynchronous() -> None:
    group(asynchronous, 3)


def bounded(tau: int) -> int:
    """So often the faster worker pulls; then it waits for the slower."""
    options = {"tau": tau, "servers": 1}
    with make("ps", 10, timeout=MADE, **options) as ps:
        for share in ps._shares:  # type: ignore[attr-defined]
            share.link.endure(0.5)
        if rank() == 1:
            time.sleep(2)
            return 0
        for _ in range(tau):
            ps.allreduce(np.ones(10, np.float32))
        with pytest.raises(PeerSilent, match="rank 1 said nothing for"):
            ps.allreduce(np.ones(10, np.float32))
        return tau


@pytest.mark.parametrize("tau", [0, 1, 3])
def test_no_worker_is_more_than_tau_behind(tau: int) -> None:
    assert group(bounded, 2, tau)[0] == tau


def by_ranges() -> None:
    with joined(450, servers=2) as ps:
        assert ps.bounds == [0, 100, 200, 225, 325, 425, 450]
        vector = vector_of(rank(), 450)
        for start, stop in [(200, 325), (0, 100), (325, 450), (100, 200)]:
            ps.push(vector, start, stop)
        with pytest.raises(ValueError, match=r"100\.\.225 was pushed and not pulled"):
            ps.push(vector, 100, 225)
        ps.pull(vector, 100, 425)
        assert np.array_equal(vector[100:425], sum_of(2, 450)[100:425])
        assert np.array_equal(vector[:100], vector_of(rank(), 450)[:100])
        ps.push(vector_of(rank(), 450, 1), 100, 225)
        ps.pull(vector, 0, 450)
        assert np.array_equal(vector[100:225], sum_of(2, 450, 1)[100:225])
        assert np.array_equal(vector[225:], sum_of(2, 450)[225:])
        for start, stop in [(0, 50), (100, 0), (-100, 100), (0, 500)]:
            with pytest.raises(ValueError, match="begin and end at `bounds`, such as 0"):
                ps.pull(vector, start, stop)


def test_ranges() -> None:
    group(by_ranges, 2)
