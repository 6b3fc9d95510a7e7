"""Shows tensors as flat NumPy arrays: in their own memory if possible, else staged.

Tensors on a GPU are staged in pinned host memory, by a separate stream. On the CPU, several tensors
and non-contiguous ones are staged in ordinary memory, by the code for GPUs without a stream.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import torch

from worker_lib.arrays import as_array

Array = npt.NDArray[Any]

# Those that a switch combines, with what NumPy calls them.
ELEMENTS: dict[torch.dtype, np.dtype[Any]] = {
    torch.float32: np.dtype(np.float32),
    torch.float16: np.dtype(np.float16),
    torch.bfloat16: np.dtype(ml_dtypes.bfloat16),
    torch.float64: np.dtype(np.float64),
    torch.int32: np.dtype(np.int32),
    torch.int64: np.dtype(np.int64),
    torch.uint8: np.dtype(np.uint8),
    torch.bool: np.dtype(np.bool_),
}


def is_plain(tensor: torch.Tensor) -> bool:
    """Return whether the elements are contiguous in memory of the CPU or a CUDA device."""
    known = tensor.device.type in ("cpu", "cuda")
    return known and tensor.layout == torch.strided and not tensor.is_quantized


def elements(tensor: torch.Tensor) -> Array:
    """Return the elements of a contiguous CPU tensor of a type above, in its own memory."""
    return as_array("tensor", tensor).reshape(-1)


def octets(tensor: torch.Tensor) -> npt.NDArray[np.uint8]:
    """Return the bytes of a contiguous CPU tensor of any type, in its own memory."""
    return tensor.detach().reshape(-1).view(torch.uint8).numpy()


class Stage:
    """Some tensors of one dtype and device as a single contiguous one on the CPU, `host`.

    Each tensor is cut into equal blocks; the host tensor has the first block of each, then the
    second of each, and so on. A contiguous tensor on the CPU is its own stage, unless it is a view
    whose memory holds the conjugate or the negative of its elements. `load` and `store` copy all
    other tensors. Call them, and `room`, in the thread that communicates, and the constructor in
    the caller's: they wait for the work that the caller's stream has then.

    Args:
        tensors: tensors of one dtype and device.
        apart: stage even a tensor that could be its own stage.
        dtype: dtype of the host tensor, to which elements are rounded; None: that of the tensors.
        blocks: number of blocks of each tensor.
    """

    def __init__(
        self,
        tensors: Sequence[torch.Tensor],
        apart: bool = False,
        dtype: torch.dtype | None = None,
        blocks: int = 1,
    ) -> None:
        first = tensors[0]
        self.tensors = tensors
        self.dtype = dtype or first.dtype
        self._blocks = blocks
        self._event: torch.cuda.Event | None = None
        self._stream: torch.cuda.Stream | None = None
        if first.device.type == "cuda":
            self._event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._event.record(torch.cuda.current_stream(first.device))
        own = len(tensors) == 1 and first.is_contiguous() and first.device.type == "cpu"
        lazy = first.is_conj() or first.is_neg()
        self._own = own and not lazy and not apart and self.dtype is first.dtype

    def room(self) -> torch.Tensor:
        """Return the host tensor, flat, to be filled and then stored."""
        tensors = self.tensors
        if self._own:
            self.host = tensors[0].detach().reshape(-1)
            return self.host
        device = tensors[0].device
        count = sum(tensor.numel() for tensor in tensors)
        self.host = torch.empty(count, dtype=self.dtype, pin_memory=device.type == "cuda")
        if self._event is not None:
            self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
            self._stream.wait_event(self._event)
        return self.host

    def load(self) -> torch.Tensor:
        """Return the host tensor, flat, with the elements of all tensors."""
        host = self.room()
        if self._own:
            return host
        with torch.no_grad(), self._on_stream():
            for tensor, part in zip(self.tensors, self._parts(), strict=True):
                part.copy_(tensor.reshape(part.shape), non_blocking=True)
        self._finish()
        return host

    def store(self) -> None:
        """Write the host tensor's elements back into the tensors."""
        if self._own:
            return
        with torch.no_grad(), self._on_stream():
            for tensor, part in zip(self.tensors, self._parts(), strict=True):
                tensor.copy_(part.reshape(tensor.shape), non_blocking=True)
        self._finish()

    def _parts(self) -> Sequence[torch.Tensor]:
        """Return the part of the host tensor for each tensor, (blocks, elements)."""
        rows = self.host.view(self._blocks, len(self.host) // self._blocks)
        sizes = [tensor.numel() // self._blocks for tensor in self.tensors]
        return torch.split(rows, sizes, dim=1)

    def _on_stream(self) -> AbstractContextManager[Any]:
        return nullcontext() if self._stream is None else torch.cuda.stream(self._stream)

    def _finish(self) -> None:
        if self._stream is not None:
            self._stream.synchronize()
