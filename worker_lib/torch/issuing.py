"""Issues the collectives of a process group: stages the tensors, and has the switch combine them.

What does not fit the switch is left to the caller, `group.py`.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
from torch._C._distributed_c10d import ProcessGroup, ReduceOp

from iswitch.core.format.wire import DType
from worker_lib.arguments import OPS as SWITCH_OPS
from worker_lib.arguments import OpName

from .channels import BYTES_TO_ALL, BYTES_TO_EACH, Channels, Kind
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

Tensors = Sequence[torch.Tensor]


class Issuing(ProcessGroup):
    """A process group with a thread that does what is issued, in order.

    Args:
        channels: this process's workers at the switch.
        staged: stage all tensors, as tensors of a GPU are.
    """

    def __init__(self, channels: Channels, staged: bool) -> None:
        super().__init__(channels.rank, channels.size)  # type: ignore[call-arg]
        self.channels = channels
        self._staged = staged
        self._works = Works("iswitch")
        self._end = weakref.finalize(self, end, self._works, channels)  # also at exit

    def _allreduce(self, tensors: Tensors, opts: Any) -> Work | None:
        """Issue an all_reduce; None: the switch does not do it."""
        name = op_for(tensors, opts.reduceOp)
        if name is None:
            return None
        stage, seconds = self._stage(tensors), seconds_of(opts.timeout)

        def run() -> None:
            host = stage.load()
            self.channels.allreduce(elements(host), name, seconds)
            self._divide(host, opts)
            stage.store()

        return self._issue(run, tensors, tensors)

    def _reduce_scatter(
        self, outputs: Tensors, inputs: Tensors, opts: Any, blocks: int = 1
    ) -> Work | None:
        """Issue a reduce_scatter; None: the switch does not do it.

        Args:
            outputs: get this rank's block, one after the other.
            inputs: together the blocks of all ranks, once each is cut into `blocks` of its own.
            opts: operation and timeout.
            blocks: 1, or the number of ranks.
        """
        name = op_for([*outputs, *inputs], opts.reduceOp)
        fits = sum(t.numel() for t in inputs) == self.size() * sum(t.numel() for t in outputs)
        if name is None or not fits or (blocks > 1 and not self._are_n_fold(inputs, outputs)):
            return None
        given, got = self._stage(inputs, blocks), self._stage(outputs)
        seconds = seconds_of(opts.timeout)

        def run() -> None:
            vector, host = elements(given.load()), got.room()
            out = elements(host)
            self.channels.use(
                Kind("reduce_scatter", vector.dtype, name),
                lambda worker, left: worker.reduce_scatter(vector, out, timeout=left),
                seconds,
            )
            self._divide(host, opts)
            got.store()

        return self._issue(run, outputs, [*outputs, *inputs])

    def _gather_all(
        self,
        outputs: Tensors,
        inputs: Tensors,
        result: Any,
        opts: Any,
        counts: Sequence[int] | None = None,
        blocks: int = 1,
    ) -> Work:
        """Issue an all_gather.

        Args:
            outputs: together take what all ranks give, cut into `blocks` each.
            inputs: what this rank gives.
            result: result of the work.
            opts: timeout.
            counts: bytes that each rank gives; None: equally many.
            blocks: 1, or the number of ranks.
        """
        return self._move(
            BYTES_TO_ALL,
            lambda worker, data, out, left: worker.all_gather(data, out, counts, timeout=left),
            self._stage(inputs),
            self._stage(outputs, blocks),
            result,
            opts,
        )

    def _to_each(
        self, outputs: Tensors, inputs: Tensors, counts: Any, result: Any, opts: Any
    ) -> Work:
        """Issue an all_to_all; `counts`: elements for each rank, and from each."""
        size = inputs[0].element_size()
        in_bytes = [[n * size for n in those] for those in counts]
        return self._move(
            BYTES_TO_EACH,
            lambda worker, data, out, left: worker.all_to_all(data, out, in_bytes, timeout=left),
            self._stage(inputs),
            self._stage(outputs),
            result,
            opts,
        )

    def _move(
        self,
        kind: Kind,
        call: Callable[[Any, Any, Any, float], object],
        given: Stage | None,
        got: Stage | None,
        result: Any,
        opts: Any,
    ) -> Work:
        """Issue a collective that moves bytes.

        Args:
            kind: the job that does it.
            call: does it with the worker, the bytes to give, room for those to get, and seconds.
            given: what this rank gives; None: nothing.
            got: takes what it gets; None: nothing.
            result: result of the work.
            opts: timeout.
        """
        seconds = seconds_of(opts.timeout)

        def run() -> None:
            data = None if given is None else octets(given.load())
            out = None if got is None else octets(got.room())
            self.channels.use(kind, lambda worker, left: call(worker, data, out, left), seconds)
            if got is not None:
                got.store()

        tensors = [
            tensor for stage in (got, given) if stage is not None for tensor in stage.tensors
        ]
        return self._issue(run, result, tensors)

    def _is_row_of(self, row: Tensors, own: torch.Tensor) -> bool:
        """Return whether a root's tensors are one like `own` for each rank; others have none."""
        sizes = [tensor.numel() for tensor in row]
        return (not row or sizes == [own.numel()] * self.size()) and are_alike([*row, own])

    def _by_pairs(self, call: Any, outputs: Tensors, inputs: Tensors, opts: Any) -> Work:
        """Do a collective of gloo for each pair of tensors."""
        works = [call(*pair, opts) for pair in zip(outputs, inputs, strict=True)]

        def run() -> None:
            for work in works:
                work.wait()

        return self._issue(run, outputs, [*outputs, *inputs])

    def _are_n_fold(self, large: Tensors, small: Tensors) -> bool:
        """Return whether each tensor has N times the elements of its partner, and all are alike."""
        if len(large) != len(small) or not are_alike([*large, *small]):
            return False
        pairs = zip(large, small, strict=True)
        return all(n_fold.numel() == self.size() * one.numel() for n_fold, one in pairs)

    def _stage(self, tensors: Tensors, blocks: int = 1) -> Stage:
        return Stage(tensors, self._staged, blocks=blocks)

    def _divide(self, host: torch.Tensor, opts: Any) -> None:
        """Make an average of a sum, if it shall be one."""
        if opts.reduceOp == ReduceOp.AVG:
            host.div_(self.size())

    def _issue(self, run: Callable[[], None], result: Any, tensors: Tensors) -> Work:
        def turn() -> None:
            try:
                run()
            except BaseException as error:
                self.channels.fail(error)
                raise

        return self._works.issue(Work(turn, result, tensors, self.channels.whom))


