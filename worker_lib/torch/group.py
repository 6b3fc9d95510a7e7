"""A process group whose collectives the switch does; all else goes to gloo beside it.

    all_reduce, reduce,         sum, avg, product, max, min of floats; of integers and bool, too,
    reduce_scatter              but for avg; their bitwise and, or, xor
    broadcast, all_gather,      any type, to the last bit
    gather, scatter,
    all_to_all
    barrier                     a vector of one word

All collectives here run in one thread of the group, in the order in which they were issued. The
base class passes all else (point-to-point, other types and operations, ...) to the gloo group
registered in it, which connects on first use.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch
from torch._C._distributed_c10d import (
    AllgatherOptions,
    AllreduceCoalescedOptions,
    AllreduceOptions,
    AllToAllOptions,
    BarrierOptions,
    BroadcastOptions,
    GatherOptions,
    ProcessGroup,
    ReduceOptions,
    ReduceScatterOptions,
    ScatterOptions,
)

from iswitch.virtual.sockets import real_only

from .channels import BYTES_TO_ALL, BYTES_TO_EACH, Channels, Kind
from .issuing import Issuing, are_alike, numels, op_for, seconds_of
from .tensors import elements, octets


class SwitchGroup(Issuing):
    """The process group that `init_process_group("iswitch", ...)` makes.

    Args:
        channels: this process's workers at the switch.
        gloo: gloo group for what the switch does not do.
        staged: stage all tensors, as tensors of a GPU are.
    """

    def __init__(self, channels: Channels, gloo: Any, staged: bool = False) -> None:
        super().__init__(channels, staged)
        self._gloo: Any = real_only(gloo, "gloo")
        for device in ("cpu", "cuda"):
            self._register_backend(torch.device(device), ProcessGroup.BackendType.GLOO, gloo)

    def getBackendName(self) -> str:
        """Return the name under which the group is registered; C++ looks it up."""
        return "iswitch"

    def shutdown(self) -> None:
        """Finish issued collectives, then leave the switch; `destroy_process_group` calls this."""
        self._end()

    # Collectives of the switch. Of torch's overloads, those that its own functions call; some have
    # an older name beside the present one.

    def allreduce(self, tensors: Any, opts: Any = None) -> Any:  # type: ignore[override]
        """Combine tensors of all ranks, in place; those of one call travel as one vector."""
        opts = opts or AllreduceOptions()
        return self._allreduce(tensors, opts) or self._gloo.allreduce(tensors, opts)

    def allreduce_coalesced(self, tensors: Any, opts: Any = None) -> Any:
        """Combine tensors of all ranks, in place; they travel as one vector."""
        opts = opts or AllreduceCoalescedOptions()
        return self._allreduce(tensors, opts) or self._gloo.allreduce_coalesced(tensors, opts)

    def reduce(self, tensors: Any, opts: Any = None) -> Any:  # type: ignore[override]
        """Combine tensors of all ranks; only the root's are written to."""
        opts = opts or ReduceOptions()
        name = op_for(tensors, opts.reduceOp)
        if name is None:
            return self._gloo.reduce(tensors, opts)
        is_root, seconds = opts.rootRank == self.rank(), seconds_of(opts.timeout)
        stage = self._stage(tensors)

        def run() -> None:
            host = stage.load()
            vector = elements(host)
            out = vector if is_root else None
            self.channels.use(
                Kind("reduce_scatter", vector.dtype, name),
                lambda worker, left: worker.reduce(vector, opts.rootRank, out, timeout=left),
                seconds,
            )
            if is_root:
                self._divide(host, opts)
                stage.store()

        return self._issue(run, tensors, tensors)

    def reduce_scatter(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:  # type: ignore[override]
        """Combine lists of tensors, one for each rank; each rank gets its own."""
        opts = opts or ReduceScatterOptions()
        work = None
        if len(outputs) == 1 and all(t.numel() == outputs[0].numel() for t in inputs[0]):
            work = self._reduce_scatter(outputs, inputs[0], opts)
        return work or self._gloo.reduce_scatter(outputs, inputs, opts)

    def reduce_scatter_single(self, output: Any, input: Any, opts: Any = None) -> Any:
        """Combine tensors of equal blocks for the ranks; each rank gets its own block."""
        opts = opts or ReduceScatterOptions()
        work = self._reduce_scatter([output], [input], opts)
        return work or self._gloo._reduce_scatter_base(output, input, opts)

    _reduce_scatter_base = reduce_scatter_single  # type: ignore[assignment]

    def reduce_scatter_single_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        """Do `reduce_scatter_single` for several pairs of tensors, which travel as one vector."""
        opts = opts or ReduceScatterOptions()
        work = self._reduce_scatter(outputs, inputs, opts, blocks=self.size())
        return work or self._by_pairs(self._gloo._reduce_scatter_base, outputs, inputs, opts)

    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced  # type: ignore[assignment]

    def broadcast(self, tensors: Any, opts: Any = None) -> Any:  # type: ignore[override]
        """Give all ranks the root's tensors, to the last bit."""
        opts = opts or BroadcastOptions()
        if not are_alike(tensors):
            return self._gloo.broadcast(tensors, opts)
        stage, seconds = self._stage(tensors), seconds_of(opts.timeout)

        def run() -> None:
            data = octets(stage.load())
            self.channels.use(
                BYTES_TO_ALL,
                lambda worker, left: worker.broadcast(data, opts.rootRank, timeout=left),
                seconds,
            )
            stage.store()

        return self._issue(run, tensors, tensors)

    def allgather(self, output_tensors: Any, input_tensors: Any, opts: Any = None) -> Any:
        """Give all ranks the tensors of all, to the last bit; sizes may differ."""
        opts = opts or AllgatherOptions()
        (row,), (own,) = output_tensors, input_tensors
        fits = len(row) == self.size() and row[self.rank()].numel() == own.numel()
        if not (fits and are_alike([*row, own])):
            return self._gloo.allgather(output_tensors, input_tensors, opts)
        counts = [tensor.numel() * tensor.element_size() for tensor in row]
        return self._gather_all(row, [own], output_tensors, opts, counts=counts)

    def all_gather_single(self, output: Any, input: Any, opts: Any = None) -> Any:
        """Give all ranks the tensors of all, joined in one tensor, to the last bit."""
        opts = opts or AllgatherOptions()
        if not self._are_n_fold([output], [input]):
            return self._gloo._allgather_base(output, input, opts)
        return self._gather_all([output], [input], [output], opts)

    _allgather_base = all_gather_single

    def all_gather_single_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        """Do `all_gather_single` for several pairs of tensors, which travel as one vector."""
        opts = opts or AllgatherOptions()
        if not self._are_n_fold(outputs, inputs):
            return self._by_pairs(self._gloo._allgather_base, outputs, inputs, opts)
        return self._gather_all(outputs, inputs, outputs, opts, blocks=self.size())

    allgather_into_tensor_coalesced = all_gather_single_coalesced  # type: ignore[assignment]

    def allgather_coalesced(self, output_lists: Any, inputs: Any, opts: Any = None) -> Any:
        """Give all ranks the lists of tensors of all ranks, to the last bit."""
        opts = opts or AllgatherOptions()
        sizes = [tensor.numel() for tensor in inputs]
        fits = len(output_lists) == self.size() and all(
            [tensor.numel() for tensor in row] == sizes for row in output_lists
        )
        outputs = [tensor for row in output_lists for tensor in row]
        if not (fits and are_alike([*outputs, *inputs])):
            return self._gloo.allgather_coalesced(output_lists, inputs, opts)
        return self._gather_all(outputs, inputs, output_lists, opts)

    def gather(self, output_tensors: Any, input_tensors: Any, opts: Any = None) -> Any:  # type: ignore[override]
        """Give the root the tensors of all ranks, to the last bit."""
        opts = opts or GatherOptions()
        row = [tensor for part in output_tensors for tensor in part]
        (own,) = input_tensors
        if not self._is_row_of(row, own):
            return self._gloo.gather(output_tensors, input_tensors, opts)
        root = opts.rootRank
        return self._move(
            BYTES_TO_EACH,
            lambda worker, data, out, left: worker.gather(data, root, out=out, timeout=left),
            self._stage([own]),
            self._stage(row) if row else None,
            output_tensors,
            opts,
        )

    def scatter(self, output_tensors: Any, input_tensors: Any, opts: Any = None) -> Any:  # type: ignore[override]
        """Give each rank one of the root's tensors, to the last bit."""
        opts = opts or ScatterOptions()
        row = [tensor for part in input_tensors for tensor in part]
        (own,) = output_tensors
        if not self._is_row_of(row, own):
            return self._gloo.scatter(output_tensors, input_tensors, opts)
        root = opts.rootRank
        return self._move(
            BYTES_TO_EACH,
            lambda worker, data, out, left: worker.scatter(data, root, out=out, timeout=left),
            self._stage(row) if row else None,
            self._stage([own]),
            output_tensors,
            opts,
        )

    def alltoall(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        """Give each rank a tensor, and get one of each, to the last bit; sizes may differ."""
        opts = opts or AllToAllOptions()
        fits = len(outputs) == len(inputs) == self.size()
        if not (fits and are_alike([*outputs, *inputs])):
            return self._gloo.alltoall(outputs, inputs, opts)
        counts = [[t.numel() for t in inputs], [t.numel() for t in outputs]]
        return self._to_each(outputs, inputs, counts, outputs, opts)

    def all_to_all_single(
        self, output: Any, input: Any, output_splits: Any, input_splits: Any, opts: Any = None
    ) -> Any:
        """Give each rank a part of a tensor, by rows, and get one of each, to the last bit."""
        opts = opts or AllToAllOptions()
        counts = [
            numels(tensor, splits or [], self.size())
            for tensor, splits in ((input, input_splits), (output, output_splits))
        ]
        if not (all(counts) and are_alike([output, input])):
            splits = output_splits, input_splits
            return self._gloo.alltoall_base(output, input, *splits, opts)
        return self._to_each([output], [input], counts, [output], opts)

    alltoall_base = all_to_all_single  # type: ignore[assignment]

    def barrier(  # type: ignore[override]
        self, opts: Any = None, timeout: timedelta | None = None
    ) -> Any:
        """Wait until all ranks are here and all their earlier collectives at the switch are done.

        Collectives on gloo are not waited for, since C++ passes most of them there directly.
        """
        opts = opts or BarrierOptions()
        seconds = seconds_of(timeout or opts.timeout)
        return self._issue(lambda: self.channels.barrier(seconds), [], [])
