"""Collectives in which each rank gives and gets parts of its own: against gloo, to the last bit."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from torch.distributed import (
    BroadcastOptions,
    DistBackendError,
    GatherOptions,
    ReduceOp,
    ReduceOptions,
    ReduceScatterOptions,
    ScatterOptions,
)

from tests.conftest import Where
from tests.support.ranks import groups
from tests.torch.test_torch import COMBINED, OTHERS, bits, each, job, options, rounds, same
from worker_lib.torch import Options, SwitchGroup

__all__ = ["job"]  # fixtures

SIZES = [0, 1, 7, 1001]  # elements for each rank
OPS: dict[Any, Callable[..., torch.Tensor]] = {
    ReduceOp.SUM: torch.sum,
    ReduceOp.AVG: torch.sum,  # and divided
    ReduceOp.PRODUCT: torch.prod,
    ReduceOp.MAX: torch.amax,
    ReduceOp.MIN: torch.amin,
}


def numbers(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    """Whole numbers from 1 to 3: sums and products of a few are exact in every type."""
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randint(1, 4, shape, generator=generator).to(dtype)


@pytest.mark.parametrize("staged", [False, True])
@pytest.mark.parametrize("size", [1, 2, 3])
def test_reduce_scatter_product(switch: Where, job: int, size: int, staged: bool) -> None:
    """AVG is the sum divided by the number of ranks, in the tensors' own type."""
    with groups(switch, job, size, staged=staged) as made:
        for dtype, (op, combine), n in itertools.product(COMBINED, OPS.items(), SIZES):
            if op is ReduceOp.AVG and not dtype.is_floating_point:
                continue
            given = numbers(dtype, size, size * n)
            exact = combine(given, 0).to(dtype)
            exact = (exact / size if op is ReduceOp.AVG else exact).reshape(size, n)
            opts = options(ReduceScatterOptions, op)

            def scatter(
                group: SwitchGroup, given: Any = given, n: int = n, opts: Any = opts
            ) -> Any:
                own = given[group.rank()]
                out, listed = torch.empty(n, dtype=own.dtype), torch.empty(n, dtype=own.dtype)
                assert group.reduce_scatter_single(out, own, opts).wait()
                rows = [row.clone() for row in own.reshape(group.size(), n)]
                group.reduce_scatter([listed], [rows], opts).wait()
                assert same(out, listed)
                return out

            for rank, out in enumerate(each(made, scatter)):
                assert same(out, exact[rank]), (dtype, op, n)


