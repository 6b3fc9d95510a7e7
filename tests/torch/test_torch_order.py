"""What gloo does for the switch's groups, order and overlap, and what goes wrong."""

from __future__ import annotations

import re
import time
from datetime import timedelta
from typing import Any

import numpy as np
import pytest
import torch
from torch.distributed import (
    AllreduceOptions,
    BarrierOptions,
    DistBackendError,
    ReduceOp,
)

from tests.conftest import StartSwitch, Where
from tests.support.ranks import groups, together
from tests.torch.test_torch import each, job, options
from worker_lib import SwitchUnreachable
from worker_lib.torch import Options, SwitchGroup
from worker_lib.torch.address import JobAddress, rendezvous
from worker_lib.torch.channels import Kind
from worker_lib.torch.works import Work

__all__ = ["job"]  # fixtures


def test_the_rest_goes_to_gloo(switch: Where, job: int) -> None:
    with groups(switch, job, 2) as made:

        def call(group: SwitchGroup) -> tuple[Any, ...]:
            whole = torch.tensor([1 << 6], dtype=torch.int8)
            group.allreduce([whole]).wait()
            product = torch.tensor([3], dtype=torch.int8)
            group.allreduce([product], options(AllreduceOptions, ReduceOp.PRODUCT)).wait()
            told = torch.full((3,), float(group.rank()))
            if group.rank() == 0:
                group.send([told], 1, 5).wait()
            else:
                group.recv([told], 0, 5).wait()
            return whole.item(), product.item(), told.tolist()

        assert each(made, call) == [(-(1 << 7), 9, [0.0] * 3)] * 2


def test_async_works_run_in_the_order_of_issue(switch: Where, job: int) -> None:
    """Rank 0 goes on while its collectives wait for rank 1."""
    with groups(switch, job, 2) as (zero, one):
        tensors = [torch.full((700,), float(n)) for n in range(10)]
        works = [zero.allreduce([tensor]) for tensor in tensors]
        last = zero.barrier()
        assert not any(work.is_completed() for work in [*works, last])
        for n in range(10):
            one.allreduce([torch.full((700,), 100.0 * n)]).wait()
            works[n].wait()
            assert works[n].is_completed()
            assert works[n].is_success()
            assert not last.is_completed()
            assert torch.equal(tensors[n], torch.full((700,), 101.0 * n))
        one.barrier().wait()
        last.wait()


def test_a_future_holds_the_tensors(switch: Where, job: int) -> None:
    with groups(switch, job, 2) as (zero, one):
        work = zero.allreduce([torch.ones(3)])
        doubled = work.get_future().then(lambda done: 2 * done.value()[0])
        assert not doubled.done()
        one.allreduce([torch.ones(3)])
        assert doubled.wait().tolist() == [4.0, 4.0, 4.0]


def test_what_was_issued_is_done_before_the_end(switch: Where, job: int) -> None:
    tensors = [torch.ones(100_000), torch.ones(100_000)]
    with groups(switch, job, 2) as made:
        for group in made:
            group.allreduce([tensors[group.rank()]])
    assert all(tensor.eq(2).all() for tensor in tensors)


def test_nothing_is_issued_after_the_end(switch: Where, job: int) -> None:
    with groups(switch, job, 1) as (group,):
        group.shutdown()
        for call in (group.barrier, lambda: group.allreduce([torch.ones(3)])):
            with pytest.raises(DistBackendError, match=r"this group has ended; .*make another"):
                call().wait(timedelta(seconds=1))


def test_the_end_may_come_in_the_thread_of_the_works(switch: Where, job: int) -> None:
    """As when the last reference to the group dies there."""
    with groups(switch, job, 1) as (group,):
        work = group._works.issue(Work(group.shutdown, None, [], group.channels.whom))
        assert work.wait(timedelta(seconds=20))
        assert group.channels._closed.is_set()
        group._works._thread.join(20)
        assert not group._works._thread.is_alive()


SILENT = r"rank 1 \(127\.0\.0\.1:\d+\) does not contribute"


@pytest.mark.parametrize("lost", [0, 1, 2])
def test_a_timeout_names_the_rank(switch: Where, job: int, lost: int) -> None:
    """As the group numbers it, in whatever order they joined the job."""
    with groups(switch, job, 3, timeout=1.0) as made:
        each(made, lambda group: group.allreduce([torch.ones(3)]).wait())
        others = [group for group in made if group.rank() != lost]

        def fail(group: SwitchGroup) -> None:
            work = group.allreduce([torch.ones(3)])
            named = rf"not done within 1 s: rank {lost} \(\S+\) does not contribute"
            with pytest.raises(DistBackendError, match=named):
                work.wait()
            assert re.search(named, str(work.exception()))
            with pytest.raises(RuntimeError, match=named):
                work.get_future().wait()
            with pytest.raises(DistBackendError, match=r"failed before: .*begin anew"):
                group.allreduce([torch.ones(3)]).wait()

        each(others, fail)


def test_a_collective_has_its_own_timeout(switch: Where, job: int) -> None:
    with groups(switch, job, 2) as (zero, _):
        opts = options(BarrierOptions, timeout=timedelta(seconds=0.3))
        began = time.monotonic()
        with pytest.raises(DistBackendError, match=SILENT):
            zero.barrier(opts).wait()
        assert 0.3 <= time.monotonic() - began < 5


