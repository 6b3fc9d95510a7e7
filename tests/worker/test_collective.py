"""CollectiveWorkers over sockets: every method, sizes, dtypes and errors, with exact results."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from iswitch.core.format.wire import DType
from tests.support.team import CAPACITY, Make, pool, team

COUNTS = (1, 2, 3, 5)
SIZES = (0, 1, 333, 4001)  # the largest takes three rounds
__all__ = ["pool", "team"]  # fixtures
DTYPES = (DType.FLOAT32, DType.BFLOAT16, DType.INT64, DType.UINT8, DType.BOOL)


def numbers(rng: np.random.Generator, *shape: int, dtype: DType = DType.FLOAT32) -> Any:
    """Draw small whole numbers, whose sums are exact."""
    return rng.integers(0, 4, shape).astype(dtype.numpy)


def summed(vectors: list[Any]) -> Any:
    total = vectors[0].copy()
    for vector in vectors[1:]:
        total = (total + vector).astype(total.dtype)
    return total


def equal(a: Any, b: Any) -> bool:
    return bool(a.shape == b.shape and a.dtype == b.dtype and a.tobytes() == b.tobytes())


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: dtype.label)
@pytest.mark.parametrize("count", COUNTS)
def test_reduce_scatter_and_reduce(team: Make, count: int, dtype: DType) -> None:
    these = team(count, "reduce_scatter", dtype=dtype.label)
    rng = np.random.default_rng(count)
    for size in SIZES:
        vectors = [numbers(rng, count, size, dtype=dtype) for _ in range(count)]
        total = summed(vectors)
        for rank, got in enumerate(these.call("reduce_scatter", vectors)):
            assert equal(got, total[rank]), (size, rank)
        root = size % count
        flat = [vector.reshape(-1)[:size] for vector in vectors]
        results = these.call("reduce", flat, root=root)
        assert equal(results.pop(root), summed(flat))
        assert results == [None] * (count - 1)


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: dtype.label)
@pytest.mark.parametrize("count", COUNTS)
def test_all_gather_and_broadcast(team: Make, count: int, dtype: DType) -> None:
    these = team(count, "all_gather", dtype=dtype.label)
    rng = np.random.default_rng(count)
    for size in SIZES:
        vectors = [numbers(rng, size, dtype=dtype) for _ in range(count)]
        for got in these.call("all_gather", vectors):
            assert equal(got, np.array(vectors))
        counts = [size * rank // count for rank in range(count)]
        parts = [vector[:n] for vector, n in zip(vectors, counts, strict=True)]
        for got in these.call("all_gather", parts, counts=counts):
            assert equal(got, np.concatenate(parts))
        right = vectors[size % count].copy()
        got_back = these.call("broadcast", vectors, root=size % count)
        assert all(equal(vector, right) for vector in vectors)
        assert all(got is vector for got, vector in zip(got_back, vectors, strict=True))


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: dtype.label)
@pytest.mark.parametrize("count", COUNTS)
def test_all_to_all_gather_and_scatter(team: Make, count: int, dtype: DType) -> None:
    these = team(count, "all_to_all", dtype=dtype.label)
    rng = np.random.default_rng(count)
    for size in SIZES:
        vectors = [numbers(rng, count, size, dtype=dtype) for _ in range(count)]
        for rank, got in enumerate(these.call("all_to_all", vectors)):
            assert equal(got, np.array([vector[rank] for vector in vectors]))
        root = size % count
        results = these.call("gather", [vector[0] for vector in vectors], root=root)
        assert equal(results[root], np.array([vector[0] for vector in vectors]))
        given = [vectors[root] if rank == root else None for rank in range(count)]
        for rank, got in enumerate(these.call("scatter", given, root=root, counts=size)):
            assert equal(got, vectors[root][rank])


@pytest.mark.parametrize("count", COUNTS)
def test_blocks_of_other_sizes(team: Make, count: int) -> None:
    """Each pair of ranks has its own size; some have none, some take several rounds."""
    these = team(count, "all_to_all")
    rng = np.random.default_rng(count)
    for most in (1, 5, 400, 4 * CAPACITY):
        sizes = rng.integers(0, most + 1, (count, count)) * rng.integers(0, 2, (count, count))
        blocks = [[numbers(rng, n) for n in row] for row in sizes.tolist()]
        got = these.call(
            "all_to_all",
            [np.concatenate(row) for row in blocks],
            [None] * count,
            [(sizes[a].tolist(), sizes[:, a].tolist()) for a in range(count)],
        )
        for rank in range(count):
            assert equal(got[rank], np.concatenate([row[rank] for row in blocks]))
        root, counts = int(rng.integers(count)), sizes[0].tolist()
        parts = [numbers(rng, n) for n in counts]
        assert equal(
            these.call("gather", parts, root=root, counts=counts)[root], np.concatenate(parts)
        )
        whole = [np.concatenate(parts) if rank == root else None for rank in range(count)]
        for part, own in zip(
            parts, these.call("scatter", whole, root=root, counts=counts), strict=True
        ):
            assert equal(part, own)
