"""Copies of bytes in compiled code, through the caches and past them.

A copy past the caches writes whole lines to memory without reading them first, and leaves in the
caches what lies there. It pays for lines that the caches of far cores hold, such as a ring's whose
reader is on another die (`records.show`), and for what is used again only after more has been
copied than the caches hold: where four workers share 32 MB of cache, the sum of a large vector and
the contribution that is kept in case the switch loses its own. A `fence` comes before others are
told of such a copy.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from iswitch.ports.rings.memory import LINE

from .compiling import inlined
from .libc import memmove

WORDS = LINE // 8


@intrinsic  # type: ignore[untyped-decorator,unused-ignore]
def copy_line(typing_context: Any, target: Any, source: Any) -> Any:  # noqa: ARG001
    """Copy a line from any address to one that is a multiple of LINE, past the caches.

    Later stores may be seen before it, unless a `fence` is between.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:  # noqa: ARG001
        pointer = ir.VectorType(ir.IntType(64), WORDS).as_pointer()
        target, source = (builder.inttoptr(argument, pointer) for argument in arguments)
        store = builder.store(builder.load(source, align=1), target, align=LINE)
        past = builder.module.add_metadata([ir.Constant(ir.IntType(32), 1)])
        store.set_metadata("nontemporal", past)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), generate


@inlined
def copy_lines(target: int, source: int, size: int, past: bool) -> None:
    """Copy bytes to an address that is a multiple of LINE; if `past`, lines go past the caches."""
    done = 0
    while past and done + LINE <= size:
        copy_line(target + done, source + done)
        done += LINE
    if done < size:
        memmove(target + done, source + done, size - done)


@inlined
def copy(target: Any, at: Any, source: Any, start: Any, size: Any) -> None:
    """Copy bytes between arrays of bytes; the first and the last one so that bounds are checked."""
    if size > 0:
        target[at] = source[start]
        target[at + size - 1] = source[start + size - 1]
        memmove(target.ctypes.data + at, source.ctypes.data + start, size)


@inlined
def copy_past(target: Any, at: Any, source: Any, start: Any, size: Any) -> None:
    """Copy bytes as `copy` does, whole lines past the caches, but the first and the last line."""
    if size <= 2 * LINE:
        copy(target, at, source, start, size)
        return
    to, from_ = target.ctypes.data + at, source.ctypes.data + start
    ahead = LINE - to % LINE
    copy(target, at, source, start, ahead)
    done = ahead
    while done + LINE < size:
        copy_line(to + done, from_ + done)
        done += LINE
    copy(target, at + done, source, start + done, size - done)


@inlined
def place(target: Any, at: Any, source: Any, start: Any, size: Any, past: Any) -> None:
    """Copy bytes as `copy_past` does if `past` says so, else as `copy`."""
    if past:
        copy_past(target, at, source, start, size)
    else:
        copy(target, at, source, start, size)
