"""Take vectors as NumPy arrays: arrays themselves, and tensors of PyTorch on the CPU.

PyTorch is not imported for it: who hands in a tensor has imported it.
"""

from __future__ import annotations

import functools
import sys
from typing import Any, TypeVar

import numpy as np

from iswitch.core.format.wire import DType, Shape, Vector

from . import arguments

V = TypeVar("V")  # an array, or a tensor on the CPU


def is_tensor(value: object) -> bool:
    """Whether it is a tensor of PyTorch."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def as_array(name: str, value: Any) -> Vector:
    """The elements of an array or of a tensor on the CPU: the same memory.

    Raises:
        TypeError: it is neither.
    """
    if isinstance(value, np.ndarray):
        return value
    if not is_tensor(value):
        kind = type(value).__name__
        raise TypeError(
            f"{name} must be a NumPy array or a tensor of PyTorch on the CPU, not {kind}"
        )
    if value.device.type != "cpu":
        raise TypeError(f"{name} is on {value.device}: pass {name}.cpu()")
    torch = sys.modules["torch"]
    tensor = value.detach()
    try:
        if tensor.dtype is torch.bfloat16:
            import ml_dtypes

            return np.asarray(tensor.view(torch.int16).numpy().view(ml_dtypes.bfloat16))
        return np.asarray(tensor.numpy())
    except (RuntimeError, TypeError) as error:  # sparse, quantized, of the conjugate, ...
        raise TypeError(f"{name} is no plain tensor: {error}") from None


def like(value: Any, result: Vector) -> Any:
    """The result as what was handed in is: a tensor, in the same memory, if that was one."""
    if not is_tensor(value):
        return result
    torch = sys.modules["torch"]
    if result.dtype.name == "bfloat16":
        return torch.from_numpy(result.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(result)


def operands(vector: V, out: V | None, shape: Shape, shorter: bool) -> tuple[Vector, Vector, V]:
    """Check what a caller hands in to an allreduce.

    Args:
        vector: to be summed: `shape.numel` elements of its dtype, in any shape.
        out: one like it for the result; None: make one.
        shape: of the worker's vectors.
        shorter: a vector may have fewer elements.

    Returns:
        the vector and the result as arrays, and the result as what the caller handed in.

    Raises:
        TypeError, ValueError: wrong dtype or size.
        MemoryError: there is none for a result.
    """
    array = _checked("vector", vector, shape, shorter)
    if out is None:
        result = arguments.new_result(array.shape, _element_type(shape.dtype))
        out = like(vector, result)
    else:
        result = _checked("out", out, shape, shorter)
    if not (result.flags.c_contiguous and result.flags.writeable):
        raise ValueError("out must be writable and C-contiguous; leave it out for a new array")
    if result.shape != array.shape:
        raise ValueError(
            f"out has shape {result.shape}, vector {array.shape}; out = out.reshape("
            f"{array.shape}) is a view that fits"
        )
    if _overlap(array, result):
        raise ValueError(
            "out lies over a part of vector; pass the vector itself, an array of its own, or none"
        )
    return array, result, out


@functools.cache
def _element_type(dtype: DType) -> np.dtype[Any]:
    """NumPy's type of elements; cached, for every allreduce looks at it."""
    return dtype.numpy


def _checked(name: str, given: Any, shape: Shape, shorter: bool) -> Vector:
    """View what is handed in as an array of the worker's elements."""
    array, dtype = as_array(name, given), _element_type(shape.dtype)
    if array.dtype != dtype:
        how = ".to(torch.{})" if is_tensor(given) else ".astype({})"
        mend = f"convert it with {how.format(dtype)}"
        if name == "out":
            mend = f"make it with np.empty(vector.shape, {dtype})"
        raise TypeError(
            f"{name} is {array.dtype}, this worker's dtype is {dtype}: {mend}, or make the Worker "
            "with another dtype"
        )
    least = 1 if shorter else shape.numel
    if not min(least, shape.numel) <= array.size <= shape.numel:
        raise ValueError(
            f"{name} has {array.size} elements, this worker's vectors have {shape.numel}; make the "
            f"Worker with numel={array.size}"
        )
    return array


def _overlap(vector: Vector, out: Vector) -> bool:
    """Whether two arrays share memory, and begin at different places."""
    if not vector.flags.c_contiguous:  # it is copied first
        return False
    if vector is out or not np.may_share_memory(vector, out):
        return False
    begin = vector.__array_interface__["data"][0] - out.__array_interface__["data"][0]
    return bool(begin)
