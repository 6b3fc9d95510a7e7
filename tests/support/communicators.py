"""Ranks of worker_lib.mpi: threads of this process, each with a communicator of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

from worker_lib import mpi as MPI

PATIENCE = 60.0  # seconds until a test is given up
SPAN = 1000  # job numbers that the communicators of a test may take


class Ranks:
    """Communicators by rank, whose calls run side by side."""

    def __init__(self, comms: list[MPI.Intracomm]) -> None:
        self.comms = comms
        self._pool = ThreadPoolExecutor(len(comms))

    def run(self, call: Callable[[MPI.Intracomm], Any]) -> list[Any]:
        """Call a function with the communicator of each rank; results by rank."""
        waiting = [self._pool.submit(call, comm) for comm in self.comms]
        return [one.result(PATIENCE) for one in waiting]

    def close(self) -> None:
        self.run(lambda comm: comm.Free() if comm else None)
        self._pool.shutdown()


@contextmanager
def ranks(switch: tuple[str, int], job: int, size: int) -> Iterator[Ranks]:
    """Ranks of a run of its own at this switch; they leave at the end."""
    first = job * SPAN
    comms = [
        MPI.Intracomm.join(switch, first, rank, size, timeout=PATIENCE) for rank in range(size)
    ]
    made = Ranks(comms)
    try:
        yield made
    finally:
        made.close()
