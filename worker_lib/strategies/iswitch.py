"""The switch adds: every worker sends its vector once and receives the sum once.

Cost, for X bytes: 2 steps, up and down, and two more for each level of switches above the first.
Each worker sends X and receives X, plus 8 bytes for each segment of up to 1464 bytes. Each switch
sends and receives as much on the link to its parent.
"""

from __future__ import annotations

import os
from collections.abc import Collection
from typing import Any

from iswitch.core.format.division import divided
from iswitch.core.format.wire import SEG_SIZE, DType, Mode, Op, Shape
from worker_lib import environment
from worker_lib.closing import Closing
from worker_lib.collective import OFFERED, Collective, CollectiveWorker
from worker_lib.exchanging import FIRST
from worker_lib.worker import Worker

from .base import TIMEOUT, Strategy, Vector, check_timeout
from .collectives import IN_PLACE, ROOT
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


class SwitchedExchange(Closing):
    """A member of a switch's job of owned segments; wraps a `CollectiveWorker`."""

    def __init__(self, worker: CollectiveWorker) -> None:
        self.worker = worker
        self.rank = worker.rank

    def close(self) -> None:
        """Leave the job."""
        self.worker.close()

    def exchange(self, collective: str, vector: Vector, out: Vector) -> None:
        """Call a collective, see `Exchange`; it is one of those that the job is for."""
        worker = self.worker
        match collective:
            case "broadcast":
                worker.broadcast(vector, ROOT)
            case "reduce":
                worker.reduce(vector, ROOT, out=vector if worker.rank == ROOT else None)
            case "gather":
                worker.gather(vector, ROOT, out=out if worker.rank == ROOT else None)
            case "scatter":
                worker.scatter(vector if worker.rank == ROOT else None, ROOT, out=out)
            case "barrier":
                worker.all_gather(vector)
            case _:
                getattr(worker, collective)(vector, out=out)

    def stats(self) -> dict[str, Any]:
        """Return the worker's statistics, see `Worker.stats`."""
        return self.worker.stats()


def family(collective: str) -> Collective:
    """Return the collective of the job in which a collective is called."""
    if collective == "barrier":
        return "all_gather"  # of no elements
    return next(name for name, methods in OFFERED.items() if collective in methods)


def block(collective: str, numel: int, num_workers: int) -> int:
    """Return the elements of the job's blocks, so that a vector of `numel` takes one round."""
    if collective == "barrier":
        return 1
    return numel if collective in IN_PLACE else numel // num_workers


def carried(
    collective: str, numel: int, num_workers: int, below: Collection[int]
) -> tuple[list[int], list[int]]:
    """Return the data packets on a link of a collective, up and down, without packet loss.

    Args:
        collective: a name of `collectives.NEEDS`.
        numel: elements of the whole vector, a multiple of the number of workers.
        num_workers: number of workers.
        below: ranks of those workers that are below the link; of a worker's own link its rank.

    Returns:
        the bytes of UDP payload of each packet, up and down.
    """
    n = block(collective, numel, num_workers)
    mode = Mode[family(collective).upper()]
    shape = divided(n, num_workers, mode)
    per_block = -(-n // shape.elements)
    here, at_root = len(below), int(ROOT in below)
    up, down = {
        "reduce_scatter": (num_workers, here),
        "all_gather": (here, num_workers),
        "broadcast": (at_root, 1),
        "reduce": (1, at_root),
        "gather": (here, num_workers * at_root),
        "scatter": (num_workers * at_root, here),
        "all_to_all": (here * num_workers, num_workers * here),
        "barrier": (0, 0),
    }[collective]
    rounds = 1
    if mode is not Mode.REDUCE_SCATTER and per_block > FIRST // (num_workers * shape.packet_size):
        rounds = 2  # a small one first, see `CollectiveWorker`
    data = [[shape.packet_size] * (blocks * per_block) for blocks in (up, down)]
    closing = [shape.last_size] * rounds
    return data[0] + closing, data[1] + closing


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


def join_exchange(collective: str, numel: int, **options: Any) -> SwitchedExchange:
    """Join the job that the environment names, for a collective.

    Args:
        collective: a name of `collectives.NEEDS`.
        numel: elements of the whole vector, a multiple of the number of workers.
        options: keyword arguments for `CollectiveWorker.from_env`.
    """
    check_timeout(options.get("timeout", TIMEOUT))
    workers = environment.read(os.environ).num_workers
    n = max(1, block(collective, numel, workers))
    kind = family(collective)
    return SwitchedExchange(CollectiveWorker.from_env(n, collective=kind, **options))
