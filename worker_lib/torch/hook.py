"""Sums gradients of DistributedDataParallel in the switch, beside any backend."""

# No `from __future__ import annotations`: DistributedDataParallel looks at those of a hook.
import itertools
import os
import weakref
from datetime import timedelta
from typing import Any

import torch
from torch import distributed
from torch._C._distributed_c10d import GradBucket, ProcessGroup
from torch.futures import Future

from worker_lib import arguments
from worker_lib.closing import Closing

from .address import JobAddress
from .channels import Channels, Options
from .issuing import end
from .tensors import ELEMENTS, Stage, elements
from .works import Work, Works


class SwitchState(Closing):
    """Averages gradients through a switch; the state of `ddp_hook`.

    Args:
        switch: (host, port); None: ISWITCH_SWITCH and ISWITCH_JOB of the environment.
        job: the first of the job numbers it takes, usually two.
        group: the processes whose gradients are averaged; None: all.
        compress: dtype in which gradients travel, torch.bfloat16 or torch.float16, with half the
            bytes; None: their own.
        timeout: timeout of a collective, as a timedelta or in seconds.
        options: options of the jobs at the switch.
        staged: stage all gradients, as gradients of a GPU are.

    Raises:
        WorkerError: not all processes came to the switch in time.
        ValueError: an argument is out of its range.
    """

    def __init__(
        self,
        switch: tuple[str, int] | None = None,
        job: int | None = None,
        *,
        group: ProcessGroup | None = None,
        compress: torch.dtype | None = None,
        timeout: timedelta | float = distributed.default_pg_timeout,
        options: Options | None = None,
        staged: bool = False,
    ) -> None:
        if (switch is None) != (job is None):
            raise ValueError("pass both switch and job, or neither to have the environment's")
        if compress not in (None, torch.bfloat16, torch.float16):
            raise ValueError(f"compress = {compress!r}: pass torch.bfloat16 or torch.float16")
        if switch is None or job is None:
            place = JobAddress.from_env(os.environ)
        else:
            switch = arguments.address("switch", switch, least_port=1)
            place = JobAddress(switch, arguments.job_number(job))
            place.agree_with({**os.environ, "ISWITCH_JOB": ""}, f"SwitchState({switch}, {job})")
        place.check_room(-2)  # it takes two, its own number among them
        if isinstance(timeout, timedelta):
            timeout = timeout.total_seconds()
        seconds = arguments.seconds("timeout", timeout)
        self.compress = compress
        self._staged = staged
        self._channels = Channels(
            place,
            distributed.get_rank(group),
            distributed.get_world_size(group),
            seconds,
            options or Options(),
            itertools.count(place.job).__next__,
        )
        self._works = Works("iswitch-ddp")
        self._end = weakref.finalize(self, end, self._works, self._channels)

    def close(self) -> None:
        """Finish the issued averages, then leave the switch."""
        self._end()

    def average(self, tensor: torch.Tensor) -> Work:
        """Begin to replace a tensor by its mean over all processes; return at once.

        It is divided first and then summed, as DistributedDataParallel does by itself.
        """
        if tensor.dtype not in ELEMENTS or not tensor.dtype.is_floating_point:
            raise TypeError(
                f"gradients of {tensor.dtype}: the switch averages floats; convert the parameters"
            )
        stage = Stage([tensor], self._staged, self.compress)

        def run() -> None:
            host = stage.load().div_(self._channels.size)
            self._channels.allreduce(elements(host), "sum")
            stage.store()

        return self._works.issue(Work(run, tensor, [tensor], self._channels.whom))


def ddp_hook(state: SwitchState, bucket: GradBucket) -> Future[torch.Tensor]:
    """Average a bucket of gradients while backward goes on; for `register_comm_hook`.

    model = DistributedDataParallel(model)
    model.register_comm_hook(SwitchState(("127.0.0.1", 26963), job=7), ddp_hook)
    """
    future: Future[Any] = state.average(bucket.buffer()).get_future()
    return future
