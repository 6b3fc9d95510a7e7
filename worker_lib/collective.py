"""A worker of a job in which each rank gives and gets segments of its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from iswitch.core.format.wire import Mode, Vector
from worker_lib.protocol.own import Blocks

from . import arguments, arrays
from .exchanging import Exchanging
from .opening import Opening

Collective = Literal["reduce_scatter", "all_gather", "all_to_all"]
OFFERED: dict[Collective, tuple[str, ...]] = {
    "reduce_scatter": ("reduce_scatter", "reduce"),
    "all_gather": ("all_gather", "broadcast"),
    "all_to_all": ("all_to_all", "gather", "scatter"),
}


class CollectiveWorker(Exchanging):
    """A member of a job whose switch moves only what somebody needs.

    All workers call the same methods in the same order, each with vectors of the worker's dtype:
    NumPy arrays, or tensors of PyTorch on the CPU. Results are new ones of that kind, or `out`.
    Zero elements are fine. Calls from several threads take turns.

    Args:
        switch: (host, port) of the switch.
        job: the job's number, 0..65535, equal in all workers.
        collective: "reduce_scatter", for `reduce_scatter` and `reduce`; "all_gather", for
            `all_gather` and `broadcast`; or "all_to_all", for `all_to_all`, `gather` and `scatter`.
        numel: elements of a block, such as what a rank gets in a reduce_scatter. Longer blocks take
            several rounds, shorter ones only the packets that they fill.
        num_workers: the number of workers, which all must be there.
        rank: this worker's number in the job; None: the switch gives a free one.
        dtype: element type, as for `Worker`.
        op: what reduce_scatter and reduce do with the elements, as for `Worker`.
        reproducible: combine in rank order rather than in order of arrival.
        on_member_lost: when a worker leaves or dies: "wait" until another takes its place, or
            "raise" `MemberLost` in each of the others.
        timeout: seconds that joining, a request and a call may take, as for `Worker`.
        elements_per_segment: most elements of a packet; by default what an MTU of 1500 bytes takes,
            or the smaller MTU of the route.
        restart_safe: keep a copy of the last vector for a switch that loses its state.
        offload: use segmentation offload where the machine has it.
        bind: local (host, port).
        key: key of a keyed job, 1 to 64 bytes.

    Raises:
        SwitchUnreachable, BindError, Refused, TooFewWorkers: as for `Worker`.
        ValueError: an argument out of its range.
    """

    def __init__(  # noqa: PLR0913 (options that users set by name)
        self,
        switch: tuple[str, int],
        job: int,
        collective: Collective,
        numel: int,
        num_workers: int,
        *,
        rank: int | None = None,
        dtype: arguments.ElementType = np.float32,
        op: arguments.OpName = "sum",
        reproducible: bool = False,
        on_member_lost: Literal["wait", "raise"] = "wait",
        timeout: float = arguments.TIMEOUT,
        elements_per_segment: int | None = None,
        restart_safe: bool = True,
        offload: bool = True,
        bind: tuple[str, int] = ("0.0.0.0", 0),
        key: bytes | None = None,
    ) -> None:
        num_workers = arguments.num_workers(num_workers)
        elements = arguments.per_segment(elements_per_segment)
        opening = Opening(switch, job, num_workers, rank, timeout, bind, key, elements, offload)
        if not isinstance(collective, str) or collective not in OFFERED:
            raise ValueError(f"collective = {collective!r}: pass one of {', '.join(OFFERED)}")
        if on_member_lost not in ("wait", "raise"):
            raise ValueError(f"on_member_lost = {on_member_lost!r}: pass 'wait' or 'raise'")
        self.collective: Collective = collective
        self.reproducible = bool(reproducible)
        mode = Mode[collective.upper()]
        layout = arguments.layouts(numel, num_workers, mode, dtype, op)
        super().__init__(
            opening,
            layout(elements),
            layout,
            on_member_lost,
            reproducible=self.reproducible,
            restart_safe=bool(restart_safe),
        )

    # In a job of reduce_scatter

    def reduce_scatter(self, vector: Any, out: Any = None, timeout: float | None = None) -> Any:
        """Combine the vectors of all ranks, and return this rank's block of the result.

        Args:
            vector: equal blocks for the ranks, one after the other: (N * n,), or (N, n).
            out: takes the result.
            timeout: seconds; default: the worker's.

        Raises:
            TypeError, ValueError: wrong dtype, size, or collective.
            WorkerError: see `worker_lib.errors`; after an AllreduceTimeout, wait on by the same
                call with an equal vector.
        """
        array = self._given("reduce_scatter", vector)
        n = self._per_rank("vector", array)
        shape = array.shape[1:] if array.shape[:1] == (self._workers,) else (n,)
        flat, result = arrays.result(vector, out, shape, self.shape.dtype)
        gives = array.reshape(self._workers, n)
        self._exchange("reduce_scatter", gives, flat.reshape(1, n), [n] * self._workers, timeout)
        return result

    def reduce(self, vector: Any, root: int, out: Any = None, timeout: float | None = None) -> Any:
        """Combine the vectors of all ranks, and return the result at `root`; None elsewhere.

        Args:
            vector: equally many elements in all ranks, in any shape.
            root: rank that gets the result, equal in all ranks.
            out: takes the result, at `root`.
            timeout: seconds; default: the worker's.

        Raises: as for `reduce_scatter`.
        """
        array = self._given("reduce", vector)
        root = self._rank("root", root)
        empty = array[:0].reshape(-1)
        gives = [empty] * self._workers
        gives[root] = array.reshape(-1)
        flat, result = empty, None
        if self.rank == root:
            flat, result = arrays.result(vector, out, array.shape, self.shape.dtype)
        self._exchange(("reduce", root), gives, [flat], [array.size], timeout)
        return result

    # In a job of all_gather

    def all_gather(
        self,
        vector: Any,
        out: Any = None,
        counts: Sequence[int] | None = None,
        timeout: float | None = None,
    ) -> Any:
        """Return the vectors of all ranks: (N, n), or by `counts` one after the other.

        Args:
            vector: what this rank gives, in any shape.
            out: takes the result.
            counts: how many elements each rank gives, equal in all ranks; None: equally many.
            timeout: seconds; default: the worker's.

        Raises: as for `reduce_scatter`.
        """
        array = self._given("all_gather", vector)
        sizes = self._sizes("counts", counts, array.size)
        if counts is not None and sizes[self.rank] != array.size:
            raise ValueError(
                f"vector has {array.size} elements, and counts say {sizes[self.rank]} of rank "
                f"{self.rank}"
            )
        shape = (self._workers, *array.shape) if counts is None else (sum(sizes),)
        flat, result = arrays.result(vector, out, shape, self.shape.dtype)
        gives = array.reshape(1, -1)
        self._exchange("all_gather", gives, _parted(flat, sizes, counts is None), sizes, timeout)
        return result

    def broadcast(self, vector: Any, root: int, timeout: float | None = None) -> Any:
        """Write the vector of `root` over the vectors of all ranks; return `vector`.

        Args:
            vector: equally many elements in all ranks; writable and C-contiguous.
            root: rank whose vector all get, equal in all ranks.
            timeout: seconds; default: the worker's.

        Raises: as for `reduce_scatter`.
        """
        self._offers("broadcast")
        root = self._rank("root", root)
        flat = arrays.writable("vector", vector, self.shape.dtype).reshape(-1)
        gets = [flat[:0]] * self._workers
        gets[root] = flat
        gives = flat if self.rank == root else flat[:0]
        self._exchange(("broadcast", root), [gives], gets, [flat.size], timeout)
        return vector

    # In a job of all_to_all

    def all_to_all(
        self,
        vector: Any,
        out: Any = None,
        counts: tuple[Sequence[int], Sequence[int]] | None = None,
        timeout: float | None = None,
    ) -> Any:
        """Give each rank a block, and return those that all ranks give to this one.

        Args:
            vector: blocks for the ranks, one after the other: (N * n,), or (N, n).
            out: takes the result.
            counts: how many elements this rank sends to each rank, and receives from each; None:
                equally many.
            timeout: seconds; default: the worker's.

        Raises: as for `reduce_scatter`.
        """
        array = self._given("all_to_all", vector)
        if counts is None:
            n = self._per_rank("vector", array)
            flat, result = arrays.result(vector, out, array.shape, self.shape.dtype)
            blocks = array.reshape(self._workers, n), flat.reshape(self._workers, n)
            # Each rank gives such a row.
            self._exchange("all_to_all", *blocks, [n] * self._workers, timeout, times=self._workers)
            return result
        sent = self._sizes("counts[0]", counts[0], 0)
        received = self._sizes("counts[1]", counts[1], 0)
        self._check_sum("vector", array, sent)
        flat, result = arrays.result(vector, out, (sum(received),), self.shape.dtype)
        gives, gets = _parted(array.reshape(-1), sent), _parted(flat, received)
        self._exchange("all_to_all of counts", gives, gets, None, timeout)
        return result

    def gather(
        self,
        vector: Any,
        root: int,
        counts: Sequence[int] | None = None,
        out: Any = None,
        timeout: float | None = None,
    ) -> Any:
        """Return the vectors of all ranks at `root`, as `all_gather` does; None elsewhere.

        Args:
            vector: what this rank gives, in any shape.
            root: rank that gets the vectors, equal in all ranks.
            counts: how many elements each rank gives, equal in all ranks; None: equally many.
            out: takes the result, at `root`.
            timeout: seconds; default: the worker's.

        Raises: as for `reduce_scatter`.
        """
        array = self._given("gather", vector)
        root = self._rank("root", root)
        sizes = self._sizes("counts", counts, array.size)
        if sizes[self.rank] != array.size:
            raise ValueError(
                f"vector has {array.size} elements, and counts say {sizes[self.rank]} of rank "
                f"{self.rank}"
            )
        flat, result, got = array[:0].reshape(-1), None, [0] * self._workers
        if self.rank == root:
            shape = (self._workers, *array.shape) if counts is None else (sum(sizes),)
            flat, result = arrays.result(vector, out, shape, self.shape.dtype)
            got = sizes
        gives = [array[:0].reshape(-1)] * self._workers
        gives[root] = array.reshape(-1)
        self._exchange(("gather", root), gives, _parted(flat, got), sizes, timeout)
        return result

    def scatter(
        self,
        vector: Any,
        root: int,
        counts: Sequence[int] | int | None = None,
        out: Any = None,
        timeout: float | None = None,
    ) -> Any:
        """Give each rank a block of the vector of `root`, and return this rank's, (n,).

        Args:
            vector: at `root`, the blocks one after the other: (N * n,), or (N, n); elsewhere None.
            root: rank that gives the blocks, equal in all ranks.
            counts: how many elements each rank gets, or their number if all get equally many; equal
                in all ranks. None: the size of `out`, or at `root` its share of `vector`.
            out: takes the result.
            timeout: seconds; default: the worker's.

        Raises: as for `reduce_scatter`.
        """
        self._offers("scatter")
        root = self._rank("root", root)
        array: Vector = np.empty(0, self.shape.dtype.numpy)
        if self.rank == root:
            array = self._given("scatter", vector).reshape(-1)
        elif vector is not None:
            raise ValueError(f"vector: only root = {root} passes one, the others None")
        if counts is None and out is not None:
            counts = int(arrays.writable("out", out, self.shape.dtype).size)
        elif counts is None and self.rank == root:
            counts = self._per_rank("vector", array)
        if counts is None:
            raise ValueError("counts is missing: pass the elements of a block, or out")
        equal = counts if isinstance(counts, int) else 0
        sizes = self._sizes("counts", None if isinstance(counts, int) else counts, equal)
        if self.rank == root:
            self._check_sum("vector", array, sizes)
        like = out if vector is None else vector
        flat, result = arrays.result(like, out, (sizes[self.rank],), self.shape.dtype)
        given = sizes if self.rank == root else [0] * self._workers
        gets = [flat[:0]] * self._workers
        gets[root] = flat
        self._exchange(("scatter", root), _parted(array, given), gets, sizes, timeout)
        return result

    # What they have in common

    def stats(self) -> dict[str, Any]:
        """Return counts since the start, and the present state of timer and window.

        They are those of `Worker.stats`, but of calls: `calls`, and median and 99th percentile of
        `call` in seconds.
        """
        return {**super().stats(), **self._timing("calls", "call")}

    def _offers(self, method: str) -> None:
        """Check that the job's collective offers a method."""
        if method not in OFFERED[self.collective]:
            right = next(name for name, methods in OFFERED.items() if method in methods)
            raise ValueError(
                f"{method} in a job of {self.collective}: make a CollectiveWorker of another job "
                f"with collective={right!r}"
            )

    def _given(self, method: str, vector: Any) -> Vector:
        """Return the vector for a method as a C-contiguous array."""
        self._offers(method)
        return np.ascontiguousarray(arrays.typed("vector", vector, self.shape.dtype))

    def _rank(self, name: str, value: int) -> int:
        hint = f"ranks are 0..{self._workers - 1}"
        return arguments.whole(name, value, 0, self._workers - 1, hint)

    def _per_rank(self, name: str, array: Vector) -> int:
        """Return the elements of one of N equal blocks."""
        n, rest = divmod(array.size, self._workers)
        if rest:
            raise ValueError(
                f"{name} has {array.size} elements, which are no {self._workers} equal blocks"
            )
        return n

    def _sizes(self, name: str, counts: Sequence[int] | None, equal: int) -> list[int]:
        """Return the sizes of N blocks: those given, or all equal."""
        if counts is None:
            counts = [equal] * self._workers
        sizes = [arguments.whole(name, n, 0, 2**62, "pass 0 or more elements") for n in counts]
        if len(sizes) != self._workers:
            raise ValueError(f"{name} has {len(sizes)} numbers, for {self._workers} ranks")
        return sizes

    def _check_sum(self, name: str, array: Vector, sizes: Sequence[int]) -> None:
        if array.size != sum(sizes):
            raise ValueError(f"{name} has {array.size} elements, and counts add up to {sum(sizes)}")


def _parted(flat: Vector, sizes: Sequence[int], equal: bool = False) -> Blocks:
    """Cut an array into blocks of these sizes."""
    if equal:
        return flat.reshape(len(sizes), -1) if flat.size else flat.reshape(len(sizes), 0)
    stops = np.cumsum(sizes).tolist()
    return [flat[stop - size : stop] for size, stop in zip(sizes, stops, strict=True)]
