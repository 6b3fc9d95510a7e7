"""Strategies, the ways to sum the vectors of all workers, behind one interface.

    with make("iswitch", numel=1000) as strategy:
        strategy.allreduce(vector)

Each strategy reads its settings from the environment that `iswitch run` or torchrun sets.
"""

from __future__ import annotations

from importlib import import_module
from inspect import Parameter, signature
from typing import TYPE_CHECKING, Any, get_type_hints

from iswitch.virtual.sockets import refuse

if TYPE_CHECKING:
    from .base import Strategy

STRATEGIES = {
    "iswitch": "the switch adds",
    "ring": "a ring over TCP: scatter-reduce, then all-gather",
    "ps": "parameter servers: push and pull ranges of keys",
    "tree": "reduce and broadcast over packed spanning trees; needs networkx, SciPy",
    "mpi": "Open MPI over TCP, or shared memory (btl=shm); needs mpi4py and mpirun",
    "gloo": "torch.distributed's gloo; needs torch",
}

REAL_ONLY = ("mpi", "gloo")  # their sockets know no virtual time


def lacks(name: str) -> str:
    """Say what this machine lacks for a strategy, and how to get it; "" if nothing."""
    found: str = getattr(import_module(f".{name}", __name__), "lacks", str)()
    return found


def options(name: str) -> dict[str, Any]:
    """Return the options that `make` takes for a strategy: the type of each by its name."""
    from worker_lib.worker import Worker

    takes = import_module(f".{name}", __name__).join
    if any(one.kind is Parameter.VAR_KEYWORD for one in signature(takes).parameters.values()):
        takes = Worker.__init__
    types = get_type_hints(takes)
    found = signature(takes).parameters.values()
    return {one.name: types[one.name] for one in found if one.kind is Parameter.KEYWORD_ONLY}


def make(name: str, numel: int, **options: Any) -> Strategy:
    """Join the group of workers that the environment names.

    Args:
        name: one of STRATEGIES.
        numel: elements of every vector.
        options: `timeout` in seconds, and the strategy's own options.

    Raises:
        ValueError: there is no such strategy, or a variable is missing in the environment.
        OSError: it works in real time only, and this process is in virtual time.
    """
    if name not in STRATEGIES:
        raise ValueError(f"no strategy {name!r}; there are {', '.join(STRATEGIES)}")
    if name in REAL_ONLY:
        refuse(name)
    strategy: Strategy = import_module(f".{name}", __name__).join(numel, **options)
    return strategy
