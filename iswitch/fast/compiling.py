"""The decorator of kernels. Importing this module imports Numba: see `loading`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from numba import cfunc, njit

Function = TypeVar("Function", bound=Callable[..., object])


def kernel(signature: object) -> Callable[[Function], Function]:
    """Compile a function at once, for one signature, or take it from the cache.

    It runs without the interpreter's lock. Integers wrap, and division by zero follows IEEE 754.

    Args:
        signature: types of Numba, or their text, such as "int64(int64[::1])".
    """
    decorate: Callable[[Function], Function] = njit(
        signature, nogil=True, cache=True, error_model="numpy"
    )
    return decorate


def function(signature: object) -> Callable[[Function], Any]:
    """Compile a function at once, as `kernel` does, to be called by its `address`, as one of C is.

    It must raise nothing.
    """
    decorate: Callable[[Function], Any] = cfunc(signature, cache=True, error_model="numpy")
    return decorate


def inlined(function: Function) -> Function:
    """Make a function that kernels call; it is compiled as part of each of them."""
    made: Function = njit(function, nogil=True, error_model="numpy")
    return made
