"""torch's own tests of a process group, run against ours: those of torch.testing that come with it.

They are methods of `DistributedTest._DistTestBase`. torch runs each in processes of its own, of
which every one imports it anew; here the same ranks go through all of them.
"""

from __future__ import annotations

import inspect
import unittest
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import distributed

from tests.conftest import Where
from tests.support.ranks import in_processes

SIZE = 3  # their groups are of ranks 1 and 2
COLLECTIVES = (
    "test_all_reduce",
    "test_broadcast",
    "test_barrier",
    "test_all_gather",
    "test_reduce",
    "test_scatter",
    "test_gather",
    "test_all_to_all",
)
# Those for GPUs, and those that know gloo's or NCCL's own words of a timeout.
FOREIGN = ("cuda", "nccl", "timeout", "multigpu")


def unconditional(case: Callable[..., None]) -> Callable[..., None]:
    """A case without its conditions: of backends that torch knows, and of eight ranks or more."""
    bare = inspect.unwrap(case)
    return lambda self: bare(self)


def run_cases(rank: int, size: int, url: str) -> dict[str, str]:
    """How each case went on this rank: "ok", or why not."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from torch.testing._internal.common_utils import TestCase
        from torch.testing._internal.distributed.distributed_test import DistributedTest

    base = DistributedTest._DistTestBase

    class Cases(TestCase, base):  # type: ignore[misc, valid-type]
        def _barrier(self, *_: Any, **__: Any) -> None:
            distributed.barrier()

    distributed.init_process_group("iswitch", url, rank=rank, world_size=size)
    outcomes = {}
    for name in sorted(dir(base)):
        if not name.startswith(COLLECTIVES) or any(word in name for word in FOREIGN):
            continue
        setattr(Cases, name, unconditional(getattr(base, name)))
        case = Cases(name)
        case.rank, case.world_size = rank, size
        result = unittest.TestResult()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            case.run(result)
        for group in set(distributed.distributed_c10d._world.pg_map) - {distributed.group.WORLD}:
            distributed.destroy_process_group(group)
        wrong = [text for _, text in result.errors + result.failures]
        wrong += [f"skipped: {reason}" for _, reason in result.skipped]
        outcomes[name] = "\n".join(wrong) or "ok"
    distributed.destroy_process_group()
    return outcomes


def test_torchs_own_cases(switch: Where, tmp_path: Path) -> None:
    url = f"iswitch://127.0.0.1:{switch[1]}/1000"
    variables = {"BACKEND": "iswitch", "WORLD_SIZE": str(SIZE), "TEMP_DIR": str(tmp_path)}
    found = in_processes(run_cases, SIZE, url, variables=lambda _: variables)
    failed = [{name: how for name, how in each.items() if how != "ok"} for each in found]
    assert failed == [{}] * SIZE
    wanted = {"test_all_reduce_sum", "test_broadcast_group", "test_barrier", "test_scatter_complex"}
    wanted |= {"test_gather_group", "test_all_to_all", "test_all_to_all_single_unequal_split"}
    assert wanted <= found[0].keys()
    assert len(found[0]) > 40
