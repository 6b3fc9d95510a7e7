"""Reads the buffers of upper-case calls, in the forms that mpi4py knows.

One block:      array, [array], [array, type], [array, count], [array, count, type],
                [array, (count, displacement), type]
Blocks of all:  array, [array, type], [array, counts, type], [array, (counts, displacements), type],
                [array, counts, displacements, type]

A type is a `Datatype` or a character of NumPy. Counts and displacements are in elements.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from iswitch.core.format.wire import Vector
from worker_lib import arrays

from .datatypes import BYTES, Datatype, datatype_of


class Place:
    """A value that stands for a place instead of a buffer."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return f"MPI.{self.name}"


IN_PLACE = Place("IN_PLACE")
BOTTOM = Place("BOTTOM")


def is_in_place(spec: object) -> bool:
    """Return whether a buffer is IN_PLACE, for which mpi4py takes None, too."""
    return spec is IN_PLACE or spec is None


@dataclass(frozen=True)
class Message:
    """Equal blocks of a buffer.

    Attributes:
        data: their elements, (blocks * count,), a view of the buffer.
        count: elements of a block.
        datatype: type of the elements.
    """

    data: Vector
    count: int
    datatype: Datatype

    @property
    def octets(self) -> Vector:
        """Return the bytes of the elements."""
        return self.data.view(np.uint8)


@dataclass(frozen=True)
class Parts:
    """Blocks of a buffer, one for each rank.

    Attributes:
        octets: the buffer's bytes.
        counts: bytes of each block.
        displs: where each begins, in bytes.
    """

    octets: Vector
    counts: list[int]
    displs: list[int]

    def is_packed(self) -> bool:
        """Return whether the blocks lie one after the other, from the first byte on."""
        return self.displs == _one_after_the_other(self.counts)

    def packed(self) -> Vector:
        """Return the bytes of all blocks, one after the other: a view if they lie so."""
        if self.is_packed():
            return self.octets[: sum(self.counts)]
        blocks = [self.block(rank) for rank in range(len(self.counts))]
        return np.concatenate(blocks) if blocks else self.octets[:0]

    def target(self) -> Vector:
        """Return where to receive the bytes of all blocks: a view if they lie so, or an array."""
        return self.packed() if self.is_packed() else np.empty(sum(self.counts), np.uint8)

    def store(self, target: Vector) -> None:
        """Write what has been received in `target` to the blocks."""
        if self.is_packed():
            return
        start = 0
        for rank, count in enumerate(self.counts):
            self.block(rank)[:] = target[start : start + count]
            start += count

    def block(self, rank: int) -> Vector:
        """Return the bytes of the block of a rank."""
        return self.octets[self.displs[rank] : self.displs[rank] + self.counts[rank]]


def message(name: str, spec: Any, blocks: int = 1, writable: bool = False) -> Message:
    """Read a buffer of equal blocks.

    Args:
        name: name of the argument.
        spec: the buffer, in one of the forms above.
        blocks: number of blocks.
        writable: whether results are written into it.

    Raises:
        TypeError, ValueError: it is no buffer, not contiguous, read-only, or too small.
    """
    data, counts, displs, datatype = _read(name, spec, writable)
    if isinstance(counts, tuple):
        counts, displs = counts
    start = 0 if displs is None else _whole(name, displs)
    elements = _elements(name, data, datatype)[start:]
    if counts is None:
        counts, rest = divmod(elements.size, blocks)
        if rest:
            raise ValueError(
                f"{name} has {elements.size} elements, which are no {blocks} equal blocks: pass "
                "one block for each rank, or use the variant whose name ends in v"
            )
    count = _whole(name, counts)
    if elements.size < count * blocks:
        raise ValueError(
            f"{name} has {elements.size} elements, and {blocks * count} are asked for: pass a "
            "larger buffer, or a smaller count"
        )
    return Message(elements[: count * blocks], count, datatype)


def check_alike(sent: Message, received: Message) -> None:
    """Check that two vectors of a reduction have equal sizes and types.

    Raises:
        ValueError: they differ.
    """
    if sent.datatype.numpy != received.datatype.numpy:
        raise ValueError(
            f"sendbuf is of {sent.datatype.name}, recvbuf of {received.datatype.name}: pass two "
            "arrays of one type"
        )
    if sent.count != received.count:
        raise ValueError(
            f"sendbuf has {sent.count} elements, recvbuf {received.count}: pass equally many, or "
            "say how many by [array, count, type]"
        )


def parts(name: str, spec: Any, size: int, writable: bool = False) -> Parts:
    """Read a buffer of a block for each rank, of any sizes; arguments as for `message`."""
    data, counts, displs, datatype = _read(name, spec, writable)
    if isinstance(counts, tuple):
        counts, displs = counts
    elements = _elements(name, data, datatype)
    if counts is None:
        share, more = divmod(elements.size, size)
        counts = [share + (rank < more) for rank in range(size)]
    sizes = _for_all(name, counts, size, "counts")
    if displs is None:
        starts = _one_after_the_other(sizes)
    elif _is_whole(displs):
        starts = [int(displs) * rank for rank in range(size)]
    else:
        starts = _for_all(name, displs, size, "displacements")
    extent = datatype.extent
    return _checked(
        name, data, [extent * count for count in sizes], [extent * start for start in starts]
    )


