"""The switch adds: every worker sends its vector once, and gets the sum once.

Cost, for X bytes: 2 steps, up and down (two more for each level of switches above the first). Each
worker sends X and receives X, with 8 bytes for each segment of up to 1464; so does a switch to the
one above it.
"""

from __future__ import annotations

from typing import Any

from iswitch.core.format.wire import SEG_SIZE, DType, Op, Shape
from worker_lib.worker import Worker

from . import Vector
from .base import TIMEOUT, Base, check_timeout
from .cost import Cost, Node


class Switched(Base):
    """A member of a job of a switch."""

    def __init__(self, worker: Worker, numel: int) -> None:
        assert worker.num_workers is not None
        super().__init__(worker.rank, worker.num_workers, numel)
        self.worker = worker

    def close(self) -> None:
        """Leave the job."""
        self.worker.close()

    def allreduce(self, vector: Vector) -> Vector:
        """Add up, in order of arrival, or of rank if the job is reproducible."""
        self.check(vector)
        self.rounds += 1
        return self.worker.allreduce(vector, out=vector)

    def stats(self) -> dict[str, Any]:
        """The worker's."""
        return self.worker.stats()


def cost(numel: int, num_workers: int, levels: int = 1) -> Cost:
    """What an allreduce of float32 takes, if no packet is lost.

    Args:
        numel: elements.
        num_workers: that send.
        levels: of switches.
    """
    shape = Shape.of(numel, DType.FLOAT32, Op.SUM)
    size = shape.segments * SEG_SIZE + numel * shape.dtype.itemsize
    flows: dict[tuple[Node, Node], int] = {}
    for rank in range(num_workers):
        flows[rank, "switch"] = flows["switch", rank] = size
    return Cost(2 * levels, flows)


def join(numel: int, **options: Any) -> Switched:
    """Join the job that the environment names (`Worker.from_env`).

    Args:
        numel: elements of every vector.
        options: as of `Worker`.
    """
    check_timeout(options.get("timeout", TIMEOUT))
    return Switched(Worker.from_env(numel, **options), numel)
