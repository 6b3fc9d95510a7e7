"""The base of strategies that bring their own connections."""

from __future__ import annotations

import shutil
from abc import ABC, abstractmethod
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any, Self

import numpy as np

from . import Vector

TIMEOUT = 30.0  # seconds
LEAST, MOST = 0.001, 1e6  # of them; the kernel takes 0 for no limit, and poll has 32 bits of ms
F32 = 4  # bytes


class Base(ABC):
    """A member of a group; `_close` parts from it.

    Args:
        rank: this worker's number.
        num_workers: how many there are.
        numel: elements of every vector.
    """

    def __init__(self, rank: int, num_workers: int, numel: int) -> None:
        self.rank = rank
        self.num_workers = num_workers
        self.numel = numel
        self.rounds = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @abstractmethod
    def close(self) -> None:
        """Leave the group."""

    @abstractmethod
    def allreduce(self, vector: Vector) -> Vector:
        """Add up the vectors of all workers, in place."""

    @abstractmethod
    def stats(self) -> dict[str, Any]:
        """Give its figures for a report."""

    def check(self, vector: Vector) -> None:
        """Whether a vector can be added up in place.

        Raises:
            ValueError: it cannot; the message names the mend.
        """
        if (
            not isinstance(vector, np.ndarray)
            or vector.dtype != np.float32
            or vector.shape != (self.numel,)
            or not vector.flags.c_contiguous
            or not vector.flags.writeable
        ):
            raise ValueError(
                f"the vector is {described(vector)}; pass a writeable contiguous array of float32 "
                f"[{self.numel}], as the group was made for"
            )


def check_timeout(timeout: float) -> float:
    """A timeout that sockets take, in seconds.

    Raises:
        ValueError: it is none; the message names the mend.
    """
    if not (isinstance(timeout, int | float) and LEAST <= timeout <= MOST):
        raise ValueError(f"timeout = {timeout!r}: pass seconds, {LEAST} to {MOST:.0f}")
    return timeout


def check_piece(piece: int) -> int:
    """How many elements of float32 there are in a piece of so many bytes.

    Raises:
        ValueError: none; the message names the mend.
    """
    if not (isinstance(piece, int) and piece >= F32):
        raise ValueError(f"piece = {piece!r}: pass a whole number of bytes, {F32} or more")
    return piece // F32


def lacking(name: str, packages: Sequence[str], programs: Sequence[str], mend: str) -> str:
    """What a strategy needs of these and is not here, with the mend; nothing if all is."""
    found = [package for package in packages if find_spec(package) is None]
    found += [program for program in programs if shutil.which(program) is None]
    return f"the strategy {name} needs {' and '.join(found)}: {mend}" if found else ""


def described(vector: object) -> str:
    """Put an argument into words."""
    if not isinstance(vector, np.ndarray):
        return f"a {type(vector).__name__}"
    layout = "" if vector.flags.c_contiguous else ", not contiguous"
    layout += "" if vector.flags.writeable else ", not writeable"
    return f"{vector.dtype} {list(vector.shape)}{layout}"


def bounds(numel: int, parts: int) -> list[int]:
    """Where so many parts begin and end, which differ by one element at most."""
    return [numel * part // parts for part in range(parts + 1)]


def pieces(start: int, stop: int, most: int) -> list[slice]:
    """A range of elements in pieces of at most so many."""
    return [slice(at, min(at + most, stop)) for at in range(start, stop, most)]
