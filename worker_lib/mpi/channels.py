"""What moves the data of a communicator: its workers at the switch, or, for one process, copies.

A communicator has a job for what all ranks get of one another, which it has from the beginning, one
for what each rank gets, and two for each element type and operation: sums for all ranks, and for
one. Each of them is made when it is first needed: then rank 0 tells its number to all.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple, Protocol, TypeVar

import numpy as np

from iswitch.core.format.wire import Vector
from worker_lib.arguments import OpName
from worker_lib.collective import CollectiveWorker
from worker_lib.errors import SizesDiffer
from worker_lib.worker import Worker

from .errors import MpiError, translated
from .numbering import Numbers, checked

CAPACITY = 4 << 20  # bytes of the vectors of a job; longer ones take several rounds
LEAST = 64  # bytes of a block, if there are very many
TIMEOUT = 1800.0  # seconds that a collective may take, since a rank may compute for long
LEAST_SECONDS = 0.001  # of a round whose time is up already: whom it waits for is still asked
Counts = tuple[Sequence[int], Sequence[int]]
Way = Literal["allreduce", "reduce_scatter", "all_gather", "all_to_all"]
T = TypeVar("T")


class Place(NamedTuple):
    """Where the processes of a run meet.

    Attributes:
        switch: (host, port) of the switch.
        key: key of keyed jobs.
        timeout: seconds that joining and a collective may take.
        numbers: gives out this process's job numbers.
    """

    switch: tuple[str, int]
    key: bytes | None
    timeout: float
    numbers: Numbers


class Kind(NamedTuple):
    """What a job is for; elements and operation as the switch combines them."""

    way: Way
    dtype: np.dtype[Any]
    op: OpName


OCTETS = np.dtype(np.uint8)
EVERYBODYS = Kind("all_gather", OCTETS, "sum")
EACH_ONES = Kind("all_to_all", OCTETS, "sum")


class Channels(Protocol):
    """Moves flat contiguous vectors among the ranks of a communicator; bytes, where none reduces.

    All ranks call the same methods in the same order. `out` receives the result; vectors of N
    blocks hold them one after the other. Vector and `out` may be the same array.
    """

    rank: int
    size: int

    def allreduce(self, vector: Vector, out: Vector, op: OpName) -> None:
        """Combine the vectors of all ranks."""

    def reduce(self, vector: Vector, out: Vector | None, op: OpName, root: int) -> None:
        """Combine the vectors of all ranks at the root, which alone has an `out`."""

    def reduce_scatter(self, vector: Vector, out: Vector, op: OpName) -> None:
        """Combine vectors of N equal blocks; each rank gets its own."""

    def broadcast(self, vector: Vector, root: int) -> None:
        """Write the root's vector over those of all others."""

    def all_gather(self, vector: Vector, out: Vector, counts: Sequence[int] | None = None) -> None:
        """Get the vectors of all ranks, of these sizes; None: of equal ones."""

    def all_to_all(self, vector: Vector, out: Vector, counts: Counts | None = None) -> None:
        """Give a block to each rank and get one, of sizes (given, got); None: of equal ones."""

    def gather(self, vector: Vector, out: Vector | None, root: int) -> None:
        """Get equally long vectors of all ranks at the root, which alone has an `out`."""

    def scatter(self, vector: Vector | None, out: Vector, root: int) -> None:
        """Give each rank one of N equal blocks; the root alone has a vector."""

    def close(self) -> None:
        """Leave all jobs, and give their numbers back."""


class Alone:
    """The channels of a communicator of one process: copies."""

    rank = 0
    size = 1

    def _copy(self, vector: Vector | None, out: Vector | None, *_: object) -> None:
        if vector is not None and out is not None:
            np.copyto(out, vector)

    allreduce = reduce = reduce_scatter = all_gather = all_to_all = gather = scatter = _copy

    def broadcast(self, vector: Vector, root: int) -> None:
        """Leave the vector as it is."""

    def close(self) -> None:
        """Do nothing."""


