"""Training with DistributedDataParallel: over the backend, and over gloo with the hook."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

from tests.conftest import Where
from tests.support.ranks import free_port, in_processes
from worker_lib.torch import Options, SwitchState, ddp_hook

STEPS = 5
BATCH = 6
Weights = dict[str, np.ndarray]


@pytest.fixture
def job(jobs: Any) -> int:
    return 100 * int(next(jobs))


@pytest.fixture
def port() -> int:
    return free_port()


class SmallCNN(nn.Module):
    """Convolutions, batch normalization (buffers), a parameter that is not always used."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 16, 3), nn.ReLU()
        )
        self.classes = nn.Linear(16 * 8 * 8, 10)
        self.extra = nn.Linear(10, 10)

    def forward(self, images: torch.Tensor, extra: bool) -> torch.Tensor:
        classes: torch.Tensor = self.classes(self.features(images).flatten(1))
        return self.extra(classes) if extra else classes


def train(rank: int, size: int, backend: str, url: str, how: Mapping[str, Any]) -> Weights:
    """The weights and buffers after some steps of SGD with momentum."""
    options = Options(reproducible=True) if how.get("reproducible") else None
    distributed.init_process_group(backend, url, rank=rank, world_size=size, pg_options=options)
    torch.manual_seed(rank)  # DDP gives all the weights of rank 0
    unused = bool(how.get("unused"))
    model = DistributedDataParallel(
        SmallCNN(), bucket_cap_mb=0.01, find_unused_parameters=unused
    )  # small buckets: several
    state = None
    if "hook" in how:
        state = SwitchState(*how["hook"], compress=how.get("compress"))
        model.register_comm_hook(state, ddp_hook)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    data = torch.Generator().manual_seed(10 + rank)
    for step in range(STEPS):
        images = torch.randn(BATCH, 1, 12, 12, generator=data)
        labels = torch.randint(0, 10, (BATCH,), generator=data)
        optimizer.zero_grad()
        extra = not unused or (step + rank) % 2 == 0
        nn.functional.cross_entropy(model(images, extra), labels).backward()
        optimizer.step()
    if state is not None:
        state.close()
    if backend != "gloo":  # whose destructor may hang when other ranks have gone
        distributed.destroy_process_group()
    return {name: value.detach().numpy() for name, value in model.module.state_dict().items()}


def same_everywhere(weights: list[Weights], but: tuple[str, ...] = ("running_",)) -> None:
    """Weights are equal to the last bit; buffers are each rank's own after the last forward."""
    for other in weights[1:]:
        for name, value in weights[0].items():
            if not any(word in name for word in but):
                assert np.array_equal(value, other[name]), name


def close(a: list[Weights], b: list[Weights]) -> None:
    """Equal within float32 rounding."""
    for ours, theirs in zip(a, b, strict=True):
        for name, value in ours.items():
            np.testing.assert_allclose(value, theirs[name], rtol=1e-5, atol=1e-6, err_msg=name)


def equal(a: list[Weights], b: list[Weights]) -> None:
    for ours, theirs in zip(a, b, strict=True):
        for name, value in ours.items():
            assert np.array_equal(value, theirs[name]), name


@pytest.mark.parametrize("unused", [False, True])
def test_ddp_of_two_equals_gloos_to_the_last_bit(
    switch: Where, job: int, port: int, unused: bool
) -> None:
    """A sum of two does not depend on their order."""
    how = {"unused": unused}
    ours = in_processes(train, 2, "iswitch", f"iswitch://127.0.0.1:{switch[1]}/{job}", how)
    gloos = in_processes(train, 2, "gloo", f"tcp://127.0.0.1:{port}", how)
    same_everywhere(ours)
    equal(ours, gloos)


def test_ddp_of_four(switch: Where, job: int, port: int) -> None:
    """Equal to gloo's within rounding, to the last bit on all ranks, and from run to run."""
    url = f"iswitch://127.0.0.1:{switch[1]}"
    ours = in_processes(train, 4, "iswitch", f"{url}/{job}", {})
    gloos = in_processes(train, 4, "gloo", f"tcp://127.0.0.1:{port}", {})
    same_everywhere(ours)
    close(ours, gloos)


def test_the_hook_with_gloo(switch: Where, job: int, port: int) -> None:
    how = {"hook": (("127.0.0.1", switch[1]), job)}
    ours = in_processes(train, 2, "gloo", f"tcp://127.0.0.1:{port}", how)
    gloos = in_processes(train, 2, "gloo", f"tcp://127.0.0.1:{port}", {})
    same_everywhere(ours)
    equal(ours, gloos)


def test_the_hook_compressing(switch: Where, job: int, port: int) -> None:
    """Of bfloat16 eight bits are left: near gloo's weights, and the same on all ranks."""
    how = {"hook": (("127.0.0.1", switch[1]), job), "compress": torch.bfloat16}
    ours = in_processes(train, 2, "gloo", f"tcp://127.0.0.1:{port}", how)
    gloos = in_processes(train, 2, "gloo", f"tcp://127.0.0.1:{port}", {})
    same_everywhere(ours)
    bias, exact = ours[0]["classes.bias"], gloos[0]["classes.bias"]
    assert not np.array_equal(bias, exact)
    np.testing.assert_allclose(bias, exact, atol=0.02)


class Pause(torch.autograd.Function):
    """In backward, waits until the gradients behind it have been averaged."""

    averaged = threading.Event()

    @staticmethod
    def forward(_: Any, activations: torch.Tensor) -> torch.Tensor:
        return activations.clone()

    @staticmethod
    def backward(_: Any, gradient: torch.Tensor) -> torch.Tensor:
        assert Pause.averaged.wait(20), "nothing is averaged while backward is under way"
        return gradient


def pausing(rank: int, size: int, url: str, where: Where, job: int) -> list[float]:
    distributed.init_process_group("gloo", url, rank=rank, world_size=size)
    first, last = nn.Linear(50, 50), nn.Linear(50, 50)

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = first, last

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            activations: torch.Tensor = self.last(Pause.apply(self.first(inputs)))
            return activations

    def watched(state, bucket):  # type: ignore[no-untyped-def]
        future = ddp_hook(state, bucket)
        future.then(lambda _: Pause.averaged.set())
        return future

    model = DistributedDataParallel(Model(), bucket_cap_mb=0.001)
    with SwitchState(where, job) as state:
        model.register_comm_hook(state, watched)
        Pause.averaged.set()  # DDP makes its buckets in the first backward
        for _ in range(3):
            model.zero_grad()
            (model(torch.ones(1, 50)).sum() * (1 + rank)).backward()
            Pause.averaged.clear()
    assert last.bias.grad is not None
    return sorted(set(last.bias.grad.tolist()))


def test_the_hook_averages_while_backward_goes_on(switch: Where, job: int, port: int) -> None:
    where = ("127.0.0.1", switch[1])
    assert in_processes(pausing, 2, f"tcp://127.0.0.1:{port}", where, job) == [[1.5], [1.5]]
