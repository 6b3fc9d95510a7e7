"""Functions of the C library for kernels, as symbols: Numba can keep these on disk, no pointers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import carray, types
from numba.core import cgutils
from numba.extending import intrinsic

from .compiling import inlined
from .tables import SECOND

EINTR, EAGAIN = 4, 11
MSG_DONTWAIT = 0x40
MONOTONIC = 1  # of the clocks
F_SETFL, O_NONBLOCK = 4, 0o4000

_int, _uint, _address = types.int32, types.uint32, types.uintp

recvmmsg: Callable[[int, int, int, int, int], int] = types.ExternalFunction(
    "recvmmsg", _int(_int, _address, _uint, _int, _address)
)
sendmmsg: Callable[[int, int, int, int], int] = types.ExternalFunction(
    "sendmmsg", _int(_int, _address, _uint, _int)
)
ppoll: Callable[[int, int, int, int], int] = types.ExternalFunction(
    "ppoll", _int(_address, _address, _address, _address)
)
memmove: Callable[[int, int, int], int] = types.ExternalFunction(
    "memmove", _address(_address, _address, _address)
)
memcmp: Callable[[int, int, int], int] = types.ExternalFunction(
    "memcmp", _int(_address, _address, _address)
)
clock_gettime: Callable[[int, int], int] = types.ExternalFunction(
    "clock_gettime", _int(_int, _address)
)
fcntl: Callable[[int, int, int], int] = types.ExternalFunction("fcntl", _int(_int, _int, _address))
epoll_wait: Callable[[int, int, int, int], int] = types.ExternalFunction(
    "epoll_wait", _int(_int, _address, _int, _int)
)
read: Callable[[int, int, int], int] = types.ExternalFunction(
    "read", _address(_int, _address, _address)
)
write: Callable[[int, int, int], int] = types.ExternalFunction(
    "write", _address(_int, _address, _address)
)
sched_yield: Callable[[], int] = types.ExternalFunction("sched_yield", _int())
errno_location: Callable[[], int] = types.ExternalFunction("__errno_location", _address())


def _loader(kind: Any) -> Any:
    @intrinsic  # type: ignore[untyped-decorator,unused-ignore]
    def load(typing_context: Any, address: Any) -> Any:  # noqa: ARG001
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            pointer = context.get_value_type(signature.return_type).as_pointer()
            return builder.load(builder.inttoptr(arguments[0], pointer))

        return kind(types.uintp), generate

    return load


def _pointer(kind: Any) -> Any:
    @intrinsic  # type: ignore[untyped-decorator,unused-ignore]
    def convert(typing_context: Any, address: Any) -> Any:  # noqa: ARG001
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            return builder.inttoptr(arguments[0], context.get_value_type(signature.return_type))

        return types.CPointer(kind)(types.int64), generate

    return convert


@intrinsic  # type: ignore[untyped-decorator,unused-ignore]
def load_acquire(typing_context: Any, address: Any) -> Any:  # noqa: ARG001
    """Load the int64 at an address, once, and before all loads that follow."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer = context.get_value_type(signature.return_type).as_pointer()
        return builder.load_atomic(builder.inttoptr(arguments[0], pointer), "acquire", 8)

    return types.int64(types.int64), generate


@intrinsic  # type: ignore[untyped-decorator,unused-ignore]
def store_release(typing_context: Any, address: Any, value: Any) -> Any:  # noqa: ARG001
    """Store an int64 at an address, after all loads and stores before it."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer = context.get_value_type(signature.args[1]).as_pointer()
        place = builder.inttoptr(arguments[0], pointer)
        builder.store_atomic(arguments[1], place, "release", 8)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), generate


@intrinsic  # type: ignore[untyped-decorator,unused-ignore]
def fence(typing_context: Any) -> Any:  # noqa: ARG001
    """Finish all stores before any later load."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:  # noqa: ARG001
        builder.fence("seq_cst")
        return context.get_dummy_value()

    return types.void(), generate


@intrinsic  # type: ignore[untyped-decorator,unused-ignore]
def call_at(typing_context: Any, address: Any, arguments: Any) -> Any:  # noqa: ARG001
    """Call the function of C at an address, with a tuple of int64; return its int32."""

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:  # noqa: ARG001
        given = cgutils.unpack_tuple(builder, values[1])
        kind = ir.FunctionType(ir.IntType(32), [one.type for one in given])
        return builder.call(builder.inttoptr(values[0], kind.as_pointer()), given)

    return types.int32(types.int64, arguments), generate


load32: Callable[[int], int] = _loader(types.int32)
"""The int32 at an address: `load32(errno_location())` is errno."""

as_u8, as_u16, as_u32, as_i64 = map(
    _pointer, (types.uint8, types.uint16, types.uint32, types.int64)
)
as_i32, as_f32, as_f64 = map(_pointer, (types.int32, types.float32, types.float64))
"""Pointers to what lies at an address; `numba.carray(as_f32(address), n)` is an array of it."""


@inlined
def sum_of(address: int, size: int) -> int:
    """Add 16-bit words as they lie in memory, for a checksum; a last odd byte counts, too."""
    words = carray(as_u16(address), size >> 1)
    total = 0
    for i in range(len(words)):
        total += words[i]
    if size & 1:
        total += carray(as_u8(address + size - 1), 1)[0]
    return total


@inlined
def nanoseconds(place: int) -> int:
    """Return the monotonic time, which a struct timespec at `place` gets, too."""
    clock_gettime(MONOTONIC, place)
    time = carray(as_i64(place), 2)
    return int(time[0] * SECOND + time[1])