def test_nothing_follows_a_collective_that_a_rank_did_not_take_part_in(
    switch: Where, job: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its next one would meet the others' last one, and sum another vector."""
    with groups(switch, job, 2) as made:
        each(made, lambda group: group.allreduce([torch.ones(3)]).wait())
        late = made[1]
        with monkeypatch.context() as patch:
            patch.setattr(late.channels, "allreduce", Mock(side_effect=MemoryError("no room")))
            with pytest.raises(MemoryError):
                late.allreduce([torch.ones(3)]).wait()
        with pytest.raises(DistBackendError, match=r"rank 1 failed in a collective.*no room"):
            late.allreduce([torch.ones(3)]).wait()


def test_averages_of_whole_numbers_are_refused(switch: Where, job: int) -> None:
    with groups(switch, job, 1) as (group,):
        opts = options(ReduceScatterOptions, ReduceOp.AVG)
        ones = torch.ones(3, dtype=torch.int64)
        with pytest.raises(TypeError, match=r"torch\.int64: sum them"):
            group.reduce_scatter_single(ones, ones, opts)


@pytest.mark.parametrize("dtype", [torch.float64, torch.int64, torch.uint8, torch.bool])
def test_reduce_scatter_of_other_types(switch: Where, job: int, dtype: torch.dtype) -> None:
    given = torch.stack([numbers(dtype, 2 * 501), 3 - numbers(dtype, 2 * 501).long() // 2])
    given = given.to(dtype)
    ops = [ReduceOp.SUM, ReduceOp.MAX, ReduceOp.MIN]
    with groups(switch, job, 2) as made:
        for op in ops if dtype.is_floating_point else [*ops, ReduceOp.BXOR]:

            def scatter(group: SwitchGroup, op: Any = op) -> tuple[torch.Tensor, torch.Tensor]:
                own, out = given[group.rank()], torch.empty(501, dtype=dtype)
                group._reduce_scatter_base(out, own, options(ReduceScatterOptions, op)).wait()
                whole = own.clone()
                reduce = options(ReduceOptions, op, rootRank=1)
                group.reduce([whole], reduce).wait()
                return out, whole

            (low, untouched), (high, whole) = each(made, scatter)
            assert same(torch.cat([low, high]), whole), op
            assert same(untouched, given[0])


@pytest.mark.parametrize("staged", [False, True])
def test_gather_scatter_and_all_to_all_to_the_last_bit(
    switch: Where, job: int, staged: bool
) -> None:
    with groups(switch, job, 3, staged=staged) as made:
        for dtype, n in itertools.product([*COMBINED, *OTHERS], SIZES):
            given = torch.stack([bits(dtype, 3 * n, rank) for rank in range(3)])
            root = n % 3

            def move(
                group: SwitchGroup, given: Any = given, n: int = n, root: int = root
            ) -> list[torch.Tensor]:
                own, rank = given[group.rank()], group.rank()
                rows = [torch.empty_like(own) for _ in range(3)]
                opts = options(GatherOptions, rootRank=root)
                group.gather([rows] if rank == root else [], [own], opts).wait()
                if rank == root:
                    assert same(torch.stack(rows), given)
                got = torch.empty_like(own[:n])
                parts = [part.clone() for part in own.reshape(3, n)]
                opts = options(ScatterOptions, rootRank=root)
                group.scatter([got], [parts] if rank == root else [], opts).wait()
                assert same(got, given[root].reshape(3, n)[rank])
                out = torch.empty_like(own)
                group.all_to_all_single(out, own, [], []).wait()
                lists = [torch.empty_like(part) for part in parts]
                group.alltoall(lists, parts).wait()
                assert same(torch.cat(lists), out)
                return [out]

            exact = given.reshape(3, 3, n).transpose(0, 1).reshape(3, 3 * n)
            for rank, (out,) in enumerate(each(made, move)):
                assert same(out, exact[rank]), (dtype, n)


def test_all_to_all_of_other_sizes(switch: Where, job: int) -> None:
    """Rows for each rank, and lists; some ranks give nothing to some."""
    sent = [[0, 3, 1], [5, 0, 0], [2, 700, 0]]
    with groups(switch, job, 3, options=Options(capacity=9000)) as made:

        def move(group: SwitchGroup) -> torch.Tensor:
            rank = group.rank()
            get = [row[rank] for row in sent]
            own = torch.full((sum(sent[rank]), 2), float(rank))
            out = torch.empty(sum(get), 2)
            group.all_to_all_single(out, own, get, sent[rank]).wait()
            lists = [torch.empty(n, 2) for n in get]
            group.alltoall(lists, list(own.split(sent[rank]))).wait()
            assert same(torch.cat(lists), out)
            return out

        for rank, out in enumerate(each(made, move)):
            exact = [torch.full((row[rank], 2), float(k)) for k, row in enumerate(sent)]
            assert same(out, torch.cat(exact))


def test_all_gather_of_other_sizes(switch: Where, job: int) -> None:
    """gloo has no such thing."""
    own = [bits(torch.int16, n, n) for n in (5, 0, 1003)]
    with groups(switch, job, 3) as made:

        def gather(group: SwitchGroup) -> list[torch.Tensor]:
            rows = [torch.empty_like(tensor) for tensor in own]
            group.allgather([rows], [own[group.rank()]]).wait()
            return rows

        for rows in each(made, gather):
            assert all(same(a, b) for a, b in zip(rows, own, strict=True))


def test_coalesced_tensors_are_one_vector(switch: Where, job: int) -> None:
    """Of several sizes; each rank's blocks of all of them lie together on the wire."""
    sizes = [(4, 3), (1,), (0,), (500,)]
    with groups(switch, job, 2) as made:

        def call(group: SwitchGroup) -> None:
            rank = group.rank()
            whole = [torch.arange(float(2 * torch.Size(s).numel())) for s in sizes]
            parts = [torch.empty(s) for s in sizes]
            group.reduce_scatter_single_coalesced(parts, [(1 + rank) * t for t in whole]).wait()
            for part, tensor in zip(parts, whole, strict=True):
                assert torch.equal(part.flatten(), 3 * tensor.chunk(2)[rank])
            back = [torch.empty_like(tensor) for tensor in whole]
            group.all_gather_single_coalesced(back, parts).wait()
            lists = [[torch.empty(s) for s in sizes] for _ in range(2)]
            group.allgather_coalesced(lists, parts).wait()
            for n, tensor in enumerate(whole):
                assert torch.equal(back[n], 3 * tensor)
                assert torch.equal(torch.cat([row[n].flatten() for row in lists]), 3 * tensor)

        each(made, call)
        assert rounds(made[0]) == {
            "barrier int32 sum": 2,  # before each new job
            "reduce_scatter float32 sum": 1,
            "all_gather uint8 sum": 2,
        }


@pytest.mark.parametrize("size", [2, 3])
def test_long_tensors_take_several_rounds(switch: Where, job: int, size: int) -> None:
    """A result may lie over what is given, as those of fully_shard do."""
    n = 6007
    with groups(switch, job, size, options=Options(capacity=4000)) as made:

        def call(group: SwitchGroup) -> None:
            rank = group.rank()
            whole = torch.arange(float(size * n))
            own = whole.reshape(size, n)[rank]
            group.reduce_scatter_single(own, whole).wait()
            assert torch.equal(own, size * torch.arange(float(size * n)).reshape(size, n)[rank])
            group.all_gather_single(whole, own).wait()
            assert torch.equal(whole, size * torch.arange(float(size * n)))
            told = torch.full((n,), float(rank))
            group.broadcast([told], options(BroadcastOptions, rootRank=size - 1)).wait()
            assert torch.equal(told, torch.full((n,), size - 1.0))
            out = torch.empty(size * n)
            group.all_to_all_single(out, whole, [], []).wait()
            assert torch.equal(out, whole.reshape(size, n)[rank].repeat(size))

        each(made, call)


def test_a_group_reserves_what_the_page_says(switch: Where, job: int) -> None:
    """A little over twice the capacity for each job, however blocks divide it."""
    capacity = 1 << 18
    with groups(switch, job, 3, options=Options(capacity=capacity)) as made:

        def call(group: SwitchGroup) -> None:
            own, whole = torch.ones(3), torch.ones(9)
            group.allreduce([own]).wait()
            group.reduce_scatter_single(own, whole).wait()
            group.all_gather_single(whole, own).wait()
            group.all_to_all_single(whole.clone(), whole, [], []).wait()

        each(made, call)
        for kind, worker in made[0].channels._workers.items():
            shape = worker.shape
            reserved = shape.segments * (2 * shape.elements * shape.dtype.itemsize + 120)
            assert reserved <= 2.2 * capacity, kind
            if kind.collective != "barrier":
                assert reserved >= 2 * capacity * 0.99, kind


def test_what_the_switch_does_not_combine_goes_to_gloo(switch: Where, job: int) -> None:
    with groups(switch, job, 2) as made:

        def call(group: SwitchGroup) -> None:
            rank = group.rank()
            given, out = torch.arange(6, dtype=torch.int8), torch.zeros(3, dtype=torch.int8)
            group.reduce_scatter_single(out, given).wait()
            assert out.tolist() == [2 * (3 * rank + k) for k in range(3)]
            out.zero_()
            group.reduce_scatter_single_coalesced([out], [given]).wait()
            assert out.tolist() == [2 * (3 * rank + k) for k in range(3)]
            outs = [torch.zeros(6, dtype=torch.int8), torch.zeros(2)]
            group.all_gather_single_coalesced(outs, [out, torch.ones(1)]).wait()
            assert [tensor.tolist() for tensor in outs] == [[0, 2, 4, 6, 8, 10], [1.0, 1.0]]

        each(made, call)
        assert list(rounds(made[0])) == ["barrier int32 sum"]
