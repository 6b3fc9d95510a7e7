"""Groups of workers for the strategies: processes that meet at a port of 127.0.0.1."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from tests.support.ranks import free_port, in_processes
from worker_lib.strategies import make
from worker_lib.strategies.base import Strategy, Vector
from worker_lib.strategies.cost import Cost
from worker_lib.strategies.packing import Direction, Network
from worker_lib.strategies.ps_beside import listening, start_server

ELEMENTS = [0, 1, 1001, 700_001]  # none, one, odd, large
MADE = 30.0  # seconds for a group to come together


def group(function: Callable[..., Any], size: int, *args: Any, **environment: str) -> list[Any]:
    """What `function(*args)` returns in processes that have an environment to meet."""
    port = free_port()
    return in_processes(
        _call,
        size,
        function,
        *args,
        variables=lambda rank: {
            "RANK": str(rank),
            "WORLD_SIZE": str(size),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            **environment,
        },
    )


@contextmanager
def servers(count: int) -> Iterator[list[str]]:
    """Where so many parameter servers listen."""
    processes = [start_server("127.0.0.1") for _ in range(count)]
    try:
        yield [listening(process) for process in processes]
    finally:
        for process in processes:
            process.communicate("", timeout=MADE)


def _call(_rank: int, _size: int, function: Callable[..., Any], *args: Any) -> Any:
    return function(*args)


def vector_of(rank: int, numel: int, call: int = 0) -> Vector:
    """Whole numbers: sums of them are exact, in whatever order."""
    generator = np.random.default_rng([rank, call, numel])
    return generator.integers(-(2**18), 2**18, numel).astype(np.float32)


def sum_of(size: int, numel: int, call: int = 0) -> Vector:
    return sum((vector_of(r, numel, call) for r in range(size)), np.zeros(numel, np.float32))


def exact(name: str, options: dict[str, Any]) -> list[dict[str, Any]]:
    """Three exact sums for every number of elements; the stats of each group."""
    found = []
    for numel in ELEMENTS:
        with make(name, numel, timeout=MADE, **options) as strategy:
            rank, size = strategy.rank, strategy.num_workers
            assert (str(rank), str(size)) == (os.environ["RANK"], os.environ["WORLD_SIZE"])
            for call in range(3):
                total = strategy.allreduce(vector_of(rank, numel, call))
                assert total.dtype == np.float32
                assert np.array_equal(total, sum_of(size, numel, call)), (numel, call)
            found.append(strategy.stats())
    return found


def floats(name: str, options: dict[str, Any]) -> bytes:
    """The bits of a sum that is not exact."""
    with make(name, 10_001, timeout=MADE, **options) as strategy:
        vector = np.random.default_rng(strategy.rank).standard_normal(10_001).astype(np.float32)
        return strategy.allreduce(vector).tobytes()


def add_up(strategy: Strategy, numel: int, calls: int = 1) -> None:
    for call in range(calls):
        total = strategy.allreduce(vector_of(strategy.rank, numel, call))
        assert np.array_equal(total, sum_of(strategy.num_workers, numel, call))


def bytes_on_links(network: Network, cost: Cost) -> Counter[Direction]:
    """The bytes of payload on each direction of each link; all nodes of the cost are workers."""
    found: Counter[Direction] = Counter()
    for (source, target), size in cost.flows.items():
        assert isinstance(source, int)
        assert isinstance(target, int)
        for direction in network.path(source, target):
            found[direction] += size
    return found
