"""The workers of one process in one group: one for each collective, element type and operation.

A job at the switch has one collective, one element type and one operation, so a group has a few
jobs, each made when it is first needed. All processes issue equal collectives in one order, so they
also make equal jobs in one order. A job's vectors have any size up to `capacity`; longer ones take
several rounds.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, NoReturn

import numpy as np
from torch import distributed

from iswitch.core.format.wire import Awaited
from iswitch.system.keyfiles import key_in
from worker_lib import arguments, environment, naming
from worker_lib.arguments import OpName
from worker_lib.collective import CollectiveWorker
from worker_lib.errors import AllreduceTimeout, MemberLost, WorkerError
from worker_lib.worker import Worker

from .address import JobAddress
from .tensors import Array

LEAST = 0.001  # seconds of a round whose time is up already: whom it waits for is still asked


class Kind(NamedTuple):
    """What a job at the switch does.

    Args:
        collective: the collective, which the switch does for others, too: reduce_scatter also for
            reduce, all_gather for broadcast, all_to_all for gather and scatter.
        dtype: element type.
        op: operation that combines elements, where any are combined.
    """

    collective: Literal["barrier", "all_reduce", "reduce_scatter", "all_gather", "all_to_all"]
    dtype: np.dtype[Any]
    op: OpName = "sum"


BARRIER = Kind("barrier", np.dtype(np.int32))  # every group has that job
# What only has to arrive, to the last bit, travels as bytes, whatever its type.
BYTES_TO_ALL = Kind("all_gather", np.dtype(np.uint8))
BYTES_TO_EACH = Kind("all_to_all", np.dtype(np.uint8))


@dataclass(frozen=True)
class Options:
    """Options of a group at its switch: `pg_options=` of `init_process_group` and `new_group`.

    Args:
        reproducible: sum in rank order rather than in order of arrival: a run can be repeated bit
            for bit. The switch then keeps every process's contribution until the round is done.
        capacity: bytes of a job's longest vector, that is of what all ranks give or get together;
            the switch reserves a little over twice that for each job. Longer vectors take several
            rounds.
        rounds: how many allreduces the program is going to do, if it knows: of DDP, buckets times
            steps. A switch that shares its memory may let short jobs go first (docs/sharing.md).
    """

    reproducible: bool = False
    capacity: int = 8 << 20
    rounds: int | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.capacity, int) or not 1 << 10 <= self.capacity <= 1 << 31:
            raise ValueError(f"capacity = {self.capacity!r}: pass bytes, 1024 to 2147483648")
        arguments.rounds(self.rounds)


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
        self._workers: dict[Kind, Worker | CollectiveWorker] = {}
        self._current: Worker | CollectiveWorker | None = None
        self._failure: distributed.DistBackendError | None = None
        self._closed = threading.Event()
        self._open(BARRIER)

    def allreduce(self, vector: Array, op: OpName, timeout: float | None = None) -> None:
        """Replace a flat contiguous vector by the combination of all ranks' vectors.

        Args:
            vector: vector of one of the types in `tensors.ELEMENTS`.
            op: operation that combines elements.
            timeout: seconds; default: the group's.

        Raises:
            torch.distributed.DistBackendError: as for `use`.
        """

        def combine(worker: Any, seconds: float) -> None:
            limit = time.monotonic() + seconds
            most = worker.shape.numel
            for start in range(0, len(vector), most):
                part = vector[start : start + most]
                worker.allreduce(part, part, max(limit - time.monotonic(), LEAST))

        self.use(Kind("all_reduce", vector.dtype, op), combine, timeout)

    def barrier(self, timeout: float | None = None) -> None:
        """Wait until all ranks are here, at most `timeout` seconds.

        Raises:
            torch.distributed.DistBackendError: as for `use`.
        """
        self.use(BARRIER, _meet, timeout)

    def use(
        self, kind: Kind, call: Callable[[Any, float], object], timeout: float | None = None
    ) -> None:
        """Do a collective with the worker of a job, which joins that when it is first used.

        Args:
            kind: what the job does.
            call: does the collective with the worker, a `Worker` or `CollectiveWorker`, in so many
                seconds.
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
        seconds = self.timeout if timeout is None else timeout
        try:
            if kind not in self._workers:
                # The switch can name missing workers only after all have met.
                self._current = self._workers[BARRIER]
                _meet(self._current, seconds)
                self._open(kind)
            self._current = self._workers[kind]
            call(self._current, seconds)
        except WorkerError as error:
            self._fail(error, seconds)
        finally:
            self._current = None

    def fail(self, error: BaseException) -> None:
        """Let no collective follow one that failed here: it would meet another of the others."""
        if self._failure is None:
            self._failure = distributed.DistBackendError(
                f"rank {self.rank} failed in a collective, which the others may be waiting in: "
                f"{error!r}"
            )

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

    def _open(self, kind: Kind) -> None:
        collective, dtype, op = kind
        combines = collective not in ("all_gather", "all_to_all")
        terms: dict[str, Any] = {
            "rank": self.rank,
            "dtype": dtype,
            "op": op,
            "on_member_lost": "raise",
            "reproducible": self.options.reproducible and combines,
            "timeout": self.timeout,
            "key": key_in(os.environ),
        }
        place = self.place.switch, self._number()
        numel = self.options.capacity // dtype.itemsize
        if collective == "barrier":
            self._workers[kind] = Worker(*place, 1, self.size, **terms)
        elif collective == "all_reduce":
            terms["rounds"] = self.options.rounds
            self._workers[kind] = Worker(*place, numel, self.size, shorter=True, **terms)
        else:
            blocks = self.size**2 if collective == "all_to_all" else self.size
            self._workers[kind] = CollectiveWorker(
                *place, collective, numel // blocks, self.size, **terms
            )

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


def _meet(worker: Any, seconds: float) -> None:
    """Wait until all ranks are here."""
    word = np.zeros(1, np.int32)
    worker.allreduce(word, word, seconds)
