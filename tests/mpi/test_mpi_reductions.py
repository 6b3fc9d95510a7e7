"""Reductions of worker_lib.mpi over the product of ranks, types, operations and sizes; exact."""

from __future__ import annotations

from functools import partial, reduce
from typing import Any

import numpy as np
import pytest

from tests.conftest import Where
from tests.support.communicators import ranks
from worker_lib import mpi as MPI
from worker_lib.mpi import channels

FLOATS = "float32", "float64"
WHOLE = "int8", "uint16", "int32", "uint32", "uint64", "bool"
NUMBERS = "SUM", "PROD", "MAX", "MIN"
BITS = "LAND", "LOR", "LXOR", "BAND", "BOR", "BXOR"
SIZES = 0, 1, 33, 3001  # the last takes several rounds
PAIRS = ["FLOAT_INT", "DOUBLE_INT", "LONG_INT", "TWOINT", "SHORT_INT"]


@pytest.fixture(autouse=True)
def small_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channels, "CAPACITY", 4096)


def drawn(rank: int, dtype: str, numel: int) -> Any:
    """Draw numbers of which sums and products are exact, the extremes of whole numbers too."""
    rng = np.random.default_rng([rank, numel])
    kind = np.dtype(dtype)
    if kind.kind in "iu":
        bounds = np.iinfo(kind)
        return rng.integers(bounds.min, bounds.max, numel, dtype=kind, endpoint=True)
    return rng.integers(0, 2 if dtype == "bool" else 4, numel).astype(kind)


def folded(op: str, vectors: list[Any]) -> Any:
    """What the ranks' vectors give, combined in their order by NumPy."""
    function = MPI.NAMED[op].elements
    with np.errstate(all="ignore"):
        return reduce(lambda a, b: function(a, b).astype(a.dtype), vectors)


def check(comm: MPI.Intracomm, dtype: str, op: str, numel: int) -> None:
    """Check each reduction with one vector."""
    size, rank, named = comm.size, comm.rank, MPI.NAMED[op]
    vectors = [drawn(each, dtype, numel * size) for each in range(size)]
    own, total = vectors[rank], folded(op, vectors)

    out = np.empty_like(own)
    comm.Allreduce(own, out, named)
    np.testing.assert_array_equal(out, total)
    out = own.copy()
    comm.Allreduce(MPI.IN_PLACE, out, named)
    np.testing.assert_array_equal(out, total)

    root = numel % size
    out = own.copy()
    in_place = rank == root and numel != 1
    comm.Reduce(MPI.IN_PLACE if in_place else own, out if rank == root else None, named, root)
    np.testing.assert_array_equal(out, total if rank == root else own)

    block = np.empty(numel, dtype)
    comm.Reduce_scatter_block(own, block, named)
    np.testing.assert_array_equal(block, total.reshape(size, -1)[rank])
    counts = [2 * numel, *[numel] * (size - 2), 0] if size > 1 else [numel]
    start = sum(counts[:rank])
    part = np.empty(counts[rank], dtype)
    for given in (counts, None):
        comm.Reduce_scatter(own, part, given, named)
        np.testing.assert_array_equal(part, total[start : start + counts[rank]])

    out = np.empty_like(own)
    comm.Scan(own, out, named)
    np.testing.assert_array_equal(out, folded(op, vectors[: rank + 1]))
    out = own.copy()
    comm.Exscan(MPI.IN_PLACE, out, named)
    np.testing.assert_array_equal(out, folded(op, vectors[:rank]) if rank else own)


@pytest.mark.parametrize("dtype", [*FLOATS, *WHOLE])
def test_all_operations(switch: Where, job: int, dtype: str) -> None:
    with ranks(switch, job, 2) as team:
        for op in NUMBERS if dtype in FLOATS else (*NUMBERS, *BITS):
            team.run(partial(check_all, dtype=dtype, op=op))


def check_all(comm: MPI.Intracomm, dtype: str, op: str) -> None:
    """Check Allreduce alone, which is carried as all other reductions are."""
    vectors = [drawn(rank, dtype, 33) for rank in range(comm.size)]
    comm.Allreduce(MPI.IN_PLACE, got := vectors[comm.rank].copy(), MPI.NAMED[op])
    np.testing.assert_array_equal(got, folded(op, vectors))