def test_rounds_share_the_timeout_of_their_collective(switch: Where, job: int) -> None:
    """Rank 1 is slow in each of five rounds, but not too slow for any of them."""
    with groups(switch, job, 2, options=Options(capacity=4000)) as (zero, one):
        together(*(lambda g=g: g.allreduce([torch.ones(1)]).wait() for g in (zero, one)))
        worker: Any = one.channels._workers[Kind("all_reduce", np.dtype(np.float32))]
        at_once = worker.allreduce

        def late(*args: Any) -> Any:
            time.sleep(0.5)
            return at_once(*args)

        worker.allreduce = late
        one.allreduce([torch.ones(5000)], options(AllreduceOptions, timeout=timedelta(seconds=4)))
        opts = options(AllreduceOptions, timeout=timedelta(seconds=1.2))
        with pytest.raises(DistBackendError, match=rf"not done within 1\.2 s: {SILENT}"):
            zero.allreduce([torch.ones(5000)], opts).wait()


def test_a_wait_has_its_own_timeout(switch: Where, job: int) -> None:
    """The collective goes on."""
    with groups(switch, job, 2) as (zero, one):
        work = zero.allreduce([torch.ones(3)])
        with pytest.raises(DistBackendError, match=rf"within 0\.5 s: {SILENT}"):
            work.wait(timedelta(seconds=0.5))
        one.allreduce([torch.ones(3)])
        assert work.wait()


def test_a_rank_that_dies_is_named(start_switch: StartSwitch, job: int) -> None:
    """After its lease, long before the timeout."""
    _, where = start_switch("127.0.0.1:0", "--lease", "5")
    with groups(where, job, 3) as made:
        for worker in made[1].channels._workers.values():
            worker._left.set()  # nobody attends to it any more
            worker._port.close()

        def fail(group: SwitchGroup) -> None:
            with pytest.raises(DistBackendError, match=f"{SILENT}: lost"):
                group.barrier().wait()

        each([made[0], made[2]], fail)


def test_a_rank_that_ends_early_is_named(switch: Where, job: int) -> None:
    """Its group leaves when its process ends, also without destroy_process_group()."""
    with groups(switch, job, 3) as made:
        each(made, lambda group: group.barrier().wait())
        made[1].shutdown()

        def fail(group: SwitchGroup) -> None:
            with pytest.raises(DistBackendError, match=r"^rank 1 left the group .* did the"):
                group.barrier().wait()

        each([made[0], made[2]], fail)


def test_averages_of_whole_numbers(switch: Where, job: int) -> None:
    with groups(switch, job, 1) as (group,):
        opts = options(AllreduceOptions, ReduceOp.AVG)
        with pytest.raises(TypeError, match=r"torch\.int32: sum them .* and divide"):
            group.allreduce([torch.ones(3, dtype=torch.int32)], opts)


@pytest.mark.parametrize(
    "url",
    [
        "iswitch://",
        "iswitch://h",
        "iswitch://h:1/",
        "iswitch://h:x/1",
        "tcp://h:1/1",
        "iswitch:///1",
    ],
)
def test_urls_that_are_none(url: str) -> None:
    with pytest.raises(ValueError, match=r"write iswitch://HOST:PORT/JOB"):
        JobAddress.from_url(url)


def test_places() -> None:
    place = JobAddress(("10.0.0.1", 26963), 7)
    assert JobAddress.from_url("iswitch://10.0.0.1/7?rank=1") == place
    assert JobAddress.from_url(place.url) == place
    assert JobAddress.from_env({"ISWITCH_SWITCH": "10.0.0.1:26963", "ISWITCH_JOB": "7"}) == place
    with pytest.raises(ValueError, match="job = 65536"):
        JobAddress.from_url("iswitch://10.0.0.1/65536")
    for missing, variables in (
        ("SWITCH", {}),
        ("JOB", {"ISWITCH_SWITCH": "h:1"}),
        ("SWITCH", {"ISWITCH_JOB": "1"}),
    ):
        said = f"ISWITCH_{missing} is not set: name switch and job: init_method='iswitch://HOST:"
        with pytest.raises(ValueError, match=re.escape(said)):
            JobAddress.from_env(variables)


def test_a_rank_is_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ValueError, match="pass world_size="):
        next(rendezvous("iswitch://127.0.0.1/7?rank=0"))
    with pytest.raises(ValueError, match="pass rank="):
        next(rendezvous("iswitch://127.0.0.1/7?world_size=2"))
    with pytest.raises(ValueError, match="rank 2 of 2"):
        next(rendezvous("iswitch://127.0.0.1/7?rank=2&world_size=2"))


def test_nobody_there() -> None:
    with pytest.raises(SwitchUnreachable, match=r"127\.0\.0\.1:9"):
        next(
            rendezvous(
                "iswitch://127.0.0.1:9/7?rank=1&world_size=2", timeout=timedelta(seconds=0.3)
            )
        )


@pytest.mark.parametrize("capacity", [0, 1023, "16", 1 << 32])
def test_capacities(capacity: Any) -> None:
    with pytest.raises(ValueError, match="pass bytes"):
        Options(capacity=capacity)
