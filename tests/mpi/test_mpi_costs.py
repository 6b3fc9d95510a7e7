"""The table of docs/mpi.md: what each call sends and receives, by the workers' own counts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.conftest import Where
from tests.support.communicators import ranks
from worker_lib import mpi as MPI

N = 3
BLOCK = 120_000  # bytes of one of N blocks
X = N * BLOCK
ROOT = 1
VECTOR, EVERYBODYS = np.zeros(X, np.uint8), np.zeros(N * X, np.uint8)

Call = Callable[[MPI.Intracomm, Any, Any], None]
# What a rank sends and receives, in bytes: at the root, and elsewhere.
COSTS: dict[str, tuple[Call, tuple[int, int], tuple[int, int]]] = {
    "Allreduce": (lambda c, x, _: c.Allreduce(MPI.IN_PLACE, x), (X, X), (X, X)),
    "Reduce": (lambda c, x, y: c.Reduce(x, y[:X], root=ROOT), (X, X), (X, 0)),
    "Reduce_scatter_block": (
        lambda c, x, y: c.Reduce_scatter_block(x, y[:BLOCK]), (X, BLOCK), (X, BLOCK)
    ),
    "Reduce_scatter": (
        lambda c, x, y: c.Reduce_scatter(x, y[:X], [X // 2, X // 2, 0]),
        (N * X // 2, X // 2), (N * X // 2, X // 2),
    ),
    "Scan": (lambda c, x, y: c.Scan(x, y[:X]), (X, N * X), (X, N * X)),
    "Bcast": (lambda c, x, _: c.Bcast(x, ROOT), (X, X), (0, X)),
    "Allgatherv": (lambda c, x, y: c.Allgatherv(x, y), (X, N * X), (X, N * X)),
    "Gather": (lambda c, x, y: c.Gather(x, y, ROOT), (X, N * X), (X, 0)),
    "Gatherv": (lambda c, x, y: c.Gatherv(x, y, ROOT), (X, N * X), (X, 0)),
    "Scatter": (lambda c, x, y: c.Scatter(y, x, ROOT), (N * X, X), (0, X)),
    "Scatterv": (lambda c, x, y: c.Scatterv(y, x, ROOT), (N * X, X), (0, X)),
    "Alltoall": (lambda c, x, y: c.Alltoall(x, y[:X]), (X, X), (X, X)),
    "Barrier": (lambda c, *_: c.Barrier(), (0, 0), (0, 0)),
}  # fmt: skip


def counted(comm: MPI.Intracomm) -> np.ndarray:
    """Bytes that a communicator's workers have sent and received, repeated ones left out."""
    total = np.zeros(2, np.int64)
    for worker in comm._link.channels._workers.values():  # type: ignore[attr-defined]
        stats, shape = worker.stats(), worker.shape
        segments = np.array([stats["sent"], stats["received"]])
        total += segments * shape.elements * shape.dtype.itemsize
    return total


@pytest.mark.parametrize("name", COSTS)
def test_bytes(switch: Where, job: int, name: str) -> None:
    call, at_root, elsewhere = COSTS[name]

    def measure(comm: MPI.Intracomm) -> None:
        buffers = VECTOR.copy(), EVERYBODYS.copy()
        call(comm, *buffers)  # makes the workers
        before = counted(comm)
        call(comm, *buffers)
        found = counted(comm) - before
        right = np.array(at_root if comm.rank == ROOT else elsewhere)
        packets = 8 * 1464  # closing ones, and those that are not full
        assert (right <= found).all()
        assert (found <= 1.02 * right + packets).all()

    with ranks(switch, job, N) as team:
        team.run(measure)
