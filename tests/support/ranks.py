"""Ranks of torch.distributed: threads with groups of their own, or processes."""

from __future__ import annotations

import itertools
import multiprocessing as mp
import os
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from multiprocessing.connection import Connection
from typing import Any

import torch
from torch._C._distributed_c10d import HashStore
from torch.distributed import ProcessGroupGloo

from iswitch.lab.launch import launch
from worker_lib.torch import Options, SwitchGroup
from worker_lib.torch.address import JobAddress
from worker_lib.torch.channels import Channels

PATIENCE = 60.0  # seconds until a test is given up

# Processes are forked from one that has imported torch and what DistributedDataParallel imports
# when it is first used, which takes seconds.
CONTEXT = mp.get_context("forkserver")
CONTEXT.set_forkserver_preload(["torch._dynamo", "worker_lib.torch"])


def free_port() -> int:
    """A port for the store of those who do not meet at the switch, as `iswitch run` takes one."""
    found = launch.free_port("127.0.0.1")
    assert found is not None, "100 ports in a row are taken"
    return found


def together(*calls: Callable[[], Any]) -> list[Any]:
    """Call all of these at the same time, each in a thread."""
    with ThreadPoolExecutor(len(calls)) as pool:
        return [one.result(PATIENCE) for one in [pool.submit(call) for call in calls]]


@contextmanager
def groups(
    switch: tuple[str, int],
    job: int,
    size: int,
    timeout: float = PATIENCE,
    options: Options | None = None,
    staged: bool = False,
) -> Iterator[list[SwitchGroup]]:
    """One group for each rank, all in this process; they leave at the end."""
    store = HashStore()

    def make(rank: int) -> SwitchGroup:
        number = itertools.count(job).__next__
        chosen = options or Options()
        channels = Channels(JobAddress(switch, job), rank, size, timeout, chosen, number)
        gloo_options = ProcessGroupGloo._Options()  # type: ignore[attr-defined]
        device = ProcessGroupGloo.create_device(hostname="127.0.0.1", lazy_init=True)
        gloo_options._devices = [device]
        gloo_options._timeout = timedelta(seconds=timeout)
        return SwitchGroup(channels, ProcessGroupGloo(store, rank, size, gloo_options), staged)

    made = together(*(lambda rank=rank: make(rank) for rank in range(size)))
    try:
        yield made
    finally:
        together(*(group.shutdown for group in made))


def in_processes(
    function: Callable[..., Any],
    size: int,
    *args: Any,
    variables: Callable[[int], Mapping[str, str]] = lambda _: {},
) -> list[Any]:
    """What `function(rank, size, *args)` returns in so many processes.

    Raises:
        AssertionError: one has failed; with its traceback.
    """
    running = []
    for rank in range(size):
        end, other = CONTEXT.Pipe()
        goes = os.sched_getscheduler(0)  # before others, in a repeated attempt: machine.judged
        target = (other, dict(variables(rank)), goes, function, rank, size, *args)
        process = CONTEXT.Process(target=_run, args=target, daemon=True)
        process.start()
        other.close()
        running.append((process, end))
    try:
        told = []
        for rank, (_, end) in enumerate(running):
            assert end.poll(PATIENCE), f"rank {rank} says nothing"
            told.append(end.recv())
        for rank, (well, answer) in enumerate(told):
            assert well, f"rank {rank}: {answer}"
        return [answer for _, answer in told]
    finally:
        for _, end in running:
            end.close()
        for process, _ in running:
            process.join(PATIENCE if process.is_alive() and sys.exc_info()[0] is None else 0)
            process.kill()
            process.join()


def _run(
    results: Connection,
    variables: dict[str, str],
    goes: int,
    function: Callable[..., Any],
    *args: Any,
) -> None:
    if goes == os.SCHED_RR:  # the server that forks these processes is as all others
        os.sched_setscheduler(0, goes, os.sched_param(1))
    torch.set_num_threads(1)
    os.environ.update(variables)
    try:
        results.send((True, function(*args)))
        results.poll(PATIENCE)  # until all have told: rank 0 may serve the store of the others
        if "mpi4py.MPI" in sys.modules:  # or mpirun would take this for a failure, and end others
            sys.modules["mpi4py.MPI"].Finalize()
    except BaseException:
        results.send((False, traceback.format_exc()))
    finally:
        os._exit(0)  # without gloo's destructors
