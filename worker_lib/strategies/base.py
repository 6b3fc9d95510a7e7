"""The base of all strategies, and functions that several of them need."""

from __future__ import annotations

import shutil
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from iswitch.virtual.process import called, computed
from worker_lib.closing import Closing

Vector: TypeAlias = NDArray[np.float32]

TIMEOUT = 30.0  # seconds
LEAST, MOST = 0.001, 1e6  # seconds: 0 would mean no limit to the kernel, poll has 32 bits of ms
F32 = 4  # bytes


class Strategy(Closing):
    """A member of a group of workers that sum vectors; use it in a `with` statement.

    Args:
        rank: this worker's number; sums with a fixed order of addition add in order of ranks.
        num_workers: number of workers in the group.
        numel: elements of every vector.

    Attributes:
        rounds: number of allreduces begun.
    """

    def __init__(self, rank: int, num_workers: int, numel: int) -> None:
        self.rank = rank
        self.num_workers = num_workers
        self.numel = numel
        self.rounds = 0

    @abstractmethod
    def allreduce(self, vector: Vector) -> Vector:
        """Sum the vectors of all workers; return the sum, equal to the bit on all workers.

        The sum is valid until the next call.

        Args:
            vector: float32 [numel]; may be overwritten with the sum.
        """

    @contextmanager
    def calling(self, vector: Vector) -> Iterator[None]:
        """Hold a round of this vector; in virtual time, charge the computing before it.

        Raises:
            ValueError: see `check`.
        """
        self.check(vector)
        computed()
        self.rounds += 1
        yield
        called()

    def stats(self) -> dict[str, Any]:
        """Return the strategy's counts, for a report: at least the number of `rounds`."""
        return {"rounds": self.rounds}

    def check(self, vector: Vector) -> None:
        """Refuse a vector that cannot be summed in place.

        Raises:
            ValueError: the vector has a wrong type, shape or layout; the message names the mend.
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
    """Return a timeout in seconds if sockets accept it.

    Raises:
        ValueError: the timeout is no number or out of range; the message names the mend.
    """
    if not (isinstance(timeout, int | float) and LEAST <= timeout <= MOST):
        raise ValueError(f"timeout = {timeout!r}: pass seconds, {LEAST} to {MOST:.0f}")
    return timeout


def check_piece(piece: int) -> int:
    """Return how many float32 elements fit in a piece of `piece` bytes.

    Raises:
        ValueError: not even one fits; the message names the mend.
    """
    if not (isinstance(piece, int) and piece >= F32):
        raise ValueError(f"piece = {piece!r}: pass a whole number of bytes, {F32} or more")
    return piece // F32


def lacking(name: str, packages: Sequence[str], programs: Sequence[str], mend: str) -> str:
    """Say which packages and programs a strategy lacks, and how to get them; "" if none.

    Args:
        name: name of the strategy.
        packages: Python packages that it needs.
        programs: programs that it needs on PATH.
        mend: how to install them, for the message.
    """
    found = [package for package in packages if find_spec(package) is None]
    found += [program for program in programs if shutil.which(program) is None]
    return f"the strategy {name} needs {' and '.join(found)}: {mend}" if found else ""


def described(vector: object) -> str:
    """Describe an argument for an error message: its type, shape and layout."""
    if not isinstance(vector, np.ndarray):
        return f"a {type(vector).__name__}"
    layout = "" if vector.flags.c_contiguous else ", not contiguous"
    layout += "" if vector.flags.writeable else ", not writeable"
    return f"{vector.dtype} {list(vector.shape)}{layout}"


def bounds(numel: int, parts: int) -> list[int]:
    """Return the parts + 1 bounds that split `numel` elements into parts of nearly equal size.

    The sizes differ by one element at most.
    """
    return [numel * part // parts for part in range(parts + 1)]


def pieces(start: int, stop: int, most: int) -> list[slice]:
    """Split elements start..stop-1 into slices of at most `most` elements."""
    return [slice(at, min(at + most, stop)) for at in range(start, stop, most)]
