"""Tensors of PyTorch on the CPU are summed up as arrays are, and come back as tensors."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import ml_dtypes
import numpy as np
import pytest
import torch

from tests.conftest import Where
from worker_lib import Worker

SIZE = 700  # two segments of float32


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(2) as pool:
        yield pool


@pytest.mark.parametrize(
    ("dtype", "numpy"),
    [
        (torch.float32, np.float32),
        (torch.float16, np.float16),
        (torch.bfloat16, ml_dtypes.bfloat16),
        (torch.int32, np.int32),
    ],
)
def test_tensors(
    switch: Where, job: int, pool: ThreadPoolExecutor, dtype: torch.dtype, numpy: type
) -> None:
    def run(number: int) -> None:
        named = dtype if number else numpy  # a job may mix both ways to say it
        with Worker(switch, job, SIZE, 2, dtype=named) as worker:
            tensor = torch.full((7, 100), number + 1, dtype=dtype)
            total = worker.allreduce(tensor)
            assert isinstance(total, torch.Tensor)
            assert total.dtype is dtype
            assert torch.equal(total, torch.full((7, 100), 3, dtype=dtype))
            assert worker.allreduce(tensor, out=tensor) is tensor
            assert torch.equal(tensor, total)
            strided = torch.ones((100, 7), dtype=dtype).T
            assert torch.equal(worker.allreduce(strided), torch.full((7, 100), 2, dtype=dtype))

    list(pool.map(run, range(2)))


def test_parameters_and_arrays_of_numpy(switch: Where, job: int) -> None:
    with Worker(switch, job, SIZE) as worker:
        parameter = torch.nn.Parameter(torch.ones(SIZE))
        total = worker.allreduce(parameter)
        assert not total.requires_grad
        assert torch.equal(total, torch.ones(SIZE))
        out = np.zeros(SIZE, np.float32)
        assert worker.allreduce(parameter.detach(), out=out) is out
        assert (out == 1).all()


def test_what_is_no_plain_tensor_is_refused(switch: Where, job: int) -> None:
    with Worker(switch, job, SIZE) as worker:
        for tensor, why in (
            (torch.ones(SIZE, dtype=torch.float64), r"convert it with \.to\(torch\.float32\)"),
            (torch.ones(SIZE, device="meta"), r"vector is on meta: pass vector\.cpu\(\)"),
            (torch.ones(SIZE).to_sparse(), "vector is no plain tensor"),
        ):
            with pytest.raises(TypeError, match=why):
                worker.allreduce(tensor)


def test_torch_is_not_imported() -> None:
    code = "import sys, worker_lib.worker; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
