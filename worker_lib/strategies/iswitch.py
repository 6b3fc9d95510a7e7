"""The switch adds: every worker sends its vector once, and gets the sum once."""

from __future__ import annotations

import os
from typing import Any, Self

from ..client import Worker
from . import Vector


class Switched:
    """A member of a job of a switch."""

    def __init__(self, worker: Worker, rank: int) -> None:
        assert worker.num_workers is not None
        self.worker = worker
        self.rank = rank
        self.num_workers = worker.num_workers

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.worker.close()

    def allreduce(self, vector: Vector) -> Vector:
        """Add up, in order of arrival, or of rank if the job is reproducible."""
        return self.worker.allreduce(vector, out=vector)

    def stats(self) -> dict[str, Any]:
        """The worker's."""
        return self.worker.stats()


def join(numel: int, *, own_rank: bool = True, **options: Any) -> Switched:
    """Join the job that the environment names (`Worker.from_env`).

    Args:
        numel: elements of every vector.
        own_rank: number the workers by the switch, as is right for one switch: in a reproducible
            job it adds in that order. With switches above switches by RANK.
        options: as of `Worker`.
    """
    worker = Worker.from_env(numel, **options)
    return Switched(worker, worker.rank if own_rank else int(os.environ["RANK"]))