def typed_parts(name: str, spec: Any, size: int, writable: bool = False) -> Parts:
    """Read [array, (counts, displacements), types]: a type for each rank, displacements in bytes.

    [array, counts, displacements, types] is fine, too. Other arguments as for `message`.
    """
    match spec:
        case [buffer, (counts, displs), types] | [buffer, counts, displs, types]:
            pass
        case _:
            raise ValueError(f"{name}: pass [array, (counts, displacements in bytes), types]")
    kinds = [_datatype(name, one) for one in types]
    sizes = _for_all(name, counts, size, "counts")
    if len(kinds) != size:
        raise ValueError(f"{name} has {len(kinds)} types, for {size} ranks")
    octets = [kind.extent * count for kind, count in zip(kinds, sizes, strict=True)]
    starts = _for_all(name, displs, size, "displacements")
    return _checked(name, _octets(name, buffer, writable)[0], octets, starts)


def _checked(name: str, octets: Vector, counts: list[int], displs: list[int]) -> Parts:
    ends = [start + count for start, count in zip(displs, counts, strict=True) if count]
    if max(ends, default=0) > octets.size:
        raise ValueError(
            f"{name} has {octets.size} bytes, and its blocks end at byte {max(ends)}: pass a "
            "larger buffer, or smaller counts"
        )
    return Parts(octets, counts, displs)


def _one_after_the_other(counts: Sequence[int]) -> list[int]:
    return [sum(counts[:rank]) for rank in range(len(counts))]


def _read(name: str, spec: Any, writable: bool) -> tuple[Vector, Any, Any, Datatype]:
    """Return a buffer's bytes, its counts and displacements as given, and its type."""
    counts: Any = None
    displs: Any = None
    datatype: Any = None
    match spec if isinstance(spec, list | tuple) else [spec]:  # an array.array would match, too
        case [buffer]:
            pass
        case [buffer, Datatype() | str() as datatype]:
            pass
        case [buffer, counts]:
            pass
        case [buffer, counts, datatype]:
            pass
        case [buffer, counts, displs, datatype]:
            pass
        case _:
            raise ValueError(f"{name} is a list of {len(spec)}: pass [array, count, type]")
    octets, found = _octets(name, buffer, writable)
    kind = _datatype(name, found if datatype is None else datatype)
    return octets, counts, displs, kind


def _octets(name: str, buffer: Any, writable: bool) -> tuple[Vector, np.dtype[Any]]:
    """Return the bytes of a buffer as they lie in memory, and the dtype of its elements."""
    if buffer is None:
        return np.empty(0, np.uint8), BYTES.numpy
    array = _array(name, buffer)
    if array.dtype.hasobject:
        raise TypeError(f"{name} holds objects: use the lower-case call, which sends any object")
    if not array.flags.c_contiguous and array.flags.f_contiguous:
        array = array.T
    if not array.flags.c_contiguous:
        raise ValueError(f"{name} is not contiguous: pass np.ascontiguousarray({name})")
    if writable and not array.flags.writeable:
        raise ValueError(f"{name} is read-only: pass an array that can take the result")
    return array.reshape(-1).view(np.uint8), array.dtype


def _array(name: str, buffer: Any) -> Vector:
    """View anything with a buffer as an array, without a copy."""
    if isinstance(buffer, np.ndarray):
        return buffer
    if arrays.is_tensor(buffer):
        return arrays.as_array(name, buffer)
    try:
        return np.asarray(memoryview(buffer))
    except (TypeError, ValueError, NotImplementedError):
        pass
    if hasattr(buffer, "__dlpack__"):
        return np.from_dlpack(buffer)
    raise TypeError(
        f"{name} must be an array in this host's memory, or a list such as [array, count, type], "
        f"not {type(buffer).__name__}; the lower-case calls take any object"
    )


def _elements(name: str, octets: Vector, datatype: Datatype) -> Vector:
    if octets.size % datatype.extent:
        raise ValueError(
            f"{name} has {octets.size} bytes, which are no whole number of {datatype.name} "
            f"({datatype.extent} bytes): pass another type or array"
        )
    return octets.view(datatype.numpy)


def _datatype(name: str, kind: Any) -> Datatype:
    if isinstance(kind, Datatype):
        return kind
    if isinstance(kind, str):
        return Datatype.fromcode(kind)
    if isinstance(kind, np.dtype):
        return datatype_of(kind)
    raise TypeError(f"{name}: {kind!r} is no datatype; pass one such as MPI.FLOAT")


def _is_whole(value: Any) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def _whole(name: str, value: Any) -> int:
    if not _is_whole(value) or value < 0:
        raise ValueError(f"{name}: {value!r} is no count; pass a number of elements, 0 or more")
    return int(value)


def _for_all(name: str, values: Any, size: int, what: str) -> list[int]:
    """Return a number for each rank, from a list or from one number for all."""
    numbers = [values] * size if _is_whole(values) else list(values)
    if len(numbers) != size:
        raise ValueError(f"{name} has {len(numbers)} {what}, for {size} ranks")
    return [_whole(name, number) for number in numbers]
