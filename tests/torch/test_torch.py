"""The process group: what its collectives give, to the last bit; errors, order, staging."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch.distributed import (
    AllreduceCoalescedOptions,
    AllreduceOptions,
    BroadcastOptions,
    ReduceOp,
    ReduceOptions,
)

from tests.conftest import Where
from tests.support.ranks import groups, together
from worker_lib.torch import Options, SwitchGroup

Each = Callable[[SwitchGroup], Any]

COMBINED = [torch.float32, torch.float16, torch.bfloat16, torch.int32]
OTHERS = [torch.float64, torch.int64, torch.uint8, torch.int8, torch.bool, torch.complex64]
JOBS = 16  # a test may take so many


@pytest.fixture
def job(jobs: Any) -> int:
    return JOBS * int(next(jobs))


def each(made: list[SwitchGroup], call: Each) -> list[Any]:
    """The same call at all ranks."""
    return together(*(lambda group=group: call(group) for group in made))


def options(kind: type, op: Any = ReduceOp.SUM, **others: Any) -> Any:
    made = kind()
    if hasattr(made, "reduceOp"):
        made.reduceOp = op
    for name, value in others.items():
        setattr(made, name, value)
    return made


def bits(dtype: torch.dtype, numel: int, seed: int = 0) -> torch.Tensor:
    """Every pattern of bits may come: NaN with payloads, minus zero, subnormal numbers."""
    generator = torch.Generator().manual_seed(seed)
    if dtype is torch.bool:
        return torch.randint(0, 2, (numel,), generator=generator).bool()
    size = torch.empty(0, dtype=dtype).element_size()
    raw = torch.randint(0, 256, (numel * size,), generator=generator, dtype=torch.uint8)
    return raw.view(dtype)


def same(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Equal to the last bit."""
    flat, other = a.contiguous().reshape(-1), b.contiguous().reshape(-1)
    return a.shape == b.shape and torch.equal(flat.view(torch.uint8), other.view(torch.uint8))


# What comes


def broadcast_own(tensors: list[torch.Tensor], opts: Any, group: SwitchGroup) -> None:
    group.broadcast([tensors[group.rank()]], opts).wait()


def allreduce_own(tensors: list[torch.Tensor], group: SwitchGroup) -> None:
    group.allreduce([tensors[group.rank()]]).wait()


@pytest.mark.parametrize("staged", [False, True])
@pytest.mark.parametrize("size", [1, 3])
def test_allreduce_product(switch: Where, job: int, size: int, staged: bool) -> None:
    """Sums of small whole numbers are exact in every type."""
    generator = torch.Generator().manual_seed(1)
    ops: dict[Any, Any] = {
        ReduceOp.SUM: torch.sum,
        ReduceOp.MAX: torch.amax,
        ReduceOp.MIN: torch.amin,
    }
    with groups(switch, job, size, staged=staged) as made:
        for dtype in COMBINED:
            for numel in [0, 1, 365, 366, 367, 5000]:
                shape = (size, numel)
                all_of_them = torch.randint(-9, 10, shape, generator=generator).to(dtype)
                for op, combine in ops.items():
                    exact = combine(all_of_them, 0).to(dtype)
                    given = [all_of_them[group.rank()].clone() for group in made]

                    def reduce(group: SwitchGroup, op: Any = op, given: Any = given) -> Any:
                        work = group.allreduce([given[group.rank()]], options(AllreduceOptions, op))
                        assert work.wait()
                        return work.result()[0]

                    for group, result in zip(made, each(made, reduce), strict=True):
                        assert result is given[group.rank()]
                        assert same(result, exact), (dtype, numel, op)


NUMBERS: dict[Any, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    ReduceOp.SUM: torch.add,
    ReduceOp.MAX: torch.maximum,
    ReduceOp.MIN: torch.minimum,
    ReduceOp.PRODUCT: torch.mul,
}
OF_BITS: dict[Any, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    ReduceOp.BAND: torch.bitwise_and,
    ReduceOp.BOR: torch.bitwise_or,
    ReduceOp.BXOR: torch.bitwise_xor,
}


@pytest.mark.parametrize("dtype", [torch.float64, torch.int64, torch.uint8, torch.bool])
def test_wider_and_narrower_types(switch: Where, job: int, dtype: torch.dtype) -> None:
    """All bits may come; every operation is done by the switch, in a job of its own."""
    values = [bits(dtype, 3000, seed) for seed in range(2)]
    if dtype is torch.float64:
        values = [torch.randn(3000, dtype=dtype) * 10**k for k in range(2)]
    ops = NUMBERS if dtype.is_floating_point else NUMBERS | OF_BITS
    with groups(switch, job, 2) as made:
        for op, combine in ops.items():
            exact = combine(*values)
            tensors = [values[group.rank()].clone() for group in made]
            opts = options(AllreduceOptions, op)
            each(made, lambda group: group.allreduce([tensors[group.rank()]], opts).wait())  # noqa: B023
            for tensor in tensors:
                assert same(tensor, exact), op
        for group in made:  # one job for each, and that of the words
            assert len(group.channels._workers) == len(ops) + 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_average_is_the_sum_divided_in_its_own_type(
    switch: Where, job: int, dtype: torch.dtype
) -> None:
    values = torch.tensor([[1, 2, 300], [1, 0, 5], [5, 0, -1]], dtype=dtype)
    exact = values.sum(0) / 3
    with groups(switch, job, 3) as made:
        tensors = [values[group.rank()].clone() for group in made]
        opts = options(AllreduceOptions, ReduceOp.AVG)
        each(made, lambda group: group.allreduce([tensors[group.rank()]], opts).wait())
        for tensor in tensors:
            assert same(tensor, exact.to(dtype))


