"""A process group whose collectives the switch does; all else goes to gloo beside it.

    all_reduce, reduce        sum, avg, product, max, min of floats; of integers and bool, too, but
                              for avg; their bitwise and, or, xor
    broadcast, all_gather     any type, to the last bit
    barrier                   a vector of one word

All collectives here run in one thread of the group, in the order in which they were issued. The
base class passes all else (point-to-point, scatter, other types and operations, ...) to the gloo
group registered in it, which connects on first use.
"""

from __future__ import annotations

import itertools
import os
import weakref
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import numpy as np
import torch
from torch._C._distributed_c10d import (
    AllgatherOptions,
    AllreduceCoalescedOptions,
    AllreduceOptions,
    BarrierOptions,
    BroadcastOptions,
    PrefixStore,
    ProcessGroup,
    ProcessGroupGloo,
    ReduceOp,
    ReduceOptions,
)

from iswitch.core.format.wire import DType
from worker_lib.arguments import OPS as SWITCH_OPS
from worker_lib.arguments import OpName
from worker_lib.errors import WorkerError

from .address import LAST_JOB, JobAddress, jobs_taken, key_of
from .channels import Channels, Options
from .tensors import ELEMENTS, Stage, elements, is_plain, octets
from .works import Work, Works

OPS: dict[Any, OpName] = {
    ReduceOp.SUM: "sum",
    ReduceOp.AVG: "sum",  # and divided
    ReduceOp.MAX: "max",
    ReduceOp.MIN: "min",
    ReduceOp.PRODUCT: "prod",
    ReduceOp.BAND: "band",
    ReduceOp.BOR: "bor",
    ReduceOp.BXOR: "bxor",
}
PATIENCE = 5.0  # seconds for the last collective, at the end of the process
WORD = 4  # bytes


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


def _gloo(store: Any, rank: int, size: int, timeout: timedelta, place: JobAddress) -> Any:
    """Make a gloo group on the interface to the switch, or on GLOO_SOCKET_IFNAME."""
    options = ProcessGroupGloo._Options()  # type: ignore[attr-defined]
    named = [name for name in os.environ.get("GLOO_SOCKET_IFNAME", "").split(",") if name]
    ways = [{"interface": name} for name in named] or [{"hostname": place.near_address}]
    options._devices = [ProcessGroupGloo.create_device(**way, lazy_init=True) for way in ways]
    options._timeout = timeout
    return ProcessGroupGloo(PrefixStore("gloo/", store), rank, size, options)


