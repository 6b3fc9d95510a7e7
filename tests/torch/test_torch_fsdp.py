"""Sharded training, FSDP 2 and 1, on the switch alone, against gloo; one switch, and a tree."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import distributed, nn
from torch.distributed.fsdp import (
    FSDPModule,
    FullyShardedDataParallel,
    MixedPrecisionPolicy,
    fully_shard,
)
from torch.distributed.tensor import DTensor

from tests.conftest import StartSwitch, Where
from tests.support.ranks import free_port, in_processes
from tests.torch.test_torch_ddp import Weights, close, equal, job, port, same_everywhere
from tests.torch.test_torch_places import variables

__all__ = ["job", "port"]  # fixtures

STEPS = 4


def network() -> nn.Sequential:
    """Layers whose parameters no number of ranks divides."""
    return nn.Sequential(
        nn.Linear(21, 37), nn.ReLU(), nn.Linear(37, 13), nn.ReLU(), nn.Linear(13, 3)
    )


def without_gloo(group: Any) -> list[str]:
    """Count what a group of the switch leaves to gloo, by name."""
    left: list[str] = []

    class Counting:
        def __getattr__(self, name: str) -> Any:
            left.append(name)
            return getattr(gloo, name)

    gloo, group._gloo = group._gloo, Counting()
    return left


def train(rank: int, size: int, backend: str, url: str | None, how: Mapping[str, Any]) -> Weights:
    """The whole weights after some steps of Adam."""
    told: dict[str, Any] = {} if url is None else {"rank": rank, "world_size": size}
    distributed.init_process_group(backend, url, **told)
    left = without_gloo(distributed.group.WORLD) if backend == "iswitch" else []
    torch.manual_seed(0)  # equal weights everywhere
    model: nn.Module = network()
    if how.get("version") == 1:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that it is the older one
            model = FullyShardedDataParallel(model, device_id=torch.device("cpu"))
    else:
        shard(model, backend, how.get("precision"))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    data = torch.Generator().manual_seed(10 + rank)
    for _ in range(STEPS):
        optimizer.zero_grad()
        inputs = torch.randn(5, 21, generator=data)
        labels = torch.randint(0, 3, (5,), generator=data)
        nn.functional.cross_entropy(model(inputs).float(), labels).backward()
        optimizer.step()
    if how.get("version") == 1:
        with FullyShardedDataParallel.summon_full_params(model):
            whole = {name: value.detach().clone() for name, value in model.named_parameters()}
    else:
        whole = {name: full(value) for name, value in model.named_parameters()}
    assert left == []
    if backend != "gloo":  # whose destructor may hang when other ranks have gone
        distributed.destroy_process_group()
    return {name.removeprefix("_fsdp_wrapped_module."): v.numpy() for name, v in whole.items()}


def shard(model: nn.Module, backend: str, precision: torch.dtype | None) -> None:
    policy = MixedPrecisionPolicy(param_dtype=precision, reduce_dtype=precision)
    for layer in model.children():
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mp_policy=policy)
    fully_shard(model, mp_policy=policy)
    if backend == "gloo":  # whose reduce_scatter may sum what should be averaged
        for part in model.modules():
            if isinstance(part, FSDPModule):
                part.set_force_sum_reduction_for_comms(True)


def full(value: torch.Tensor) -> torch.Tensor:
    assert isinstance(value, DTensor)
    return value.full_tensor().detach()


@pytest.mark.parametrize("how", [{}, {"precision": torch.bfloat16}, {"version": 1}])
def test_two_ranks_equal_gloo_to_the_last_bit(
    switch: Where, job: int, port: int, how: Mapping[str, Any]
) -> None:
    torch.manual_seed(0)
    before = network().get_parameter("0.weight").detach()
    ours = in_processes(train, 2, "iswitch", f"iswitch://127.0.0.1:{switch[1]}/{job}", how)
    gloos = in_processes(train, 2, "gloo", f"tcp://127.0.0.1:{port}", how)
    same_everywhere(ours)
    equal(ours, gloos)
    assert not np.array_equal(ours[0]["0.weight"], before.numpy())


@pytest.fixture(scope="module")
def gloos() -> list[Weights]:
    """Of four ranks."""
    return in_processes(train, 4, "gloo", f"tcp://127.0.0.1:{free_port()}", {})


def test_four_ranks_equal_gloo_within_rounding(
    switch: Where, job: int, gloos: list[Weights]
) -> None:
    ours = in_processes(train, 4, "iswitch", f"iswitch://127.0.0.1:{switch[1]}/{job}", {})
    same_everywhere(ours)
    close(ours, gloos)


KEY = "a key of 20 letters.."


def test_four_ranks_below_two_racks(
    start_switch: StartSwitch, job: int, port: int, gloos: list[Weights], tmp_path: Path
) -> None:
    """As on rack:2x2, with a key."""
    keys = tmp_path / "keys.toml"
    keys.touch(0o600)
    keys.write_text(f'default = "{KEY}"')
    ways = ["127.0.0.1:0", "--keys", str(keys)]
    _, root = start_switch(*ways)
    above = "{}:{}".format(*root)
    racks = [start_switch(*ways, "--parent", above)[1] for _ in range(2)]

    def told(rank: int) -> dict[str, str]:
        place = variables(rank, racks[rank // 2], job, port)
        return place | {"WORLD_SIZE": "4", "ISWITCH_KEY": KEY}

    ours = in_processes(train, 4, "iswitch", None, {}, variables=told)
    same_everywhere(ours)
    close(ours, gloos)


def functional(rank: int, size: int, url: str) -> None:
    """torch's operators of collectives, which DTensor and compiled code call, through C++."""
    distributed.init_process_group("iswitch", url, rank=rank, world_size=size)
    group = distributed.group.WORLD
    assert group is not None
    left, name = without_gloo(group), group.group_name
    ops = torch.ops._c10d_functional
    given = torch.arange(6.0) * (1 + rank)

    def done(tensor: torch.Tensor) -> list[float]:
        return ops.wait_tensor(tensor).tolist()

    mean = [1.5 * (3 * rank + k) for k in range(3)]
    assert done(ops.reduce_scatter_tensor(given, "avg", size, name)) == mean
    pair = ops.reduce_scatter_tensor_coalesced([given, given[:2]], "sum", size, name)
    assert [done(one) for one in pair] == [[2 * x for x in mean], [3.0 * rank]]
    assert done(ops.all_gather_into_tensor(given[:1] + rank, size, name)) == [0.0, 1.0]
    assert (
        done(ops.all_to_all_single(given[:2] + rank, [1, 1], [1, 1], name))
        == [
            [0.0, 1.0],
            [1.0, 3.0],
        ][rank]
    )
    assert done(ops.broadcast(given, 1, name)) == [0.0, 2.0, 4.0, 6.0, 8.0, 10.0]
    assert left == []
    distributed.destroy_process_group()


def test_functional_collectives(switch: Where, job: int) -> None:
    in_processes(functional, 2, f"iswitch://127.0.0.1:{switch[1]}/{job}")
