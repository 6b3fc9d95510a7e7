"""Training with DistributedDataParallel: over the backend, and over gloo with the hook."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import distributed, nn
from torch._C._distributed_c10d import HashStore, PrefixStore
from torch.nn.parallel import DistributedDataParallel

from tests.conftest import StartSwitch, Where
from tests.support import ROOT
from tests.support.ranks import free_port, in_processes
from worker_lib.torch import Options, SwitchState, ddp_hook
from worker_lib.torch.group import check_room
from worker_lib.torch.place import Place

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


def variables(rank: int, switch: Where, job: int, port: int) -> dict[str, str]:
    return {
        "RANK": str(rank),
        "WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "ISWITCH_SWITCH": "{}:{}".format(*switch),
        "ISWITCH_JOB": str(job),
    }


def sum_of_ones(rank: int, size: int, url: str | None) -> float:
    distributed.init_process_group("iswitch", url)
    tensor = torch.ones(10)
    distributed.all_reduce(tensor)
    assert (distributed.get_rank(), distributed.get_world_size()) == (rank, size)
    assert distributed.get_backend() == "iswitch"
    distributed.destroy_process_group()
    return float(tensor.sum())


@pytest.mark.parametrize("url", [None, "env://", "iswitch://127.0.0.1:{}/{}"])
def test_places_from_the_environment(switch: Where, job: int, port: int, url: str | None) -> None:
    """As torchrun and `iswitch run` set it; a URL may say the same."""
    named = url and url.format(switch[1], job)

    def told(rank: int) -> dict[str, str]:
        return variables(rank, switch, job, port)

    assert in_processes(sum_of_ones, 2, named, variables=told) == [20.0, 20.0]


def refused(_rank: int, _size: int, url: str | None) -> str:
    try:
        distributed.init_process_group("iswitch", url)
    except (ValueError, distributed.DistBackendError) as error:
        return str(error)
    return "done"


@pytest.mark.parametrize("other", [{"ISWITCH_SWITCH": "127.0.0.1:9"}, {"ISWITCH_JOB": "9"}])
def test_a_url_that_contradicts_the_environment_is_refused(
    switch: Where, job: int, port: int, other: dict[str, str]
) -> None:
    """As under `iswitch run`; else the wrong switch might sum up, if one is at that port."""
    url = f"iswitch://127.0.0.1:{switch[1]}/{job}"

    def told(rank: int) -> dict[str, str]:
        return variables(rank, switch, job, port) | other

    ((name, value),) = other.items()
    for message in in_processes(refused, 2, url, variables=told):
        assert message.startswith(f"init_method={url!r} contradicts the environment, which has ")
        assert f"{name}={value}" in message
        assert "Worker" not in message


@pytest.mark.parametrize("number", [65534, 65535])
def test_a_job_that_leaves_no_numbers_is_refused_at_start(
    switch: Where, port: int, number: int
) -> None:
    """It was found out in the first backward."""

    def told(rank: int) -> dict[str, str]:
        return variables(rank, switch, number, port)

    for message in in_processes(refused, 2, None, variables=told):
        assert message.startswith(f"job {number}: a group takes job numbers after that of its run")
        assert "65533 at most" in message


def test_all_ranks_of_a_group_find_the_same_room() -> None:
    """Though another group takes numbers between the looks of two ranks."""
    root = HashStore()
    place = Place(("127.0.0.1", 26963), 65530)
    for used, refusals in ((3, 0), (4, 2)):
        root.set("iswitch/jobs", str(used))
        of_group = PrefixStore(f"{used}/", root)
        refused = 0
        for rank in range(2):
            try:
                check_room(root, of_group, rank, place)
            except ValueError:
                refused += 1
            root.add("iswitch/jobs", 2)
        assert refused == refusals


def test_the_largest_job_works(switch: Where, port: int) -> None:
    def told(rank: int) -> dict[str, str]:
        return variables(rank, switch, 65533, port)

    assert in_processes(sum_of_ones, 2, None, variables=told) == [20.0, 20.0]


def test_a_tree_is_refused_at_start(start_switch: StartSwitch, job: int, port: int) -> None:
    """With one cause, and what works: each process group has several jobs."""
    _, root = start_switch()
    below = [start_switch("127.0.0.1:0", "--parent", "{}:{}".format(*root))[1] for _ in range(2)]

    def told(rank: int) -> dict[str, str]:
        return variables(rank, below[rank], job, port)

    for message in in_processes(refused, 2, None, variables=told):
        assert "has one above it, and carries one job at a time" in message
        assert "`iswitch run --topology star:2`" in message
        assert " or " not in message


def twice(rank: int, size: int, url: str) -> list[float]:
    """A group after a group, and groups of some in between."""
    found = []
    for _ in range(2):
        distributed.init_process_group("iswitch", url, rank=rank, world_size=size)
        pairs = [distributed.new_group([a, (a + 1) % size]) for a in range(size)]
        for group in pairs:
            if distributed.get_rank(group) >= 0:
                tensor = torch.full((1000,), 2.0**rank)
                distributed.all_reduce(tensor, group=group)
                found.append(float(tensor[-1]))
        distributed.barrier()
        distributed.destroy_process_group()
    return found


def test_groups_of_some(switch: Where, job: int) -> None:
    url = f"iswitch://127.0.0.1:{switch[1]}/{job}"
    found = in_processes(twice, 3, url)
    assert found == [[3.0, 5.0] * 2, [3.0, 6.0] * 2, [6.0, 5.0] * 2]


SCRIPT = """
import torch, worker_lib.torch
from torch import distributed
distributed.init_process_group("iswitch")
tensor = torch.ones(1000)
distributed.all_reduce(tensor)
print("rank", distributed.get_rank(), "of", distributed.get_world_size(), "has", tensor[0].item())
distributed.destroy_process_group()
"""


def test_under_iswitch_run(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    words = ["run", "--topology", "star:2", "--", sys.executable, str(script)]
    done = subprocess.run(
        [sys.executable, "-m", "iswitch", *words], capture_output=True, text=True, timeout=60,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    lines = sorted(line.partition("| ")[2] for line in done.stdout.splitlines())
    assert lines == ["rank 0 of 2 has 2.0", "rank 1 of 2 has 2.0"]


def after_the_end(rank: int, size: int, url: str, where: Where, job: int) -> str:
    distributed.init_process_group("gloo", url, rank=rank, world_size=size)
    with SwitchState(where, job) as state:
        pass
    try:
        state.average(torch.ones(3)).wait(timedelta(seconds=1))
    except distributed.DistBackendError as error:
        return str(error)
    return "done"


def test_nothing_is_averaged_after_the_end(switch: Where, job: int, port: int) -> None:
    where = ("127.0.0.1", switch[1])
    (told,) = in_processes(after_the_end, 1, f"tcp://127.0.0.1:{port}", where, job)
    assert told.startswith("this group has ended; ")


def test_misuse_of_the_hook(switch: Where, job: int) -> None:
    with pytest.raises(ValueError, match="both switch and job"):
        SwitchState(switch)
    with pytest.raises(ValueError, match=r"torch\.bfloat16 or torch\.float16"):
        SwitchState(switch, job, compress=torch.float64)
    with pytest.raises(ValueError, match="init_process_group"):
        SwitchState(switch, job)  # which rank?


def one_fails(rank: int, size: int, url: str, how: str, where: Where, job: int) -> str:
    """Rank 1 has an error of its own in the third step; what the others then get."""
    soon = timedelta(seconds=8)
    distributed.init_process_group(
        "iswitch" if how == "backend" else "gloo", url, rank=rank, world_size=size, timeout=soon
    )
    model = DistributedDataParallel(nn.Linear(10, 10))
    if how == "hook":
        model.register_comm_hook(SwitchState(where, job, timeout=8), ddp_hook)
    try:
        for step in range(4):
            if rank == 1 and step == 2:
                return "failed"
            model(torch.ones(2, 10)).sum().backward()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "done"


@pytest.mark.parametrize("how", ["backend", "hook"])
def test_ranks_are_told_who_is_lost_in_backward(
    switch: Where, job: int, port: int, how: str
) -> None:
    """An error in a future that C++ waits for, of which torch does not take all forms."""
    where = ("127.0.0.1", switch[1])
    url = f"tcp://127.0.0.1:{port}" if how == "hook" else f"iswitch://127.0.0.1:{switch[1]}/{job}"
    told = in_processes(one_fails, 3, url, how, where, job)
    assert told[1] == "failed"
    for message in (told[0], told[2]):
        assert "rank 1" in message or "lost" in message or "left" in message, message
        assert "cast" not in message


def hook_with_a_job_of_its_own(
    rank: int, size: int, url: str, where: Where, job: int
) -> float | str:
    distributed.init_process_group("gloo", url, rank=rank, world_size=size)
    try:
        with SwitchState(where, job) as state:
            ones = torch.ones(3)
            state.average(ones).wait()
            return float(ones[0])
    except ValueError as error:
        return str(error)


def test_a_hook_may_have_a_job_of_its_own_under_iswitch_run(
    switch: Where, job: int, port: int
) -> None:
    """At the same switch; another switch contradicts the environment."""

    def told(rank: int) -> dict[str, str]:
        return variables(rank, switch, job, port)

    url, run = f"tcp://127.0.0.1:{port}", hook_with_a_job_of_its_own
    assert in_processes(run, 2, url, switch, job + 10, variables=told) == [1.0, 1.0]
    for said in in_processes(run, 2, url, ("127.0.0.1", 9), job + 10, variables=told):
        assert "contradicts the environment, which has ISWITCH_SWITCH=" in said