class SwitchGroup(ProcessGroup):
    """The process group that `init_process_group("iswitch", ...)` makes.

    Args:
        channels: this process's workers at the switch.
        gloo: gloo group for what the switch does not do.
        staged: stage all tensors, as tensors of a GPU are.
    """

    def __init__(self, channels: Channels, gloo: Any, staged: bool = False) -> None:
        super().__init__(channels.rank, channels.size)  # type: ignore[call-arg]
        self.channels = channels
        self._gloo = gloo
        self._staged = staged
        for device in ("cpu", "cuda"):
            self._register_backend(torch.device(device), ProcessGroup.BackendType.GLOO, gloo)
        self._works = Works("iswitch")
        self._end = weakref.finalize(self, _end, self._works, channels)  # also at exit

    def getBackendName(self) -> str:
        """Return the name under which the group is registered; C++ looks it up."""
        return "iswitch"

    def shutdown(self) -> None:
        """Finish issued collectives, then leave the switch; `destroy_process_group` calls this."""
        self._end()

    # Collectives of the switch. Of torch's overloads, those that its own functions call.

    def allreduce(self, tensors: Any, opts: Any = None) -> Any:  # type: ignore[override]
        """Combine tensors of all ranks, in place; those of one call travel as one vector."""
        return self._reduce(tensors, opts or AllreduceOptions(), self._gloo.allreduce)

    def allreduce_coalesced(self, tensors: Any, opts: Any = None) -> Any:
        """Combine tensors of all ranks, in place; they travel as one vector."""
        opts = opts or AllreduceCoalescedOptions()
        return self._reduce(tensors, opts, self._gloo.allreduce_coalesced)

    def reduce(self, tensors: Any, opts: Any = None) -> Any:  # type: ignore[override]
        """Combine tensors of all ranks; only the root's are written to."""
        opts = opts or ReduceOptions()
        return self._reduce(tensors, opts, self._gloo.reduce)

    def broadcast(self, tensors: Any, opts: Any = None) -> Any:  # type: ignore[override]
        """Give all ranks the root's tensors, to the last bit."""
        opts = opts or BroadcastOptions()
        if not all(map(is_plain, tensors)):
            return self._gloo.broadcast(tensors, opts)
        seconds = _seconds(opts.timeout)
        stages = [Stage([tensor], self._staged) for tensor in tensors]

        def run() -> None:
            for stage in stages:
                self._broadcast(octets(stage.load()), opts.rootRank, seconds)
                stage.store()

        return self._issue(run, tensors, tensors)

    def allgather(self, output_tensors: Any, input_tensors: Any, opts: Any = None) -> Any:
        """Give all ranks the tensors of all, to the last bit."""
        opts = opts or AllgatherOptions()
        outputs = [tensor for row in output_tensors for tensor in row]
        fit = all(
            len(row) == self.channels.size
            and all(t.dtype is own.dtype and t.numel() == own.numel() for t in row)
            for row, own in zip(output_tensors, input_tensors, strict=True)
        )
        if not (fit and all(map(is_plain, outputs)) and all(map(is_plain, input_tensors))):
            return self._gloo.allgather(output_tensors, input_tensors, opts)
        return self._gather_each(output_tensors, input_tensors, output_tensors, opts)

    def _allgather_base(self, output: Any, input: Any, opts: Any = None) -> Any:
        """Give all ranks the tensors of all, joined in one tensor, to the last bit."""
        opts = opts or AllgatherOptions()
        fits = output.dtype is input.dtype and output.numel() == self.channels.size * input.numel()
        if not (fits and is_plain(output) and is_plain(input)):
            return self._gloo._allgather_base(output, input, opts)
        return self._gather_each([[output]], [input], [output], opts)

    all_gather_single = _allgather_base

    def allgather_into_tensor_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        """Do `_allgather_base` for several pairs of tensors."""
        rows = [[output] for output in outputs]
        return self._gather_each(rows, inputs, outputs, opts or AllgatherOptions())

    all_gather_single_coalesced = allgather_into_tensor_coalesced  # type: ignore[assignment]

    def barrier(  # type: ignore[override]
        self, opts: Any = None, timeout: timedelta | None = None
    ) -> Any:
        """Wait until all ranks are here and all their earlier collectives at the switch are done.

        Collectives on gloo are not waited for, since C++ passes most of them there directly.
        """
        opts = opts or BarrierOptions()
        seconds = _seconds(timeout or opts.timeout)
        word = np.zeros(1, np.int32)
        return self._issue(lambda: self.channels.share(word, seconds), [], [])

    # How they are done

    def _reduce(self, tensors: Sequence[torch.Tensor], opts: Any, by_gloo: Any) -> Any:
        root, average = getattr(opts, "rootRank", None), opts.reduceOp == ReduceOp.AVG
        name = _op_for(tensors, opts.reduceOp)
        if name is None:
            return by_gloo(tensors, opts)
        keeps = root is not None and root != self.channels.rank
        stage = Stage(tensors, self._staged or keeps)
        seconds = _seconds(opts.timeout)

        def run() -> None:
            host = stage.load()
            self.channels.allreduce(elements(host), name, seconds)
            if average:
                host.div_(self.channels.size)
            if not keeps:
                stage.store()

        return self._issue(run, tensors, tensors)

    def _broadcast(self, data: Any, root: int, seconds: float | None) -> None:
        """Replace bytes by those of the root."""
        if self.channels.rank != root:
            data[:] = 0
        if len(data) % WORD == 0:
            self.channels.share(data.view(np.int32), seconds)
            return
        words = np.zeros(-(-len(data) // WORD), np.int32)
        padded = words.view(np.uint8)[: len(data)]
        padded[:] = data
        self.channels.share(words, seconds)
        data[:] = padded

    def _gather(self, output: Any, own: Any, seconds: float | None) -> None:
        """Replace bytes by those of all ranks, one after the other."""
        rank, size = self.channels.rank, self.channels.size
        words = np.zeros((size, -(-len(own) // WORD)), np.int32)
        rows = words.view(np.uint8).reshape(size, -1)[:, : len(own)]
        rows[rank] = own
        self.channels.share(words.reshape(-1), seconds)
        output.reshape(size, -1)[:] = rows

    def _gather_each(self, rows: Any, inputs: Any, result: Any, opts: Any) -> Work:
        seconds = _seconds(opts.timeout)
        stages = [
            (Stage(row, self._staged), Stage([own], self._staged))
            for row, own in zip(rows, inputs, strict=True)
        ]

        def run() -> None:
            for row, own in stages:
                self._gather(octets(row.load()), octets(own.load()), seconds)
                row.store()

        return self._issue(run, result, [*itertools.chain.from_iterable(rows), *inputs])

    def _issue(self, run: Callable[[], None], result: Any, tensors: Sequence[torch.Tensor]) -> Work:
        return self._works.issue(Work(run, result, tensors, self.channels.whom))


def _end(works: Works, channels: Channels) -> None:
    """Leave the switch; if a collective hangs, let the lease end the membership instead."""
    if works.stop(PATIENCE):
        channels.close()


def _op_for(tensors: Sequence[torch.Tensor], op: Any) -> OpName | None:
    """Return the switch's operation for these tensors; None: it has none for their dtype.

    Raises:
        TypeError: averages of whole numbers, which nothing here rounds.
    """
    dtypes = {tensor.dtype for tensor in tensors}
    if op == ReduceOp.AVG and not all(dtype.is_floating_point for dtype in dtypes):
        raise TypeError(
            f"ReduceOp.AVG of {', '.join(map(str, dtypes))}: sum them (ReduceOp.SUM) and divide "
            "with the rounding you want, or convert them to float32"
        )
    name = next((name for known, name in OPS.items() if op == known), None)
    if name is None or len(dtypes) != 1 or not dtypes <= ELEMENTS.keys():
        return None
    takes = SWITCH_OPS[name].takes(DType.of(ELEMENTS[dtypes.pop()]))
    return name if takes and all(map(is_plain, tensors)) else None


def _seconds(timeout: timedelta) -> float | None:
    """Return a collective's timeout in seconds; None: use the group's."""
    seconds = timeout.total_seconds()
    return seconds if seconds > 0 else None
