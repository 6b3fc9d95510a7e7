"""The decorator of kernels. Importing this module imports Numba: see `loading`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from numba import cfunc, njit, types
from numba.core import cgutils
from numba.extending import intrinsic

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


@intrinsic  # type: ignore[untyped-decorator,unused-ignore]
def unowned(typing_context: Any, tables: Any) -> Any:  # noqa: ARG001
    """View an array, or a tuple of arrays, that the caller of a kernel keeps.

    Numba counts who uses an array with every row that is taken of it, by an atomic instruction that
    waits for all stores before it. Of these views it counts nothing.
    """

    def view(context: Any, builder: Any, kind: Any, value: Any) -> Any:
        if isinstance(kind, types.BaseTuple):
            items = zip(kind, cgutils.unpack_tuple(builder, value), strict=True)
            views = [view(context, builder, *item) for item in items]
            return context.make_tuple(builder, kind, views)
        array = context.make_array(kind)(context, builder, value=value)
        array.meminfo = cgutils.get_null_value(array.meminfo.type)
        array.parent = cgutils.get_null_value(array.parent.type)
        return array._getvalue()

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return view(context, builder, signature.args[0], arguments[0])

    return tables(tables), generate
