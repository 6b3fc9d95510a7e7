"""torch.distributed's gloo: a ring over TCP between the workers, no switch."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Self

from . import Vector

TIMEOUT = 30.0  # seconds


class Ring:
    """A member of torch's default process group."""

    def __init__(self, timeout: float) -> None:
        from torch import distributed

        self._distributed = distributed
        distributed.init_process_group("gloo", timeout=timedelta(seconds=timeout))
        self.rank = distributed.get_rank()
        self.num_workers = distributed.get_world_size()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._distributed.destroy_process_group()

    def allreduce(self, vector: Vector) -> Vector:
        """Add up, in the order in which the ring passes each part."""
        from torch import from_numpy

        self._distributed.all_reduce(from_numpy(vector))
        return vector

    def stats(self) -> dict[str, Any]:
        """Nothing."""
        return {}


def join(numel: int, *, timeout: float = TIMEOUT) -> Ring:  # noqa: ARG001
    """Join the group of MASTER_ADDR, MASTER_PORT, RANK and WORLD_SIZE.

    Across namespaces gloo has to be told the interface: GLOO_SOCKET_IFNAME.
    """
    return Ring(timeout)
