"""Where a group finds its switch and its job, and what is refused."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import distributed, nn
from torch._C._distributed_c10d import HashStore, PrefixStore
from torch.nn.parallel import DistributedDataParallel

from tests.conftest import StartSwitch, Where
from tests.support import ROOT
from tests.support.ranks import in_processes, together
from tests.torch.test_torch_ddp import job, port
from worker_lib.torch import SwitchState, ddp_hook
from worker_lib.torch.address import JobAddress
from worker_lib.torch.creation import check_room

__all__ = ["job", "port"]  # fixtures


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


def two_runs(rank: int, _size: int, switch: Where, job: int) -> float:
    """Sum in a run of processes 0 and 1, and in one of processes 2 and 3, 40 jobs further."""
    distributed.init_process_group(
        "iswitch",
        f"iswitch://127.0.0.1:{switch[1]}/{job + 40 * (rank // 2)}",
        rank=rank % 2,
        world_size=2,
    )
    tensor = torch.full((10,), 100.0 if rank < 2 else 1.0)
    distributed.all_reduce(tensor)
    distributed.destroy_process_group()
    return float(tensor[0])


def test_a_url_replaces_master_addr(switch: Where, job: int, port: int) -> None:
    """The address of another run, left in the environment, led two runs to one sum."""

    def told(_rank: int) -> dict[str, str]:
        return {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}

    assert in_processes(two_runs, 4, switch, job, variables=told) == [200.0, 200.0, 2.0, 2.0]


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


@pytest.mark.parametrize("number", [65533, 65535])
def test_a_job_that_leaves_no_numbers_is_refused_at_start(
    switch: Where, port: int, number: int
) -> None:
    """It was found out in the first backward."""

    def told(rank: int) -> dict[str, str]:
        return variables(rank, switch, number, port)

    for message in in_processes(refused, 2, None, variables=told):
        assert message.startswith(f"job {number}: a group takes job numbers after that of its run")
        assert "65532 at most" in message


def test_all_ranks_of_a_group_find_the_same_room() -> None:
    """Though another group takes numbers between the looks of two ranks."""
    root = HashStore()
    place = JobAddress(("127.0.0.1", 26963), 65530)
    for used, refusals in ((2, 0), (3, 2)):
        root.set("iswitch/jobs", str(used))
        of_group = PrefixStore(f"{used}/", root)
        refused = 0
        for rank in range(2):
            try:
                check_room(root, of_group, rank, 2, place)
            except ValueError:
                refused += 1
            root.add("iswitch/jobs", 2)
        assert refused == refusals


def message_of(call: Callable[[], None]) -> str:
    with pytest.raises(distributed.DistStoreError) as caught:
        call()
    return str(caught.value)


def test_a_rank_that_never_starts_is_named() -> None:
    """Where torch keeps the store in rank 0, that rank waits there until all have come."""
    root = HashStore()
    root.set_timeout(timedelta(seconds=0.2))
    place = JobAddress(("127.0.0.1", 26963), 7)
    for came, missing in (((1, 3), "rank 2 of 4 did not"), ((1, 2, 3), "rank 0 of 4 did not")):
        calls = [partial(check_room, root, PrefixStore("0/", root), r, 4, place) for r in came]
        for message in together(*(partial(message_of, call) for call in calls)):
            assert message.startswith(f"{missing} begin the group within 0.2 s")


def test_the_largest_job_works(switch: Where, port: int) -> None:
    def told(rank: int) -> dict[str, str]:
        return variables(rank, switch, 65532, port)

    assert in_processes(sum_of_ones, 2, None, variables=told) == [20.0, 20.0]


def many_jobs(rank: int, size: int, url: str | None) -> list[float]:
    """What a program uses: several element types, a model, and a group of some ranks."""
    distributed.init_process_group("iswitch", url)
    found = []
    for dtype in (torch.float32, torch.int32):
        tensor = torch.full((5000,), rank + 1, dtype=dtype)
        distributed.all_reduce(tensor)
        found.append(float(tensor.double().mean()))
    model = DistributedDataParallel(nn.Linear(3, 2, bias=False))
    model(torch.full((1, 3), float(rank))).sum().backward()
    (gradient,) = [parameter.grad for parameter in model.parameters()]
    assert gradient is not None
    found.append(float(gradient.mean()))
    some = distributed.new_group([0, size - 1])
    tensor = torch.full((7,), 10.0 * rank)
    if rank in (0, size - 1):
        distributed.all_reduce(tensor, group=some)
    found.append(float(tensor[0]))
    distributed.barrier()
    distributed.destroy_process_group()
    return found


def test_a_tree(start_switch: StartSwitch, job: int, port: int) -> None:
    """A process group has several jobs; so has a switch with another above it."""
    _, root = start_switch()
    below = [start_switch("127.0.0.1:0", "--parent", "{}:{}".format(*root))[1] for _ in range(2)]

    def told(rank: int) -> dict[str, str]:
        return variables(rank, below[rank % 2], job, port) | {"WORLD_SIZE": "3"}

    ends = [20.0, 10.0, 20.0]
    expected = [[6.0, 6.0, 1.0, end] for end in ends]
    assert in_processes(many_jobs, 3, None, variables=told) == expected


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
