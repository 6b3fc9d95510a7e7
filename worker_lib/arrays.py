"""What a caller sums up, as NumPy arrays: arrays themselves, and tensors of PyTorch on the CPU.

PyTorch is not imported for it: who hands in a tensor has imported it.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from iswitch.core.format.wire import Vector


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
