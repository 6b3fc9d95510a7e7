"""The workers of one process in one group: one for each element type and operation.

A job at the switch has one element type and one operation, so a group has a few jobs, each made
when it is first needed. All processes issue equal collectives in one order, so they also make equal
jobs in one order. A job's vectors have any size up to `capacity` (`Worker(shorter=True)`); longer
ones take several rounds.

Data that must arrive to the last bit travels as int32, whatever its type: ranks without data
contribute zeros, and sums of int32 are exact.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt
from torch import distributed

from iswitch.core.format.wire import Awaited
from iswitch.system.keyfiles import key_in
from worker_lib import environment, naming
from worker_lib.arguments import OpName
from worker_lib.errors import AllreduceTimeout, MemberLost, WorkerError
from worker_lib.worker import Worker

from .address import JobAddress
from .tensors import Array

Words = npt.NDArray[np.int32]
INT32 = np.dtype(np.int32)
WORDS = 1 << 20  # bytes at most of a vector of words; every group has that job
LEAST = 0.001  # seconds of a round whose time is up already: whom it waits for is still asked


@dataclass(frozen=True)
class Options:
    """Options of a group at its switch: `pg_options=` of `init_process_group` and `new_group`.

    Args:
        reproducible: sum in rank order rather than in order of arrival: a run can be repeated bit
            for bit. The switch then keeps every process's contribution until the round is done.
        capacity: bytes of a job's longest vector; the switch reserves a little over twice that for
            each job. Longer vectors take several rounds.
    """

    reproducible: bool = False
    capacity: int = 8 << 20

    def __post_init__(self) -> None:
        if not isinstance(self.capacity, int) or not 1 << 10 <= self.capacity <= 1 << 31:
            raise ValueError(f"capacity = {self.capacity!r}: pass bytes, 1024 to 2147483648")


class Channels:
    """Carries the vectors of one process of a group through its switch; for use in one thread.

    Args:
        place: the switch.
        rank, size: rank of this process, and number of processes.
        timeout: seconds that joining and a collective may take.
        options: options of the group.
        number: returns the next free job number, equal in all processes.
    """

    def __init__(
        self,
        place: JobAddress,
        rank: int,
        size: int,
        timeout: float,
        options: Options,
        number: Callable[[], int],
    ) -> None:
        self.place = place
        self.rank = rank
        self.size = size
        self.timeout = timeout
        self.options = options
        self._number = number
        self._workers: dict[tuple[np.dtype[Any], OpName], Worker] = {}
        self._current: Worker | None = None
        self._failure: distributed.DistBackendError | None = None
        self._closed = threading.Event()
        self._words = self._open(INT32, "sum")

    def allreduce(self, vector: Array, op: OpName, timeout: float | None = None) -> None:
        """Replace a flat contiguous vector by the combination of all ranks' vectors.

        Args:
            vector: vector of one of the types in `tensors.ELEMENTS`.
            op: operation that combines elements.
            timeout: seconds; default: the group's.

        Raises:
            torch.distributed.DistBackendError: a rank is lost, or something else has ended the
                group; the message says what, and names the rank.
        """
        if self._failure is not None:
            raise distributed.DistBackendError(
                f"this group has failed before: {self._failure}; end it with "
                "destroy_process_group() and begin anew"
            )
        try:
            worker = self._workers.get((vector.dtype, op))
            if worker is None:
                # The switch can name missing workers only after all have met.
                self._combine(self._words, np.zeros(1, np.int32), timeout)
                worker = self._open(vector.dtype, op)
            self._combine(worker, vector, timeout)
        except WorkerError as error:
            self._fail(error, self.timeout if timeout is None else timeout)
        finally:
            self._current = None

    def share(self, words: Words, timeout: float | None = None) -> None:
        """Sum words over all ranks, in place; each rank sets its part, and zeros elsewhere."""
        self.allreduce(words, "sum", timeout)

    def whom(self) -> str:
        """Describe the workers for which the collective waits, as far as the switch has said."""
        awaited = [] if self._current is None else self._current.awaited
        return _silent(awaited) if awaited else "it is under way"

    def close(self) -> None:
        """Leave all jobs."""
        if not self._closed.is_set():
            self._closed.set()
            for worker in self._workers.values():
                worker.leave()

    def _combine(self, worker: Worker, vector: Array, timeout: float | None) -> None:
        """Replace a vector by the combination of all ranks', in as many rounds as it needs.

        Args:
            worker: a member of the job for the vector's dtype.
            vector: flat and contiguous.
            timeout: seconds for all rounds together; None: the group's.
        """
        self._current = worker
        limit = time.monotonic() + (self.timeout if timeout is None else timeout)
        most = worker.shape.numel
        for start in range(0, len(vector), most):
            part = vector[start : start + most]
            worker.allreduce(part, part, max(limit - time.monotonic(), LEAST))

    def _open(self, dtype: np.dtype[Any], op: OpName) -> Worker:
        capacity = self.options.capacity
        if (dtype, op) == (INT32, "sum"):
            capacity = min(capacity, WORDS)
        worker = Worker(
            self.place.switch,
            self._number(),
            capacity // dtype.itemsize,
            self.size,
            rank=self.rank,
            dtype=dtype,
            op=op,
            on_member_lost="raise",
            reproducible=self.options.reproducible,
            timeout=self.timeout,
            key=key_in(os.environ),
            shorter=True,
        )
        self._workers[dtype, op] = worker
        return worker

    def _fail(self, error: WorkerError, timeout: float) -> NoReturn:
        message = str(error)
        if isinstance(error, MemberLost) and error.ranks:
            message = f"{_silent(error.awaited)}: lost, its lease has run out"
        elif isinstance(error, MemberLost):
            who = naming.listed(error.left) if error.left else "a rank"
            message = (
                f"{who} left the group while a collective waits for all: did the process end, or "
                "call destroy_process_group()?"
            )
        elif isinstance(error, AllreduceTimeout):
            why = message.partition(": ")[2]  # before it, the time that was left to the round
            if error.ranks:
                why = f"{_silent(error.awaited)}: did it stop?"
            message = f"not done within {timeout:g} s: {why}"
        self._failure = distributed.DistBackendError(f"{message} [rank {self.rank} says so]")
        raise self._failure from error


def _silent(awaited: list[Awaited]) -> str:
    """Describe the workers that do not contribute, by rank in the group and place."""
    named = [one._replace(switch_port=0) for one in awaited]
    several = len(named) > 1
    who = naming.workers(named, len(named), environment.hosts(os.environ))
    return f"{who} do{'' if several else 'es'} not contribute"
