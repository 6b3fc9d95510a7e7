"""The state of an asynchronous worker: the arrays that updates change and that peers can take."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from hashlib import blake2b
from typing import Any

import numpy as np
import numpy.typing as npt


class State:
    """Holds the arrays, weights first, then optimizer moments and so on; changed in place.

    Whoever reads or changes the arrays or their version holds `lock`.

    Args:
        arrays: C-contiguous, writable NumPy arrays of any numeric dtype.
        check: keep a digest of every version.

    Attributes:
        lock: lock of the state; taken before the session's lock where both are needed.
        version: the version of the arrays; None: they have none yet.
        digests: checksums by version, if `check`.
        nbytes: size of all arrays together.
        mark: a number that differs between contents.

    Raises:
        TypeError, ValueError: an array is not of this kind; the message names it.
    """

    def __init__(self, arrays: Sequence[npt.NDArray[Any]], check: bool = False) -> None:
        self.lock = threading.RLock()
        self.version: int | None = None
        self.digests: dict[int, str] = {}
        self._check = check
        self.arrays = _listed("state", arrays)
        for i, array in enumerate(self.arrays):
            if not (array.flags.c_contiguous and array.flags.writeable):
                raise ValueError(f"state[{i}] must be writable and C-contiguous")
            if array.dtype.hasobject:
                raise TypeError(f"state[{i}] holds Python objects; numbers are wanted")
        self.nbytes = sum(array.nbytes for array in self.arrays)
        self.mark = 0

    def copy_to(self, arrays: Sequence[npt.NDArray[Any]]) -> None:
        """Copy the first arrays of the state to `arrays`, which have their shapes and dtypes.

        Raises:
            ValueError: there are more arrays than the state has, or a shape does not fit.
            TypeError: a dtype differs, or they are no arrays.
        """
        arrays = _listed("into", arrays)
        if len(arrays) > len(self.arrays):
            raise ValueError(f"the state has {len(self.arrays)} arrays, not {len(arrays)}")
        for ours, theirs in zip(self.arrays, arrays, strict=False):
            np.copyto(theirs, ours, casting="no")

    def touch(self) -> None:
        """Change the mark; call it before the arrays are changed."""
        self.mark += 1

    def reach(self, version: int) -> None:
        """Set the version that the arrays have now."""
        if self._check:
            self.digests[version] = self.digest()
        self.version = version

    def pack(self) -> bytearray:
        """Return the bytes of all arrays, one after the other, without another copy."""
        packed, at = bytearray(self.nbytes), 0
        for array in self.arrays:
            whole = np.frombuffer(packed, np.uint8, array.nbytes, at)
            whole[:] = array.reshape(-1).view(np.uint8)
            at += array.nbytes
        return packed

    def unpack(self, packed: bytes | bytearray) -> None:
        """Fill the arrays with bytes from another worker's `pack`, `nbytes` of them."""
        self.touch()
        at = 0
        for array in self.arrays:
            flat = array.reshape(-1).view(np.uint8)
            flat[:] = np.frombuffer(packed, np.uint8, array.nbytes, at)
            at += array.nbytes

    def digest(self) -> str:
        """Return a checksum of all bits, 32 hexadecimal digits."""
        digest = blake2b(digest_size=16)
        for array in self.arrays:
            digest.update(array.reshape(-1).view(np.uint8).data)
        return digest.hexdigest()


def _listed(name: str, arrays: object) -> list[npt.NDArray[Any]]:
    """Return arrays that a caller has given, as a list."""
    if not isinstance(arrays, list | tuple):
        kind = type(arrays).__name__
        raise TypeError(f"{name} must be a list of NumPy arrays, such as [weights], not {kind}")
    for i, array in enumerate(arrays):
        if not isinstance(array, np.ndarray):
            raise TypeError(f"{name}[{i}] must be a NumPy array, not {type(array).__name__}")
    return list(arrays)