class Switched:
    """The channels of a communicator through the switch; one thread uses them at a time.

    Args:
        place: where the processes meet.
        rank, size: rank of this process, and number of processes.
        number: number of the first job, equal in all processes.
    """

    def __init__(self, place: Place, rank: int, size: int, number: int) -> None:
        self.rank = rank
        self.size = size
        self._place = place
        self._workers: dict[Kind, Worker | CollectiveWorker] = {}
        self._taken = [number]
        self._failure: BaseException | None = None

    def allreduce(self, vector: Vector, out: Vector, op: OpName) -> None:
        """Combine the vectors of all ranks, in rounds of CAPACITY."""
        if not len(vector):
            return

        def run() -> None:
            worker = self._worker(Kind("allreduce", vector.dtype, op))
            assert isinstance(worker, Worker)
            limit, most = time.monotonic() + self._place.timeout, worker.shape.numel
            for start in range(0, len(vector), most):
                part = slice(start, start + most)
                left = max(limit - time.monotonic(), LEAST_SECONDS)
                worker.allreduce(vector[part], out[part], left)

        self._guarded(run)

    def reduce(self, vector: Vector, out: Vector | None, op: OpName, root: int) -> None:
        """Combine the vectors of all ranks at the root."""
        self._exchange(Kind("reduce_scatter", vector.dtype, op), "reduce", vector, root, out)

    def reduce_scatter(self, vector: Vector, out: Vector, op: OpName) -> None:
        """Combine vectors of N equal blocks; each rank gets its own."""
        self._exchange(Kind("reduce_scatter", vector.dtype, op), "reduce_scatter", vector, out)

    def broadcast(self, vector: Vector, root: int) -> None:
        """Write the root's vector over those of all others."""
        self._exchange(EVERYBODYS, "broadcast", vector, root)

    def all_gather(self, vector: Vector, out: Vector, counts: Sequence[int] | None = None) -> None:
        """Get the vectors of all ranks."""
        self._exchange(EVERYBODYS, "all_gather", vector, out, counts)

    def all_to_all(self, vector: Vector, out: Vector, counts: Counts | None = None) -> None:
        """Give a block to each rank and get one of each."""
        self._exchange(EACH_ONES, "all_to_all", vector, out, counts)

    def gather(self, vector: Vector, out: Vector | None, root: int) -> None:
        """Get equally long vectors of all ranks at the root."""
        self._exchange(EACH_ONES, "gather", vector, root, None, out)

    def scatter(self, vector: Vector | None, out: Vector, root: int) -> None:
        """Give each rank one of N equal blocks."""
        self._exchange(EACH_ONES, "scatter", vector, root, len(out), out)

    def close(self) -> None:
        """Leave all jobs; rank 0 gives their numbers back."""
        for worker in self._workers.values():
            worker.leave()
        self._workers.clear()
        if self.rank == 0:
            for number in self._taken:
                self._place.numbers.give_back(number)
        self._taken.clear()
        self._failure = MpiError("ERR_COMM", "this communicator has been freed; make another one")

    def _exchange(self, kind: Kind, method: str, *arguments: object) -> None:
        self._guarded(lambda: getattr(self._worker(kind), method)(*arguments))

    def _guarded(self, run: Callable[[], T]) -> T:
        """Run a collective; after a failure that leaves ranks apart, let nothing follow it.

        Raises:
            MpiError: a rank is lost, the switch does not answer, sizes differ.
        """
        if self._failure is not None:
            raise MpiError(
                "ERR_COMM",
                f"no collective can follow the failure of this communicator: {self._failure!r}",
            )
        try:
            with translated():
                return run()
        except (TypeError, ValueError):
            raise  # of arguments: nothing has been sent
        except BaseException as error:
            if not isinstance(error.__cause__, SizesDiffer):
                self._failure = error
            raise

    def _worker(self, kind: Kind) -> Worker | CollectiveWorker:
        """Return the worker of a kind; join its job, if it is the first time."""
        if kind not in self._workers:
            number = self._taken[0]
            if self._workers or kind != EVERYBODYS:
                number = self._agree()
            self._workers[kind] = self._join(kind, number)
        return self._workers[kind]

    def _agree(self) -> int:
        """Return a number for a job, which rank 0 has chosen; all ranks have come then."""
        told = np.array([self._place.numbers.take() if self.rank == 0 else 0], np.int64)
        worker = self._worker(EVERYBODYS)
        assert isinstance(worker, CollectiveWorker)
        worker.broadcast(told.view(np.uint8), 0)
        number = checked(int(told[0]))
        self._taken.append(number)
        return number

    def _join(self, kind: Kind, number: int) -> Worker | CollectiveWorker:
        blocks = {"allreduce": 1, "all_to_all": self.size**2}.get(kind.way, self.size)
        numel = max(CAPACITY // blocks, LEAST) // kind.dtype.itemsize
        place = self._place
        common: dict[str, Any] = {
            "rank": self.rank,
            "dtype": kind.dtype,
            "op": kind.op,
            "on_member_lost": "raise",
            "timeout": place.timeout,
            "key": place.key,
        }
        if kind.way == "allreduce":
            return Worker(place.switch, number, numel, self.size, shorter=True, **common)
        return CollectiveWorker(place.switch, number, kind.way, numel, self.size, **common)