@pytest.mark.parametrize("staged", [False, True])
def test_broadcast_to_the_last_bit(switch: Where, job: int, staged: bool) -> None:
    with groups(switch, job, 3, staged=staged) as made:
        for dtype in COMBINED + OTHERS:
            for numel, begin in [(0, 0), (1, 0), (3, 1), (1001, 3), (4096, 0)]:
                root = numel % 3
                source = bits(dtype, numel + begin, numel)[begin:]
                tensors = [
                    source.clone() if group.rank() == root else bits(dtype, numel + begin)[begin:]
                    for group in made
                ]
                opts = options(BroadcastOptions, rootRank=root)
                each(made, partial(broadcast_own, tensors, opts))
                for tensor in tensors:
                    assert same(tensor, source), (dtype, numel, begin)


@pytest.mark.parametrize("staged", [False, True])
def test_allgather_to_the_last_bit(switch: Where, job: int, staged: bool) -> None:
    with groups(switch, job, 3, staged=staged) as made:
        for dtype in COMBINED + OTHERS:
            for numel in [0, 1, 5, 1001]:
                own = [bits(dtype, numel, group.rank()) for group in made]

                def gather(group: SwitchGroup, own: Any = own) -> list[torch.Tensor]:
                    mine = own[group.rank()]
                    rows = [torch.empty_like(mine) for _ in own]
                    group.allgather([rows], [mine]).wait()
                    whole = torch.empty_like(torch.cat(own))
                    group._allgather_base(whole, mine).wait()
                    assert same(whole, torch.cat(rows))
                    return rows

                for rows in each(made, gather):
                    assert all(same(a, b) for a, b in zip(rows, own, strict=True)), (dtype, numel)


def test_reduce_writes_to_the_root_only(switch: Where, job: int) -> None:
    with groups(switch, job, 3) as made:
        tensors = [torch.full((500,), float(group.rank() + 1)) for group in made]
        opts = options(ReduceOptions, rootRank=2)
        each(made, lambda group: group.reduce([tensors[group.rank()]], opts).wait())
        assert [tensor.unique().tolist() for tensor in tensors] == [[1.0], [2.0], [6.0]]


def test_tensors_with_gaps(switch: Where, job: int) -> None:
    with groups(switch, job, 2) as made:
        tensors = [torch.arange(12.0).reshape(3, 4).t() for _ in made]
        each(made, lambda group: group.allreduce([tensors[group.rank()]]).wait())
        columns = [torch.zeros(4, 3)[:, 1] + group.rank() for group in made]
        opts = options(BroadcastOptions, rootRank=1)
        each(made, lambda group: group.broadcast([columns[group.rank()]], opts).wait())
        for tensor, column in zip(tensors, columns, strict=True):
            assert torch.equal(tensor, 2 * torch.arange(12.0).reshape(3, 4).t())
            assert column.tolist() == [1.0] * 4


def test_conjugates_and_negatives(switch: Where, job: int) -> None:
    """Views whose memory holds other bits than they show."""
    with groups(switch, job, 2) as made:
        memory = [torch.full((5,), complex(rank, 1 + rank)) for rank in range(2)]
        opts = options(BroadcastOptions, rootRank=1)
        each(made, lambda group: group.broadcast([memory[group.rank()].conj()], opts).wait())
        assert [tensor.unique().tolist() for tensor in map(torch.view_as_real, memory)] == [
            [1.0, 2.0]
        ] * 2
        negatives = [torch._neg_view(torch.full((5,), 1.0 + rank)) for rank in range(2)]
        each(made, lambda group: group.allreduce([negatives[group.rank()]]).wait())
        assert all(tensor.tolist() == [-3.0] * 5 for tensor in negatives)


def test_long_vectors_take_several_rounds(switch: Where, job: int) -> None:
    with groups(switch, job, 2, options=Options(capacity=4000)) as made:
        tensors = [torch.arange(2500.0) for _ in made]
        each(made, lambda group: group.allreduce([tensors[group.rank()]]).wait())
        assert all(torch.equal(tensor, 2 * torch.arange(2500.0)) for tensor in tensors)
        assert rounds(made[0])["all_reduce float32 sum"] == 3


def rounds(group: SwitchGroup) -> dict[str, int]:
    """The rounds, one a call, of each job."""
    return {
        f"{collective} {dtype} {op}": worker._calls.count
        for (collective, dtype, op), worker in group.channels._workers.items()
    }


def test_coalesced_tensors_are_one_vector(switch: Where, job: int) -> None:
    with groups(switch, job, 2) as made:

        def reduce(group: SwitchGroup) -> list[torch.Tensor]:
            tensors = [torch.full((n, 2), float(n)) for n in range(50)]
            opts = options(AllreduceCoalescedOptions)
            group.allreduce_coalesced(tensors, opts).wait()
            return tensors

        for tensors in each(made, reduce):
            for n, tensor in enumerate(tensors):
                assert torch.equal(tensor, torch.full((n, 2), 2.0 * n))
        assert rounds(made[0])["all_reduce float32 sum"] == 1


def test_a_run_in_rank_order_can_be_repeated(switch: Where, job: int) -> None:
    values = torch.tensor([1.0, 2.0**-24, 2.0**-24])  # their sum depends on the order
    for again in range(3):
        with groups(switch, job + 2 * again, 3, options=Options(reproducible=True)) as made:
            tensors = [values[rank].reshape(1).clone() for rank in range(3)]
            each(made, partial(allreduce_own, tensors))
            in_order = (values[0] + values[1]) + values[2]
            assert all(tensor.item() == in_order for tensor in tensors)