def end(works: Works, channels: Channels) -> None:
    """Leave the switch; if a collective hangs, let the lease end the membership instead."""
    if works.stop(PATIENCE):
        channels.close()


def op_for(tensors: Tensors, op: Any) -> OpName | None:
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
    if name is None or not are_alike(tensors) or not dtypes <= ELEMENTS.keys():
        return None
    return name if SWITCH_OPS[name].takes(DType.of(ELEMENTS[dtypes.pop()])) else None


def are_alike(tensors: Tensors) -> bool:
    """Return whether tensors can travel as one vector: plain, of one dtype."""
    return len({tensor.dtype for tensor in tensors}) == 1 and all(map(is_plain, tensors))


def numels(tensor: torch.Tensor, splits: Sequence[int], size: int) -> list[int]:
    """Return how many elements of a tensor go to each of `size` ranks; []: it cannot be cut so.

    Args:
        tensor: the tensor.
        splits: rows for each rank; empty: equally many.
        size: number of ranks.
    """
    rows = len(tensor)
    splits = splits or [rows // size] * size
    if len(splits) != size or sum(splits) != rows:
        return []
    each = tensor.numel() // rows if rows else 0
    return [n * each for n in splits]


def seconds_of(timeout: timedelta) -> float | None:
    """Return a collective's timeout in seconds; None: use the group's."""
    seconds = timeout.total_seconds()
    return seconds if seconds > 0 else None
