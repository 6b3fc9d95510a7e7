"""The switch adds: every worker sends its vector once and receives the sum once.

Cost, for X bytes: 2 steps, up and down, and two more for each level of switches above the first.
Each worker sends X and receives X, plus 8 bytes for each segment of up to 1464 bytes. Each switch
sends and receives as much on the link to its parent.
"""

from __future__ import annotations

from typing import Any

from iswitch.core.format.wire import SEG_SIZE, DType, Op, Shape
from worker_lib.worker import Worker

from .base import TIMEOUT, Strategy, Vector, check_timeout
from .cost import Cost, Node


class Switched(Strategy):
    """A member of a switch's job; wraps a `Worker`."""

    def __init__(self, worker: Worker, numel: int) -> None:
        assert worker.num_workers is not None
        super().__init__(worker.rank, worker.num_workers, numel)
        self.worker = worker

    def close(self) -> None:
        """Leave the job."""
        self.worker.close()

    def allreduce(self, vector: Vector) -> Vector:
        """Sum in place, in order of arrival, or in order of rank if the job is reproducible."""
        self.check(vector)
        self.rounds += 1
        return self.worker.allreduce(vector, out=vector)

    def stats(self) -> dict[str, Any]:
        """Return the worker's statistics, see `Worker.stats`."""
        return self.worker.stats()


def cost(numel: int, num_workers: int, levels: int = 1) -> Cost:
    """Return the cost of a float32 allreduce without packet loss.

    Args:
        numel: elements of the vector.
        num_workers: number of workers.
        levels: levels of switches.
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
        options: keyword arguments for `Worker.from_env`.
    """
    check_timeout(options.get("timeout", TIMEOUT))
    return Switched(Worker.from_env(numel, **options), numel)
