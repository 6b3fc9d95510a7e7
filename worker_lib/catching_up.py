"""Gives all workers the state of the furthest one, through the switch itself.

First each worker writes its step to its own place of a common vector. Then the furthest worker
contributes its state, and the others contribute numbers that change nothing. Bytes travel as small
whole numbers, which every element type holds exactly. So the state arrives to the last bit, and
need not have the job's element type.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from iswitch.core.format.wire import MAX_MEMBERS, DType, Op, Shape

from . import arguments

if TYPE_CHECKING:
    from .worker import Worker

_RANKS = "ranks are 0..{} here; leave it out for worker.rank, or make the Worker with num_workers"

Units = npt.NDArray[np.unsignedinteger[Any]]


def catch_up(
    worker: Worker, arrays: Sequence[npt.NDArray[Any]], step: int, rank: int | None = None
) -> int:
    """Give all workers of a job the arrays of the furthest one.

    All workers must call it together, like `allreduce`: at the start, and after each reset of the
    job. If all workers are equally far, it takes one allreduce and copies nothing. Otherwise more
    allreduces carry the arrays, one or two bytes of them per element.

    Args:
        worker: a member of the job.
        arrays: the state (weights, moments of the optimizer, ...), C-contiguous; equally many bytes
            in all workers. They are written only when the whole state has arrived.
        step: how far this worker is, 0 for one that has only begun.
        rank: this worker's number among all; None: `worker.rank`.

    Returns:
        the step of the furthest worker, whose state the arrays now hold.

    Raises:
        JobReset: a worker was replaced meanwhile, and nothing was written. Call it again.
        ValueError: an argument is out of its range, two workers pass one rank, or the sizes of
            their states differ.
        WorkerError: `allreduce` failed in another way.
    """
    if not worker.shape.numel:
        raise ValueError("vectors of no elements carry nothing; make the Worker with numel > 0")
    rank = worker.rank if rank is None else rank
    rank = arguments.whole("rank", rank, 0, _places(worker) - 1, _RANKS.format(_places(worker) - 1))
    step = arguments.whole("step", step, 0, 2**62, "pass the steps that are done, 0 or more")
    for array in arrays:
        if not (array.flags.c_contiguous and array.flags.writeable):
            raise ValueError("arrays must be writable and C-contiguous")
    size = sum(array.nbytes for array in arrays)
    steps = _tell(worker, rank, step, size)
    furthest = max(steps.values())
    if min(steps.values()) == furthest:
        return furthest
    source = min(rank for rank, at in steps.items() if at == furthest)
    unit = _unit(worker)
    count = -(-size // unit.itemsize)
    ours = np.empty(0, unit)
    if rank == source:
        held = b"".join(array.tobytes() for array in arrays)
        ours = np.frombuffer(held.ljust(count * unit.itemsize, b"\0"), unit)
    state = _exchange(worker, ours, 0, count).astype(unit).view(np.uint8)
    for array in arrays:
        array.reshape(-1).view(np.uint8)[:] = state[: array.nbytes]
        state = state[array.nbytes :]
    return furthest


def _tell(worker: Worker, rank: int, step: int, size: int) -> dict[int, int]:
    """Exchange steps with all workers; return the step of each rank.

    Args:
        worker: a member of the job.
        rank: this worker's number.
        step: how far this worker is.
        size: bytes of its state, which must be equal in all workers.

    Raises:
        ValueError: two workers have one rank, or sizes differ.
    """
    if not _carries_numbers(worker.shape):
        raise ValueError(
            f"catch_up in a job of {worker.shape.op.label} of {worker.shape.dtype.label}: it needs "
            "sum, max or min of numbers; make a second Worker for it, of another job"
        )
    unit = _unit(worker)
    told = np.array([step, size], "<u8").view(unit)
    ours = np.concatenate([np.ones(1, unit), told])  # the one marks this rank as present
    count = _places(worker)
    places = _exchange(worker, ours, rank * len(ours), count * len(ours))
    places = places.reshape(count, -1)
    there = [r for r in range(count) if places[r, 0] != _neutral(worker)]
    if (places[there, 0] > 1).any():
        raise ValueError("two workers pass the same rank; leave it out, worker.rank is unique")
    values = {r: places[r, 1:].astype(unit).view("<u8").tolist() for r in there}
    if len({its_size for _, its_size in values.values()}) > 1:
        sizes = ", ".join(f"{its_size} at rank {r}" for r, (_, its_size) in values.items())
        raise ValueError(f"the arrays must have as many bytes in all workers; they have {sizes}")
    return {r: its_step for r, (its_step, _) in values.items()}


def _places(worker: Worker) -> int:
    """Return the number of ranks that have a place in the vector of steps."""
    return max(MAX_MEMBERS, worker.num_workers or 0)


def _exchange(worker: Worker, ours: Units, start: int, count: int) -> npt.NDArray[np.int64]:
    """Combine the numbers of all workers, each at its own places, by allreduce.

    Args:
        worker: a member of the job.
        ours: this worker's numbers; others contribute nothing at these places.
        start: place of the first of them.
        count: number of places.

    Returns:
        the numbers of all places, int64 [count].
    """
    dtype, numel = worker.shape.dtype.numpy, worker.shape.numel
    vectors = np.full(-(-count // numel) * numel, _neutral(worker), dtype)
    vectors[start : start + len(ours)] = ours
    for vector in vectors.reshape(-1, numel):
        worker.allreduce(vector, out=vector)
    return vectors[:count].astype(np.int64)


def _carries_numbers(shape: Shape) -> bool:
    """Return whether one worker's number survives a round in which all others send neutral ones."""
    numbers = not shape.dtype.is_pair and shape.dtype is not DType.BOOL
    return numbers and shape.op in (Op.SUM, Op.MAX, Op.MIN)


def _unit(worker: Worker) -> np.dtype[np.unsignedinteger[Any]]:
    """Return the largest unsigned dtype whose values the job's element type holds exactly."""
    return np.dtype("<u2" if worker.shape.dtype.itemsize >= 4 else "u1")


def _neutral(worker: Worker) -> int:
    """Return the number that changes no other when combined with it by the job's operation."""
    return int(np.iinfo(_unit(worker)).max) if worker.shape.op is Op.MIN else 0
