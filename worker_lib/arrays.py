"""Views vectors as NumPy arrays: arrays themselves, and PyTorch tensors on the CPU.

It does not import PyTorch: a caller with a tensor has imported it already.
"""

from __future__ import annotations

import functools
import math
import sys
from typing import Any, TypeVar

import numpy as np

from iswitch.core.format.wire import DType, Shape, Vector
from iswitch.ports.kernel.mmsg import address_of_writable

from . import arguments

V = TypeVar("V")  # an array, or a tensor on the CPU


def is_tensor(value: object) -> bool:
    """Return whether a value is a PyTorch tensor."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def as_array(name: str, value: Any) -> Vector:
    """View an array, or a PyTorch tensor on the CPU, as a NumPy array, without a copy.

    Raises:
        TypeError: the argument is neither.
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
    """Return the result as a tensor, without a copy, if `value` is one; else as it is."""
    if not is_tensor(value):
        return result
    torch = sys.modules["torch"]
    if result.dtype.name == "bfloat16":
        return torch.from_numpy(result.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(result)


def operands(vector: V, out: V | None, shape: Shape, shorter: bool) -> tuple[Vector, Vector, V]:
    """Check the arguments of an allreduce.

    Args:
        vector: vector to sum: `shape.numel` elements of the shape's dtype, in any shape.
        out: array or tensor of its shape for the result; None: make one.
        shape: layout of the worker's vectors.
        shorter: whether vectors may have fewer elements.

    Returns:
        the vector as an array, the result as an array, and the result in the caller's type.

    Raises:
        TypeError, ValueError: a dtype, size or memory layout is wrong.
        MemoryError: there is no memory for a result.
    """
    array = _checked("vector", vector, shape, shorter)
    if out is None:
        result = arguments.new_result(array.shape, _element_type(shape.dtype))
        out = like(vector, result)
    else:
        result = destination(out, shape, shorter)
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


def places(vector: object, out: object, dtype: np.dtype[Any], numel: int) -> tuple[int, int] | None:
    """Return the addresses of arrays that fit as they are; None: `operands` has to see.

    Args:
        vector: the vector to sum.
        out: what takes the result.
        dtype: of all elements.
        numel: their number.
    """
    try:
        if type(out) is not np.ndarray or out.dtype != dtype or out.size != numel:
            return None
        target = address_of_writable(out)
        if vector is out:
            return target, target
        if type(vector) is not np.ndarray or vector.dtype != dtype:
            return None
        source = address_of_writable(vector)
    except (TypeError, ValueError, BufferError):  # read-only, say, or not contiguous
        return None
    fits = vector.shape == out.shape and abs(source - target) >= out.nbytes
    return (source, target) if fits else None


def destination(out: Any, shape: Shape, shorter: bool) -> Vector:
    """View what takes a result as an array.

    Raises:
        TypeError, ValueError: its dtype, size or memory layout is wrong.
    """
    result = _checked("out", out, shape, shorter)
    if not (result.flags.c_contiguous and result.flags.writeable):
        raise ValueError("out must be writable and C-contiguous; leave it out for a new array")
    return result


@functools.cache
def _element_type(dtype: DType) -> np.dtype[Any]:
    """Return NumPy's dtype for an element type; cached, since every allreduce needs it."""
    return dtype.numpy


def _checked(name: str, given: Any, shape: Shape, shorter: bool) -> Vector:
    """View an argument as an array; refuse a wrong dtype or number of elements.

    Args:
        name: name of the argument.
        given: the array or tensor.
        shape: layout of the worker's vectors.
        shorter: whether vectors may have fewer elements.
    """
    array = typed(name, given, shape.dtype)
    least = 1 if shorter else shape.numel
    if not min(least, shape.numel) <= array.size <= shape.numel:
        size = f"{'1 to ' * shorter}{shape.numel}"
        if name != "out" and array.size:
            mend = f"make the Worker with numel={array.size}"
        else:
            mend = f"pass one of {size}"
        raise ValueError(
            f"{name} has {array.size} elements, this worker's vectors have {size}; {mend}"
        )
    return array


def typed(name: str, given: Any, element_type: DType) -> Vector:
    """View an argument as an array; refuse a wrong dtype.

    Args:
        name: name of the argument.
        given: the array or tensor.
        element_type: the worker's.
    """
    array, dtype = as_array(name, given), _element_type(element_type)
    if array.dtype != dtype:
        how = ".to(torch.{})" if is_tensor(given) else ".astype({})"
        mend = f"convert it with {how.format(dtype)}"
        if name == "out":
            mend = f"make it with np.empty(vector.shape, {dtype})"
        raise TypeError(
            f"{name} is {array.dtype}, this worker's dtype is {dtype}: {mend}, or make the Worker "
            "with another dtype"
        )
    return array


def writable(name: str, given: Any, element_type: DType) -> Vector:
    """View an argument into which a result is written as an array; refuse what cannot take it."""
    array = typed(name, given, element_type)
    if not (array.flags.c_contiguous and array.flags.writeable):
        other = "; leave it out for a new array" if name == "out" else ""
        raise ValueError(f"{name} must be writable and C-contiguous{other}")
    return array


def result(like_: Any, out: Any, shape: tuple[int, ...], element_type: DType) -> tuple[Vector, Any]:
    """Return an array for a result, and the result as the caller is to get it.

    Args:
        like_: an array or tensor; of its kind is a new result.
        out: the caller's array or tensor of as many elements; None: make a new one.
        shape: shape of a new one.
        element_type: the worker's.

    Raises:
        TypeError, ValueError: a dtype, size or memory layout is wrong.
        MemoryError: there is no memory for a new one.
    """
    if out is None:
        array = arguments.new_result(shape, _element_type(element_type))
        return array.reshape(-1), like(like_, array)
    array = writable("out", out, element_type)
    if array.size != (size := math.prod(shape)):
        raise ValueError(
            f"out has {array.size} elements, the result has {size}; pass one of {size}"
        )
    return array.reshape(-1), out


def _overlap(vector: Vector, out: Vector) -> bool:
    """Return whether two arrays may share memory and begin at different addresses."""
    if not vector.flags.c_contiguous:  # the vector is copied first
        return False
    if vector is out or not np.may_share_memory(vector, out):
        return False
    begin = vector.__array_interface__["data"][0] - out.__array_interface__["data"][0]
    return bool(begin)
