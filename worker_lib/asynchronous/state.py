"""The arrays that updates of an asynchronous job change: what a worker knows, and gives to others.

Not locked: whoever reads or writes has to see to it that no update is under way.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from typing import Any

import numpy as np
import numpy.typing as npt


class State:
    """Weights first, then moments of the optimizer and so on; they are changed in place.

    Args:
        arrays: C-contiguous and writable, of any numbers.

    Raises:
        TypeError, ValueError: one of them cannot be; the message names it.
    """

    def __init__(self, arrays: Sequence[npt.NDArray[Any]]) -> None:
        self.arrays = list(arrays)
        for i, array in enumerate(self.arrays):
            if not isinstance(array, np.ndarray):
                raise TypeError(f"state[{i}] must be a NumPy array, not {type(array).__name__}")
            if not (array.flags.c_contiguous and array.flags.writeable):
                raise ValueError(f"state[{i}] must be writable and C-contiguous")
            if array.dtype.hasobject:
                raise TypeError(f"state[{i}] holds Python objects; numbers are wanted")
        self.nbytes = sum(array.nbytes for array in self.arrays)
        self.mark = 0  # another number for other contents

    def copy_to(self, arrays: Sequence[npt.NDArray[Any]]) -> None:
        """Copy the first arrays, as many as are given, of the same shapes and dtypes."""
        if len(arrays) > len(self.arrays):
            raise ValueError(f"the state has {len(self.arrays)} arrays, not {len(arrays)}")
        for ours, theirs in zip(self.arrays, arrays, strict=False):
            np.copyto(theirs, ours, casting="no")

    def touch(self) -> None:
        """Say that the arrays are about to be changed."""
        self.mark += 1

    def pack(self) -> bytearray:
        """All of it, array after array: one copy, and no other on the way."""
        packed, at = bytearray(self.nbytes), 0
        for array in self.arrays:
            whole = np.frombuffer(packed, np.uint8, array.nbytes, at)
            whole[:] = array.reshape(-1).view(np.uint8)
            at += array.nbytes
        return packed

    def unpack(self, packed: bytes | bytearray) -> None:
        """Take what `pack` gave elsewhere; as many bytes as this has."""
        self.touch()
        at = 0
        for array in self.arrays:
            flat = array.reshape(-1).view(np.uint8)
            flat[:] = np.frombuffer(packed, np.uint8, array.nbytes, at)
            at += array.nbytes

    def digest(self) -> str:
        """Equal for equal bits, 32 hexadecimal digits."""
        digest = blake2b(digest_size=16)
        for array in self.arrays:
            digest.update(array.reshape(-1).view(np.uint8).data)
        return digest.hexdigest()