@pytest.mark.parametrize(
    ("size", "dtype", "ops"),
    [(1, "int8", NUMBERS), (2, "int32", NUMBERS), (3, "float64", NUMBERS), (3, "uint16", ["MAX"]),
     (5, "uint32", ["MIN"]), (5, "float32", ["SUM"]), (5, "bool", ["LXOR"])],
)  # fmt: skip
def test_reductions(switch: Where, job: int, size: int, dtype: str, ops: list[str]) -> None:
    with ranks(switch, job, size) as team:
        for op in ops:
            for numel in SIZES if op == ops[0] else (33,):
                team.run(partial(check, dtype=dtype, op=op, numel=numel))


@pytest.mark.parametrize("name", PAIRS)
def test_maxloc_and_minloc(switch: Where, job: int, name: str) -> None:
    size, numel, datatype = 3, 50, MPI.NAMED[name]

    def pairs(rank: int) -> Any:
        made = np.zeros(numel, datatype.numpy)
        made["value"] = np.random.default_rng(rank).integers(-2, 3, numel)
        made["index"] = (rank + np.arange(numel)) % size
        return made

    def check(comm: MPI.Intracomm) -> None:
        given = [pairs(rank) for rank in range(size)]
        for op, sign in ((MPI.MAXLOC, -1), (MPI.MINLOC, 1)):
            rows = [[(sign * p["value"], p["index"]) for p in row] for row in given]
            best = [min(column) for column in zip(*rows, strict=True)]
            for call in (comm.Allreduce, comm.Scan):
                got = np.empty(numel, datatype.numpy)
                call([given[comm.rank], datatype], [got, datatype], op)
                if call == comm.Allreduce or comm.rank == size - 1:
                    assert [(sign * p["value"], p["index"]) for p in got] == best

    with ranks(switch, job, size) as team:
        team.run(check)


def test_float16_and_sums_of_complex_numbers(switch: Where, job: int) -> None:
    def check(comm: MPI.Intracomm) -> None:
        half = np.full(7, 0.5 + comm.rank, np.float16)
        comm.Allreduce(MPI.IN_PLACE, half)
        assert half.tolist() == [2.0] * 7
        for dtype in ("complex64", "complex128"):
            number = np.full(5, 1 + 2j * comm.rank, dtype)
            comm.Allreduce(MPI.IN_PLACE, number)
            assert number.tolist() == [2 + 2j] * 5

    with ranks(switch, job, 2) as team:
        team.run(check)


@pytest.mark.parametrize(
    ("dtype", "op"),
    [("complex64", MPI.PROD), ("longdouble", MPI.SUM), ("float32", MPI.BAND), ("S1", MPI.SUM),
     ("int32", MPI.MAXLOC), ("int32", MPI.REPLACE)],
)  # fmt: skip
def test_what_the_switch_cannot_combine_is_refused(dtype: str, op: MPI.Op) -> None:
    comm = MPI.COMM_SELF
    for call in (comm.Allreduce, comm.Reduce, comm.Reduce_scatter_block, comm.Iallreduce):
        with pytest.raises(TypeError, match="does not combine such elements; convert them"):
            call(np.zeros(3, dtype), np.zeros(3, dtype), op)


def test_prefixes_take_what_numpy_combines(switch: Where, job: int) -> None:
    def check(comm: MPI.Intracomm) -> None:
        own = np.full(4, 1j, "complex128")
        got = np.empty(4, "complex128")
        comm.Scan(own, got, MPI.PROD)
        assert got.tolist() == [1j ** (comm.rank + 1)] * 4

    with ranks(switch, job, 3) as team:
        team.run(check)


def test_reduce_local() -> None:
    ours = np.arange(4, dtype=np.int16)
    MPI.MAX.Reduce_local(np.array([3, 0, 5, 1], np.int16), ours)
    assert ours.tolist() == [3, 1, 5, 3]
    with pytest.raises(ValueError, match="pass equally many"):
        MPI.MAX.Reduce_local(np.zeros(3, np.int16), ours)
