"""Makes a process group: finds its switch, numbers for its jobs, and a gloo group beside it."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from torch._C._distributed_c10d import PrefixStore, ProcessGroupGloo

from iswitch.virtual.process import current
from worker_lib.errors import WorkerError

from .address import LAST_JOB, JobAddress, jobs_taken, key_of
from .channels import Channels, Options
from .group import SwitchGroup


def create(opts: Any, options: Options | None) -> SwitchGroup:
    """Make the process group that `init_process_group` and `new_group` ask for.

    Args:
        opts: c10d's DistributedBackendOptions.
        options: `pg_options` of the caller.
    """
    if options is not None and not isinstance(options, Options):
        raise TypeError(f"pg_options = {options!r}: pass worker_lib.torch.Options(...), or nothing")
    ranks = opts.global_ranks_in_group
    rank = ranks[opts.group_rank] if ranks else opts.group_rank
    root = opts.store
    while isinstance(root, PrefixStore):
        root = root.underlying_store
    key = key_of(rank)
    place = JobAddress.from_url(root.get(key).decode()) if root.check([key]) else None
    place = place or JobAddress.from_env(os.environ)
    check_room(root, opts.store, opts.group_rank, opts.group_size, place)
    number = _numbers(root, opts.store, opts.group_rank, place)
    seconds = opts.timeout.total_seconds()
    channels = Channels(
        place, opts.group_rank, opts.group_size, seconds, options or Options(), number
    )
    gloo = _gloo(opts.store, opts.group_rank, opts.group_size, opts.timeout, place)
    return SwitchGroup(channels, gloo)


def check_room(root: Any, store: Any, rank: int, size: int, place: JobAddress) -> None:
    """Check that job numbers are left; all ranks use the count of rank 0, so that they agree.

    Raises:
        ValueError: no job number is left.
        DistStoreError: a rank is missing.
    """
    place.check_room()  # what all see by themselves needs no store, which ends with its process
    if rank == 0:
        store.set("jobs taken", str(root.add("iswitch/jobs", 0)))
    place.check_room(jobs_taken(store, rank, size))


def _numbers(root: Any, store: Any, rank: int, place: JobAddress) -> Callable[[], int]:
    """Make a function that returns job numbers unique in the run, which rank 0 chooses."""
    keys = (f"job/{i}" for i in itertools.count())

    def number() -> int:
        key = next(keys)
        if rank == 0:
            store.set(key, str(place.job + root.add("iswitch/jobs", 1)))
        found = int(store.get(key))
        if found > LAST_JOB:
            raise WorkerError(f"no job number is left after {LAST_JOB}; begin the run at a smaller")
        return found

    return number


def _near(place: JobAddress) -> str:
    """Return this machine's own address; in virtual time gloo is made, but never used."""
    return place.near_address if current() is None else "127.0.0.1"


def _gloo(store: Any, rank: int, size: int, timeout: timedelta, place: JobAddress) -> Any:
    """Make a gloo group on the interface to the switch, or on GLOO_SOCKET_IFNAME."""
    options = ProcessGroupGloo._Options()  # type: ignore[attr-defined]
    named = [name for name in os.environ.get("GLOO_SOCKET_IFNAME", "").split(",") if name]
    ways = [{"interface": name} for name in named] or [{"hostname": _near(place)}]
    options._devices = [ProcessGroupGloo.create_device(**way, lazy_init=True) for way in ways]
    options._timeout = timeout
    return ProcessGroupGloo(PrefixStore("gloo/", store), rank, size, options)
